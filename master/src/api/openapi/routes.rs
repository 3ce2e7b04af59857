//! Operations on paths other than objects.

use contiv_model::api::{EndpointInspect, Node};
use contiv_model::node;
use serde_json::{Value, json};

use super::Builder;
use super::responses::{json_body, responses, text_body};
use crate::plugin;
use crate::schema::{Schema, Type};

pub(super) fn describe(builder: &mut Builder) {
    calls(builder);
    inspections(builder);
    accepted_store(builder);
    chosen_datapath(builder);
    deleted_node(builder);
    let text = |id: &str, tag: &str, summary: &str, description: &str| json!({"operationId": id, "tags": [tag], "summary": summary, "responses": responses(text_body(description))});
    builder.operation(
        "/version",
        "get",
        text(
            "getVersion",
            "daemon",
            "Version of netmaster",
            "JSON with content type text, as in the original.",
        ),
    );
    for (path, id, summary) in [
        ("/healthz", "getHealth", "Liveness of this netmaster; not forwarded to the leader"),
        (
            "/readyz",
            "getReadiness",
            "Readiness: it leads, with its state loaded and written, or knows another leader, and the store answers; not forwarded to the leader",
        ),
    ] {
        let mut operation = text(id, "daemon", summary, "Healthy or ready.");
        operation["security"] = json!([]);
        builder.operation(path, "get", operation);
    }
    builder.operation(
        "/info",
        "get",
        json!({
            "operationId": "getInfo", "tags": ["daemon"], "summary": "Leader and registered services; not forwarded to the leader",
            "responses": responses(json_body("Information of the netmaster that received the request.", &info())),
        }),
    );
    builder.operation(
        super::PATH,
        "get",
        json!({
            "operationId": "getOpenApi", "tags": ["daemon"], "summary": "This document",
            "responses": responses(json_body("OpenAPI 3.1.", &json!({"type": "object"}))),
        }),
    );
    let mut metrics = text("getMetrics", "daemon", "Metrics for Prometheus", "OpenMetrics text format.");
    let content =
        json!({"application/openmetrics-text; version=1.0.0; charset=utf-8": {"schema": {"type": "string"}}});
    metrics["responses"]["200"]["content"] = content;
    builder.operation("/metrics", "get", metrics);
    let services = "JSON with content type text, as in the original.";
    builder.operation(
        "/services",
        "get",
        text("listServiceStates", "service", "List all services with their providers", services),
    );
    let mut service = text(
        "getServiceState",
        "service",
        "Get a service with its providers, as a list of one; null if it does not exist",
        services,
    );
    service["parameters"] = json!([{"name": "id", "in": "path", "required": true,
        "description": "`<service>:<tenant>`.", "schema": {"type": "string", "minLength": 1}}]);
    builder.operation("/service/{id}", "get", service);
    let words = [("tenant", Value::Null), ("kind", json!(["net", "group", "ep"])), ("name", Value::Null)];
    let parameters = words.map(|(name, words)| {
        let schema =
            if words.is_null() { json!({"type": "string", "minLength": 1}) } else { json!({"enum": words}) };
        json!({"name": name, "in": "path", "required": true, "schema": schema})
    });
    let mut clean_up = text(
        "cleanUpEndpoints",
        "debug",
        "Delete endpoints whose pods no longer exist",
        "Names of what was deleted.",
    );
    clean_up["parameters"] = json!(parameters);
    builder.operation("/debug/epcleanup/tenant/{tenant}/{kind}/{name}", "delete", clean_up);
}

/// Plugin calls of agents.
fn calls(builder: &mut Builder) {
    for call in plugin::CALLS {
        let reply = (call.reply)(&mut builder.types).to_value();
        builder.operation(&format!("/plugin/{}", call.name), "post", json!({
            "operationId": call.name, "tags": ["plugin"], "summary": call.summary,
            "description": "The Content-Type must be exactly `application/json`; otherwise the status is 404.",
            "requestBody": {"required": true, "content": {"application/json": {"schema": body(call.schema)}}},
            "responses": responses(json_body("Result of the call.", &reply)),
        }));
    }
}

/// Schema of a body without required fields.
fn body(object_schema: &Schema) -> Value {
    let property = |kind: Type| match kind {
        Type::Text => json!({"type": ["string", "null"]}),
        Type::Int => json!({"type": ["integer", "null"], "format": "int64"}),
        Type::Texts => json!({"type": ["array", "null"], "items": {"type": "string"}}),
        Type::TextMap => json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}}),
        Type::Struct(object_schema) => body(object_schema),
        Type::StructMap(object_schema) => {
            json!({"type": ["object", "null"], "additionalProperties": body(object_schema)})
        }
    };
    let properties: serde_json::Map<_, _> =
        object_schema.fields.iter().map(|field| (field.name.to_owned(), property(field.kind))).collect();
    json!({"type": "object", "properties": properties})
}

