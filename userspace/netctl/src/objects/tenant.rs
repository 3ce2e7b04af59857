//! `netctl tenant`.

use std::io::Write;

use clap::Subcommand;
use contiv_model::key::ObjectType;
use serde_json::json;

use crate::{
    client::Client,
    commands::{listing, object::report},
    error::Error,
    flags::{InspectFlags, ListFlags},
    output::text,
    schema::{Field, Kind, Mutability, format::Format},
};

/// Tenants. A row ends with an empty cell, as in the original.
pub static KIND: Kind = Kind {
    object_type: ObjectType::Tenant,
    aliases: &[],
    key_fields: &["tenantName"],
    fields: &[
        Field::new("tenantName", Format::Name).required(),
        Field::new("defaultNetwork", Format::DEFAULT_NETWORK),
    ],
    mutability: Mutability::Immutable,
    columns: &[("Name", "------"), ("", "")],
    row: |tenant| vec![text(tenant, "tenantName"), String::new()],
    created: "Creating tenant: {name}",
    deleted: "Deleting tenant {name}",
    check: None,
};

/// Commands for tenants.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List tenants.
    #[command(visible_alias = "list")]
    Ls(ListFlags),
    /// Create a tenant.
    Create {
        /// Name of the tenant.
        name: String,
    },
    /// Delete an empty tenant.
    #[command(visible_alias = "delete")]
    Rm {
        /// Name of the tenant.
        name: String,
    },
    /// Show a tenant and the objects in it.
    Inspect {
        /// Name of the tenant.
        name: String,
        /// Output flags.
        #[command(flatten)]
        flags: InspectFlags,
    },
}

/// Runs a command.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(flags) => listing::of_cluster(&KIND, client, flags, out),
        Command::Create { name } => {
            client.put(KIND.object_type, name, &json!({"key": name, "tenantName": name}))?;
            report(KIND.created, name, name, out)
        }
        Command::Rm { name } => {
            client.delete(KIND.object_type, name)?;
            report(KIND.deleted, name, name, out)
        }
        Command::Inspect { name, flags } => listing::inspect(client, KIND.name(), name, flags, out),
    }
}
