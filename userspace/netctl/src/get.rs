//! `netctl get`: objects as `netctl apply` takes them.

use std::io::Write;

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Map, Value, json};

use crate::{
    Error,
    cli::{Form, Listed},
    client::Client,
    kind::{KINDS, Kind},
    listing::{pretty, text, yaml},
    table,
};

/// Which objects.
#[derive(Args, Debug)]
pub struct Get {
    /// `all`, or a kind such as network, group, policy, rule, netprofile, service, tenant, global.
    what: String,
    /// The name of one object; of a rule, POLICY:RULE.
    name: Option<String>,
    #[command(flatten)]
    how: Listed,
}

/// The objects of one kind.
type Found = (&'static Kind, Vec<Value>);

/// Shows them.
pub fn run(client: &Client, get: &Get, out: &mut dyn Write) -> Result<(), Error> {
    let found = match (get.what.as_str(), &get.name) {
        ("all", None) => all(client, &get.how)?,
        ("all", Some(name)) => {
            return Err(Error::Usage(format!("get all {name}: `all` takes no name; name a kind instead")));
        }
        (word, Some(name)) => vec![one(client, kind(word)?, name, &get.how)?],
        (word, None) => {
            let kind = kind(word)?;
            let all = get.how.all || !kind.is_of_tenant();
            vec![of_kind(client, kind, (!all).then_some(get.how.of.tenant.as_str()))?]
        }
    };
    match get.how.shown.form() {
        Form::Table => tables(&found, get.what == "all", out),
        Form::Name => {
            for (kind, object) in flat(&found) {
                writeln!(out, "{}/{}", kind.name(), kind.key_of(object))?;
            }
            Ok(())
        }
        Form::Json => {
            let mut objects: Vec<Value> = flat(&found).map(|(kind, object)| portable(kind, object)).collect();
            match (&get.name, objects.pop()) {
                (Some(_), Some(object)) => pretty(out, &object),
                (_, last) => {
                    objects.extend(last);
                    pretty(out, &Value::Array(objects))
                }
            }
        }
        Form::Yaml => {
            for (at, (kind, object)) in flat(&found).enumerate() {
                if at > 0 {
                    writeln!(out, "---")?;
                }
                yaml(out, &portable(kind, object))?;
            }
            Ok(())
        }
    }
}

fn kind(word: &str) -> Result<&'static Kind, Error> {
    Kind::by_word(word).ok_or_else(|| {
        let words = KINDS.iter().map(|kind| kind.words.first().copied().unwrap_or(kind.name()));
        let words: Vec<_> = words.collect();
        Error::Usage(format!("get {word}: expected all, {}", words.join(", ")))
    })
}

/// A tenant with what it holds; with `--all`, the whole cluster.
fn all(client: &Client, how: &Listed) -> Result<Vec<Found>, Error> {
    let tenant = (!how.all).then_some(how.of.tenant.as_str());
    if let Some(tenant) = tenant {
        client.object(ObjectType::Tenant, tenant)?;
    }
    let kinds = KINDS.into_iter().filter(|kind| how.all || kind.key.contains(&"tenantName"));
    kinds.map(|kind| of_kind(client, kind, tenant)).collect()
}

fn one(client: &Client, kind: &'static Kind, name: &str, how: &Listed) -> Result<Found, Error> {
    let tenant = &how.of.tenant;
    let key = if kind.is_of_tenant() { format!("{tenant}:{name}") } else { name.to_owned() };
    Ok((kind, vec![client.object(kind.of, &key)?]))
}

/// Of one tenant, or all, by key.
fn of_kind(client: &Client, kind: &'static Kind, tenant: Option<&str>) -> Result<Found, Error> {
    let mut objects = client.list(kind.of)?;
    objects.retain(|object| tenant.is_none_or(|tenant| text(object, "tenantName") == tenant));
    objects.sort_by_cached_key(|object| text(object, "key"));
    Ok((kind, objects))
}

fn flat(found: &[Found]) -> impl Iterator<Item = (&'static Kind, &Value)> {
    found.iter().flat_map(|(kind, objects)| objects.iter().map(move |object| (*kind, object)))
}

/// `kind`, and what the user has set.
fn portable(kind: &Kind, object: &Value) -> Value {
    let mut document = Map::new();
    document.insert("kind".into(), json!(kind.name()));
    document.extend(kind.meaning(object));
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
