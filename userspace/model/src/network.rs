//! Networks: the body under `state/nets`, and the domain type.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use crate::{
    Invalid,
    bitset::Bitset,
    name::{NetworkId, NetworkName, TenantName},
    tag::{Encap, Vlan, Vni},
};

/// The body of `/contiv.io/state/nets/<network>.<tenant>`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// `<network>.<tenant>`.
    pub id: String,
    /// Name of the tenant.
    pub tenant: String,
    /// Name of the network.
    pub network_name: String,
    /// `data` or `infra`.
    pub nw_type: String,
    /// `vlan` or `vxlan`.
    pub pkt_tag_type: String,
    /// VLAN id, or the local VLAN id of a VXLAN network.
    pub pkt_tag: i64,
    /// VNI of a VXLAN network, or 0.
    pub ext_pkt_tag: i64,
    /// IPv4 network address.
    #[serde(rename = "subnetIP")]
    pub subnet_ip: String,
    /// IPv4 prefix length in bits.
    pub subnet_len: u32,
    /// IPv4 gateway, or empty.
    pub gateway: String,
    /// First and last address of the configured range, `a-b`.
    pub ip_addr_range: String,
    /// Number of addresses allocated automatically, less the released ones.
    pub ep_addr_count: i64,
    /// Number of endpoints on the network.
    pub ep_count: i64,
    /// Allocated IPv4 addresses: bit n is the address subnet + n.
    pub ip_alloc_map: Bitset,
    /// IPv6 network address, or empty.
    #[serde(rename = "ipv6SubnetIP")]
    pub ipv6_subnet_ip: String,
    /// IPv6 prefix length in bits, 0 without IPv6.
    #[serde(rename = "ipv6SubnetLen")]
    pub ipv6_subnet_len: u32,
    /// IPv6 gateway, or empty.
    #[serde(rename = "ipv6Gateway")]
    pub ipv6_gateway: String,
    /// Allocated IPv6 addresses: host part (the address with the prefix cleared) to `true`.
    #[serde(rename = "ipv6AllocMap")]
    pub ipv6_alloc_map: Option<BTreeMap<String, bool>>,
    /// Host part that was allocated last.
    #[serde(rename = "ipv6LastHost")]
    pub ipv6_last_host: String,
    /// Tag configured by the user, or the id.
    pub network_tag: String,
}

/// Purpose of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Network of pods.
    Data,
    /// Network of the nodes: each node has an endpoint on it.
    Infra,
}

/// A network, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// `<network>.<tenant>`.
    pub id: NetworkId,
    /// Tenant of the network.
    pub tenant: TenantName,
    /// Name within the tenant.
    pub name: NetworkName,
    /// Network of pods or of nodes.
    pub kind: Kind,
    /// Encapsulation on the wire.
    pub encap: Encap,
    /// IPv4 subnet, host bits cleared.
    pub subnet: Ipv4Net,
    /// IPv4 gateway.
    pub gateway: Option<Ipv4Addr>,
    /// IPv6 subnet, host bits cleared.
    pub subnet_v6: Option<Ipv6Net>,
    /// IPv6 gateway.
    pub gateway_v6: Option<Ipv6Addr>,
}

impl Network {
    /// The subnets, IPv4 first.
    pub fn subnets(&self) -> impl Iterator<Item = IpNet> {
        [Some(IpNet::V4(self.subnet)), self.subnet_v6.map(IpNet::V6)].into_iter().flatten()
    }

    /// Returns true if the address is in one of the network's subnets.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.subnet.contains(&address),
            IpAddr::V6(address) => self.subnet_v6.is_some_and(|subnet| subnet.contains(&address)),
        }
    }
}

impl TryFrom<&State> for Network {
    type Error = Invalid;

