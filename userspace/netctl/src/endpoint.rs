//! `netctl endpoint`.

use std::io::Write;

use clap::Subcommand;
use contiv_model::{
    api::{EndpointOper, Inspect, Network, NetworkOper},
    key::ObjectType,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::{Detailed, Form, Listed},
    client::Client,
    listing::{inspect, pretty, yaml},
    table,
};

/// What can be done with endpoints.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the endpoints on the networks of a tenant.
    #[command(visible_alias = "list")]
    Ls(Listed),
    /// Shows an endpoint, as JSON.
    Inspect {
        /// The endpoint's or container's id.
        id: String,
        /// In which form.
        #[command(flatten)]
        form: Detailed,
    },
}

const COLUMNS: [table::Column; 7] = [
    ("Network", "-------"),
    ("Endpoint", "--------"),
    ("Name", "----"),
    ("Group", "-----"),
    ("Node", "----"),
    ("IPv4", "----"),
    ("IPv6", "----"),
];

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(how) => list(client, how, out),
        Command::Inspect { id, form } => inspect(client, "endpoint", id, form, out),
    }
}

fn list(client: &Client, how: &Listed, out: &mut dyn Write) -> Result<(), Error> {
    client.object(ObjectType::Tenant, &how.of.tenant)?;
    let networks = networks(client, (!how.all).then_some(how.of.tenant.as_str()))?;
    let mut found = on(client, &networks)?;
    found.sort_by(|a, b| (&a.network, &a.endpoint_id).cmp(&(&b.network, &b.endpoint_id)));
    match how.shown.form() {
        Form::Json => pretty(out, &json!(found)),
        Form::Yaml => yaml(out, &json!(found)),
        Form::Name => Ok(found.iter().try_for_each(|it| writeln!(out, "{}", it.endpoint_id))?),
        Form::Table => {
            let row = |it: &EndpointOper| {
                let [v4, v6] = &it.ip_address;
                [&it.network, &it.endpoint_id, &it.container_name, &it.service_name, &it.homing_host, v4, v6]
                    .map(String::clone)
                    .into()
            };
            let rows: Vec<Vec<String>> = found.iter().map(row).collect();
            Ok(table::write(out, &COLUMNS, &rows)?)
        }
    }
}

/// The networks of a tenant, or of all.
pub fn networks(client: &Client, tenant: Option<&str>) -> Result<Vec<Network>, Error> {
    let mut networks: Vec<Network> = typed(client, ObjectType::Network)?;
    networks.retain(|network| tenant.is_none_or(|tenant| network.tenant_name == tenant));
    Ok(networks)
}

/// The endpoints on networks.
pub fn on<'a>(
    client: &Client,
    networks: impl IntoIterator<Item = &'a Network>,
) -> Result<Vec<EndpointOper>, Error> {
    let mut found = vec![];
    for network in networks {
        let answer = client.inspect(ObjectType::Network.as_str(), &network.key)?;
        found.extend(read::<Inspect<Value, NetworkOper>>(answer, "networks")?.oper.endpoints);
    }
    Ok(found)
}

/// All objects of a type.
pub fn typed<T: DeserializeOwned>(client: &Client, kind: ObjectType) -> Result<Vec<T>, Error> {
    read(Value::Array(client.list(kind)?), kind.as_str())
}

/// An answer as what it should be.
pub fn read<T: DeserializeOwned>(value: Value, what: &str) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| {
        Error::Refused(format!("netmaster tells of {what} otherwise than expected: {error}"))
    })
}
