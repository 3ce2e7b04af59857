use serde::{Deserialize, Serialize};

use super::LinkSet;

/// A tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tenant {
    /// Name of the tenant.
    pub key: String,
    /// Unused; accepted for clients.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub default_network: String,
    /// Name of the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Objects of the tenant.
    #[serde(rename = "link-sets")]
    pub link_sets: TenantLinkSets,
}

/// Objects of a tenant.
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
