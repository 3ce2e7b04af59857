use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `/contiv.io/state/serviceLB/<service>:<tenant>`, and an element of `/services`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// `<service>:<tenant>`.
    pub id: String,
    /// The service's name.
    #[serde(rename = "servicename")]
    pub service_name: String,
    /// The tenant's name.
    #[serde(rename = "tenantname")]
    pub tenant_name: String,
    /// The name of the network that the service's address is of.
    #[serde(rename = "subnet")]
    pub network_name: String,
    /// `<port>:<target port>:<TCP or UDP>` each.
    pub ports: Option<Vec<String>>,
    /// What a provider's labels must contain.
    pub selectors: Option<BTreeMap<String, String>>,
    /// The service's address.
    #[serde(rename = "ipaddress")]
    pub ip_address: String,
    /// By `<address>:<tenant>`.
    pub providers: Option<BTreeMap<String, Provider>>,
}

/// A container that serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Provider {
    /// Its IPv4 address.
    #[serde(rename = "IPAddress")]
    pub ip_address: String,
    /// Its container's id.
    #[serde(rename = "ContainerID")]
    pub container_id: String,
    /// The container's labels.
    #[serde(rename = "Labels")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Its tenant's name.
    #[serde(rename = "Tenant")]
    pub tenant: String,
    /// Its network's name, or its group's, as it was told.
    #[serde(rename = "Network")]
    pub network: String,
    /// The ids of the services that it serves.
    #[serde(rename = "Services")]
    pub services: Option<Vec<String>>,
    /// The endpoint as the orchestrator calls it.
    #[serde(rename = "Container")]
    pub container: String,
    /// The endpoint's id.
    #[serde(rename = "EpIDKey")]
    pub endpoint: String,
}

/// `/contiv.io/state/provider/<service>:<tenant>`: what agents read of a service's providers, also when it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Providers {
    /// `<service>:<tenant>`.
    pub id: String,
    /// The id again.
    #[serde(rename = "ServiceName")]
    pub service_name: String,
    /// Their addresses.
    #[serde(rename = "Providers")]
    pub providers: Option<Vec<String>>,
}
