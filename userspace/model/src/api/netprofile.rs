use serde::{Deserialize, Serialize};

use super::{Link, LinkSet, is_zero};

/// A network profile: rate limit and DSCP of the traffic of groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Netprofile {
    /// `<tenant>:<profile>`.
    pub key: String,
    /// DSCP of the packets, 0 for none.
    #[serde(rename = "DSCP", skip_serializing_if = "is_zero")]
    pub dscp: i64,
    /// Rate limit, such as `10 mbps`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub bandwidth: String,
    /// Burst of the rate limit in kilobits.
    #[serde(skip_serializing_if = "is_zero")]
    pub burst: i64,
    /// Name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub profile_name: String,
    /// Name of the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Groups with the profile.
    #[serde(rename = "link-sets")]
    pub link_sets: NetprofileLinkSets,
    /// Owner of the profile.
    pub links: NetprofileLinks,
}

/// Groups with a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetprofileLinkSets {
    /// Groups.
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub endpoint_groups: LinkSet,
}

/// Owner of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetprofileLinks {
    /// The tenant.
    pub tenant: Link,
}
