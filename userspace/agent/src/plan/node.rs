use std::net::IpAddr;

use contiv_model::name::HostName;

/// Node for which the plan is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Node's name, as in the records of its endpoints.
    pub host: HostName,
    /// Local VTEP address.
    pub vtep: IpAddr,
}
