use serde::{Deserialize, Serialize};

use super::{Link, LinkSet};

/// An application profile: groups that are exported to an ACI fabric together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AppProfile {
    /// `<tenant>:<profile>`.
    pub key: String,
    /// Name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub app_profile_name: String,
    /// Names of the groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_groups: Vec<String>,
    /// Name of the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Members of the profile.
    #[serde(rename = "link-sets")]
    pub link_sets: AppProfileLinkSets,
    /// Owner of the profile.
    pub links: AppProfileLinks,
}

/// Members of an application profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppProfileLinkSets {
    /// Groups.
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub endpoint_groups: LinkSet,
}

/// Owner of an application profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppProfileLinks {
    /// The tenant.
    pub tenant: Link,
}
