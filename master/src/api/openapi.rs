//! OpenAPI 3.1 description of the API, generated from the schemas that validate requests.

mod objects;
mod responses;
mod routes;

use std::sync::LazyLock;

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// Path of the document.
pub const PATH: &str = "/api/v1/openapi.json";

/// The document as JSON text.
pub static DOCUMENT: LazyLock<String> = LazyLock::new(|| format!("{}\n", document()));

/// A document under construction.
struct Builder {
    paths: Map<String, Value>,
    schemas: Map<String, Value>,
    /// Generates schemas of response types.
    types: SchemaGenerator,
}

impl Builder {
    fn new() -> Builder {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let types = settings.with(|s| s.definitions_path = "/components/schemas".into()).into_generator();
        Builder { paths: Map::new(), schemas: Map::new(), types }
    }

    /// Adds an operation to a path.
    fn operation(&mut self, path: &str, method: &str, operation: Value) {
        let item = self.paths.entry(path).or_insert_with(|| json!({}));
        item[method] = operation;
    }
}

/// Page of the reference: a row per operation, in the order of the document.
pub fn reference_page() -> String {
    let document = document();
    let mut page = "# REST API of netmaster\n\nGenerated from the OpenAPI document, which a running netmaster serves at \
        `/api/v1/openapi.json` with all schemas.\n\n| method | path | operation | summary |\n|---|---|---|---|\n"
        .to_owned();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            let text = |name: &str| operation[name].as_str().unwrap_or_default().to_owned();
            let (id, summary, method) = (text("operationId"), text("summary"), method.to_uppercase());
            page.push_str(&format!("| {method} | `{path}` | `{id}` | {summary} |\n"));
        }
    }
    page
}

fn document() -> Value {
    let mut builder = Builder::new();
    for t in &crate::objects::TYPES {
        objects::describe(t, &mut builder);
    }
    routes::describe(&mut builder);
    let mut schemas = builder.schemas;
    schemas.extend(builder.types.take_definitions(true));
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "netmaster",
            "description": "The control plane of contiv-rs. Paths, bodies and error texts are those of the original Contiv netmaster: failures have status 500 and one line of text, unless the request has the header `Accept: application/problem+json`.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        // Authentication is optional, depending on the configuration.
        "security": [{}, {"bearer": []}, {"token": []}],
        "paths": builder.paths,
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
    fn references_resolve_and_operation_ids_are_unique() {
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
    fn examples_are_valid() {
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
