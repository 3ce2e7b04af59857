//! Stored texts never reach the terminal as control characters.

use std::fs;

use serde_json::{Value, json};

use crate::{
    manifests::edit,
    netctl, read, run,
    server::{Reply, Request, Server},
    store,
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

/// The events of `monitor -o json` are valid JSON with the same values.
#[test]
fn monitored_events_keep_their_values() {
    let event = json!({"time": "2026-01-01T00:00:00Z", "host": "h\u{202e}\u{7f}\u{9b}", "event": "drop",
        "reason": "日本\u{200b}", "more": [1, HOSTILE]});
    let line = event.to_string();
    let agent = Server::start(move |_| Reply::new(200, "", format!("{line}\n")));
    let url = agent.url();
    let words = ["monitor", "--agent", &url, "--count", "1", "-o", "json"];
    let (stdout, stderr, code) = run(&agent, &words);
    assert_eq!((stderr.as_str(), code, stdout.lines().count()), ("", 0, 1), "{stdout:?}");
    assert!(!stdout.contains(|c: char| c.is_control() && c != '\n' || c == '\u{202e}'), "{stdout:?}");
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap(), event);
}

/// What `get` prints, `apply` reads as the same object, also if YAML would not quote it.
#[test]
fn yaml_of_invisible_characters_is_read_as_the_same_value() {
    let long = ["long"; 40].join(" ");
    for name in ["a\u{202e}b", "a\n\tb", "\u{200b}a", "a\u{e0041}", HOSTILE, &long] {
        let profile = json!({"tenantName": "t", "profileName": name, "DSCP": 1});
        let key = format!("t:{name}");
        let server = store::start(&[
            ("tenant", "t", json!({"tenantName": "t"})),
            ("netprofile", key.as_str(), profile),
        ]);
        let (yaml, _, code) = run(&server, &["get", "netprofile", "-t", "t", "-o", "yaml"]);
        assert_eq!(code, 0);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.yaml");
        fs::write(&file, yaml.replace("DSCP: 1", "DSCP: 2")).unwrap();
        let (stdout, stderr, code) = run(&server, &["apply", "-f", file.to_str().unwrap()]);
        assert!(stdout.ends_with(" updated\n"), "{yaml}\n{stdout}{stderr}");
        assert_eq!(code, 0);
        let sent = server.take().into_iter().find(Request::is_change).unwrap();
        assert_eq!(sent.body, json!({"tenantName": "t", "profileName": name, "DSCP": 2}));
    }
}

/// Only the text of the template reaches the terminal as it is.
#[test]
fn texts_of_a_template_are_not_escaped() {
    let server = Server::start(answer);
    let template = "jsonpath={[0].host}{\"\\t\"}{[0].state}{\"\\n\"}";
    let (stdout, _, code) = run(&server, &["node", "ls", "-o", template]);
    let shown = |c: char| match c.is_control() || c == '\u{202e}' {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    let host: String = HOSTILE.chars().map(shown).collect();
    assert_eq!((stdout, code), (format!("{host}\tready\n"), 0));
}

/// The editor shows them as escapes, and quitting changes nothing.
#[test]
fn edited_text_has_no_control_characters() {
    let profile = json!({"tenantName": "t", "profileName": "p", "bandwidth": "1\u{202e}g", "DSCP": 1});
    let server = store::start(&[("tenant", "t", json!({"tenantName": "t"})), ("netprofile", "t:p", profile)]);
    let script = "test $(LC_ALL=C grep -c '1.u202Eg' \"$f\") = 1; sed -i 's/DSCP: 1/DSCP: 2/' \"$f\"";
    let ((stdout, stderr, code), _) = edit(&server, &["netprofile", "p", "-t", "t"], script);
    assert_eq!((stdout.as_str(), stderr.as_str(), code), ("netprofile t:p updated\n", "", 0));
    let sent = server.take().into_iter().find(Request::is_change).unwrap();
    assert_eq!(sent.body["bandwidth"], "1\u{202e}g");
}
