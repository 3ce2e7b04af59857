use serde::{Deserialize, Serialize};

use super::{Link, LinkSet};

/// An application profile: groups that a fabric is told of together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AppProfile {
    /// `<tenant>:<profile>`.
    pub key: String,
    /// The name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub app_profile_name: String,
    /// Names of the groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_groups: Vec<String>,
    /// The tenant's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// What is in the profile.
    #[serde(rename = "link-sets")]
    pub link_sets: AppProfileLinkSets,
    /// What the profile belongs to.
    pub links: AppProfileLinks,
}

/// What is in an application profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppProfileLinkSets {
    /// Groups.
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub endpoint_groups: LinkSet,
}

/// What an application profile belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AppProfileLinks {
    /// The tenant.
    pub tenant: Link,
}
