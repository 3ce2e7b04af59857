//! Stored texts never reach the terminal as control characters.

use serde_json::{Value, json};

use crate::{
    netctl, read,
    server::{Reply, Request, Server},
};

/// Clears the screen, sets the title of the window (7 and 8 bits), and reverses the direction of text.
const HOSTILE: &str = "x\u{1b}[2J\u{1b}]0;t\u{7}\u{9d}0;t\u{9c}\u{202e}\r\n\u{1b}[31my";

fn object(fields: &[&str]) -> Value {
    let mut object = json!({"key": format!("default:{HOSTILE}"), "tenantName": "default"});
    for field in fields {
        object[field] = json!(HOSTILE);
    }
    object
}

fn endpoint() -> Value {
    let mut endpoint = object(&["containerID", "containerName", "endpointID", "homingHost", "serviceName"]);
    endpoint["network"] = json!(HOSTILE);
    endpoint["ipAddress"] = json!([HOSTILE, HOSTILE]);
    endpoint
}

fn answer(request: &Request) -> Reply {
    let list = |fields: &[&str]| Reply::json(&json!([object(fields)]));
    match request.line.as_str() {
        "GET /api/v1/networks/" => list(&["networkName", "encap", "subnet", "gateway", "cfgdTag"]),
        "GET /api/v1/netprofiles/" => list(&["profileName", "bandwidth"]),
        "GET /api/v1/endpointGroups/" => list(&["groupName", "networkName", "netProfile"]),
        "GET /api/v1/globals/" => list(&["name", "vlans", "fwdMode"]),
        "GET /api/v1/policys/" => list(&["policyName"]),
        "GET /api/v1/rules/" => {
            Reply::json(&json!([{"key": "default:p:1", "tenantName": "default", "policyName": "p",
            "ruleId": HOSTILE, "direction": "in", "action": HOSTILE}]))
        }
        "GET /api/v1/tenants/" => list(&["tenantName"]),
        "GET /api/v1/inspect/nodes/" => {
            Reply::json(&json!([{"host": HOSTILE, "datapath": HOSTILE, "state": "ready",
            "vtepIP": HOSTILE, "version": HOSTILE, "degraded": [HOSTILE]}]))
        }
        "GET /version" => Reply::json(&json!({"Version": HOSTILE, "GitCommit": HOSTILE})),
        "GET /info" => Reply::json(&json!({"leader-ip": HOSTILE})),
        line if line.starts_with("GET /api/v1/inspect/networks/") => {
            Reply::json(&json!({"Config": {}, "Oper": {"endpoints": [endpoint()]}}))
        }
        line if line.starts_with("GET /api/v1/inspect/endpoints/") => {
            Reply::json(&json!({"Oper": endpoint()}))
        }
        line if line.starts_with("GET /api/v1/appProfiles/") => Reply::refused(HOSTILE),
        line if line.starts_with("GET /api/v1/") => list(&["name"]),
        _ => Reply::json(&json!({})),
    }
}

#[test]
fn no_command_prints_stored_control_characters() {
    let server = Server::start(answer);
    for line in [
        "net ls",
        "net ls -q",
        "net ls -j",
        "net ls -o yaml",
        "netprofile ls",
        "group ls",
        "group ls -q",
        "tenant ls",
        "tenant ls -q",
        "policy ls",
        "policy rule-ls p",
        "policy rule-ls -q p",
        "global info",
        "global info -j",
        "node ls",
        "node ls -q",
        "node ls -o json",
        "endpoint ls",
        "endpoint ls -q",
        "endpoint ls -o yaml",
        "endpoint inspect e",
        "version",
        "info",
        "get all",
        "get net -o name",
        "get net -o yaml",
        "get net -o json",
        "app-profile group-ls x",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        // Colours as on a terminal: without them, anstream removes some of the characters.
        let mut command = netctl(&server.url(), &words);
        let (stdout, stderr, code) = read(&command.env("CLICOLOR_FORCE", "1").output().unwrap());
        let mut shown = stdout + &stderr;
        assert!(shown.contains("[2J"), "{line} does not show the text: {shown:?}");
        for own in ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[0m"] {
            if line == "node ls" || code != 0 {
                shown = shown.replace(own, "");
            }
        }
        let active = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!shown.contains(active), "{line}: {shown:?}");
    }
}
