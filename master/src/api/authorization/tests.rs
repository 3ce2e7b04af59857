//! Every route with every role.

use axum::http::{Method, Uri};

use super::*;
use crate::api::openapi;
use crate::objects::TYPES;

/// Columns of the table.
fn roles() -> [Role; 6] {
    [
        Role::Admin,
        Role::ReadOnly,
        Role::TenantOperator(["t".to_owned()].into()),
        Role::Agent(Nodes::One("h".into())),
        Role::Agent(Nodes::All),
        Role::Netmaster,
    ]
}

/// `A` for all objects, `T` for those of the tenants, `N` for those of the node, `-` for none.
fn row(method: &str, path: &str) -> String {
    let route = Route::of(&method.parse::<Method>().unwrap(), &path.parse::<Uri>().unwrap());
    roles()
        .iter()
        .map(|role| match decide(role, &route) {
            Decision::Allow(Scope::All) => 'A',
            Decision::Allow(Scope::Tenants(tenants)) if tenants.iter().eq(["t"]) => 'T',
            Decision::Allow(Scope::Node(node)) if node == "h" => 'N',
            Decision::Allow(other) => panic!("{method} {path}: {role}: {other:?}"),
            Decision::Deny(_) => '-',
        })
        .collect()
}

const TENANT_TYPES: [&str; 10] = [
    "appProfiles",
    "endpointGroups",
    "extContractsGroups",
    "netprofiles",
    "networks",
    "policys",
    "rules",
    "serviceLBs",
    "volumes",
    "volumeProfiles",
];
const CLUSTER_TYPES: [&str; 3] = ["aciGws", "Bgps", "globals"];

/// Expected row of a path of the document, in which parameters have names in braces.
fn expected(method: &str, path: &str) -> &'static str {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let of_tenant = |types: &str| TENANT_TYPES.contains(&types);
    let of_cluster = |types: &str| CLUSTER_TYPES.contains(&types);
    match (method, parts.as_slice()) {
        ("GET", ["healthz" | "readyz" | "version"]) => "AATNAA",
        ("GET", ["api", "v1", "openapi.json"]) => "AATNA-",
        ("GET", ["info" | "metrics"]) => "AA----",
        ("GET", ["services"] | ["service", _]) => "AAT---",
        ("GET", ["api", "v1", "inspect", "endpoints", _]) => "AATNA-",
        ("GET", ["api", "v1", "inspect", "nodes"]) => "AA----",
        ("GET", ["api", "v1", "inspect", "nodes", _]) => "AA-NA-",
        ("POST", ["api", "v1", "nodes", _, "acceptedStore"] | ["api", "v1", "nodes", _, "datapath", _]) => {
            "A-----"
        }
        ("DELETE", ["api", "v1", "nodes", _]) => "A-----",
        (
            "GET",
            ["api", "v1", "inspect", "tenants", _] | ["api", "v1", "tenants"] | ["api", "v1", "tenants", _],
        ) => "AAT---",
        ("POST" | "PUT" | "DELETE", ["api", "v1", "tenants", _]) => "A-----",
        ("GET", ["api", "v1", "inspect", types, _] | ["api", "v1", types] | ["api", "v1", types, _])
            if of_tenant(types) =>
        {
            "AAT---"
        }
        ("GET", ["api", "v1", "inspect", types, _] | ["api", "v1", types] | ["api", "v1", types, _])
            if of_cluster(types) =>
        {
            "AA----"
        }
        ("POST" | "PUT" | "DELETE", ["api", "v1", types, _]) if of_tenant(types) => "A-T---",
        ("POST" | "PUT" | "DELETE", ["api", "v1", types, _]) if of_cluster(types) => "A-----",
        ("POST", ["plugin", "createEndpoint" | "deleteEndpoint" | "updateEndpoint"]) => "A--NA-",
        ("POST", ["plugin", "allocAddress" | "releaseAddress"]) => "A-----",
        ("DELETE", ["debug", "epcleanup", ..]) => "A-----",
        _ => panic!("{method} {path} is not in the table of authorization"),
    }
}

/// Method and path template of each operation of the document.
fn operations() -> Vec<(String, String)> {
    let document: serde_json::Value = serde_json::from_str(&openapi::DOCUMENT).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let of_path = |(path, item): (&String, &serde_json::Value)| {
        let methods = item.as_object().unwrap().keys().map(|method| method.to_uppercase());
        methods.map(|method| (method, path.clone())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

fn fill(path: &str, key: &str) -> String {
    path.replace("{key}", key)
        .replace("{id}", "web:t")
        .replace("{host}", "h")
        .replace("{tenant}", "t")
        .replace("{kind}", "net")
        .replace("{name}", "n")
}

#[test]
fn every_operation_is_decided_for_every_role() {
    let operations = operations();
    assert!(operations.len() > 90, "{}", operations.len());
    for (method, template) in operations {
        let path = fill(&template, if template.contains("tenants") { "t" } else { "t:x" });
        let route = Route::of(&method.parse().unwrap(), &path.parse().unwrap());
        assert!(!matches!(route, Route::Unknown), "{method} {path} has no route");
        assert_eq!(row(&method, &path), expected(&method, &template), "{method} {path}");
    }
}

/// The operator of `t`, by any spelling of a key of another tenant.
#[test]
fn other_tenants_and_nodes_are_refused() {
    let types: Vec<String> = TYPES.iter().map(|t| format!("{}s", t.kind.as_str())).collect();
    for key in [
        "u", "u:x", "u%3Ax", "%75:x", "t.u:x", "T:x", "%20t:x", "t%20:x", "t%00:x", "t%2Fu:x", ":x", "t%252E",
    ] {
        for types in &types {
            for (method, path) in [
                ("GET", format!("/api/v1/{types}/{key}/")),
                ("GET", format!("/api/v1/inspect/{types}/{key}/")),
                ("POST", format!("/api/v1/{types}/{key}/")),
                ("PUT", format!("/api/v1/{types}/{key}/")),
                ("DELETE", format!("/api/v1/{types}/{key}/")),
            ] {
                let row = row(method, &path);
                assert_eq!(&row[2..], "----", "{method} {path}");
            }
        }
    }
    assert_eq!(row("GET", "/api/v1/inspect/nodes/other/"), "AA--A-");
    assert_eq!(row("POST", "/api/v1/networks/t%3Ax/"), "A-T---");
    assert_eq!(row("POST", "/api/v1/rules/t:u:x/"), "A-T---", "policy u of tenant t");
}

#[test]
fn unknown_routes_are_for_admins_who_see_that_there_is_none() {
    for (method, path) in [
        ("GET", "/nowhere"),
        ("GET", "/"),
        ("GET", "/api/v1/networks/t:x"),
        ("GET", "/api/v1/networks//"),
        ("GET", "/api/v1/nothings/t:x/"),
        ("GET", "/API/v1/networks/"),
        ("HEAD", "/api/v1/networks/"),
        ("PATCH", "/api/v1/networks/t:x/"),
        ("OPTIONS", "/healthz"),
        ("POST", "/healthz"),
        ("POST", "/plugin/nothing"),
        ("PUT", "/plugin/createEndpoint"),
        ("PUT", "/api/v1/nodes/h/acceptedStore/"),
        ("GET", "/api/v1/nodes/h/"),
        ("DELETE", "/api/v1/nodes/h"),
        ("GET", "/debug/epcleanup/tenant/t/net/n"),
    ] {
        assert_eq!(row(method, path), "A-----", "{method} {path}");
    }
    assert_eq!(row("GET", "/debug/ofnet"), "AA----");
}
