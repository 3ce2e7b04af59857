use std::net::IpAddr;

use contiv_model::name::HostName;

/// Node that the plan is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Node's name, as in the records of its endpoints.
    pub host: HostName,
    /// Local VTEP address.
    pub vtep: IpAddr,
}
