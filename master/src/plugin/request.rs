//! Request bodies of plugin calls.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::cache::Labels;
use crate::domain::network_record::network_id;
use crate::go_json;
use crate::problem::Problem;
use crate::schema::{Field, Schema, Type};

/// A request body and the schema that decodes it.
pub(super) trait Request: DeserializeOwned {
    const SCHEMA: &'static Schema;
}

/// Largest size of a text in bytes. Names are parts of keys.
const MAX_TEXT: usize = 256;
/// Largest size of all labels of a call, and of an endpoint, in bytes.
pub(super) const MAX_LABELS: usize = 64 << 10;

pub(super) fn decode<R: Request>(body: &[u8]) -> Result<R, Problem> {
    let members = go_json::decode(body, R::SCHEMA).map_err(Problem::invalid)?;
    check_sizes(&members, R::SCHEMA)?;
    serde_json::from_value(Value::Object(members)).map_err(|e| Problem::invalid(e.to_string()))
}

/// Fails if a text or the labels are too large.
fn check_sizes(members: &Map<String, Value>, schema: &Schema) -> Result<(), Problem> {
    for field in schema.fields {
        match (field.kind, members.get(field.name)) {
            (Type::Text, Some(Value::String(text))) => check_text(field.name, text)?,
            (Type::TextMap, Some(Value::Object(texts))) => {
                let texts =
                    texts.iter().map(|(name, text)| (name.as_str(), text.as_str().unwrap_or_default()));
                check_size(field.name, labels_size(texts), MAX_LABELS)?;
            }
            (Type::Struct(schema), Some(Value::Object(members))) => check_sizes(members, schema)?,
            _ => {}
        }
    }
    Ok(())
}

/// Size of labels in bytes, without their encoding.
pub(super) fn labels_size<'a>(labels: impl Iterator<Item = (&'a str, &'a str)>) -> usize {
    labels.map(|(name, value)| name.len() + value.len()).sum()
}

/// Fails if a text is too large, also one that is not in a body.
pub(super) fn check_text(name: &str, text: &str) -> Result<(), Problem> {
    check_size(name, text.len(), MAX_TEXT)
}

fn check_size(name: &str, size: usize, limit: usize) -> Result<(), Problem> {
    if size <= limit {
        return Ok(());
    }
    Err(Problem::invalid(format!("{name} has {size} bytes; the limit is {limit}")))
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
    /// Revision of the record that is deleted, as the store has it; 0 for none. Without it, any record is.
    pub mod_revision: Option<i64>,
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

impl DeleteEndpoint {
    /// Id of the network.
    pub(super) fn network(&self) -> String {
        network_id(&self.tenant_name, &self.network_name)
    }

    /// Id of the endpoint.
    pub(super) fn id(&self) -> String {
        format!("{}-{}", self.network(), self.endpoint_id)
    }
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
            Field::any("ModRevision", Type::Int),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal<R: Request>(body: &Value) -> Option<String> {
        decode::<R>(body.to_string().as_bytes()).err().map(|problem| problem.text)
    }

    #[test]
    fn long_texts_are_refused() {
        let (fits, long) = ("x".repeat(256), "x".repeat(300));
        let create = |container: &str, host: &str| {
            let config = json!({"Container": container, "Host": host});
            refusal::<CreateEndpoint>(&json!({"TenantName": "t", "NetworkName": "n", "ConfigEP": config}))
        };
        assert_eq!(create(&fits, &fits), None);
        assert_eq!(create(&long, "h").as_deref(), Some("Container has 300 bytes; the limit is 256"));
        assert_eq!(create("c", &long).as_deref(), Some("Host has 300 bytes; the limit is 256"));
        let delete = refusal::<DeleteEndpoint>(&json!({"EndpointID": long}));
        assert_eq!(delete.as_deref(), Some("EndpointID has 300 bytes; the limit is 256"));
        let release = refusal::<ReleaseAddress>(&json!({"NetworkID": long}));
        assert_eq!(release.as_deref(), Some("NetworkID has 300 bytes; the limit is 256"));
    }

    #[test]
    fn the_sum_of_the_labels_is_limited() {
        let update = |count: usize| {
            let labels: Map<String, Value> =
                (0..count).map(|n| (format!("{n:04}"), json!("v".repeat(1020)))).collect();
            refusal::<UpdateEndpoint>(&json!({"EndpointID": "c", "Labels": labels}))
        };
        assert_eq!(update(64), None);
        assert_eq!(update(65).as_deref(), Some("Labels has 66560 bytes; the limit is 65536"));
    }
}
