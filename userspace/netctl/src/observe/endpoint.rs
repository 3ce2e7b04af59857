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
    client::{Client, listing::Selection},
    commands::{
        listing::{inspect, require_tenant},
        watch,
    },
    error::Error,
    flags::{InspectFlags, ListArgs},
    output::{
        list::{self, List, Width},
        text,
    },
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

const COLUMNS: [&str; 7] = ["Network", "Endpoint", "Name", "Group", "Node", "IPv4", "IPv6"];
/// Titles and fields of further columns.
const WIDE: [(&str, &str); 5] = [
    ("Container", "containerID"),
    ("MAC", "macAddress"),
    ("Port", "virtualPort"),
    ("VTEP", "vtepIP"),
    ("Labels", "labels"),
];

/// Runs a command.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(args) => watch::show(args.flags.watch, out, &|out| list(client, args, out)),
        Command::Inspect { id, flags } => inspect(client, "endpoint", id, flags, out),
    }
}

fn list(client: &Client, args: &ListArgs, out: &mut dyn Write) -> Result<(), Error> {
    let objects = objects(client, args)?;
    let list = List {
        objects: &objects,
        name: &|endpoint| text(endpoint, "endpointID"),
        table: &|out, width| table(&objects, out, width),
    };
    list.write(&args.flags.format(), out)
}

/// Reads the endpoints on the networks of a tenant, or of all, sorted by network and id.
pub fn objects(client: &Client, args: &ListArgs) -> Result<Vec<Value>, Error> {
    require_tenant(client, args)?;
    let networks = networks(client, (!args.all).then_some(args.tenant.tenant.as_str()))?;
    let mut found = endpoints(client, &networks)?;
    found.sort_by(|a, b| (&a.network, &a.endpoint_id).cmp(&(&b.network, &b.endpoint_id)));
    Ok(found.iter().map(|endpoint| json!(endpoint)).collect())
}

/// Finds an endpoint by its id, its container's id, or the name of its container.
pub fn find(client: &Client, id: &str) -> Result<Option<Value>, Error> {
    let mut answer = match client.inspect("endpoint", id) {
        Err(Error::Refused(message)) if message == "endpoint not found" => return Ok(None),
        answer => answer?,
    };
    let endpoint = answer.get_mut("Oper").map(Value::take).unwrap_or_default();
    // netmaster answers with an endpoint whose ids contain the text if none is equal.
    let is = |field: &&str| text(&endpoint, field) == id;
    let exact = ["endpointID", "containerID", "containerName"].iter().any(is);
    Ok(exact.then_some(endpoint))
}

/// Writes a table of endpoints.
pub fn table(endpoints: &[Value], out: &mut dyn Write, width: Width) -> Result<(), Error> {
    let more: &[(&str, &str)] = if width == Width::Wide { &WIDE } else { &[] };
    let address = |endpoint: &Value, family: usize| {
        let address = endpoint.get("ipAddress").and_then(|addresses| addresses.get(family));
        address.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let row = |endpoint: &Value| -> Vec<String> {
        let mut cells: Vec<String> = ["network", "endpointID", "containerName", "serviceName", "homingHost"]
            .map(|field| text(endpoint, field))
            .into();
        cells.extend([address(endpoint, 0), address(endpoint, 1)]);
        cells.extend(more.iter().map(|(_, field)| text(endpoint, field)));
        cells
    };
    let titles: Vec<&str> = COLUMNS.into_iter().chain(more.iter().map(|(title, _)| *title)).collect();
    list::titled(out, &titles, &endpoints.iter().map(row).collect::<Vec<_>>())
}

/// Reads the networks of a tenant, or of all tenants.
pub fn networks(client: &Client, tenant: Option<&str>) -> Result<Vec<Network>, Error> {
    let all = Selection::of(ObjectType::Network);
    let selection = match tenant {
        Some(tenant) => all.with("tenantName", tenant),
        None => all,
    };
    read(Value::Array(client.select(&selection)?.objects), "networks")
}

/// Reads the endpoints on networks.
pub fn endpoints<'a>(
    client: &Client,
    networks: impl IntoIterator<Item = &'a Network>,
) -> Result<Vec<EndpointOper>, Error> {
    let mut found = vec![];
    for network in networks {
        let answer = match client.inspect(ObjectType::Network.as_str(), &network.key) {
            // Deleted since the networks were listed.
            Err(Error::Refused(message)) if message == "network not found" => continue,
            answer => answer?,
        };
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
