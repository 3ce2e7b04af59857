use serde::{Deserialize, Serialize};

use super::{EndpointOper, Link, is_zero};

/// A service: an address of a network that is translated to the endpoints with given labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServiceLb {
    /// `<tenant>:<service>`.
    pub key: String,
    /// IP address requested by the user.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip_address: String,
    /// Name of the network of the address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_name: String,
    /// `port:target port:protocol`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<String>,
    /// Labels of the service's endpoints, `name=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub selectors: Vec<String>,
    /// Name within the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_name: String,
    /// Name of the tenant.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub tenant_name: String,
    /// Owners of the service.
    pub links: ServiceLbLinks,
}

/// Owners of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[expect(missing_docs, reason = "each names the object that its name says")]
pub struct ServiceLbLinks {
    pub network: Link,
    pub tenant: Link,
}

/// Operational state of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceLbOper {
    /// Number of providers.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_providers: i64,
    /// Endpoints of the service.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub providers: Vec<EndpointOper>,
    /// IP address of the service.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_vip: String,
}
