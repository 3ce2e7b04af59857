//! The interface between the reconciler and whatever forwards packets on this node.
//!
//! A datapath receives complete objects in terms of the domain. It never reads the store, Kubernetes or the plan.
//! It can also be read back ([`Datapath::observe`]), so recovery after a restart and the repair of drift use the same
//! code as an ordinary change.

mod announcement;
pub mod ebpf;
mod error;
pub mod fake;
mod object;
mod op;
pub mod ovs;
pub mod telemetry;
pub mod trace;

pub use error::{Error, Kind, Unsupported};
pub use object::{
    Backend, Desired, Family, Gateway, Group, Local, Network, Object, ObjectId, ObjectKind, Owner, Peer,
    Remote, Route, RouteId, Scope, ScopeNetwork, Service, Subnet, SubnetId,
};
pub use op::{Datapath, FailedOp, Observed, Op, PortRequirements};
