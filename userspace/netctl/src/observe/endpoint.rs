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
    client::Client,
    commands::listing::inspect,
    error::Error,
    flags::{InspectFlags, ListArgs, ListFormat},
    output::{self, printable, table},
};

/// Commands for endpoints.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the endpoints on the networks of a tenant.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Show an endpoint.
    Inspect {
        /// Endpoint id or container id.
        id: String,
        /// Output flags.
        #[command(flatten)]
        flags: InspectFlags,
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

/// Runs a command.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(args) => list(client, args, out),
        Command::Inspect { id, flags } => inspect(client, "endpoint", id, flags, out),
    }
}

fn list(client: &Client, args: &ListArgs, out: &mut dyn Write) -> Result<(), Error> {
    client.object(ObjectType::Tenant, &args.tenant.tenant)?;
    let networks = networks(client, (!args.all).then_some(args.tenant.tenant.as_str()))?;
    let mut found = endpoints(client, &networks)?;
    found.sort_by(|a, b| (&a.network, &a.endpoint_id).cmp(&(&b.network, &b.endpoint_id)));
    match args.flags.format() {
        ListFormat::Json => output::json(out, &json!(found)),
        ListFormat::Yaml => output::yaml(out, &json!(found)),
        ListFormat::Name => {
            Ok(found.iter().try_for_each(|it| writeln!(out, "{}", printable(&it.endpoint_id)))?)
        }
        ListFormat::Table => {
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

/// Reads the networks of a tenant, or of all tenants.
pub fn networks(client: &Client, tenant: Option<&str>) -> Result<Vec<Network>, Error> {
    let mut networks: Vec<Network> = typed(client, ObjectType::Network)?;
    networks.retain(|network| tenant.is_none_or(|tenant| network.tenant_name == tenant));
    Ok(networks)
}

/// Reads the endpoints on networks.
pub fn endpoints<'a>(
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

/// Lists the objects of a type.
pub fn typed<T: DeserializeOwned>(client: &Client, kind: ObjectType) -> Result<Vec<T>, Error> {
    read(Value::Array(client.list(kind)?), kind.as_str())
}

/// Decodes a response of netmaster.
pub fn read<T: DeserializeOwned>(value: Value, what: &str) -> Result<T, Error> {
    serde_json::from_value(value)
        .map_err(|error| Error::Refused(format!("decode {what} of netmaster: {error}")))
}
