use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
};

use contiv_model::{name::HostName, node};

/// The store does not have the data that the agent knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regression {
    /// Id that no other regression has. An operator accepts the store for this one only.
    pub id: String,
    /// What was observed.
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
