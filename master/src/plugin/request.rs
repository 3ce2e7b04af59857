//! The bodies of the calls.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;

use crate::cache::Labels;
use crate::go_json;
use crate::problem::Problem;
use crate::schema::{Member, Shape, Type};

/// A body with the Go type that it is decoded as.
pub(super) trait Request: DeserializeOwned {
    const SHAPE: &'static Shape;
}

pub(super) fn decode<R: Request>(body: &[u8]) -> Result<R, Problem> {
    let members = go_json::decode(body, R::SHAPE).map_err(Problem::invalid)?;
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
    /// The group: the one beside `ConfigEP` is not read.
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
    /// Of a network, or of a group on one.
    pub network: String,
    /// `start` or `die`.
    pub event: String,
    #[serde(rename = "EndpointID")]
    pub endpoint_id: String,
    #[serde(rename = "EPCommonName")]
    pub common_name: String,
}

impl Request for AllocAddress {
    const SHAPE: &'static Shape = &Shape {
        go_type: "master.AddressAllocRequest",
        members: &[
            Member::any("AddressPool", Type::Text),
            Member::any("NetworkID", Type::Text),
            Member::any("PreferredIPv4Address", Type::Text),
        ],
    };
}

impl Request for ReleaseAddress {
    const SHAPE: &'static Shape = &Shape {
        go_type: "master.AddressReleaseRequest",
        members: &[Member::any("NetworkID", Type::Text), Member::any("IPv4Address", Type::Text)],
    };
}

static CONFIG_EP: Shape = Shape {
    go_type: "intent.ConfigEP",
    members: &[
        Member::any("Container", Type::Text),
        Member::any("Host", Type::Text),
        Member::any("IPAddress", Type::Text),
        Member::any("IPv6Address", Type::Text),
        Member::any("ServiceName", Type::Text),
    ],
};

impl Request for CreateEndpoint {
    const SHAPE: &'static Shape = &Shape {
        go_type: "master.CreateEndpointRequest",
        members: &[
            Member::any("TenantName", Type::Text),
            Member::any("NetworkName", Type::Text),
            Member::any("ServiceName", Type::Text),
            Member::any("EndpointID", Type::Text),
            Member::any("EPCommonName", Type::Text),
            Member::any("ConfigEP", Type::Struct(&CONFIG_EP)),
        ],
    };
}

impl Request for DeleteEndpoint {
    const SHAPE: &'static Shape = &Shape {
        go_type: "master.DeleteEndpointRequest",
        members: &[
            Member::any("TenantName", Type::Text),
            Member::any("NetworkName", Type::Text),
            Member::any("ServiceName", Type::Text),
            Member::any("EndpointID", Type::Text),
            Member::any("IPv4Address", Type::Text),
        ],
    };
}

impl Request for UpdateEndpoint {
    const SHAPE: &'static Shape = &Shape {
        go_type: "master.UpdateEndpointRequest",
        members: &[
            Member::any("IPAddress", Type::Text),
            Member::any("ContainerID", Type::Text),
            Member::any("Labels", Type::TextMap),
            Member::any("Tenant", Type::Text),
            Member::any("Network", Type::Text),
            Member::any("Event", Type::Text),
            Member::any("EndpointID", Type::Text),
            Member::any("EPCommonName", Type::Text),
        ],
    };
}
