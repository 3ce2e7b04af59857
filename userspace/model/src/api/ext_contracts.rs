use serde::{Deserialize, Serialize};

use super::LinkSet;

/// Contracts of the ACI fabric that groups provide or consume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtContractsGroup {
    /// `<tenant>:<contracts group>`.
    pub key: String,
    /// Distinguished names of the contracts in the fabric.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contracts: Vec<String>,
    /// Name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub contracts_group_name: String,
    /// `provided` or `consumed`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub contracts_type: String,
    /// Name of the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Groups that use the contracts.
    #[serde(rename = "link-sets")]
    pub link_sets: ExtContractsGroupLinkSets,
}

/// Groups that use the contracts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExtContractsGroupLinkSets {
    /// Endpoint groups.
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub endpoint_groups: LinkSet,
}