    fn try_from(s: &State) -> Result<Self, Invalid> {
        let bad = |field, value: &dyn ToString, expected| {
            Invalid::new(format!("network {}", s.id), field, value.to_string(), expected)
        };
        let tenant = s.tenant.parse().map_err(|_| bad("tenant", &s.tenant, "a name"))?;
        let name = s.network_name.parse().map_err(|_| bad("networkName", &s.network_name, "a name"))?;
        let subnet = s
            .subnet_ip
            .parse()
            .ok()
            .and_then(|ip| Ipv4Net::new(ip, u8::try_from(s.subnet_len).ok()?).ok())
            .ok_or_else(|| {
                bad("subnetIP", &format!("{}/{}", s.subnet_ip, s.subnet_len), "a.b.c.d, length 1 to 32")
            })?
            .trunc();
        let gateway = optional(&s.gateway).map_err(|v| bad("gateway", &v, "an IPv4 address or nothing"))?;
        let gateway_v6 =
            optional(&s.ipv6_gateway).map_err(|v| bad("ipv6Gateway", &v, "an IPv6 address or nothing"))?;
        let subnet_v6 = optional::<Ipv6Addr>(&s.ipv6_subnet_ip)
            .map_err(|v| bad("ipv6SubnetIP", &v, "an IPv6 address or nothing"))?
            .map(|ip| u8::try_from(s.ipv6_subnet_len).ok().and_then(|len| Ipv6Net::new(ip, len).ok()))
            .map(|net| net.ok_or_else(|| bad("ipv6SubnetLen", &s.ipv6_subnet_len, "0 to 128")))
            .transpose()?
            .map(|net| net.trunc());
        Ok(Network {
            id: s.id.as_str().into(),
            tenant,
            name,
            kind: match s.nw_type.as_str() {
                "infra" => Kind::Infra,
                "data" | "" => Kind::Data,
                _ => return Err(bad("nwType", &s.nw_type, "data or infra")),
            },
            encap: encap(s)?,
            subnet,
            gateway,
            subnet_v6,
            gateway_v6,
        })
    }
}

fn encap(s: &State) -> Result<Encap, Invalid> {
    let bad = |field, value: i64, expected| Invalid::new(format!("network {}", s.id), field, value, expected);
    let vlan = u16::try_from(s.pkt_tag)
        .ok()
        .and_then(|v| Vlan::try_from(v).ok())
        .ok_or_else(|| bad("pktTag", s.pkt_tag, "a vlan, 1 to 4094"))?;
    match s.pkt_tag_type.as_str() {
        "vlan" => Ok(Encap::Vlan(vlan)),
        "vxlan" => u32::try_from(s.ext_pkt_tag)
            .ok()
            .and_then(|v| Vni::try_from(v).ok())
            .map(|vni| Encap::Vxlan { vni, local: vlan })
            .ok_or_else(|| bad("extPktTag", s.ext_pkt_tag, "a vni, 1 to 16777215")),
        other => Err(Invalid::new(format!("network {}", s.id), "pktTagType", other, "vlan or vxlan")),
    }
}

/// Parses an optional value; an empty text is `None`.
pub(crate) fn optional<T: std::str::FromStr>(text: &str) -> Result<Option<T>, String> {
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VX2: &str = include_str!("../tests/golden/network-vx2.json");
    const N1: &str = include_str!("../tests/golden/network-n1.json");

    #[test]
    fn bodies_match_the_original_byte_for_byte() {
        for body in [VX2, N1] {
            let state: State = serde_json::from_str(body).unwrap();
            assert_eq!(serde_json::to_string(&state).unwrap(), body.trim_end());
        }
    }

    #[test]
    fn a_body_becomes_a_network() {
        let network = Network::try_from(&serde_json::from_str::<State>(VX2).unwrap()).unwrap();
        assert_eq!(network.encap.to_string(), "vxlan 5000");
        assert_eq!(network.subnet.to_string(), "20.1.2.0/24");
        assert_eq!(network.gateway, None);
        let network = Network::try_from(&serde_json::from_str::<State>(N1).unwrap()).unwrap();
        assert_eq!(network.encap.to_string(), "vlan 1");
        assert_eq!(network.gateway, Some(Ipv4Addr::new(10, 1, 1, 254)));
    }

    #[test]
    fn errors_name_the_invalid_field() {
        let good: State = serde_json::from_str(N1).unwrap();
        let error = |change: fn(&mut State)| {
            let mut state = good.clone();
            change(&mut state);
            Network::try_from(&state).unwrap_err().to_string()
        };
        assert_eq!(
            error(|s| s.pkt_tag = 4095),
            "network n1.default: pktTag is \"4095\", expected a vlan, 1 to 4094"
        );
        assert!(error(|s| s.pkt_tag_type = "gre".into()).contains("pktTagType is \"gre\""));
        assert!(error(|s| s.subnet_ip = "10.1".into()).contains("subnetIP"));
        assert!(error(|s| s.gateway = "x".into()).contains("gateway is \"x\""));
        assert!(error(|s| s.tenant = "a_b".into()).contains("tenant is \"a_b\""));
    }
}
