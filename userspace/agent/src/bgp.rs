//! The BGP speaker of this node (INVENTORY 5.5).
//!
//! In forward mode `routing` the node announces the addresses of its endpoints on VLAN networks to its leaf switch, with the
//! router IP of its `Bgp` object as next hop. The session follows the object: it starts and ends with it, and restarts when
//! it changes. If the agent stops, the leaf keeps the routes for the time of a graceful restart, because the switch of this
//! node continues to forward. An agent that starts while the store is away, or has lost its data, announces what the node announced
//! before, see [`SpeakerFile`].

mod announced;
mod file;
mod inspect;
mod publication;
mod report;
mod task;

pub use file::SpeakerFile;
pub use inspect::inspect;
pub use publication::publish;
pub use report::{Report, Running};
pub use task::{Followed, Task};
