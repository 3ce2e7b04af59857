//! `netctl explain`: the fields of a kind, from the OpenAPI document of netmaster.

use std::io::Write;

use clap::Args;
use serde_json::Value;

use crate::{
    client::Client,
    error::Error,
    objects::{self, KINDS},
    output::{list, printable, text},
    schema::{Field, Kind, Mutability},
};

/// Arguments of `netctl explain`.
#[derive(Args, Debug)]
pub struct Explain {
    /// Kind, or KIND.FIELD, such as network.subnet.
    what: String,
}

/// Path of the document.
const PATH: &str = "/api/v1/openapi.json";

/// Runs the command.
pub fn run(client: &Client, explain: &Explain, out: &mut dyn Write) -> Result<(), Error> {
    let (word, field) = match explain.what.split_once('.') {
        Some((word, field)) => (word, Some(field)),
        None => (explain.what.as_str(), None),
    };
    let kind = objects::by_word(word).ok_or_else(|| {
        let words: Vec<_> =
            KINDS.iter().map(|kind| kind.aliases.first().copied().unwrap_or(kind.name())).collect();
        Error::Usage(format!("explain {word}: expected {}", words.join(", ")))
    })?;
    let document = client.get(PATH)?;
    let schema = schema(&document, kind).ok_or_else(|| {
        Error::Refused(format!("{PATH}: no description of {} objects; is this contiv-rs?", kind.name()))
    })?;
    match field {
        None => show_kind(kind, schema, out),
        Some(name) => match kind.fields.iter().find(|field| field.name == name) {
            Some(field) => show_field(kind, field, schema, out),
            None => {
                let known: Vec<_> = kind.fields.iter().map(|field| field.name).collect();
                Err(Error::Usage(format!("explain {word}.{name}: expected one of {}", known.join(", "))))
            }
        },
    }
}

/// Schema of the body that creates or updates an object of the kind.
fn schema<'a>(document: &'a Value, kind: &Kind) -> Option<&'a Value> {
    let path = document.get("paths")?.get(format!("/api/v1/{}s/{{key}}/", kind.name()))?;
    let body = path.pointer("/post/requestBody/content")?.get("application/json")?.get("schema")?;
    match body.get("$ref").and_then(Value::as_str) {
        Some(reference) => document.pointer(reference.strip_prefix('#')?),
        None => Some(body),
    }
}

fn show_kind(kind: &Kind, schema: &Value, out: &mut dyn Write) -> Result<(), Error> {
    writeln!(out, "Kind: {}\nKey: {}\n", kind.name(), kind.key_fields.join(":"))?;
    let row = |field: &Field| {
        let about = about(schema, field);
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        vec![
            field.name.to_owned(),
            about.kind,
            yes(is_required(schema, field)),
            yes(is_mutable(kind, field)),
            about.default,
            about.values,
        ]
    };
    let rows: Vec<_> = kind.fields.iter().map(row).collect();
    list::titled(out, &["Field", "Type", "Required", "Mutable", "Default", "Values"], &rows)
}

fn show_field(kind: &Kind, field: &Field, schema: &Value, out: &mut dyn Write) -> Result<(), Error> {
    let about = about(schema, field);
    let references = field.references.map(|kind| format!("name of a {}", kind.as_str()));
    let derived = field.derived_from.map(|other| format!("netmaster sets it if {other} is present"));
    let mutable = match (kind.key_fields.contains(&field.name), is_mutable(kind, field)) {
        (true, _) => "no: part of the key",
        (false, true) => "yes",
        (false, false) => "no: an object with another value must be created anew",
    };
    let lines = [
        ("Field", format!("{}.{}", kind.name(), field.name)),
        ("Type", about.kind),
        ("Required", if is_required(schema, field) { "yes" } else { "no" }.to_owned()),
        ("Mutable", mutable.to_owned()),
        ("Default", about.default),
        ("Values", about.values),
        ("Example", about.example),
        ("Format", field.format.to_string()),
        ("Reference", references.unwrap_or_default()),
        ("Derived", derived.unwrap_or_default()),
    ];
    let mut given = lines.iter().filter(|(_, value)| !value.is_empty());
    Ok(given.try_for_each(|(title, value)| writeln!(out, "{title}: {}", printable(value)))?)
}

/// netmaster accepts objects without some fields that `apply` requires; these are shown as required.
fn is_required(schema: &Value, field: &Field) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    field.required || required.is_some_and(|names| names.iter().any(|name| name == field.name))
}

fn is_mutable(kind: &Kind, field: &Field) -> bool {
    let fixed = match kind.mutability {
        Mutability::Immutable => true,
        Mutability::Except(fields) => fields.contains(&field.name),
        Mutability::Settings => false,
    };
    !fixed && !kind.key_fields.contains(&field.name)
}

/// What the schema says about a field, as text.
struct About {
    kind: String,
    default: String,
    values: String,
    example: String,
}

fn about(schema: &Value, field: &Field) -> About {
    let null = Value::Null;
    let property = schema.get("properties").and_then(|all| all.get(field.name)).unwrap_or(&null);
    let kind = match property.get("type") {
        Some(Value::Array(types)) => types
            .iter()
            .filter_map(Value::as_str)
            .filter(|name| *name != "null")
            .collect::<Vec<_>>()
            .join(" or "),
        _ => text(property, "type"),
    };
    let kind = match property.get("items") {
        Some(items) => format!("{kind} of {}", text(items, "type")),
        None => kind,
    };
    About {
        kind,
        default: text(property, "default"),
        values: values(property),
        example: property.get("examples").map(|_| text(property, "examples")).unwrap_or_default(),
    }
}

/// Words, limits and pattern of a property.
fn values(property: &Value) -> String {
    let words = property.get("enum").and_then(Value::as_array).map(|words| {
        let words = words.iter().filter_map(Value::as_str).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(" or ")
    });
    let range = match (property.get("minimum"), property.get("maximum")) {
        (Some(min), Some(max)) => Some(format!("{min} to {max}")),
        (None, Some(max)) => Some(format!("at most {max}")),
        (Some(min), None) => Some(format!("at least {min}")),
        (None, None) => None,
    };
    let length = property.get("maxLength").map(|max| format!("at most {max} characters"));
    let pattern = property.get("pattern").map(|_| format!("pattern {}", text(property, "pattern")));
    [words, range, length, pattern].into_iter().flatten().collect::<Vec<_>>().join(", ")
}
