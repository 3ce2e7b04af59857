//! The API, described for programs: OpenAPI 3.1, from the same descriptions that requests are checked by.

mod objects;
mod responses;
mod routes;

use std::sync::LazyLock;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Where it is served.
pub const PATH: &str = "/api/v1/openapi.json";

/// The document, as it is served.
pub static DOCUMENT: LazyLock<String> = LazyLock::new(|| format!("{}\n", document()));

/// A description in the making.
struct Book {
    paths: Map<String, Value>,
    schemas: Map<String, Value>,
    /// Describes the types that are answered, as they are written.
    types: SchemaGenerator,
}

impl Book {
    fn new() -> Book {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let types = settings.with(|s| s.definitions_path = "/components/schemas".into()).into_generator();
        Book { paths: Map::new(), schemas: Map::new(), types }
    }

    /// Adds an operation on a path.
    fn operation(&mut self, path: &str, method: &str, operation: Value) {
        let item = self.paths.entry(path).or_insert_with(|| json!({}));
        item[method] = operation;
    }
}

fn document() -> Value {
    let mut book = Book::new();
    for t in &crate::objects::TYPES {
        objects::describe(t, &mut book);
    }
    routes::describe(&mut book);
    let mut schemas = book.schemas;
    schemas.extend(book.types.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "netmaster",
            "description": "The control plane of contiv-rs. Paths, bodies and texts are those of the original Contiv \
                netmaster: every failure of an object or a call is status 500 with one line of text, unless the \
                request says `Accept: application/problem+json`.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        // Whether tokens are asked for is the operator's choice.
        "security": [{}, {"bearer": []}, {"token": []}],
        "paths": book.paths,
        "components": {
            "schemas": schemas,
            "responses": responses::components(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token"},
            },
        },
    })
}

fn reference(schema: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{schema}")})
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn each<'a>(value: &'a Value, look: &mut impl FnMut(&'a str, &'a Value)) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    look(name, value);
                    each(value, look);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| each(value, look)),
            _ => {}
        }
    }

    #[test]
    fn references_lead_somewhere_and_operations_have_names_of_their_own() {
        let document = document();
        let mut names = BTreeSet::new();
        each(&document, &mut |name, value| match (name, value) {
            ("$ref", Value::String(to)) => {
                assert!(document.pointer(to.trim_start_matches('#')).is_some(), "{to} leads nowhere");
            }
            ("operationId", Value::String(id)) => assert!(names.insert(id), "{id} is there twice"),
            _ => {}
        });
        for id in
            ["listNetworks", "createEndpointGroup", "inspectTenant", "deleteBgp", "createEndpoint", "getInfo"]
        {
            assert!(names.contains(&id.to_owned()), "{id} is missing from {names:?}");
        }
    }

    #[test]
    fn examples_pass_the_checks() {
        let document = document();
        for t in &crate::objects::TYPES {
            let path = format!("/api/v1/{}s/{{key}}/", t.kind.as_str());
            let post = &document["paths"][&path]["post"];
            let key = post["parameters"][0]["example"].as_str().unwrap();
            let example = &post["requestBody"]["content"]["application/json"]["example"];
            (t.operations.check)(key, example.to_string().as_bytes())
                .map_err(|p| format!("{path}: {p}"))
                .unwrap();
        }
    }
}
