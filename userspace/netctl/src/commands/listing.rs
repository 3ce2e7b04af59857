//! `ls` and `inspect`.

use std::io::Write;

use contiv_model::key::ObjectType;
use serde_json::Value;

use crate::{
    client::{Client, listing::Selection},
    commands::watch,
    error::Error,
    flags::{InspectFlags, ListArgs, ListFlags},
    output::{self, list::List, text},
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
    output::object(out, &flags.output, &client.inspect(kind, key)?)
}

/// Lists the objects of one tenant, which must exist, or of all.
pub fn of_tenant(kind: &Kind, client: &Client, args: &ListArgs, out: &mut dyn Write) -> Result<(), Error> {
    require_tenant(client, args)?;
    let all = Selection::of(kind.object_type);
    let selection = if args.all { all } else { all.with("tenantName", &args.tenant.tenant) };
    list(kind, client, selection, &args.flags, out)
}

/// Fails if the tenant whose objects are listed does not exist.
pub fn require_tenant(client: &Client, args: &ListArgs) -> Result<(), Error> {
    // A list of all needs no tenant, and the default one may be missing, or not be the client's.
    if args.all {
        return Ok(());
    }
    client.object(ObjectType::Tenant, &args.tenant.tenant).map(drop)
}

/// Lists all objects of a kind.
pub fn of_cluster(kind: &Kind, client: &Client, flags: &ListFlags, out: &mut dyn Write) -> Result<(), Error> {
    list(kind, client, Selection::of(kind.object_type), flags, out)
}

fn list(
    kind: &Kind,
    client: &Client,
    selection: Selection,
    flags: &ListFlags,
    out: &mut dyn Write,
) -> Result<(), Error> {
    watch::objects(client, flags.watch, &[selection], out, &|found, out| {
        show(kind, found.concat(), flags, out)
    })
}

/// Writes `objects` in the requested format, sorted by key: the original's netmaster sends them in random order.
fn show(kind: &Kind, mut objects: Vec<Value>, flags: &ListFlags, out: &mut dyn Write) -> Result<(), Error> {
    objects.sort_by_cached_key(|object| text(object, "key"));
    let list = List {
        objects: &objects,
        name: &|object| text(object, kind.name_field()),
        table: &|out, width| kind.table(&objects, out, width),
    };
    list.write(&flags.format(), out)
}
