use serde::{Deserialize, Serialize};

use super::is_zero;

/// Settings of the gateway to an ACI fabric: the one object `aciGw`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AciGw {
    /// `aciGw`.
    pub key: String,
    /// `yes` or `no`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub enforce_policies: String,
    /// Whether objects are also searched in the tenant `common`: `yes` or `no`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub include_common_tenant: String,
    /// `aciGw`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Nodes of the fabric, `topology/pod-1/node-101,...`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node_bindings: String,
    /// Ports of the fabric that the cluster is connected to,
    /// `topology/pod-1/paths-101/pathep-[eth1/14],...`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path_bindings: String,
    /// Name of the physical domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub physical_domain: String,
}

/// Operational state of the gateway, in `inspect`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AciGwOper {
    /// Number of application profiles.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_app_profiles: i64,
}
