use serde::{Deserialize, Serialize};

use super::{Link, LinkSet};

/// An endpoint group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointGroup {
    /// `<tenant>:<group>`.
    pub key: String,
    /// Tag configured by the user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cfgd_tag: String,
    /// Names of contracts groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ext_contracts_grps: Vec<String>,
    /// Name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group_name: String,
    /// Address pool of the endpoints, `first-last`; empty for all addresses of the network.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_pool: String,
    /// Name of the network profile.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub net_profile: String,
    /// Name of the network.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// Names of the policies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// Name of the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Objects attached to the group.
    #[serde(rename = "link-sets")]
    pub link_sets: EndpointGroupLinkSets,
    /// Objects that the group belongs to.
    pub links: EndpointGroupLinks,
}

/// Objects attached to a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "each holds the objects that its name says")]
pub struct EndpointGroupLinkSets {
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub ext_contracts_grps: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub match_rules: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub policies: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub services: LinkSet,
}

/// Objects that a group belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "each names the object that its name says")]
pub struct EndpointGroupLinks {
    pub app_profile: Link,
    pub net_profile: Link,
    pub network: Link,
    pub tenant: Link,
}
