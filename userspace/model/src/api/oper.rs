//! Operational state of objects in `inspect`.

use serde::{Deserialize, Serialize};

use super::is_zero;

/// The answer of `/api/v1/inspect/...`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "PascalCase")]
pub struct Inspect<C, O> {
    /// The object.
    pub config: C,
    /// Its operational state.
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

/// Operational state of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct GlobalOper {
    /// Value of netmaster's `--mode`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster_mode: String,
    /// Always empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub default_network: String,
    /// VNI of bit 0 in the VXLAN pool.
    #[serde(rename = "freeVXLANsStart", skip_serializing_if = "is_zero")]
    pub free_vxlans_start: i64,
    /// Number of VLANs and VNIs in use.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_networks: i64,
    /// VLANs in use, such as `1-8, 500`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vlans_in_use: String,
    /// VNIs in use, such as `1-8, 500`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vxlans_in_use: String,
}

/// Operational state of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointOper {
    /// The search term; only when a single endpoint is inspected.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Id of the container.
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Name of the container or pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container_name: String,
    /// Number of the group.
    #[serde(skip_serializing_if = "is_zero")]
    pub endpoint_group_id: i64,
    /// `<group>:<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint_group_key: String,
    /// Id of the endpoint in the orchestrator.
    #[serde(rename = "endpointID", skip_serializing_if = "String::is_empty")]
    pub endpoint_id: String,
    /// Node of the endpoint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub homing_host: String,
    /// Unused.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub intf_name: String,
    /// IPv4 address, and IPv6 address or an empty text.
    pub ip_address: [String; 2],
    /// Labels in Go's format of a map: `map[a:b c:d]`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub labels: String,
    /// Ethernet address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac_address: String,
    /// `<network>.<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Name of the group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_name: String,
    /// Port on the node, such as `vvport3`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub virtual_port: String,
    /// IP address of the node's VTEP.
    #[serde(rename = "vtepIP", skip_serializing_if = "String::is_empty")]
    pub vtep_ip: String,
}

/// Operational state of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkOper {
    /// Number of allocated addresses.
    #[serde(skip_serializing_if = "is_zero")]
    pub allocated_addresses_count: i64,
    /// Allocated addresses, such as `10.1.1.1-10.1.1.3, 10.1.1.254`.
    #[serde(rename = "allocatedIPAddresses", skip_serializing_if = "String::is_empty")]
    pub allocated_ip_addresses: String,
    /// Free addresses, in the same form.
    #[serde(rename = "availableIPAddresses", skip_serializing_if = "String::is_empty")]
    pub available_ip_addresses: String,
    /// The endpoints on the network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointOper>,
    /// The VNI.
    #[serde(skip_serializing_if = "is_zero")]
    pub external_pkt_tag: i64,
    /// Tag configured by the user, or `<network>.<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_tag: String,
    /// Number of endpoints.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_endpoints: i64,
    /// The VLAN.
    #[serde(skip_serializing_if = "is_zero")]
    pub pkt_tag: i64,
}

/// Operational state of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointGroupOper {
    /// Allocated addresses of the group's pool.
    #[serde(rename = "allocatedIPAddresses", skip_serializing_if = "String::is_empty")]
    pub allocated_ip_addresses: String,
    /// Free addresses of the group's pool.
    #[serde(rename = "availableIPAddresses", skip_serializing_if = "String::is_empty")]
    pub available_ip_addresses: String,
    /// The endpoints in the group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointOper>,
    /// The VNI.
    #[serde(skip_serializing_if = "is_zero")]
    pub external_pkt_tag: i64,
    /// Tag configured by the user, or `<group>.<tenant>`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group_tag: String,
    /// Number of endpoints.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_endpoints: i64,
    /// The VLAN.
    #[serde(skip_serializing_if = "is_zero")]
    pub pkt_tag: i64,
}

/// Operational state of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct TenantOper {
    /// Operational state of each group, without its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_groups: Vec<EndpointGroupOper>,
    /// Operational state of each network, without its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkOper>,
    /// Number of application profiles.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_app_profiles: i64,
    /// Number of groups.
    #[serde(rename = "totalEPGs", skip_serializing_if = "is_zero")]
    pub total_epgs: i64,
    /// Number of endpoints.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_endpoints: i64,
    /// Number of network profiles.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_netprofiles: i64,
    /// Number of networks.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_networks: i64,
    /// Number of policies.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_policies: i64,
    /// Number of services.
    #[serde(skip_serializing_if = "is_zero")]
    pub total_servicelbs: i64,
}

/// Operational state of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyOper {
    /// Endpoints of the groups that the policy is attached to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointOper>,
    /// Number of endpoints.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_endpoints: i64,
}
