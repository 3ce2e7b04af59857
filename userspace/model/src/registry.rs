//! Who is there: daemons register under leased keys.

use serde::{Deserialize, Serialize};

/// The service that netmasters register as.
pub const NETMASTER: &str = "netmaster";
/// The service that agents register as.
pub const NETPLUGIN: &str = "netplugin";
/// The service that agents register their VTEP as; the port is the VXLAN UDP port.
pub const VTEP: &str = "netplugin.vtep";

/// `/contiv.io/service/<name>/<ip>:<port>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceInfo {
    /// The service's name.
    pub service_name: String,
    /// `leader` or `follower` of a netmaster, else empty.
    pub role: String,
    /// The program's version.
    pub version: String,
    /// Seconds that the registration outlives its owner.
    #[serde(rename = "TTL")]
    pub ttl: i64,
    /// The address to reach it at.
    pub host_addr: String,
    /// The port to reach it at.
    pub port: u16,
    /// The node's name.
    pub hostname: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_the_originals_to_the_byte() {
        let body = include_str!("../tests/golden/service-netmaster.json");
        let service: ServiceInfo = serde_json::from_str(body).unwrap();
        assert_eq!(serde_json::to_string(&service).unwrap(), body.trim_end());
    }
}
