//! `netctl app-profile`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::{Value, json};

use crate::{
    Error,
    cli::Named,
    client::Client,
    kind::{Change, Field, Form, Kind},
    listing::text,
    verb::{self, Make, Verb},
};

/// Application profiles.
pub static KIND: Kind = Kind {
    of: ObjectType::AppProfile,
    words: &["app-profile"],
    key: &["tenantName", "appProfileName"],
    fields: &[
        Field::tenant(),
        Field::new("appProfileName", Form::Name).required(),
        Field::naming("endpointGroups", Form::List(&Form::Name), ObjectType::EndpointGroup),
    ],
    change: Change::AllBut(&[]),
    columns: &[("Tenant", "------"), ("AppProfile", "----------"), ("Groups", "------")],
    row: |profile| {
        ["tenantName", "appProfileName", "endpointGroups"].map(|field| text(profile, field)).into()
    },
    created: "Creating AppProfile {key}",
    deleted: "",
};

/// What can be done with application profiles.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What every kind has.
    #[command(flatten)]
    Each(Verb<Grouped>),
    /// Replaces a profile's groups.
    Update(Grouped),
    /// Lists a profile's groups.
    GroupLs(Named),
}

/// A profile and its groups.
#[derive(Args, Debug)]
pub struct Grouped {
    #[command(flatten)]
    named: Named,
    /// The groups, with commas between them.
    #[arg(long, short = 'g', value_delimiter = ',')]
    group: Vec<String>,
}

impl Make for Grouped {
    fn named(&self) -> (&str, &str) {
        self.named.parts()
    }

    fn fields(&self) -> Value {
        json!({"endpointGroups": self.group})
    }
}

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Each(verb) => verb::run(&KIND, client, verb, out),
        Command::Update(it) => {
            client.object(KIND.of, &it.named.key())?;
            verb::put(&KIND, client, it)
        }
        Command::GroupLs(it) => {
            let profile = client.object(KIND.of, &it.key())?;
            Ok(writeln!(out, "{}", text(&profile, "endpointGroups"))?)
        }
    }
}
