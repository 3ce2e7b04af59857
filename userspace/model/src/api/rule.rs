use serde::{Deserialize, Serialize};

use super::{Link, LinkSet, is_zero};

/// A rule of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// `<tenant>:<policy>:<rule>`.
    pub key: String,
    /// `allow` or `deny`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub action: String,
    /// `in` or `out`, from the point of view of the groups with the policy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub direction: String,
    /// Group of the sender.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from_endpoint_group: String,
    /// Address or subnet of the sender.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from_ip_address: String,
    /// Network of the sender.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub from_network: String,
    /// Name of the policy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub policy_name: String,
    /// TCP or UDP port, 0 for any.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: i64,
    /// 1 to 100; the highest matching rule decides.
    #[serde(skip_serializing_if = "is_zero")]
    pub priority: i64,
    /// `tcp`, `udp`, `icmp`, a number, or empty for any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
    /// Name within the policy.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule_id: String,
    /// Name of the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Group of the receiver.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to_endpoint_group: String,
    /// Address or subnet of the receiver.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to_ip_address: String,
    /// Network of the receiver.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to_network: String,
    /// Policy of the rule.
    #[serde(rename = "link-sets")]
    pub link_sets: RuleLinkSets,
    /// Group that the rule names.
    pub links: RuleLinks,
}

/// Policy of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RuleLinkSets {
    /// The one policy.
    #[serde(skip_serializing_if = "LinkSet::is_empty")]
    pub policies: LinkSet,
}

/// The group that a rule names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RuleLinks {
    /// Group in `fromEndpointGroup` or `toEndpointGroup`.
    pub match_endpoint_group: Link,
}
