//! `netctl external-contracts`.

use std::io::Write;

use clap::{ArgGroup, Args, Subcommand};
use contiv_model::key::ObjectType;
use serde_json::json;

use crate::{
    Error,
    cli::{Listed, Named},
    client::Client,
    listing::{Listing, text},
};

/// What can be done with groups of external contracts.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the contract groups of a tenant.
    #[command(visible_alias = "list")]
    Ls(Listed),
    /// Makes a contract group.
    Create(Create),
    /// Removes a contract group that no endpoint group has.
    #[command(visible_alias = "delete")]
    Rm(Named),
}

/// A contract group to make: either provided or consumed.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("type").required(true).args(["consumed", "provided"])))]
pub struct Create {
    #[command(flatten)]
    named: Named,
    /// The contracts are consumed.
    #[arg(long, short)]
    consumed: bool,
    /// The contracts are provided.
    #[arg(long, short)]
    provided: bool,
    /// A contract; may be given again.
    #[arg(long, short = 'a')]
    contract: Vec<String>,
}

/// As lists show contract groups; the empty columns are the original's.
pub const LISTING: Listing = Listing {
    kind: ObjectType::ExtContractsGroup,
    name: "contractsGroupName",
    columns: &[
        ("Tenant", "------"),
        ("Name", "------"),
        ("", ""),
        ("Type", "------"),
        ("", ""),
        ("Contracts", "-------"),
    ],
    row: |group| {
        vec![
            text(group, "tenantName"),
            text(group, "contractsGroupName"),
            String::new(),
            text(group, "contractsType"),
            format!("[{}]", text(group, "contracts").replace(',', " ")),
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
                "contractsGroupName": it.named.name,
                "contractsType": if it.provided { "provided" } else { "consumed" },
                "contracts": it.contract,
            });
            client.put(ObjectType::ExtContractsGroup, &key, &body)?;
            Ok(writeln!(out, "Creating ExternalContracts {key}")?)
        }
        Command::Rm(it) => {
            client.delete(ObjectType::ExtContractsGroup, &it.key())?;
            Ok(writeln!(out, "Deleting external contracts group {} in tenant {}", it.name, it.of.tenant)?)
        }
    }
}
