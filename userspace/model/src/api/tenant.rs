use serde::{Deserialize, Serialize};

use super::LinkSet;

/// A tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tenant {
    /// The tenant's name.
    pub key: String,
    /// Kept for clients; nothing uses it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub default_network: String,
    /// The name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// What belongs to the tenant.
    #[serde(rename = "link-sets")]
    pub link_sets: TenantLinkSets,
}

/// What belongs to a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "each holds the objects that its name says")]
pub struct TenantLinkSets {
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub app_profiles: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub endpoint_groups: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub net_profiles: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub networks: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub policies: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub servicelbs: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub volume_profiles: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub volumes: LinkSet,
}
