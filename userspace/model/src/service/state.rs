use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The body of `/contiv.io/state/serviceLB/<service>:<tenant>`, and an element of `/services`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// `<service>:<tenant>`.
    pub id: String,
    /// Name of the service.
    #[serde(rename = "servicename")]
    pub service_name: String,
    /// Name of the tenant.
    #[serde(rename = "tenantname")]
    pub tenant_name: String,
    /// Name of the network of the service's address.
    #[serde(rename = "subnet")]
    pub network_name: String,
    /// Ports, each `<port>:<target port>:<TCP or UDP>`.
    pub ports: Option<Vec<String>>,
    /// Labels that a provider must have.
    pub selectors: Option<BTreeMap<String, String>>,
    /// IP address of the service.
    #[serde(rename = "ipaddress")]
    pub ip_address: String,
    /// Providers, by `<address>:<tenant>`. Derived when it is read; empty in the store.
    pub providers: Option<BTreeMap<String, Provider>>,
}

/// A container that is a backend of services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provider {
    /// IPv4 address.
    #[serde(rename = "IPAddress")]
    pub ip_address: String,
    /// Id of the container.
    #[serde(rename = "ContainerID")]
    pub container_id: String,
    /// Labels of the container.
    #[serde(rename = "Labels")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Name of the tenant.
    #[serde(rename = "Tenant")]
    pub tenant: String,
    /// Name of the network or group, as requested.
    #[serde(rename = "Network")]
    pub network: String,
    /// Ids of the services whose selectors match.
    #[serde(rename = "Services")]
    pub services: Option<Vec<String>>,
    /// Id of the endpoint in the orchestrator.
    #[serde(rename = "Container")]
    pub container: String,
    /// Id of the endpoint.
    #[serde(rename = "EpIDKey")]
    pub endpoint: String,
}

/// The body of `/contiv.io/state/provider/<service>:<tenant>`, and of the slices below it: providers
/// of a service, which agents read. The first slice exists also for a service without providers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Providers {
    /// `<service>:<tenant>`, or `<service>:<tenant>/<number>`.
    pub id: String,
    /// `<service>:<tenant>`.
    #[serde(rename = "ServiceName")]
    pub service_name: String,
    /// IP addresses of the providers.
    #[serde(rename = "Providers")]
    pub providers: Option<Vec<String>>,
}
