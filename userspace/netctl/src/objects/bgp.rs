//! `netctl bgp`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::json;

use crate::{
    client::Client,
    commands::{
        listing::{self, inspect},
        object::report,
    },
    error::Error,
    flags::{InspectFlags, ListFlags},
    output::text,
    schema::{Field, Kind, Mutability, format::Format},
};

/// Commands for BGP settings.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the BGP settings of all nodes.
    #[command(visible_alias = "list")]
    Ls(ListFlags),
    /// Create or replace the BGP settings of a node.
    Create(Create),
    /// Delete the BGP settings of a node.
    #[command(visible_alias = "delete")]
    Rm {
        /// Host name of the node.
        hostname: String,
    },
    /// Show the BGP settings, neighbour and routes of a node.
    Inspect {
        /// Host name of the node.
        hostname: String,
        /// Output flags.
        #[command(flatten)]
        flags: InspectFlags,
    },
}

/// Arguments of `netctl bgp create`.
#[derive(Args, Debug)]
pub struct Create {
    /// Host name of the node.
    hostname: String,
    /// Address and prefix length of the router, such as 50.1.1.1/24.
    #[arg(long, value_parser = cidr)]
    router_ip: String,
    /// AS number of the node.
    #[arg(long = "as")]
    own_as: String,
    /// AS number of the neighbour.
    #[arg(long)]
    neighbor_as: String,
    /// IPv4 address of the neighbour.
    #[arg(long)]
    neighbor: std::net::Ipv4Addr,
}

/// Checks the prefix length only: netmaster accepts several notations of the address.
fn cidr(text: &str) -> Result<String, &'static str> {
    let valid = text.split_once('/').is_some_and(|(_, len)| len.parse().is_ok_and(|len: u8| len <= 32));
    if valid { Ok(text.to_owned()) } else { Err("expected x.x.x.x/len") }
}

/// BGP settings of nodes.
pub static KIND: Kind = Kind {
    object_type: ObjectType::Bgp,
    aliases: &["bgp"],
    key_fields: &["hostname"],
    fields: &[
        Field::new("hostname", Format::Name).required(),
        Field::new("routerip", Format::ROUTER).required(),
        Field::new("as", Format::Text),
        Field::new("neighbor", Format::IPV4),
        Field::new("neighbor-as", Format::Text),
    ],
    mutability: Mutability::Except(&[]),
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
    check: None,
};

/// Runs a command.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(flags) => listing::of_cluster(&KIND, client, flags, out),
        Command::Create(args) => {
            let body = json!({
                "hostname": args.hostname,
                "routerip": args.router_ip,
                "as": args.own_as,
                "neighbor-as": args.neighbor_as,
                "neighbor": args.neighbor.to_string(),
            });
            client.put(KIND.object_type, &args.hostname, &body).map(drop)
        }
        Command::Rm { hostname } => {
            client.delete(KIND.object_type, hostname)?;
            report(KIND.deleted, "", hostname, out)
        }
        Command::Inspect { hostname, flags } => inspect(client, "Bgp", hostname, flags, out),
    }
}
