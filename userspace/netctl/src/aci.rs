//! `netctl aci-gw`.

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

const KEY: &str = "aciGw";

/// The gateway's settings.
pub static KIND: Kind = Kind {
    of: ObjectType::AciGw,
    words: &["aci-gw"],
    key: &["name"],
    fields: &[
        Field::new("name", Form::OneOf(&[KEY])).required(),
        Field::new("pathBindings", Form::Text),
        Field::new("nodeBindings", Form::Text),
        Field::new("physicalDomain", Form::Name),
        Field::new("enforcePolicies", Form::OneOf(&["yes", "no"])),
        Field::new("includeCommonTenant", Form::OneOf(&["yes", "no"])),
    ],
    change: Change::Settings,
    columns: &[
        ("Path bindings", "-------------"),
        ("Node bindings", "-------------"),
        ("Physical domain", "---------------"),
        ("Enforce policies", "----------------"),
        ("Include Common-Tenant", "---------------------"),
    ],
    row: |settings| LINES.map(|(_, field)| text(settings, field)).into(),
    created: "",
    deleted: "",
};

/// What can be done with the gateway's settings.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows the settings.
    Info {
        /// As a JSON array.
        #[arg(long, short)]
        json: bool,
    },
    /// Shows the settings and their use.
    Inspect(Detailed),
    /// Changes the settings that are named; the others stay.
    Set(Set),
}

/// The settings that `netctl aci-gw set` changes.
#[derive(Args, Debug)]
pub struct Set {
    /// Path bindings, with commas between them.
    #[arg(long, short)]
    path_bindings: Option<String>,
    /// Node bindings, with commas between them.
    #[arg(long, short)]
    node_bindings: Option<String>,
    /// The physical domain.
    #[arg(long = "phys-domain", short = 'd')]
    physical_domain: Option<String>,
    /// Whether policies are enforced: yes unless set.
    #[arg(long, short, value_parser = ["yes", "no"])]
    enforce_policies: Option<String>,
    /// Whether the tenant `common` is included: no unless set.
    #[arg(long, short, value_parser = ["yes", "no"])]
    include_common_tenant: Option<String>,
}

const LINES: [(&str, &str); 5] = [
    ("Path bindings", "pathBindings"),
    ("Node bindings", "nodeBindings"),
    ("Physical domain", "physicalDomain"),
    ("Enforce policies", "enforcePolicies"),
    ("Include Common-Tenant", "includeCommonTenant"),
];

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Info { json: true } => pretty(out, &Value::Array(client.list(KIND.of)?)),
        Command::Info { json: false } => {
            let settings = client.object(KIND.of, KEY)?;
            Ok(LINES
                .iter()
                .try_for_each(|(title, field)| writeln!(out, "{title}: {}", text(&settings, field)))?)
        }
        Command::Inspect(form) => inspect(client, "aciGw", KEY, form, out),
        Command::Set(set) => {
            let stored = client.list(KIND.of)?.into_iter().next();
            client.put(KIND.of, KEY, &changed(stored, set)).map(drop)
        }
    }
}

fn changed(stored: Option<Value>, set: &Set) -> Value {
    let defaults = json!({"name": KEY, "enforcePolicies": "yes", "includeCommonTenant": "no"});
    let mut settings = stored.unwrap_or(defaults);
    let named = [
        ("pathBindings", &set.path_bindings),
        ("nodeBindings", &set.node_bindings),
        ("physicalDomain", &set.physical_domain),
        ("enforcePolicies", &set.enforce_policies),
        ("includeCommonTenant", &set.include_common_tenant),
    ];
    for (field, value) in named {
        if let Some(value) = value {
            settings[field] = json!(value);
        }
    }
    settings
}
