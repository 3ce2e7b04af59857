//! `netctl global`.

use std::io::Write;

use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::{Global, GlobalSet},
    client::Client,
    listing::{inspect, pretty, text},
};

const KEY: &str = "global";

/// The lines of `info`: title and field.
const LINES: [(&str, &str); 6] = [
    ("Fabric mode", "networkInfraType"),
    ("Forward mode", "fwdMode"),
    ("ARP mode", "arpMode"),
    ("Vlan Range", "vlans"),
    ("Vxlan range", "vxlans"),
    ("Private subnet", "pvtSubnet"),
];

/// Runs one of the commands.
pub fn run(client: &Client, command: &Global, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Global::Info { json: true } => pretty(out, &Value::Array(client.list(ObjectType::Global)?)),
        Global::Info { json: false } => info(&client.object(ObjectType::Global, KEY)?, out),
        Global::Inspect(form) => inspect(client, "global", KEY, form, out),
        Global::Set(set) => {
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
fn changed(mut global: Value, set: &GlobalSet) -> Value {
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
