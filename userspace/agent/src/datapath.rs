//! The interface between the reconciler and the implementation that forwards packets on this node.
//!
//! A datapath receives complete objects of the domain model. It never reads the store, Kubernetes or the plan. Its state
//! can also be read back ([`Datapath::observe`]), so that recovery after a restart and the repair of drift use the same
//! code as an ordinary change.

mod announcement;
mod btf;
mod connection;
pub mod ebpf;
mod error;
pub mod fake;
pub mod host_access;
pub(crate) mod host_end;
mod object;
mod op;
pub mod ovs;
mod skb;
pub mod telemetry;
pub mod trace;
mod wire;

use contiv_model::mac::Mac;

pub use connection::{SequenceNumbers, TrackedConnection};
pub use error::{Error, Kind, Postponed, Unsupported};
pub use object::{
    Backend, Desired, Family, Gateway, Group, Local, Network, Object, ObjectId, ObjectKind, Owner, Peer,
    Remote, Route, RouteId, Scope, ScopeNetwork, Service, Subnet, SubnetId,
};
pub use op::{Datapath, FailedOp, Observed, Op, PortRequirements};

/// Interface of the node's kernel on the datapath. Routed VLAN networks send packets to it that are not for an endpoint
/// of the node. It exists while there are such networks.
pub const KERNEL_PORT: &str = "inb01";

/// Ethernet address of [`KERNEL_PORT`]. It is locally administered: an Open vSwitch bridge may adopt the address of a
/// port with another kind of address as its own, and it closes all connections when its address changes.
pub const KERNEL_MAC: Mac = Mac([0x02, 0, 0x11, 0x11, 0x11, 0x11]);
