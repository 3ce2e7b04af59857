//! `netctl get`: objects in the format that `netctl apply` reads.

use std::io::Write;

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Map, Value, json};

use crate::{
    client::Client,
    error::Error,
    flags::{ListArgs, ListFormat},
    objects::{self, KINDS},
    output::{self, printable, table, text},
    schema::Kind,
};

/// Arguments of `netctl get`.
#[derive(Args, Debug)]
pub struct Get {
    /// Kind of the objects, such as network, group, policy, rule, netprofile, service, tenant, global; or `all`.
    what: String,
    /// Name of one object; for a rule, POLICY:RULE.
    name: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

/// The objects of one kind.
type Found = (&'static Kind, Vec<Value>);

/// Runs the command.
pub fn run(client: &Client, get: &Get, out: &mut dyn Write) -> Result<(), Error> {
    let found = match (get.what.as_str(), &get.name) {
        ("all", None) => all(client, &get.list)?,
        ("all", Some(name)) => {
            return Err(Error::Usage(format!("get all {name}: `all` takes no name; use a kind instead")));
        }
        (word, Some(name)) => vec![one(client, kind(word)?, name, &get.list)?],
        (word, None) => {
            let kind = kind(word)?;
            let all = get.list.all || !kind.is_of_tenant();
            vec![of_kind(client, kind, (!all).then_some(get.list.tenant.tenant.as_str()))?]
        }
    };
    match get.list.flags.format() {
        ListFormat::Table => tables(&found, get.what == "all", out),
        ListFormat::Name => {
            for (kind, object) in flatten(&found) {
                writeln!(out, "{}/{}", kind.name(), printable(&kind.key_of(object)))?;
            }
            Ok(())
        }
        ListFormat::Json => {
            let mut objects: Vec<Value> =
                flatten(&found).map(|(kind, object)| document(kind, object)).collect();
            match (&get.name, objects.pop()) {
                (Some(_), Some(object)) => output::json(out, &object),
                (_, last) => {
                    objects.extend(last);
                    output::json(out, &Value::Array(objects))
                }
            }
        }
        ListFormat::Yaml => {
            for (at, (kind, object)) in flatten(&found).enumerate() {
                if at > 0 {
                    writeln!(out, "---")?;
                }
                output::yaml(out, &document(kind, object))?;
            }
            Ok(())
        }
    }
}

fn kind(word: &str) -> Result<&'static Kind, Error> {
    objects::by_word(word).ok_or_else(|| {
        let words = KINDS.iter().map(|kind| kind.aliases.first().copied().unwrap_or(kind.name()));
        let words: Vec<_> = words.collect();
        Error::Usage(format!("get {word}: expected all, {}", words.join(", ")))
    })
}

/// Reads a tenant and its objects; with `--all`, all objects of the cluster.
fn all(client: &Client, list: &ListArgs) -> Result<Vec<Found>, Error> {
    let tenant = (!list.all).then_some(list.tenant.tenant.as_str());
    if let Some(tenant) = tenant {
        client.object(ObjectType::Tenant, tenant)?;
    }
    let kinds = KINDS.into_iter().filter(|kind| list.all || kind.key_fields.contains(&"tenantName"));
    kinds.map(|kind| of_kind(client, kind, tenant)).collect()
}

fn one(client: &Client, kind: &'static Kind, name: &str, list: &ListArgs) -> Result<Found, Error> {
    let tenant = &list.tenant.tenant;
    let key = if kind.is_of_tenant() { format!("{tenant}:{name}") } else { name.to_owned() };
    Ok((kind, vec![client.object(kind.object_type, &key)?]))
}

/// Reads the objects of one tenant, or of all, sorted by key.
fn of_kind(client: &Client, kind: &'static Kind, tenant: Option<&str>) -> Result<Found, Error> {
    let mut objects = client.list(kind.object_type)?;
    objects.retain(|object| tenant.is_none_or(|tenant| text(object, "tenantName") == tenant));
    objects.sort_by_cached_key(|object| text(object, "key"));
    Ok((kind, objects))
}

fn flatten(found: &[Found]) -> impl Iterator<Item = (&'static Kind, &Value)> {
    found.iter().flat_map(|(kind, objects)| objects.iter().map(move |object| (*kind, object)))
}

/// Document with `kind` and the fields that a user sets.
fn document(kind: &Kind, object: &Value) -> Value {
    let mut document = Map::new();
    document.insert("kind".into(), json!(kind.name()));
    document.extend(kind.spec(object));
    Value::Object(document)
}

fn tables(found: &[Found], titled: bool, out: &mut dyn Write) -> Result<(), Error> {
    let mut first = true;
    for (kind, objects) in found {
        if titled {
            if objects.is_empty() {
                continue;
            }
            writeln!(out, "{}{}:", if first { "" } else { "\n" }, kind.name())?;
            first = false;
        }
        let rows: Vec<_> = objects.iter().map(kind.row).collect();
        table::write(out, kind.columns, &rows)?;
    }
    Ok(())
}
