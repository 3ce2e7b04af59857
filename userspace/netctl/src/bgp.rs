//! `netctl bgp`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::json;

use crate::{
    Error,
    cli::{Detailed, Shown},
    client::Client,
    kind::{Change, Field, Form, Kind},
    listing::{self, inspect, text},
    verb::say,
};

/// What can be done with the nodes' BGP settings.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the settings of all nodes.
    #[command(visible_alias = "list")]
    Ls(Shown),
    /// Makes or replaces a node's settings.
    Create(Create),
    /// Removes a node's settings.
    #[command(visible_alias = "delete")]
    Rm {
        /// The node.
        hostname: String,
    },
    /// Shows a node's settings, neighbour and routes.
    Inspect {
        /// The node.
        hostname: String,
        /// In which form.
        #[command(flatten)]
        form: Detailed,
    },
}

/// A node's settings.
#[derive(Args, Debug)]
pub struct Create {
    /// The node.
    hostname: String,
    /// The router's address and prefix length, e.g. 50.1.1.1/24.
    #[arg(long, value_parser = cidr)]
    router_ip: String,
    /// The node's AS number.
    #[arg(long = "as")]
    own_as: Option<String>,
    /// The neighbour's AS number.
    #[arg(long)]
    neighbor_as: Option<String>,
    /// The neighbour's address.
    #[arg(long)]
    neighbor: Option<std::net::Ipv4Addr>,
}

/// The text itself: netmaster knows more forms of the address than one.
fn cidr(text: &str) -> Result<String, &'static str> {
    let valid = text.split_once('/').is_some_and(|(_, len)| len.parse().is_ok_and(|len: u8| len <= 32));
    if valid { Ok(text.to_owned()) } else { Err("expected x.x.x.x/len") }
}

/// The nodes' BGP settings.
pub static KIND: Kind = Kind {
    of: ObjectType::Bgp,
    words: &["bgp"],
    key: &["hostname"],
    fields: &[
        Field::new("hostname", Form::Name).required(),
        Field::new("routerip", Form::ROUTER).required(),
        Field::new("as", Form::Text),
        Field::new("neighbor", Form::IPV4),
        Field::new("neighbor-as", Form::Text),
    ],
    change: Change::AllBut(&[]),
    columns: &[
        ("HostName", "---------"),
        ("RouterIP", "--------"),
        ("AS", "-------"),
        ("Neighbor", "--------"),
        ("NeighborAS", "-------"),
    ],
    row: |bgp| ["hostname", "routerip", "as", "neighbor", "neighbor-as"].map(|field| text(bgp, field)).into(),
    created: "",
    deleted: "Deleting Bgp router config: {name}",
};

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(how) => listing::show(&KIND, client.list(KIND.of)?, how, out),
        Command::Create(it) => {
            let body = json!({
                "hostname": it.hostname,
                "routerip": it.router_ip,
                "as": it.own_as.as_deref().unwrap_or_default(),
                "neighbor-as": it.neighbor_as.as_deref().unwrap_or_default(),
                "neighbor": it.neighbor.map(|ip| ip.to_string()).unwrap_or_default(),
            });
            client.put(KIND.of, &it.hostname, &body).map(drop)
        }
        Command::Rm { hostname } => {
            client.delete(KIND.of, hostname)?;
            say(KIND.deleted, "", hostname, out)
        }
        Command::Inspect { hostname, form } => inspect(client, "Bgp", hostname, form, out),
    }
}
