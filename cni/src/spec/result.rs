use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::Version;

/// Result of ADD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// End of the veth pair on the node.
    pub host: Interface,
    /// End of the veth pair in the container.
    pub container: Interface,
    /// Path of the container's network namespace.
    pub sandbox: String,
    /// IPv4 address and gateway.
    pub ipv4: Option<(Ipv4Net, Option<Ipv4Addr>)>,
    /// IPv6 address and gateway.
    pub ipv6: Option<(Ipv6Net, Option<Ipv6Addr>)>,
    /// Whether another interface has the container's default route, for IPv4 and for IPv6.
    pub other_routes: [bool; 2],
    /// DNS settings of the configuration.
    pub dns: Dns,
}

/// One end of a veth pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Ethernet address; empty if unknown.
    pub mac: String,
    /// MTU in bytes; 0 if unknown.
    pub mtu: u32,
}

/// DNS settings in the specification's form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the fields of resolv.conf(5)")]
pub struct Dns {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// Result of 0.3.0 and later.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    cni_version: &'static str,
    interfaces: [InterfaceBody<'a>; 2],
    ips: Vec<IpBody>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteBody>,
    dns: &'a Dns,
}

#[derive(Serialize)]
struct InterfaceBody<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mac: &'a str,
    /// Since 1.1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "str::is_empty")]
    sandbox: &'a str,
}

#[derive(Serialize)]
struct IpBody {
    /// Until 0.4.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
    /// Index into `interfaces`.
    interface: usize,
    address: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

#[derive(Serialize)]
struct RouteBody {
    dst: IpNet,
    gw: IpAddr,
}

/// Result of 0.1.0 and 0.2.0.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct OldBody<'a> {
    cni_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<OldIp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<OldIp>,
    dns: &'a Dns,
}

#[derive(Serialize)]
struct OldIp {
    ip: IpNet,
    #[serde(skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<RouteBody>,
}

const CONTAINER: usize = 1;

impl Attachment {
    /// The result in the form of `version`, indented as in the original.
    pub fn to_json(&self, version: Version) -> Result<String, serde_json::Error> {
        let mut text = Vec::new();
        let indent = serde_json::ser::PrettyFormatter::with_indent(b"    ");
        let mut serializer = serde_json::Serializer::with_formatter(&mut text, indent);
        if version < Version::V0_3_0 {
            self.old_body(version).serialize(&mut serializer)?;
        } else {
            self.body(version).serialize(&mut serializer)?;
        }
        // serde_json writes nothing but UTF-8.
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    fn body(&self, version: Version) -> Body<'_> {
        let end = |interface, sandbox| end_body(interface, sandbox, version);
        Body {
            cni_version: version.as_str(),
            interfaces: [end(&self.host, ""), end(&self.container, &self.sandbox)],
            ips: self
                .addresses()
                .map(|(address, gateway)| IpBody {
                    version: (version < Version::V1_0_0).then_some(family(address)),
                    interface: CONTAINER,
                    address,
                    gateway,
                })
                .collect(),
            routes: self
                .addresses()
                .filter_map(|(address, gateway)| self.default_route(address, gateway))
                .collect(),
            dns: &self.dns,
        }
    }

    fn old_body(&self, version: Version) -> OldBody<'_> {
        let old = |(ip, gateway): (IpNet, Option<IpAddr>)| OldIp {
            ip,
            gateway,
            routes: self.default_route(ip, gateway).into_iter().collect(),
        };
        OldBody {
            cni_version: version.as_str(),
            ip4: self.addresses().find(|(ip, _)| ip.addr().is_ipv4()).map(old),
            ip6: self.addresses().find(|(ip, _)| ip.addr().is_ipv6()).map(old),
            dns: &self.dns,
        }
    }

    fn addresses(&self) -> impl Iterator<Item = (IpNet, Option<IpAddr>)> {
        let ipv4 = self.ipv4.map(|(net, gateway)| (IpNet::V4(net), gateway.map(IpAddr::V4)));
        let ipv6 = self.ipv6.map(|(net, gateway)| (IpNet::V6(net), gateway.map(IpAddr::V6)));
        ipv4.into_iter().chain(ipv6)
    }

    fn default_route(&self, address: IpNet, gateway: Option<IpAddr>) -> Option<RouteBody> {
        let (dst, is_other) = match address {
            IpNet::V4(_) => (IpNet::V4(Ipv4Net::default()), self.other_routes[0]),
            IpNet::V6(_) => (IpNet::V6(Ipv6Net::default()), self.other_routes[1]),
        };
        gateway.filter(|_| !is_other).map(|gw| RouteBody { dst, gw })
    }
}

fn end_body<'a>(interface: &'a Interface, sandbox: &'a str, version: Version) -> InterfaceBody<'a> {
    InterfaceBody {
        name: &interface.name,
        mac: &interface.mac,
        mtu: (version >= Version::V1_1_0 && interface.mtu > 0).then_some(interface.mtu),
        sandbox,
    }
}

fn family(address: IpNet) -> &'static str {
    match address {
        IpNet::V4(_) => "4",
        IpNet::V6(_) => "6",
    }
}