fn inspections(builder: &mut Builder) {
    let endpoint = builder.types.subschema_for::<EndpointInspect>().to_value();
    let node = builder.types.subschema_for::<Node>().to_value();
    let parameter = |name: &str, description: &str| {
        json!([{"name": name, "in": "path", "required": true, "description": description,
            "schema": {"type": "string", "minLength": 1}}])
    };
    builder.operation("/api/v1/inspect/endpoints/{name}/", "get", json!({
        "operationId": "inspectEndpoint", "tags": ["endpoint"], "summary": "Get an endpoint",
        "parameters": parameter("name", "Id, container id or name of the endpoint, or a substring of one of them."),
        "responses": responses(json_body("The endpoint.", &endpoint)),
    }));
    builder.operation("/api/v1/inspect/nodes/", "get", json!({
        "operationId": "listNodes", "tags": ["node"], "summary": "List all nodes that have run an agent",
        "responses": responses(json_body("Nodes sorted by name.", &json!({"type": "array", "items": node}))),
    }));
    builder.operation("/api/v1/inspect/nodes/{host}/", "get", json!({
        "operationId": "inspectNode", "tags": ["node"], "summary": "Get a node",
        "parameters": parameter("host", "Name of the node."), "responses": responses(json_body("The node.", &node)),
    }));
}

fn accepted_store(builder: &mut Builder) {
    let accepted =
        json!({"type": "object", "properties": {"host": {"type": "string"}}, "required": ["host"]});
    builder.operation("/api/v1/nodes/{host}/acceptedStore/", "post", json!({
        "operationId": "acceptStore", "tags": ["node"],
        "summary": "Accept this store for a node that reports store-regressed",
        "parameters": [{"name": "host", "in": "path", "required": true, "description": "Name of the node.",
            "schema": {"type": "string", "minLength": 1}}],
        "responses": responses(json_body("The store is accepted.", &accepted)),
    }));
}

fn chosen_datapath(builder: &mut Builder) {
    let datapath = json!({"enum": node::DATAPATHS});
    let chosen = json!({"type": "object", "properties": {"host": {"type": "string"}, "datapath": datapath},
        "required": ["host", "datapath"]});
    builder.operation(
        "/api/v1/nodes/{host}/datapath/{datapath}/",
        "post",
        json!({
            "operationId": "setDatapath", "tags": ["node"],
            "summary": "Choose the datapath of a node; its agent changes to it while pods run",
            "parameters": [
                {"name": "host", "in": "path", "required": true, "description": "Name of the node.",
                    "schema": {"type": "string", "minLength": 1}},
                {"name": "datapath", "in": "path", "required": true, "description": "The datapath.",
                    "schema": datapath},
            ],
            "responses": responses(json_body("The choice is stored.", &chosen)),
        }),
    );
}

fn deleted_node(builder: &mut Builder) {
    let released = json!({"type": "integer", "minimum": 0, "description": "Number of endpoints."});
    let deleted = json!({"type": "object", "properties": {"host": {"type": "string"}, "releasedEndpoints": released},
        "required": ["host", "releasedEndpoints"]});
    builder.operation("/api/v1/nodes/{host}/", "delete", json!({
        "operationId": "deleteNode", "tags": ["node"],
        "summary": "Delete a node that will not return, and release its endpoints",
        "description": "Refused while the node is registered. A request that failed can be repeated: it deletes what is left.",
        "parameters": [{"name": "host", "in": "path", "required": true, "description": "Name of the node.",
            "schema": {"type": "string", "minLength": 1}}],
        "responses": responses(json_body("The node is deleted.", &deleted)),
    }));
}

fn info() -> Value {
    let addresses = json!({"type": "array", "items": {"type": "string"}});
    json!({
        "type": "object",
        "properties": {
            "current-state": {"enum": ["leader", "follower"]},
            "leader-ip": {"type": "string", "description": "Address and port; empty while there is no leader."},
            "local-ip": {"type": "string"},
            "netmaster-nodes": addresses,
            "netplugin-nodes": addresses,
        },
        "required": ["current-state", "leader-ip", "local-ip", "netmaster-nodes", "netplugin-nodes"],
    })
}
