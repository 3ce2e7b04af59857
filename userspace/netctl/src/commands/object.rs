//! Commands that every kind of a tenant's objects has.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    client::Client,
    commands::listing,
    error::Error,
    flags::{InspectArgs, ListArgs, ObjectName},
    output::printable,
    schema::Kind,
};

/// Commands for one kind; `C` has the arguments of `create`.
#[derive(Debug, Subcommand)]
pub enum ObjectCommand<C: Args> {
    /// List the objects of a tenant.
    #[command(visible_alias = "list")]
    Ls(ListArgs),
    /// Create an object, or update it if netmaster allows that.
    Create(C),
    /// Delete an object that is not in use.
    #[command(visible_alias = "delete")]
    Rm(ObjectName),
    /// Show an object and its operational state.
    Inspect(InspectArgs),
}

/// Arguments of `create`.
pub trait CreateArgs {
    /// Tenant and name.
    fn name(&self) -> (&str, &str);
    /// Fields other than tenant and name.
    fn fields(&self) -> Value;
}

/// Runs a command.
pub fn run<C: Args + CreateArgs>(
    kind: &Kind,
    client: &Client,
    command: &ObjectCommand<C>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    match command {
        ObjectCommand::Ls(args) => listing::of_tenant(kind, client, args, out),
        ObjectCommand::Create(args) => {
            put(kind, client, args)?;
            let (tenant, name) = args.name();
            report(kind.created, tenant, name, out)
        }
        ObjectCommand::Rm(object) => {
            client.delete(kind.object_type, &object.key())?;
            report(kind.deleted, &object.tenant.tenant, &object.name, out)
        }
        ObjectCommand::Inspect(args) => {
            listing::inspect(client, kind.name(), &args.object.key(), &args.flags, out)
        }
    }
}

/// Creates or updates an object.
pub fn put(kind: &Kind, client: &Client, args: &impl CreateArgs) -> Result<(), Error> {
    let (tenant, name) = args.name();
    let mut object = args.fields();
    object["tenantName"] = json!(tenant);
    object[kind.name_field()] = json!(name);
    client.put(kind.object_type, &kind.key_of(&object), &object).map(drop)
}

/// Writes a message of [`Kind::created`] or [`Kind::deleted`].
pub fn report(message: &str, tenant: &str, name: &str, out: &mut dyn Write) -> Result<(), Error> {
    if message.is_empty() {
        return Ok(());
    }
    let key = format!("{tenant}:{name}");
    let message = message.replace("{key}", &key).replace("{tenant}", tenant).replace("{name}", name);
    Ok(writeln!(out, "{}", printable(&message))?)
}
