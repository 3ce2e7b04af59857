//! What can be done with the objects of a tenant, the same for every kind.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    Error,
    cli::{Inspected, Listed, Named},
    client::Client,
    kind::Kind,
    listing,
};

/// The commands that each kind has.
#[derive(Debug, Subcommand)]
pub enum Verb<C: Args> {
    /// Lists those of a tenant.
    #[command(visible_alias = "list")]
    Ls(Listed),
    /// Makes one; where netmaster allows it, changes one.
    Create(C),
    /// Removes one that nothing uses.
    #[command(visible_alias = "delete")]
    Rm(Named),
    /// Shows one and its use.
    Inspect(Inspected),
}

/// The flags that say what to make.
pub trait Make {
    /// The tenant and the name.
    fn named(&self) -> (&str, &str);
    /// The fields beside those.
    fn fields(&self) -> Value;
}

/// Carries out a command.
pub fn run<C: Args + Make>(
    kind: &Kind,
    client: &Client,
    verb: &Verb<C>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    match verb {
        Verb::Ls(how) => listing::of_tenant(kind, client, how, out),
        Verb::Create(it) => {
            put(kind, client, it)?;
            let (tenant, name) = it.named();
            say(kind.created, tenant, name, out)
        }
        Verb::Rm(it) => {
            client.delete(kind.of, &it.key())?;
            say(kind.deleted, &it.of.tenant, &it.name, out)
        }
        Verb::Inspect(it) => listing::inspect(client, kind.name(), &it.named.key(), &it.form, out),
    }
}

/// Makes or changes an object.
pub fn put(kind: &Kind, client: &Client, it: &impl Make) -> Result<(), Error> {
    let (tenant, name) = it.named();
    let mut object = it.fields();
    object["tenantName"] = json!(tenant);
    object[kind.name_field()] = json!(name);
    client.put(kind.of, &kind.key_of(&object), &object).map(drop)
}

/// Says what was done, with a message of the kind's.
pub fn say(message: &str, tenant: &str, name: &str, out: &mut dyn Write) -> Result<(), Error> {
    if message.is_empty() {
        return Ok(());
    }
    let key = format!("{tenant}:{name}");
    let message = message.replace("{key}", &key).replace("{tenant}", tenant).replace("{name}", name);
    Ok(writeln!(out, "{message}")?)
}
