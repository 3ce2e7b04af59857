//! Every kind of failure, in both error formats.
//!
//! Timeouts of request bodies (408) are tested in `limits`; 501 needs a registered node.

use std::fmt::Write as _;
use std::path::Path;

use contiv_model::key;
use serde_json::json;
use testkit::etcd::Etcd;
use testkit::{scratch_dir, wait_until, write_secret};

use crate::client::{call, get};
use crate::master::{Master, WAIT_TIMEOUT};

const READ: &str = "Bearer read-token-0123456789";
const WRITE: &str = "Bearer write-token-0123456789";
/// A port without a listener: binding it needs privileges.
const UNREACHABLE: &str = "127.0.0.1:1";

struct Case {
    name: &'static str,
    token: Option<&'static str>,
    method: &'static str,
    path: &'static str,
    body: String,
}

fn case(name: &'static str, method: &'static str, path: &'static str, body: impl ToString) -> Case {
    Case { name, token: Some(WRITE), method, path, body: body.to_string() }
}

/// Records the responses to a request in both formats.
fn answers(master: &Master, case: &Case, text: &mut String) {
    let Case { name, token, method, path, body } = case;
    let shown = if body.len() > 200 { format!("{} bytes", body.len()) } else { body.clone() };
    writeln!(text, "{name}: {method} {path} {shown}").unwrap();
    for accept in ["*/*", "application/problem+json"] {
        let mut headers = vec![("Accept", accept), ("Content-Type", "application/json")];
        headers.extend(token.map(|token| ("Authorization", token)));
        let answer = call(master.address, method, path, &headers, body).unwrap();
        writeln!(text, "    {} {}: {}", answer.status, answer.content_type, answer.body.trim_end()).unwrap();
    }
}

#[test]
fn each_failure_is_reported_in_both_formats() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let dir = scratch_dir("problems").unwrap();
    let tokens = dir.path().join("tokens");
    let line = |name, role, token: &str| format!("{name} {role} {}\n", token.trim_start_matches("Bearer "));
    write_secret(&tokens, &(line("ops", "write", WRITE) + &line("board", "read", READ))).unwrap();
    let master = Master::start_unprobed(dir.path(), &["--token-file", tokens.to_str().unwrap()]);
    let network =
        json!({"tenantName": "default", "networkName": "n", "encap": "vlan", "subnet": "10.0.0.0/24"});
    let wrong =
        json!({"tenantName": "default", "networkName": "w", "encap": "vlan", "subnet": "10.0.0.0/99"});
    let group = json!({"tenantName": "default", "groupName": "g", "networkName": "none"});
    let bgp = json!({"hostname": "h", "routerip": "50.1.1.1/24", "as": "500", "neighbor": "50.1.1.2", "neighbor-as": "500"});
    let headers = [("Authorization", WRITE), ("Content-Type", "application/json")];
    for (path, body) in [("/api/v1/networks/default:n/", network), ("/api/v1/Bgps/h/", bgp)] {
        call(master.address, "POST", path, &headers, &body.to_string()).unwrap().good();
    }
    let cases = [
        case("not JSON", "POST", "/api/v1/tenants/t/", "{"),
        case("a field of the wrong type", "POST", "/api/v1/tenants/t/", json!({"tenantName": 1})),
        case("a field that is not accepted", "POST", "/api/v1/networks/default:w/", wrong),
        case("another key", "POST", "/api/v1/tenants/t/", json!({"tenantName": "u"})),
        Case { token: None, ..case("no token", "GET", "/api/v1/tenants/", "") },
        Case { token: Some(READ), ..case("a token that may not", "DELETE", "/api/v1/tenants/t/", "") },
        case("no such path", "GET", "/nowhere", ""),
        case("no such object", "GET", "/api/v1/tenants/none/", ""),
        case("nothing to delete", "DELETE", "/api/v1/tenants/none/", ""),
        case("an object that it names is not there", "POST", "/api/v1/endpointGroups/default:g/", group),
        case("in use", "DELETE", "/api/v1/tenants/default/", ""),
        case("too large", "POST", "/api/v1/tenants/t/", " ".repeat((1 << 20) + 1)),
        case("a node that is not there", "GET", "/api/v1/inspect/Bgps/h/", ""),
    ];
    let mut text = String::new();
    for case in &cases {
        answers(&master, case, &mut text);
    }
    let etcd = Etcd::start().unwrap();
    etcd.ctl(&["put", key::LEADER, UNREACHABLE]).unwrap();
    let follower = Master::on_etcd(&etcd.endpoint());
    answers(&follower, &case("the leader does not answer", "GET", "/api/v1/tenants/", ""), &mut text);
    let etcd = Etcd::start().unwrap();
    let isolated = Master::on_etcd(&etcd.endpoint());
    drop(etcd);
    let deposed = || {
        let answer = get(isolated.address, "/api/v1/tenants/")?;
        Ok((answer.body == "Leader not found\n").then_some(()))
    };
    wait_until(WAIT_TIMEOUT, "loss of leadership", deposed).unwrap();
    answers(&isolated, &case("no leader", "GET", "/api/v1/tenants/", ""), &mut text);

    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/problems.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&golden).unwrap(), "UPDATE_GOLDEN=1 rewrites it");
}
