//! `ls` and `inspect`.

use std::io::Write;

use contiv_model::key::ObjectType;
use serde_json::Value;

use crate::{
    client::Client,
    error::Error,
    flags::{InspectFlags, ListArgs, ListFlags, ListFormat},
    output::{self, printable, table, text},
    schema::Kind,
};

/// Shows one object and its operational state.
pub fn inspect(
    client: &Client,
    kind: &str,
    key: &str,
    flags: &InspectFlags,
    out: &mut dyn Write,
) -> Result<(), Error> {
    output::object(out, flags.output, &client.inspect(kind, key)?)
}

/// Lists the objects of one tenant, or of all. Fails if the tenant does not exist.
pub fn of_tenant(kind: &Kind, client: &Client, args: &ListArgs, out: &mut dyn Write) -> Result<(), Error> {
    client.object(ObjectType::Tenant, &args.tenant.tenant)?;
    let mut objects = client.list(kind.object_type)?;
    objects.retain(|object| args.all || text(object, "tenantName") == args.tenant.tenant);
    show(kind, objects, &args.flags, out)
}

/// Writes `objects` in the requested format, sorted by key: the original's netmaster sends them in random order.
pub fn show(
    kind: &Kind,
    mut objects: Vec<Value>,
    flags: &ListFlags,
    out: &mut dyn Write,
) -> Result<(), Error> {
    objects.sort_by_cached_key(|object| text(object, "key"));
    match flags.format() {
        ListFormat::Json => output::json(out, &Value::Array(objects)),
        ListFormat::Yaml => output::yaml(out, &Value::Array(objects)),
        ListFormat::Name => {
            let mut names = objects.iter().map(|object| text(object, kind.name_field()));
            Ok(names.try_for_each(|name| writeln!(out, "{}", printable(&name)))?)
        }
        ListFormat::Table => {
            let rows: Vec<_> = objects.iter().map(kind.row).collect();
            Ok(table::write(out, kind.columns, &rows)?)
        }
    }
}
