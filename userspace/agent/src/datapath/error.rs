use std::fmt;

use super::object::Object;

/// An operation of a datapath failed.
#[derive(Debug, thiserror::Error)]
#[error("{datapath} datapath: {operation}")]
pub struct Error {
    /// Datapath that reports the error.
    pub datapath: Kind,
    /// Operation and object, e.g. `set network n.t`.
    pub operation: String,
    /// Cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

/// Nothing is changed: the state belongs to another version, and this version would not contain the retained part of it.
/// The error ends with the first [`observe`](super::Datapath::observe) without retained orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("postponed, and nothing is changed meanwhile")]
pub struct Postponed;

/// The datapath does not implement what the object requests; a retry cannot succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// The kind of object is not supported.
    #[error("not supported by this datapath yet")]
    Object,
    /// The value of a field is not supported.
    #[error("{field}: not supported by this datapath yet; use {accepted}")]
    Value {
        /// Field of the object.
        field: &'static str,
        /// Values that are supported.
        accepted: &'static str,
    },
}

impl Unsupported {
    /// Several addresses of one family, or none of IPv4.
    pub const ADDRESSES: Unsupported =
        Unsupported::Value { field: "addresses", accepted: "one IPv4 address and at most one IPv6 address" };
    /// The next hop is not that of the network: see [`NextHop::is_on`](contiv_model::route::NextHop::is_on).
    pub const NEXT_HOP: Unsupported = Unsupported::Value {
        field: "next hop",
        accepted: "a VTEP with the network's VNI, or any uplink with the network's VLAN",
    };
    /// The node is the gateway, with another Ethernet address.
    pub const ROUTER: Unsupported =
        Unsupported::Value { field: "gateway", accepted: "the Ethernet address 00:00:11:11:11:11" };
}

impl Error {
    /// Returns an error for an `object` that `datapath` does not implement, or whose values it does not support.
    pub fn unsupported(datapath: Kind, object: &Object, unsupported: Unsupported) -> Self {
        Error::new(datapath, format!("set {}", object.id()), unsupported)
    }

    /// Whether the cause is [`Unsupported`].
    pub fn is_unsupported(&self) -> bool {
        self.source.is::<Unsupported>()
    }

    /// Whether the cause is [`Postponed`].
    pub fn is_postponed(&self) -> bool {
        self.source.is::<Postponed>()
    }

    /// An error of `operation`, caused by `source`.
    pub fn new(
        datapath: Kind,
        operation: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Error { datapath, operation: operation.into(), source: source.into() }
    }
}

/// Implementations of the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Open vSwitch.
    Ovs,
    /// TC and XDP programs.
    Ebpf,
    /// In-memory datapath for tests.
    Fake,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Ovs => "ovs",
            Kind::Ebpf => "ebpf",
            Kind::Fake => "fake",
        })
    }
}
