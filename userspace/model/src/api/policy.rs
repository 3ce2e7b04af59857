use serde::{Deserialize, Serialize};

use super::{Link, LinkSet};

/// A policy: a set of rules that is attached to groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Policy {
    /// `<tenant>:<policy>`.
    pub key: String,
    /// Name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub policy_name: String,
    /// Name of the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Rules of the policy, and the groups that it is attached to.
    #[serde(rename = "link-sets")]
    pub link_sets: PolicyLinkSets,
    /// Owner of the policy.
    pub links: PolicyLinks,
}

/// The rules of a policy, and the groups that it is attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "each holds the objects that its name says")]
pub struct PolicyLinkSets {
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub endpoint_groups: LinkSet,
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub rules: LinkSet,
}

/// Owner of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PolicyLinks {
    /// The tenant.
    pub tenant: Link,
}
