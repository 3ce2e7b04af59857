//! `netctl app-profile`.

use std::io::Write;

use clap::{Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::json;

use crate::{
    Error,
    cli::{Listed, Named},
    client::Client,
    listing::{Listing, text},
};

/// What can be done with application profiles.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the profiles of a tenant.
    #[command(visible_alias = "list")]
    Ls(Listed),
    /// Makes a profile.
    Create(Grouped),
    /// Replaces a profile's groups.
    Update(Grouped),
    /// Removes a profile; its groups stay.
    #[command(visible_alias = "delete")]
    Rm(Named),
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

/// As lists show profiles.
pub const LISTING: Listing = Listing {
    kind: ObjectType::AppProfile,
    name: "appProfileName",
    columns: &[("Tenant", "------"), ("AppProfile", "----------"), ("Groups", "------")],
    row: |profile| {
        ["tenantName", "appProfileName", "endpointGroups"].map(|field| text(profile, field)).into()
    },
};

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(how) => LISTING.of_tenant(client, how, out),
        Command::Create(it) => {
            put(client, it)?;
            Ok(writeln!(out, "Creating AppProfile {}", it.named.key())?)
        }
        Command::Update(it) => {
            client.object(ObjectType::AppProfile, &it.named.key())?;
            put(client, it)
        }
        Command::Rm(it) => client.delete(ObjectType::AppProfile, &it.key()),
        Command::GroupLs(it) => {
            let profile = client.object(ObjectType::AppProfile, &it.key())?;
            Ok(writeln!(out, "{}", text(&profile, "endpointGroups"))?)
        }
    }
}

fn put(client: &Client, it: &Grouped) -> Result<(), Error> {
    let body = json!({
        "tenantName": it.named.of.tenant,
        "appProfileName": it.named.name,
        "endpointGroups": it.group,
    });
    client.put(ObjectType::AppProfile, &it.named.key(), &body).map(drop)
}
