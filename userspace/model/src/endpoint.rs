//! Endpoints: interfaces of pods on networks.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};

use crate::{
    Invalid,
    addresses::Addresses,
    group::GroupNumber,
    mac::Mac,
    name::{EndpointId, GroupKey, HostName, NetworkId},
    network::optional,
    policy::Identity,
};

/// The body of `/contiv.io/state/eps/<network>.<tenant>-<endpoint id>`, and `EndpointConfig` in the
/// answers of `/plugin/createEndpoint` and `/plugin/deleteEndpoint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Endpoint"))]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// Last part of the key.
    pub id: String,
    /// Network, `<network>.<tenant>`.
    #[serde(rename = "netID")]
    pub net_id: String,
    /// Id of the endpoint in the orchestrator.
    #[serde(rename = "endpointID")]
    pub endpoint_id: String,
    /// Name of the group, or empty.
    pub service_name: String,
    /// Number of the group, or 0.
    pub endpoint_group_id: i64,
    /// `<group>:<tenant>`, or empty.
    pub endpoint_group_key: String,
    /// IPv4 address.
    pub ip_address: String,
    /// IPv6 address, or empty.
    #[serde(rename = "ipv6Address")]
    pub ipv6_address: String,
    /// Ethernet address.
    pub mac_address: String,
    /// Node of the endpoint.
    pub homing_host: String,
    /// Unused; part of the original's body.
    pub intf_name: String,
    /// IP address of the node's VTEP, if known.
    #[serde(rename = "vtepIP")]
    pub vtep_ip: String,
    /// Labels of the container.
    pub labels: Option<BTreeMap<String, String>>,
    /// Id of the container.
    pub container_id: String,
    /// Name of the container or pod.
    pub ep_common_name: String,
}

/// The body of `/contiv.io/oper/eps/<same id>`: the endpoint as the agent has configured it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Oper {
    /// Last part of the key.
    pub id: String,
    /// Network, `<network>.<tenant>`.
    #[serde(rename = "netID")]
    pub net_id: String,
    /// Id of the endpoint in the orchestrator.
    #[serde(rename = "endpointID")]
    pub endpoint_id: String,
    /// Name of the group, or empty.
    pub service_name: String,
    /// Id of the container.
    #[serde(rename = "contUUID")]
    pub cont_uuid: String,
    /// IPv4 address.
    pub ip_address: String,
    /// IPv6 address, or empty.
    #[serde(rename = "ipv6Address")]
    pub ipv6_address: String,
    /// Ethernet address.
    pub mac_address: String,
    /// Node of the endpoint.
    pub homing_host: String,
    /// Name of the interface in the pod.
    pub intf_name: String,
    /// Name of the port on the node, without the leading `v` of its host end (`vport3`).
    pub port_name: String,
    /// IP address of the node's VTEP.
    #[serde(rename = "vtepIP")]
    pub vtep_ip: String,
    /// Name of the container runtime's network configuration, if known. The original and earlier versions do not write it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cni_configuration: Option<String>,
}

/// An endpoint, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Last part of the key.
    pub id: EndpointId,
    /// Network of the endpoint.
    pub network: NetworkId,
    /// Group of the endpoint.
    pub group: Option<GroupKey>,
    /// Number of the group.
    pub group_number: Option<GroupNumber>,
    /// IPv4 address.
    pub ip: Ipv4Addr,
    /// IPv6 address.
    pub ip6: Option<Ipv6Addr>,
    /// Ethernet address.
    pub mac: Mac,
    /// Node of the endpoint.
    pub host: HostName,
    /// IP address of the node's VTEP, if the body has it.
    pub vtep: Option<IpAddr>,
}

impl Endpoint {
    /// Addresses of the endpoint.
    pub fn addresses(&self) -> Addresses {
        (self.ip, self.ip6).into()
    }

    /// What policies distinguish the endpoint by: its group.
    pub fn identity(&self) -> Option<Identity> {
        self.group_number.map(Identity::from)
    }
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
    fn bodies_match_the_original_byte_for_byte() {
        for body in [C3, include_str!("../tests/golden/endpoint-native.json")] {
            let state: State = serde_json::from_str(body).unwrap();
            assert_eq!(serde_json::to_string(&state).unwrap(), body.trim_end());
        }
    }

    #[test]
    fn records_without_a_network_configuration_stay_as_they_were() {
        let text = serde_json::to_string(&Oper::default()).unwrap();
        assert!(!text.contains("cniConfiguration"), "{text}");
        assert_eq!(serde_json::from_str::<Oper>(&text).unwrap(), Oper::default());
        let oper = Oper { cni_configuration: Some("contiv-net".into()), ..Oper::default() };
        let text = serde_json::to_string(&oper).unwrap();
        assert!(text.contains(r#""cniConfiguration":"contiv-net""#), "{text}");
        assert_eq!(serde_json::from_str::<Oper>(&text).unwrap(), oper);
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
