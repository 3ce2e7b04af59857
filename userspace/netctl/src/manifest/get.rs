//! `netctl get`: objects in the format that `netctl apply` reads; endpoints and nodes.

use std::io::Write;

use clap::Args;
use contiv_model::key::ObjectType;
use serde_json::{Map, Value, json};

use crate::{
    client::{Client, listing::Selection},
    commands::watch,
    error::Error,
    flags::{ListArgs, ListFormat},
    objects::{self, KINDS},
    observe::{endpoint, node},
    output::{
        self,
        list::{List, Width},
        text,
    },
    schema::Kind,
};

/// Arguments of `netctl get`.
#[derive(Args, Debug)]
pub struct Get {
    /// Kind of the objects, such as network, group, policy, rule, netprofile, service, tenant, global, endpoint, node; or
    /// `all`: all kinds that `apply` reads.
    what: String,
    /// Name of one object; for a rule, POLICY:RULE; for an endpoint, its id, or the id or name of its container.
    name: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

/// What `get` and `wait` read.
#[derive(Clone, Copy, Debug)]
pub enum What {
    /// A kind that netmaster stores.
    Kind(&'static Kind),
    /// Endpoints.
    Endpoints,
    /// Nodes.
    Nodes,
}

impl What {
    /// Finds what a word of the command line names; `command` is for the error.
    pub fn named(word: &str, command: &str) -> Result<What, Error> {
        match (word, objects::by_word(word)) {
            (_, Some(kind)) => Ok(What::Kind(kind)),
            ("endpoint" | "endpoints" | "ep", None) => Ok(What::Endpoints),
            ("node" | "nodes", None) => Ok(What::Nodes),
            _ => {
                let words = KINDS.iter().map(|kind| kind.aliases.first().copied().unwrap_or(kind.name()));
                let words: Vec<_> = words.chain(["endpoint", "node"]).collect();
                let all = if command == "get" { "all, " } else { "" };
                Err(Error::Usage(format!("{command} {word}: expected {all}{}", words.join(", "))))
            }
        }
    }

    /// Name of the kind.
    pub fn word(self) -> &'static str {
        match self {
            What::Kind(kind) => kind.name(),
            What::Endpoints => "endpoint",
            What::Nodes => "node",
        }
    }

    /// Key of the object with this name.
    pub fn key(self, tenant: &str, name: &str) -> String {
        match self {
            What::Kind(kind) if kind.is_of_tenant() => format!("{tenant}:{name}"),
            _ => name.to_owned(),
        }
    }

    /// Reads one object, if it exists.
    pub fn find(self, client: &Client, key: &str) -> Result<Option<Value>, Error> {
        match self {
            What::Endpoints => endpoint::find(client, key),
            What::Nodes => node::find(client, key),
            What::Kind(kind) => match client.object(kind.object_type, key) {
                Err(Error::Refused(message)) if message == kind.not_found() => Ok(None),
                object => object.map(Some),
            },
        }
    }

    /// Reads one object. Fails if it does not exist.
    pub fn existing(self, client: &Client, key: &str) -> Result<Value, Error> {
        self.find(client, key)?.ok_or_else(|| self.not_found())
    }

    fn not_found(self) -> Error {
        Error::Refused(format!("{} not found", self.word()))
    }

    /// Reads the objects of a tenant, or of all.
    fn all(self, client: &Client, list: &ListArgs) -> Result<Vec<Value>, Error> {
        match self {
            What::Endpoints => endpoint::objects(client, list),
            What::Nodes => node::objects(client),
            What::Kind(kind) => Ok(client.select(&of_kind(kind, tenant(list, kind)))?.objects),
        }
    }

    /// Name of an object in lists, without its kind.
    fn name_of(self, object: &Value) -> String {
        match self {
            What::Kind(kind) => kind.key_of(object),
            What::Endpoints => text(object, "endpointID"),
            What::Nodes => text(object, "host"),
        }
    }

    /// Document with `kind` and, of stored kinds, the fields that a user sets.
    pub fn document(self, object: &Value) -> Value {
        let mut document = Map::new();
        document.insert("kind".into(), json!(self.word()));
        match (self, object) {
            (What::Kind(kind), object) => document.extend(kind.spec(object)),
            (_, Value::Object(fields)) => document.extend(fields.clone()),
            _ => {}
        }
        Value::Object(document)
    }

