//! An endpoint: one interface of a pod on a network.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};

use crate::{
    Invalid,
    group::GroupNumber,
    mac::Mac,
    name::{EndpointId, GroupKey, HostName, NetworkId},
    network::optional,
};

/// `/contiv.io/state/eps/<network>.<tenant>-<endpoint id>`, and `EndpointConfig` in the replies of
/// `/plugin/createEndpoint` and `/plugin/deleteEndpoint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Endpoint"))]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// The key's last part.
    pub id: String,
    /// `<network>.<tenant>`.
    #[serde(rename = "netID")]
    pub net_id: String,
    /// What the orchestrator calls it.
    #[serde(rename = "endpointID")]
    pub endpoint_id: String,
    /// The group's name, or empty.
    pub service_name: String,
    /// The group's number, or 0.
    pub endpoint_group_id: i64,
    /// `<group>:<tenant>`, or empty.
    pub endpoint_group_key: String,
    /// The IPv4 address.
    pub ip_address: String,
    /// The IPv6 address, or empty.
    #[serde(rename = "ipv6Address")]
    pub ipv6_address: String,
    /// The Ethernet address.
    pub mac_address: String,
    /// The node that it lives on.
    pub homing_host: String,
    /// Unused by every client; kept for its place in the body.
    pub intf_name: String,
    /// The address of the node's VTEP, when it is known here.
    #[serde(rename = "vtepIP")]
    pub vtep_ip: String,
    /// The container's labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// The container's id.
    pub container_id: String,
    /// The container's or pod's name.
    pub ep_common_name: String,
}

/// `/contiv.io/oper/eps/<same id>`: what the agent made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Oper {
    /// The key's last part.
    pub id: String,
    /// `<network>.<tenant>`.
    #[serde(rename = "netID")]
    pub net_id: String,
    /// What the orchestrator calls it.
    #[serde(rename = "endpointID")]
    pub endpoint_id: String,
    /// The group's name, or empty.
    pub service_name: String,
    /// The container's id.
    #[serde(rename = "contUUID")]
    pub cont_uuid: String,
    /// The IPv4 address.
    pub ip_address: String,
    /// The IPv6 address, or empty.
    #[serde(rename = "ipv6Address")]
    pub ipv6_address: String,
    /// The Ethernet address.
    pub mac_address: String,
    /// The node that it lives on.
    pub homing_host: String,
    /// The interface's name in the pod.
    pub intf_name: String,
    /// The port's name on the node, without the leading `v` of its host end (`vport3`).
    pub port_name: String,
    /// The address of the node's VTEP.
    #[serde(rename = "vtepIP")]
    pub vtep_ip: String,
}

/// An endpoint as the agent sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The key's last part.
    pub id: EndpointId,
    /// The network that it is on.
    pub network: NetworkId,
    /// The group that it belongs to.
    pub group: Option<GroupKey>,
    /// The group's number.
    pub group_number: Option<GroupNumber>,
    /// The IPv4 address.
    pub ip: Ipv4Addr,
    /// The IPv6 address.
    pub ip6: Option<Ipv6Addr>,
    /// The Ethernet address.
    pub mac: Mac,
    /// The node that it lives on.
    pub host: HostName,
    /// The address of the node's VTEP, when the body has it.
    pub vtep: Option<IpAddr>,
}

impl TryFrom<&State> for Endpoint {
    type Error = Invalid;

    fn try_from(s: &State) -> Result<Self, Invalid> {
        let bad =
            |field, value: &str, expected| Invalid::new(format!("endpoint {}", s.id), field, value, expected);
        Ok(Endpoint {
            id: s.id.as_str().into(),
            network: s.net_id.as_str().into(),
            group: (!s.endpoint_group_key.is_empty()).then(|| s.endpoint_group_key.as_str().into()),
            group_number: match s.endpoint_group_id {
                0 => None,
                number => Some(GroupNumber::read(number).ok_or_else(|| {
                    bad("endpointGroupId", &number.to_string(), "0 for none, or a group's number")
                })?),
            },
            ip: s.ip_address.parse().map_err(|_| bad("ipAddress", &s.ip_address, "an IPv4 address"))?,
            ip6: optional(&s.ipv6_address)
                .map_err(|v| bad("ipv6Address", &v, "an IPv6 address or nothing"))?,
            mac: s.mac_address.parse().map_err(|_| bad("macAddress", &s.mac_address, "six octets"))?,
            host: s.homing_host.as_str().into(),
            vtep: optional(&s.vtep_ip).map_err(|v| bad("vtepIP", &v, "an IP address or nothing"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C3: &str = include_str!("../tests/golden/endpoint-c3.json");

    #[test]
    fn bodies_are_the_originals_to_the_byte() {
        for body in [C3, include_str!("../tests/golden/endpoint-native.json")] {
            let state: State = serde_json::from_str(body).unwrap();
            assert_eq!(serde_json::to_string(&state).unwrap(), body.trim_end());
        }
    }

    #[test]
    fn a_body_becomes_an_endpoint() {
        let mut state: State = serde_json::from_str(C3).unwrap();
        let endpoint = Endpoint::try_from(&state).unwrap();
        assert_eq!(endpoint.mac, Mac::of_endpoint(endpoint.ip));
        assert_eq!(endpoint.group, Some("egp:default".into()));
        state.ip_address = "41.1.0".into();
        assert_eq!(
            Endpoint::try_from(&state).unwrap_err().to_string(),
            "endpoint en.default-c3: ipAddress is \"41.1.0\", expected an IPv4 address"
        );
    }
}
