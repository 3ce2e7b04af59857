//! `netctl network`.

use std::io::Write;

use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::{Network, NetworkCreate},
    client::Client,
    listing::{Listing, inspect, text},
};

const LISTING: Listing = Listing {
    kind: ObjectType::Network,
    name: "networkName",
    columns: &[
        ("Tenant", "------"),
        ("Network", "-------"),
        ("Nw Type", "-------"),
        ("Encap type", "----------"),
        ("Packet tag", "----------"),
        ("Subnet", "-------"),
        ("Gateway", "------"),
        ("IPv6Subnet", "----------"),
        ("IPv6Gateway", "-----------"),
        ("Cfgd Tag ", "---------"),
    ],
    row,
};

fn row(network: &Value) -> Vec<String> {
    let tag = network.get("pktTag").and_then(Value::as_i64).unwrap_or(0).to_string();
    let field = |name| text(network, name);
    vec![
        field("tenantName"),
        field("networkName"),
        field("nwType"),
        field("encap"),
        tag,
        field("subnet"),
        field("gateway"),
        field("ipv6Subnet"),
        field("ipv6Gateway"),
        field("cfgdTag"),
    ]
}

/// Runs one of the commands.
pub fn run(client: &Client, command: &Network, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Network::Ls(how) => LISTING.of_tenant(client, how, out),
        Network::Create(network) => {
            let key = network.named.key();
            client.put(ObjectType::Network, &key, &body(network))?;
            Ok(writeln!(out, "Creating network {key}")?)
        }
        Network::Rm(named) => {
            client.delete(ObjectType::Network, &named.key())?;
            Ok(writeln!(out, "Deleting network {}", named.key())?)
        }
        Network::Inspect(it) => inspect(client, "network", &it.named.key(), &it.form, out),
    }
}

fn body(network: &NetworkCreate) -> Value {
    let optional = |text: &Option<String>| text.clone().unwrap_or_default();
    json!({
        "tenantName": network.named.of.tenant,
        "networkName": network.named.name,
        "nwType": network.nw_type,
        "encap": network.encap,
        "pktTag": network.pkt_tag,
        "subnet": network.subnet,
        "gateway": network.gateway.map(|ip| ip.to_string()).unwrap_or_default(),
        "ipv6Subnet": optional(&network.subnetv6),
        "ipv6Gateway": network.gatewayv6.map(|ip| ip.to_string()).unwrap_or_default(),
        "cfgdTag": optional(&network.nw_tag),
    })
}
