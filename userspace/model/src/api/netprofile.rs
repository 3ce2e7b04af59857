use serde::{Deserialize, Serialize};

use super::{Link, LinkSet, is_zero};

/// A network profile: what the traffic of a group may take, and how it is marked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Netprofile {
    /// `<tenant>:<profile>`.
    pub key: String,
    /// The class for packets, 0 for none.
    #[serde(rename = "DSCP", skip_serializing_if = "is_zero")]
    pub dscp: i64,
    /// The rate limit, such as `10 mbps`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bandwidth: String,
    /// The burst of the rate limit in kilobits.
    #[serde(skip_serializing_if = "is_zero")]
    pub burst: i64,
    /// The name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub profile_name: String,
    /// The tenant's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// What has the profile.
    #[serde(rename = "link-sets")]
    pub link_sets: NetprofileLinkSets,
    /// What the profile belongs to.
    pub links: NetprofileLinks,
}

/// What has a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetprofileLinkSets {
    /// Groups.
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub endpoint_groups: LinkSet,
}

/// What a profile belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetprofileLinks {
    /// The tenant.
    pub tenant: Link,
}
