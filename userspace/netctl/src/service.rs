//! `netctl service`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::json;

use crate::{
    Error,
    cli::{Inspected, Listed, Named},
    client::Client,
    listing::{Listing, inspect, text},
};

/// What can be done with services.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the services of a tenant.
    #[command(visible_alias = "list")]
    Ls(Listed),
    /// Makes a service.
    Create(Create),
    /// Removes a service.
    #[command(visible_alias = "delete")]
    Rm(Named),
    /// Shows a service, its address and providers.
    Inspect(Inspected),
}

/// A service to make.
#[derive(Args, Debug)]
pub struct Create {
    #[command(flatten)]
    named: Named,
    /// The network that the service's address is from.
    #[arg(long, short = 's')]
    network: String,
    /// A label of the endpoints that provide it, `key=value`; may be given again.
    #[arg(long, short = 'l')]
    selector: Vec<String>,
    /// `PORT:TARGETPORT:PROTOCOL`, e.g. 80:8080:TCP; may be given again.
    #[arg(long, short)]
    port: Vec<String>,
    /// The address to take (also -ip).
    #[arg(long)]
    preferred_ip: Option<std::net::Ipv4Addr>,
}

/// As lists show services; a row ends with an empty cell, as in the original.
pub const LISTING: Listing = Listing {
    kind: ObjectType::ServiceLb,
    name: "serviceName",
    columns: &[
        ("ServiceName", "---------"),
        ("Tenant", "--------"),
        ("Network", "-------"),
        ("Selectors", "-------"),
    ],
    row: |service| {
        vec![
            text(service, "serviceName"),
            text(service, "tenantName"),
            text(service, "networkName"),
            format!("[{}]", text(service, "selectors").replace(',', " ")),
            String::new(),
        ]
    },
};

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(how) => LISTING.of_tenant(client, how, out),
        Command::Create(it) => {
            let key = it.named.key();
            let body = json!({
                "tenantName": it.named.of.tenant,
                "serviceName": it.named.name,
                "networkName": it.network,
                "selectors": it.selector,
                "ports": it.port,
                "ipAddress": it.preferred_ip.map(|ip| ip.to_string()).unwrap_or_default(),
            });
            client.put(ObjectType::ServiceLb, &key, &body)?;
            Ok(writeln!(out, "Creating ServiceLB {key}")?)
        }
        Command::Rm(it) => {
            client.delete(ObjectType::ServiceLb, &it.key())?;
            Ok(writeln!(out, "Deleting Service  {},{}", it.name, it.of.tenant)?)
        }
        Command::Inspect(it) => inspect(client, "serviceLB", &it.named.key(), &it.form, out),
    }
}
