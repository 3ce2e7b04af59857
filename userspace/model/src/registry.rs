//! Registrations of the daemons under leased keys.

use serde::{Deserialize, Serialize};

/// Service name of netmasters.
pub const NETMASTER: &str = "netmaster";
/// Service name of agents.
pub const NETPLUGIN: &str = "netplugin";
/// Service name of the agents' VTEPs; the port is the VXLAN UDP port.
pub const VTEP: &str = "netplugin.vtep";

/// The body of `/contiv.io/service/<name>/<ip>:<port>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceInfo {
    /// Name of the service.
    pub service_name: String,
    /// `leader` or `follower` for a netmaster, else empty.
    pub role: String,
    /// Version of the program.
    pub version: String,
    /// TTL of the registration's lease, in seconds.
    #[serde(rename = "TTL")]
    pub ttl: i64,
    /// IP address of the service.
    pub host_addr: String,
    /// Port of the service.
    pub port: u16,
    /// Name of the node.
    pub hostname: String,
}

impl ServiceInfo {
    /// Whether it is a registration of a node, by its agent or its VTEP.
    pub fn is_of_node(&self) -> bool {
        [NETPLUGIN, VTEP].contains(&self.service_name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_matches_the_original_byte_for_byte() {
        let body = include_str!("../tests/golden/service-netmaster.json");
        let service: ServiceInfo = serde_json::from_str(body).unwrap();
        assert_eq!(serde_json::to_string(&service).unwrap(), body.trim_end());
    }
}
