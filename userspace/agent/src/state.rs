//! State of this node: the cluster's objects as reported by the sources, and the interfaces on this node.
//!
//! One [`Writer`] changes the state, many [`Reader`]s read it, and one [`Changes`] receives the dirty set. The cost of an
//! event is proportional to what it changes: indices find the other objects that it affects.

mod dirty;
mod fabric;
mod groups;
mod index;
mod interest;
mod members;
mod object;
mod overlaps;
mod rejected;
mod requests;
mod services;
mod shared;
mod snapshot;
mod source;
mod surroundings;
mod tags;
mod vrfs;
mod vteps;

pub use dirty::DirtySet;
pub use object::{Attachment, BgpSpeaker, ClusterObject};
pub use rejected::Rejected;
pub use shared::{Attacher, Changes, Needs, Reader, Request, Update, Writer, new};
pub use snapshot::State;
pub use source::Source;
pub use surroundings::Surroundings;
pub use vteps::Vtep;
