use serde::{Deserialize, Serialize};

use super::LinkSet;

/// Contracts of the fabric that groups provide or consume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtContractsGroup {
    /// `<tenant>:<group of contracts>`.
    pub key: String,
    /// Their distinguished names in the fabric.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub contracts: Vec<String>,
    /// The name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub contracts_group_name: String,
    /// `provided` or `consumed`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub contracts_type: String,
    /// The tenant's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Who has them.
    #[serde(rename = "link-sets")]
    pub link_sets: ExtContractsGroupLinkSets,
}

/// Who has a group of contracts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExtContractsGroupLinkSets {
    /// Endpoint groups.
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub endpoint_groups: LinkSet,
}
