use std::fmt;

use contiv_model::{
    key::{ENDPOINTS, POLICIES, endpoints_of, policies_of},
    name::{GroupKey, NetworkId},
};

/// A part of the state that snapshots replace as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// All keys with a prefix.
    Prefix(&'static str),
    /// Endpoints of a network.
    Endpoints(NetworkId),
    /// Policies of a group.
    Policies(GroupKey),
}

impl Source {
    /// Prefix of the keys.
    pub fn prefix(&self) -> &'static str {
        match self {
            Source::Prefix(prefix) => prefix,
            Source::Endpoints(_) => ENDPOINTS,
            Source::Policies(_) => POLICIES,
        }
    }
}

impl From<&'static str> for Source {
    fn from(prefix: &'static str) -> Source {
        Source::Prefix(prefix)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Prefix(prefix) => f.write_str(prefix),
            Source::Endpoints(network) => f.write_str(&endpoints_of(network)),
            Source::Policies(group) => f.write_str(&policies_of(group)),
        }
    }
}
