//! `netctl app-profile`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    client::Client,
    commands::object::{self, CreateArgs, ObjectCommand},
    error::Error,
    flags::ObjectName,
    output::{self, printable, text},
    schema::{Field, Kind, Mutability, format::Format},
};

/// Application profiles.
pub static KIND: Kind = Kind {
    object_type: ObjectType::AppProfile,
    aliases: &["app-profile"],
    key_fields: &["tenantName", "appProfileName"],
    fields: &[
        Field::tenant(),
        Field::new("appProfileName", Format::Name).required(),
        Field::reference("endpointGroups", Format::List(&Format::Name), ObjectType::EndpointGroup),
    ],
    mutability: Mutability::Except(&[]),
    columns: &[("Tenant", "------"), ("AppProfile", "----------"), ("Groups", "------")],
    row: |profile| {
        ["tenantName", "appProfileName", "endpointGroups"].map(|field| text(profile, field)).into()
    },
    created: "Creating AppProfile {key}",
    deleted: "",
    check: None,
};

/// Commands for application profiles.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Commands that every kind has.
    #[command(flatten)]
    Common(ObjectCommand<Groups>),
    /// Replace the groups of an application profile.
    Update(Groups),
    /// List the groups of an application profile.
    #[command(visible_alias = "group-list")]
    GroupLs {
        /// Application profile.
        #[command(flatten)]
        object: ObjectName,
        /// Print a JSON array.
        #[arg(long, short)]
        json: bool,
    },
}

/// An application profile and its groups.
#[derive(Args, Debug)]
pub struct Groups {
    #[command(flatten)]
    object: ObjectName,
    /// Endpoint groups of the profile, comma-separated.
    #[arg(long, short = 'g', value_delimiter = ',')]
    group: Vec<String>,
}

impl CreateArgs for Groups {
    fn name(&self) -> (&str, &str) {
        self.object.parts()
    }

    fn fields(&self) -> Value {
        json!({"endpointGroups": self.group})
    }
}

/// Runs a command.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Common(command) => object::run(&KIND, client, command, out),
        // Like the original, creates a missing profile.
        Command::Update(groups) => object::put(&KIND, client, groups),
        Command::GroupLs { object, json } => {
            let profile = client.object(KIND.object_type, &object.key())?;
            if *json {
                let groups = profile.get("endpointGroups").cloned().unwrap_or_else(|| json!([]));
                return output::json(out, &groups);
            }
            Ok(writeln!(out, "{}", printable(&text(&profile, "endpointGroups")))?)
        }
    }
}
