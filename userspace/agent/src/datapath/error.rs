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

/// The datapath does not implement the requested feature; a retry cannot succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not supported by this datapath yet")]
pub struct Unsupported;

impl Error {
    /// An error for an `object` that `datapath` does not implement.
    pub fn unsupported(datapath: Kind, object: &Object) -> Self {
        Error::new(datapath, format!("set {}", object.id()), Unsupported)
    }

    /// Whether the cause is [`Unsupported`].
    pub fn is_unsupported(&self) -> bool {
        self.source.is::<Unsupported>()
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
