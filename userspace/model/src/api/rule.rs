use serde::{Deserialize, Serialize};

use super::{Link, LinkSet, is_zero};

/// A rule of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// `<tenant>:<policy>:<rule>`.
    pub key: String,
    /// `allow` or `deny`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// `in` or `out`, as the groups with the policy see it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub direction: String,
    /// The group that traffic comes from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from_endpoint_group: String,
    /// The address or subnet that traffic comes from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from_ip_address: String,
    /// The network that traffic comes from.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from_network: String,
    /// The policy's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub policy_name: String,
    /// The port of TCP or UDP, 0 for any.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: i64,
    /// 1 to 100; of the rules that match, the highest decides.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i64,
    /// `tcp`, `udp`, `icmp`, a number, or empty for any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// The name within the policy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule_id: String,
    /// The tenant's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// The group that traffic goes to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to_endpoint_group: String,
    /// The address or subnet that traffic goes to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to_ip_address: String,
    /// The network that traffic goes to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to_network: String,
    /// The policy that it is of.
    #[serde(rename = "link-sets")]
    pub link_sets: RuleLinkSets,
    /// The group that it names.
    pub links: RuleLinks,
}

/// The policy that a rule is of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RuleLinkSets {
    /// One policy.
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub policies: LinkSet,
}

/// The group that a rule names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RuleLinks {
    /// As `fromEndpointGroup` or `toEndpointGroup`.
    pub match_endpoint_group: Link,
}
