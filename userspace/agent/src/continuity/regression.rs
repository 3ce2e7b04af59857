use std::fmt;

use contiv_model::{name::HostName, node};

/// The store does not have the data that the agent knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regression {
    /// What was observed.
    pub why: String,
    /// This node.
    pub host: HostName,
}

impl fmt::Display for Regression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Regression { why, host } = self;
        write!(
            f,
            "{}: {why}; forwarding is unchanged and new endpoints are refused until the data is back; if this store is the \
             right one: netctl node accept-store {host}",
            node::STORE_REGRESSED
        )
    }
}