    fn table(self, objects: &[Value], out: &mut dyn Write, width: Width) -> Result<(), Error> {
        match self {
            What::Kind(kind) => kind.table(objects, out, width),
            What::Endpoints => endpoint::table(objects, out, width),
            What::Nodes => node::table(objects, out, width),
        }
    }
}

/// The objects of one kind.
type Found = (What, Vec<Value>);

/// Runs the command.
pub fn run(client: &Client, get: &Get, out: &mut dyn Write) -> Result<(), Error> {
    let (list, watched) = (&get.list, get.list.flags.watch);
    let (kinds, selections) = match (get.what.as_str(), &get.name) {
        ("all", Some(name)) => {
            return Err(Error::Usage(format!("get all {name}: `all` takes no name; use a kind instead")));
        }
        ("all", None) => all(client, list)?,
        (word, name) => match (What::named(word, "get")?, name) {
            (What::Kind(kind), Some(name)) if watched => {
                let key = What::Kind(kind).key(&list.tenant.tenant, name);
                (vec![kind], vec![Selection::of(kind.object_type).with("key", &key)])
            }
            (What::Kind(kind), None) => (vec![kind], vec![of_kind(kind, tenant(list, kind))]),
            (what, name) => {
                return watch::show(watched, out, &|out| {
                    let objects = match name {
                        Some(name) => vec![what.existing(client, &what.key(&list.tenant.tenant, name))?],
                        None => what.all(client, list)?,
                    };
                    write(get, &[(what, objects)], out)
                });
            }
        },
    };
    watch::objects(client, watched, &selections, out, &|lists, out| {
        let found = kinds.iter().zip(lists).map(|(kind, objects)| {
            let mut objects = objects.clone();
            objects.sort_by_cached_key(|object| text(object, "key"));
            (What::Kind(kind), objects)
        });
        let found: Vec<Found> = found.collect();
        match (&found[..], &get.name) {
            ([(what, objects)], Some(_)) if objects.is_empty() => Err(what.not_found()),
            _ => write(get, &found, out),
        }
    })
}

/// Writes objects in the requested format.
fn write(get: &Get, found: &[Found], out: &mut dyn Write) -> Result<(), Error> {
    let objects: Vec<Value> =
        found.iter().flat_map(|(what, objects)| objects.iter().map(|object| what.document(object))).collect();
    match (get.list.flags.format(), &get.name, &objects[..]) {
        (ListFormat::Json, Some(_), [object]) => output::json(out, object),
        (ListFormat::JsonPath(template), Some(_), [object]) => output::values(out, &template, object),
        (ListFormat::Yaml, ..) => yaml(&objects, out),
        (format, ..) => {
            let list = List {
                objects: &objects,
                name: &|document| name(found, document),
                table: &|out, width| tables(found, get.what == "all", out, width),
            };
            list.write(&format, out)
        }
    }
}

/// A document for each object, which `apply` reads.
fn yaml(objects: &[Value], out: &mut dyn Write) -> Result<(), Error> {
    for (at, object) in objects.iter().enumerate() {
        if at > 0 {
            writeln!(out, "---")?;
        }
        output::yaml(out, object)?;
    }
    Ok(())
}

/// `KIND/KEY` of a document.
fn name(found: &[Found], document: &Value) -> String {
    let kind = text(document, "kind");
    let what = found.iter().map(|(what, _)| what).find(|what| what.word() == kind);
    format!("{kind}/{}", what.map(|what| what.name_of(document)).unwrap_or_default())
}

/// The kinds of a tenant and its objects, or of the cluster (`--all`), with their selections. Fails if the tenant does not
/// exist.
fn all(client: &Client, list: &ListArgs) -> Result<(Vec<&'static Kind>, Vec<Selection>), Error> {
    if !list.all {
        client.object(ObjectType::Tenant, &list.tenant.tenant)?;
    }
    let kinds = KINDS.into_iter().filter(|kind| list.all || kind.key_fields.contains(&"tenantName"));
    let tenant = (!list.all).then_some(list.tenant.tenant.as_str());
    Ok(kinds.map(|kind| (kind, of_kind(kind, tenant))).unzip())
}

/// The tenant whose objects of this kind are listed; none for all objects.
fn tenant<'a>(list: &'a ListArgs, kind: &Kind) -> Option<&'a str> {
    (!list.all && kind.is_of_tenant()).then_some(list.tenant.tenant.as_str())
}

/// The objects of a kind: of one tenant, or all.
fn of_kind(kind: &Kind, tenant: Option<&str>) -> Selection {
    let all = Selection::of(kind.object_type);
    match tenant {
        Some(tenant) => all.with("tenantName", tenant),
        None => all,
    }
}

fn tables(found: &[Found], titled: bool, out: &mut dyn Write, width: Width) -> Result<(), Error> {
    let mut first = true;
    for (what, objects) in found {
        if titled {
            if objects.is_empty() {
                continue;
            }
            writeln!(out, "{}{}:", if first { "" } else { "\n" }, what.word())?;
            first = false;
        }
        what.table(objects, out, width)?;
    }
    Ok(())
}
