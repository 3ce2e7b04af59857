//! `netctl tenant`.

use std::io::Write;

use contiv_model::key::ObjectType;
use serde_json::json;

use crate::{
    Error,
    cli::Tenant,
    client::Client,
    listing::{Listing, inspect, text},
};

/// A tenant's row ends with an empty cell, as in the original.
const LISTING: Listing = Listing {
    kind: ObjectType::Tenant,
    name: "tenantName",
    columns: &[("Name", "------"), ("", "")],
    row: |tenant| vec![text(tenant, "tenantName"), String::new()],
};

/// Runs one of the commands.
pub fn run(client: &Client, command: &Tenant, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Tenant::Ls(how) => LISTING.show(client.list(ObjectType::Tenant)?, how, out),
        Tenant::Create { name } => {
            client.put(ObjectType::Tenant, name, &json!({"key": name, "tenantName": name}))?;
            Ok(writeln!(out, "Creating tenant: {name}")?)
        }
        Tenant::Rm { name } => {
            client.delete(ObjectType::Tenant, name)?;
            Ok(writeln!(out, "Deleting tenant {name}")?)
        }
        Tenant::Inspect { name, form } => inspect(client, "tenant", name, form, out),
    }
}
