//! `netctl tenant`.

use std::io::Write;

use clap::Subcommand;
use contiv_model::key::ObjectType;
use serde_json::json;

use crate::{
    Error,
    cli::{Detailed, Shown},
    client::Client,
    kind::{Change, Field, Form, Kind},
    listing::{self, text},
    verb::say,
};

/// Tenants. A row ends with an empty cell, as in the original.
pub static KIND: Kind = Kind {
    of: ObjectType::Tenant,
    words: &[],
    key: &["tenantName"],
    fields: &[Field::new("tenantName", Form::Name).required(), Field::new("defaultNetwork", Form::Name)],
    change: Change::Never,
    columns: &[("Name", "------"), ("", "")],
    row: |tenant| vec![text(tenant, "tenantName"), String::new()],
    created: "Creating tenant: {name}",
    deleted: "Deleting tenant {name}",
};

/// What can be done with tenants.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the tenants.
    #[command(visible_alias = "list")]
    Ls(Shown),
    /// Makes a tenant.
    Create {
        /// Its name.
        name: String,
    },
    /// Removes an empty tenant.
    #[command(visible_alias = "delete")]
    Rm {
        /// Its name.
        name: String,
    },
    /// Shows a tenant and what it holds.
    Inspect {
        /// Its name.
        name: String,
        /// In which form.
        #[command(flatten)]
        form: Detailed,
    },
}

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Ls(how) => listing::show(&KIND, client.list(KIND.of)?, how, out),
        Command::Create { name } => {
            client.put(KIND.of, name, &json!({"key": name, "tenantName": name}))?;
            say(KIND.created, name, name, out)
        }
        Command::Rm { name } => {
            client.delete(KIND.of, name)?;
            say(KIND.deleted, name, name, out)
        }
        Command::Inspect { name, form } => listing::inspect(client, KIND.name(), name, form, out),
    }
}
