use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
};

use contiv_model::{name::HostName, node};

/// The store lacks data that the agent has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regression {
    /// Unique id of the regression. An operator's acceptance applies only to this one.
    pub id: String,
    /// The observed contradiction.
    pub why: String,
    /// This node.
    pub host: HostName,
}

/// An id for a new regression, 16 hexadecimal digits.
pub(super) fn random_id() -> String {
    // A fresh `RandomState` has random keys.
    format!("{:016x}", RandomState::new().hash_one(0))
}

impl fmt::Display for Regression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Regression { why, host, .. } = self;
        write!(
            f,
            "{}: {why}; forwarding is unchanged and new endpoints are refused until the data is back; if this store is the \
             right one: netctl node accept-store {host}",
            node::STORE_REGRESSED
        )
    }
}
