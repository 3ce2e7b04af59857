//! Interfaces of endpoints, managed over netlink.
//!
//! The host end of a veth pair, `vvport<N>`, is in the node's network namespace; the other end is created in the pod's. The
//! host end has the endpoint's id as its alias, so the kernel stores the attachments: a restarted agent reads them back,
//! and no file can be incomplete.

mod connections;
mod dump;
mod error;
mod interface;
mod links;
mod netns;
mod pod_end;
mod port;
mod query;
mod traffic;
mod underlay;

pub use connections::forget_connections;
pub use error::Error;
pub use interface::{AttachedPort, DefaultRoutes, ExpectedLink, PodInterface};
pub use links::Links;
pub use netns::Netns;
pub use port::Port;
pub use traffic::{PodTraffic, TrafficReader};
pub use underlay::Underlay;
