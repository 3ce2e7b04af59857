//! What is not an object.

use contiv_model::api::{EndpointInspect, Node};
use serde_json::{Value, json};

use super::Book;
use super::responses::{json_body, responses, text_body};
use crate::plugin;
use crate::schema::{Shape, Type};

pub(super) fn describe(book: &mut Book) {
    calls(book);
    inspections(book);
    let text = |id: &str, tag: &str, summary: &str, description: &str| json!({"operationId": id, "tags": [tag], "summary": summary, "responses": responses(text_body(description))});
    book.operation(
        "/version",
        "get",
        text(
            "getVersion",
            "daemon",
            "The program's version",
            "JSON, labelled as text, as the original does.",
        ),
    );
    for (path, id, summary) in [
        ("/healthz", "getHealth", "Whether this netmaster runs; not passed on to the leader"),
        ("/readyz", "getReadiness", "Whether it leads, or knows who does; not passed on to the leader"),
    ] {
        let mut operation = text(id, "daemon", summary, "It does.");
        operation["security"] = json!([]);
        book.operation(path, "get", operation);
    }
    book.operation(
        "/info",
        "get",
        json!({
            "operationId": "getInfo", "tags": ["daemon"], "summary": "Who leads, and who is there; not passed on",
            "responses": responses(json_body("Of the netmaster that is asked.", &info())),
        }),
    );
    book.operation(
        super::PATH,
        "get",
        json!({
            "operationId": "getOpenApi", "tags": ["daemon"], "summary": "This document",
            "responses": responses(json_body("OpenAPI 3.1.", &json!({"type": "object"}))),
        }),
    );
    let mut metrics =
        text("getMetrics", "daemon", "Counters and gauges for Prometheus", "In its text format.");
    let content =
        json!({"application/openmetrics-text; version=1.0.0; charset=utf-8": {"schema": {"type": "string"}}});
    metrics["responses"]["200"]["content"] = content;
    book.operation("/metrics", "get", metrics);
    let services = "JSON, labelled as text, as the original does.";
    book.operation(
        "/services",
        "get",
        text("listServiceStates", "service", "All services and the endpoints behind them", services),
    );
    let mut service = text(
        "getServiceState",
        "service",
        "A service and the endpoints behind it, in a list; else null",
        services,
    );
    service["parameters"] = json!([{"name": "id", "in": "path", "required": true,
        "description": "`<service>:<tenant>`.", "schema": {"type": "string", "minLength": 1}}]);
    book.operation("/service/{id}", "get", service);
    let words = [("tenant", Value::Null), ("kind", json!(["net", "group", "ep"])), ("name", Value::Null)];
    let parameters = words.map(|(name, words)| {
        let schema =
            if words.is_null() { json!({"type": "string", "minLength": 1}) } else { json!({"enum": words}) };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    let mut clean_up =
        text("cleanUpEndpoints", "debug", "Removes the endpoints of pods that are gone", "What was removed.");
    clean_up["parameters"] = json!(parameters);
    book.operation("/debug/epcleanup/tenant/{tenant}/{kind}/{name}", "delete", clean_up);
}

/// The calls of agents.
fn calls(book: &mut Book) {
    for call in plugin::FORMS {
        let reply = (call.reply)(&mut book.types).to_value();
        book.operation(&format!("/plugin/{}", call.name), "post", json!({
            "operationId": call.name, "tags": ["plugin"], "summary": call.summary,
            "description": "The Content-Type must be exactly `application/json`, else the call is not found.",
            "requestBody": {"required": true, "content": {"application/json": {"schema": body(call.shape)}}},
            "responses": responses(json_body("Done.", &reply)),
        }));
    }
}

/// A body whose members may all be missing.
fn body(shape: &Shape) -> Value {
    let property = |kind: Type| match kind {
        Type::Text => json!({"type": ["string", "null"]}),
        Type::Int => json!({"type": ["integer", "null"], "format": "int64"}),
        Type::Texts => json!({"type": ["array", "null"], "items": {"type": "string"}}),
        Type::TextMap => json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}}),
        Type::Struct(shape) => body(shape),
        Type::StructMap(shape) => json!({"type": ["object", "null"], "additionalProperties": body(shape)}),
    };
    let properties: serde_json::Map<_, _> =
        shape.members.iter().map(|member| (member.name.to_owned(), property(member.kind))).collect();
    json!({"type": "object", "properties": properties})
}

fn inspections(book: &mut Book) {
    let endpoint = book.types.subschema_for::<EndpointInspect>().to_value();
    let node = book.types.subschema_for::<Node>().to_value();
    let parameter = |name: &str, description: &str| {
        json!([{"name": name, "in": "path", "required": true, "description": description,
            "schema": {"type": "string", "minLength": 1}}])
    };
    book.operation("/api/v1/inspect/endpoints/{name}/", "get", json!({
        "operationId": "inspectEndpoint", "tags": ["endpoint"], "summary": "An endpoint",
        "parameters": parameter("name", "Its id, its container's id or its name, or a part of one of them."),
        "responses": responses(json_body("The endpoint.", &endpoint)),
    }));
    book.operation("/api/v1/inspect/nodes/", "get", json!({
        "operationId": "listNodes", "tags": ["node"], "summary": "All nodes that agents have run on",
        "responses": responses(json_body("In the order of their names.", &json!({"type": "array", "items": node}))),
    }));
    book.operation("/api/v1/inspect/nodes/{host}/", "get", json!({
        "operationId": "inspectNode", "tags": ["node"], "summary": "A node",
        "parameters": parameter("host", "Its name."), "responses": responses(json_body("The node.", &node)),
    }));
}

fn info() -> Value {
    let addresses = json!({"type": "array", "items": {"type": "string"}});
    json!({
        "type": "object",
        "properties": {
            "current-state": {"enum": ["leader", "follower"]},
            "leader-ip": {"type": "string", "description": "Address and port; empty while nobody leads."},
            "local-ip": {"type": "string"},
            "netmaster-nodes": addresses,
            "netplugin-nodes": addresses,
        },
        "required": ["current-state", "leader-ip", "local-ip", "netmaster-nodes", "netplugin-nodes"],
    })
}
