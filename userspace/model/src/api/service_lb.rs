use serde::{Deserialize, Serialize};

use super::{EndpointOper, Link, is_zero};

/// A service: an address of a network behind which are the endpoints with some labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceLb {
    /// `<tenant>:<service>`.
    pub key: String,
    /// The address that the user asked for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_address: String,
    /// The network that the address is of.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// `port:target port:protocol`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// `name=value`: the labels of the endpoints behind it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub selectors: Vec<String>,
    /// The name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_name: String,
    /// The tenant's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// What the service belongs to.
    pub links: ServiceLbLinks,
}

/// What a service belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "each names the object that its name says")]
pub struct ServiceLbLinks {
    pub network: Link,
    pub tenant: Link,
}

/// What `inspect` tells beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceLbOper {
    /// How many endpoints are behind it.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_providers: i64,
    /// The endpoints behind it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<EndpointOper>,
    /// Its address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_vip: String,
}
