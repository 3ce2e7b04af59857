//! Endpoints that `policy check` and `trace` find by their names.

use serde_json::{Value, json};

use crate::{
    run,
    server::{Reply, Request, Server},
};

fn network(tenant: &str, name: &str) -> Value {
    json!({"key": format!("{tenant}:{name}"), "tenantName": tenant, "networkName": name})
}

fn endpoint(id: &str, name: &str, network: &str, ip: &str) -> Value {
    json!({"endpointID": id, "containerID": format!("c-{id}"), "containerName": name, "homingHost": "node1",
        "network": network, "ipAddress": [ip, ""]})
}

/// A netmaster on which each tenant, and each network of tenant b, has an endpoint of a container web-0.
fn netmaster() -> Server {
    let networks = json!([network("a", "n"), network("b", "n"), network("b", "m")]);
    let of_a = [endpoint("e1", "web-0", "n.a", "10.1.1.1")];
    // The name of a container is the id of another endpoint.
    let of_b = [endpoint("e2", "web-0", "n.b", "10.1.1.1"), endpoint("e3", "e1", "n.b", "10.1.1.3")];
    let others = [endpoint("e4", "web-0", "m.b", "10.2.1.1")];
    let inspected = |endpoints: &[Value]| json!({"Config": {}, "Oper": {"endpoints": endpoints}});
    let (a, b, other) = (inspected(&of_a), inspected(&of_b), inspected(&others));
    let like = json!({"Oper": &of_a[0]});
    Server::start(move |request: &Request| match request.line.as_str() {
        "GET /api/v1/networks/" => Reply::json(&networks),
        "GET /api/v1/inspect/networks/a:n/" => Reply::json(&a),
        "GET /api/v1/inspect/networks/b:n/" => Reply::json(&b),
        "GET /api/v1/inspect/networks/b:m/" => Reply::json(&other),
        // netmaster finds parts of names, and the first of several.
        "GET /api/v1/inspect/endpoints/web/" | "GET /api/v1/inspect/endpoints/web-0/" => Reply::json(&like),
        line if line.starts_with("GET /api/v1/inspect/endpoints/") => Reply::refused("endpoint not found"),
        _ => Reply::json(&json!([])),
    })
}

#[test]
fn name_of_several_endpoints_is_ambiguous() {
    let server = netmaster();
    let two_tenants = "web-0 is ambiguous: e1 on n.a and e2 on n.b; use an endpoint id or --tenant";
    let two_networks = "web-0 is ambiguous: e2 on n.b and e4 on m.b; use an endpoint id or --tenant";
    for (words, error) in [
        (&["--from", "web-0", "--to", "192.0.2.7"][..], two_tenants),
        (&["--from", "192.0.2.7", "--to", "web-0"], two_tenants),
        (&["--from", "e4", "--to", "web-0"], two_tenants),
        (&["--from", "web-0", "--to", "192.0.2.7", "--tenant", "b"], two_networks),
    ] {
        for command in [&["policy", "check", "-l", "icmp"][..], &["trace"]] {
            let words = [command, words].concat();
            let expected = (String::new(), format!("netctl: {error}\n"), 1);
            assert_eq!(run(&server, &words), expected, "{words:?}");
        }
    }
}

#[test]
fn endpoint_is_found_by_name_and_tenant_or_by_id() {
    let server = netmaster();
    for (words, found) in [
        (&["--from", "web-0", "--tenant", "a"][..], "10.1.1.1 (e1)"),
        (&["--from", "c-e2"], "10.1.1.1 (e2)"),
        (&["--from", "e4"], "10.2.1.1 (e4)"),
        // An id goes before a name.
        (&["--from", "e1"], "10.1.1.1 (e1)"),
        (&["--from", "e1", "--tenant", "b"], "10.1.1.3 (e3)"),
    ] {
        let words = [&["policy", "check", "-l", "icmp", "--to", "192.0.2.7"][..], words].concat();
        let (stdout, stderr, code) = run(&server, &words);
        assert!(stdout.starts_with(&format!("allow: {found} to ")), "{words:?}: {stdout}{stderr}");
        assert_eq!((stderr.as_str(), code), ("", 0), "{words:?}");
    }
    for (name, error) in [("web", "no endpoint web; did you mean e1?"), ("absent", "no endpoint absent")] {
        let (_, stderr, code) =
            run(&server, &["policy", "check", "-l", "icmp", "--from", name, "--to", "192.0.2.7"]);
        assert_eq!((stderr, code), (format!("netctl: {error}\n"), 3), "{name}");
    }
}
