//! What `inspect` tells beside the object itself.

use serde::{Deserialize, Serialize};

use super::is_zero;

/// The answer of `/api/v1/inspect/...`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "PascalCase")]
pub struct Inspect<C, O> {
    /// The object.
    pub config: C,
    /// What became of it.
    pub oper: O,
}

/// The answer of `/api/v1/inspect/endpoints/...`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "PascalCase")]
pub struct EndpointInspect {
    /// The endpoint.
    pub oper: EndpointOper,
}

/// Of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct GlobalOper {
    /// The daemon's `--mode`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_mode: String,
    /// Never set.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub default_network: String,
    /// The number that the VXLAN pool counts from.
    #[serde(rename = "freeVXLANsStart", skip_serializing_if = "is_zero")]
    pub free_vxlans_start: i64,
    /// VLANs and VNIs in use.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_networks: i64,
    /// Such as `1-8, 500`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vlans_in_use: String,
    /// Such as `1-8, 500`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vxlans_in_use: String,
}

/// Of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointOper {
    /// What was searched for; only when an endpoint is inspected by itself.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The container's id.
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// The container's or pod's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_name: String,
    /// The group's number.
    #[serde(skip_serializing_if = "is_zero")]
    pub endpoint_group_id: i64,
    /// `<group>:<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint_group_key: String,
    /// What the orchestrator calls it.
    #[serde(rename = "endpointID", skip_serializing_if = "String::is_empty")]
    pub endpoint_id: String,
    /// The node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub homing_host: String,
    /// Unused.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub intf_name: String,
    /// IPv4, and IPv6 or an empty text.
    pub ip_address: [String; 2],
    /// As Go prints a map: `map[a:b c:d]`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub labels: String,
    /// The Ethernet address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac_address: String,
    /// `<network>.<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// The group's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_name: String,
    /// The port on the node, such as `vvport3`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub virtual_port: String,
    /// The node's VTEP.
    #[serde(rename = "vtepIP", skip_serializing_if = "String::is_empty")]
    pub vtep_ip: String,
}

/// Of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkOper {
    /// Addresses given out.
    #[serde(skip_serializing_if = "is_zero")]
    pub allocated_addresses_count: i64,
    /// Such as `10.1.1.1-10.1.1.3, 10.1.1.254`.
    #[serde(rename = "allocatedIPAddresses", skip_serializing_if = "String::is_empty")]
    pub allocated_ip_addresses: String,
    /// The same of what is free.
    #[serde(rename = "availableIPAddresses", skip_serializing_if = "String::is_empty")]
    pub available_ip_addresses: String,
    /// The endpoints on the network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointOper>,
    /// The VNI.
    #[serde(skip_serializing_if = "is_zero")]
    pub external_pkt_tag: i64,
    /// The user's tag, or `<network>.<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_tag: String,
    /// How many endpoints.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_endpoints: i64,
    /// The VLAN.
    #[serde(skip_serializing_if = "is_zero")]
    pub pkt_tag: i64,
}

/// Of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointGroupOper {
    /// Of the group's pool.
    #[serde(rename = "allocatedIPAddresses", skip_serializing_if = "String::is_empty")]
    pub allocated_ip_addresses: String,
    /// Of the group's pool.
    #[serde(rename = "availableIPAddresses", skip_serializing_if = "String::is_empty")]
    pub available_ip_addresses: String,
    /// The endpoints in the group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointOper>,
    /// The VNI.
    #[serde(skip_serializing_if = "is_zero")]
    pub external_pkt_tag: i64,
    /// The user's tag, or `<group>.<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group_tag: String,
    /// How many endpoints.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_endpoints: i64,
    /// The VLAN.
    #[serde(skip_serializing_if = "is_zero")]
    pub pkt_tag: i64,
}

/// Of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TenantOper {
    /// Of each group, without its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_groups: Vec<EndpointGroupOper>,
    /// Of each network, without its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkOper>,
    /// How many.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_app_profiles: i64,
    /// How many.
    #[serde(rename = "totalEPGs", skip_serializing_if = "is_zero")]
    pub total_epgs: i64,
    /// How many.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_endpoints: i64,
    /// How many.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_netprofiles: i64,
    /// How many.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_networks: i64,
    /// How many.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_policies: i64,
    /// How many.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_servicelbs: i64,
}

/// Of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyOper {
    /// The endpoints of the groups that have it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointOper>,
    /// How many.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_endpoints: i64,
}
