use serde::{Deserialize, Serialize};

use super::{Link, LinkSet, is_zero};

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Network {
    /// `<tenant>:<network>`.
    pub key: String,
    /// Tag configured by the user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cfgd_tag: String,
    /// `vlan` or `vxlan`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub encap: String,
    /// The IPv4 gateway.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// The IPv6 gateway.
    #[serde(rename = "ipv6Gateway", skip_serializing_if = "String::is_empty")]
    pub ipv6_gateway: String,
    /// The IPv6 subnet, `address/length`.
    #[serde(rename = "ipv6Subnet", skip_serializing_if = "String::is_empty")]
    pub ipv6_subnet: String,
    /// Name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// `data` or `infra`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub nw_type: String,
    /// VLAN or VNI requested by the user, or 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub pkt_tag: i64,
    /// The IPv4 subnet, `address/length` or `first-last/length`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subnet: String,
    /// Name of the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Objects on the network.
    #[serde(rename = "link-sets")]
    pub link_sets: NetworkLinkSets,
    /// Owner of the network.
    pub links: NetworkLinks,
}

/// Objects on a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "each holds the objects that its name says")]
pub struct NetworkLinkSets {
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub endpoint_groups: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub servicelbs: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub services: LinkSet,
}

/// Owner of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkLinks {
    /// The tenant.
    pub tenant: Link,
}
