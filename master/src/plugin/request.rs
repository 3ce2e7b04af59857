//! Request bodies of plugin calls.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::cache::Labels;
use crate::go_json;
use crate::problem::Problem;
use crate::schema::{Field, Schema, Type};

/// A request body and the schema that decodes it.
pub(super) trait Request: DeserializeOwned {
    const SCHEMA: &'static Schema;
}

pub(super) fn decode<R: Request>(body: &[u8]) -> Result<R, Problem> {
    let members = go_json::decode(body, R::SCHEMA).map_err(Problem::invalid)?;
    serde_json::from_value(Value::Object(members)).map_err(|e| Problem::invalid(e.to_string()))
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocAddress {
    #[serde(rename = "NetworkID")]
    pub network_id: String,
    #[serde(rename = "AddressPool")]
    pub address_pool: String,
    #[serde(rename = "PreferredIPv4Address")]
    pub preferred: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ReleaseAddress {
    #[serde(rename = "NetworkID")]
    pub network_id: String,
    #[serde(rename = "IPv4Address")]
    pub address: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CreateEndpoint {
    pub tenant_name: String,
    pub network_name: String,
    #[serde(rename = "EPCommonName")]
    pub common_name: String,
    #[serde(rename = "ConfigEP")]
    pub config: ConfigEp,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ConfigEp {
    pub container: String,
    pub host: String,
    #[serde(rename = "IPAddress")]
    pub ip_address: String,
    #[serde(rename = "IPv6Address")]
    pub ipv6_address: String,
    /// Name of the group. The `ServiceName` outside `ConfigEP` is ignored.
    pub service_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct DeleteEndpoint {
    pub tenant_name: String,
    pub network_name: String,
    #[serde(rename = "EndpointID")]
    pub endpoint_id: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct UpdateEndpoint {
    #[serde(rename = "IPAddress")]
    pub ip_address: String,
    #[serde(rename = "ContainerID")]
    pub container_id: String,
    pub labels: Option<Labels>,
    pub tenant: String,
    /// Name of a network, or of a group.
    pub network: String,
    /// `start` or `die`.
    pub event: String,
    #[serde(rename = "EndpointID")]
    pub endpoint_id: String,
    #[serde(rename = "EPCommonName")]
    pub common_name: String,
}

impl Request for AllocAddress {
    const SCHEMA: &'static Schema = &Schema {
        go_type: "master.AddressAllocRequest",
        fields: &[
            Field::any("AddressPool", Type::Text),
            Field::any("NetworkID", Type::Text),
            Field::any("PreferredIPv4Address", Type::Text),
        ],
    };
}

impl Request for ReleaseAddress {
    const SCHEMA: &'static Schema = &Schema {
        go_type: "master.AddressReleaseRequest",
        fields: &[Field::any("NetworkID", Type::Text), Field::any("IPv4Address", Type::Text)],
    };
}

static CONFIG_EP: Schema = Schema {
    go_type: "intent.ConfigEP",
    fields: &[
        Field::any("Container", Type::Text),
        Field::any("Host", Type::Text),
        Field::any("IPAddress", Type::Text),
        Field::any("IPv6Address", Type::Text),
        Field::any("ServiceName", Type::Text),
    ],
};

impl Request for CreateEndpoint {
    const SCHEMA: &'static Schema = &Schema {
        go_type: "master.CreateEndpointRequest",
        fields: &[
            Field::any("TenantName", Type::Text),
            Field::any("NetworkName", Type::Text),
            Field::any("ServiceName", Type::Text),
            Field::any("EndpointID", Type::Text),
            Field::any("EPCommonName", Type::Text),
            Field::any("ConfigEP", Type::Struct(&CONFIG_EP)),
        ],
    };
}

impl Request for DeleteEndpoint {
    const SCHEMA: &'static Schema = &Schema {
        go_type: "master.DeleteEndpointRequest",
        fields: &[
            Field::any("TenantName", Type::Text),
            Field::any("NetworkName", Type::Text),
            Field::any("ServiceName", Type::Text),
            Field::any("EndpointID", Type::Text),
            Field::any("IPv4Address", Type::Text),
        ],
    };
}

impl Request for UpdateEndpoint {
    const SCHEMA: &'static Schema = &Schema {
        go_type: "master.UpdateEndpointRequest",
        fields: &[
            Field::any("IPAddress", Type::Text),
            Field::any("ContainerID", Type::Text),
            Field::any("Labels", Type::TextMap),
            Field::any("Tenant", Type::Text),
            Field::any("Network", Type::Text),
            Field::any("Event", Type::Text),
            Field::any("EndpointID", Type::Text),
            Field::any("EPCommonName", Type::Text),
        ],
    };
}
