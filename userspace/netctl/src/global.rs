//! `netctl global`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::Detailed,
    client::Client,
    kind::{Change, Field, Form, Kind},
    listing::{inspect, pretty, text},
};

const KEY: &str = "global";

/// The cluster's settings.
pub static KIND: Kind = Kind {
    of: ObjectType::Global,
    words: &[],
    key: &["name"],
    fields: &[
        Field::new("name", Form::OneOf(&[KEY])).required(),
        Field::new("networkInfraType", Form::OneOf(&["default", "aci", "aci-opflex"])),
        Field::new("fwdMode", Form::OneOf(&["bridge", "routing"])),
        Field::new("arpMode", Form::OneOf(&["proxy", "flood"])),
        Field::new("vlans", Form::TAGS),
        Field::new("vxlans", Form::TAGS),
        Field::new("pvtSubnet", Form::PRIVATE_SUBNET),
    ],
    change: Change::Settings,
    columns: &[
        ("Fabric mode", "-----------"),
        ("Forward mode", "------------"),
        ("ARP mode", "--------"),
        ("Vlan Range", "----------"),
        ("Vxlan range", "-----------"),
        ("Private subnet", "--------------"),
    ],
    row: |global| LINES.map(|(_, field)| text(global, field)).into(),
    created: "",
    deleted: "",
};

/// The lines of `info`: title and field.
const LINES: [(&str, &str); 6] = [
    ("Fabric mode", "networkInfraType"),
    ("Forward mode", "fwdMode"),
    ("ARP mode", "arpMode"),
    ("Vlan Range", "vlans"),
    ("Vxlan range", "vxlans"),
    ("Private subnet", "pvtSubnet"),
];

/// What can be done with the settings.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows the settings.
    Info {
        /// As a JSON array.
        #[arg(long, short)]
        json: bool,
    },
    /// Shows the settings and what is in use, as JSON.
    Inspect(Detailed),
    /// Changes the settings that are named; the others stay.
    Set(Set),
}

/// The settings that `netctl global set` changes.
#[derive(Args, Clone, Debug)]
pub struct Set {
    /// `default`, `aci` or `aci-opflex`.
    #[arg(long, short)]
    pub fabric_mode: Option<String>,
    /// The VLANs to allocate from, e.g. 1-4094.
    #[arg(long, short)]
    pub vlan_range: Option<String>,
    /// The VNIs to allocate from, e.g. 1-10000.
    #[arg(long, short = 'x')]
    pub vxlan_range: Option<String>,
    /// `bridge` or `routing`.
    #[arg(long, short = 'b')]
    pub fwd_mode: Option<String>,
    /// `proxy` or `flood`.
    #[arg(long, short)]
    pub arp_mode: Option<String>,
    /// The subnet for the nodes' own access to pods, a /16.
    #[arg(long, short = 's')]
    pub private_subnet: Option<String>,
}

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Info { json: true } => pretty(out, &Value::Array(client.list(ObjectType::Global)?)),
        Command::Info { json: false } => info(&client.object(ObjectType::Global, KEY)?, out),
        Command::Inspect(form) => inspect(client, "global", KEY, form, out),
        Command::Set(set) => {
            let now = client.object(ObjectType::Global, KEY)?;
            client.put(ObjectType::Global, KEY, &changed(now, set)).map(drop)
        }
    }
}

fn info(global: &Value, out: &mut dyn Write) -> Result<(), Error> {
    for (title, field) in LINES {
        writeln!(out, "{title}: {}", text(global, field))?;
    }
    Ok(())
}

/// The settings with what was named changed. The original resets the private subnet to its default
/// whenever it is not named; ours stays.
fn changed(mut global: Value, set: &Set) -> Value {
    let named = [
        ("networkInfraType", &set.fabric_mode),
        ("vlans", &set.vlan_range),
        ("vxlans", &set.vxlan_range),
        ("fwdMode", &set.fwd_mode),
        ("arpMode", &set.arp_mode),
        ("pvtSubnet", &set.private_subnet),
    ];
    for (field, value) in named {
        if let Some(value) = value {
            global[field] = json!(value);
        }
    }
    global
}
