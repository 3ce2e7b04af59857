//! `diff` and `apply --dry-run` ask netmaster what it would make of the changes.

use std::fs;

use serde_json::{Value, json};

use crate::{
    manifests::cluster_objects,
    run,
    server::{Reply, Request, Server},
    store,
};

const FILE: &str = "- {kind: netprofile, tenantName: t, profileName: gold, DSCP: 10}\n\
                    - {kind: policy, tenantName: t, policyName: p}\n\
                    - {kind: policy, tenantName: t, policyName: new}\n\
                    - {kind: group, tenantName: t, groupName: h, networkName: n, policies: [new]}\n";

/// Runs `netctl WORDS -f FILE`; in its output, the name of the file is `FILE`.
fn show(server: &Server, words: &[&str]) -> (String, String, i32) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    fs::write(&file, FILE).unwrap();
    let name = file.to_str().unwrap();
    let (stdout, stderr, code) = run(server, &[words, &["-f", name]].concat());
    (stdout.replace(name, "FILE"), stderr.replace(name, "FILE"), code)
}

/// Lines and queries of the changes, and bodies.
fn asked(server: &Server) -> Vec<(String, Value)> {
    let changes = server.take().into_iter().filter(Request::is_change);
    changes.map(|it| (format!("{}?{}", it.line, it.query), it.body)).collect()
}

const GOLD: &str = "netprofile t:gold update\n--- netmaster\n+++ FILE document 1 item 1\n@@ -1,4 +1,4 @@\n \
                    tenantName: t\n profileName: gold\n-DSCP: 46\n+DSCP: 10\n burst: 7\n";
const NEW: &str = "policy t:new create\n--- netmaster\n+++ FILE document 1 item 3\n@@ -0,0 +1,2 @@\n+tenantName: t\n\
                   +policyName: new\n";
const GROUP: &str = "endpointGroup t:h create\n--- netmaster\n+++ FILE document 1 item 4\n@@ -0,0 +1,4 @@\n\
                     +tenantName: t\n+groupName: h\n+networkName: n\n+policies: [\"new\"]\n\
                     endpointGroup t:h not checked by netmaster: policy t:new does not exist yet\n";

#[test]
fn changes_are_tried_and_nothing_is_changed() {
    let server = store::modern(&cluster_objects(), |_, _| None);
    let expected = [
        (
            "POST /api/v1/netprofiles/t:gold/?dryRun=All".to_owned(),
            json!({"tenantName": "t", "profileName": "gold", "DSCP": 10, "burst": 7}),
        ),
        (
            "POST /api/v1/policys/t:new/?dryRun=All".to_owned(),
            json!({"tenantName": "t", "policyName": "new"}),
        ),
    ];
    assert_eq!(show(&server, &["diff"]), (format!("{GOLD}{NEW}{GROUP}"), String::new(), 5));
    assert_eq!(asked(&server), expected);
    let all = format!("{GOLD}policy t:p unchanged\n{NEW}{GROUP}");
    assert_eq!(show(&server, &["apply", "--dry-run"]), (all, String::new(), 0));
    assert_eq!(asked(&server), expected);
}

/// The original would carry out what it is asked to try.
#[test]
fn netmaster_without_dry_runs_is_not_asked() {
    let group = GROUP.split_inclusive('\n').filter(|line| !line.contains("not checked")).collect::<String>();
    for words in [&["diff"][..], &["apply", "--dry-run"], &["diff", "--prune", "t"]] {
        let server = store::start(&cluster_objects());
        let (stdout, stderr, _) = show(&server, words);
        assert!(stdout.starts_with(GOLD) && stdout.contains(&format!("{NEW}{group}")), "{stdout}");
        assert_eq!((stderr.as_str(), asked(&server)), ("", vec![]), "{words:?}");
    }
}

#[test]
fn result_is_shown_as_netmaster_makes_it() {
    let server = store::modern(&cluster_objects(), |request, _| {
        let body = json!({"key": "t:gold", "tenantName": "t", "profileName": "gold", "DSCP": 10, "burst": 7,
            "bandwidth": "1Gbps"});
        (request.is_change() && request.line.contains("gold")).then(|| Reply::json(&body))
    });
    let (stdout, _, code) = show(&server, &["diff"]);
    let gold = "@@ -1,4 +1,5 @@\n tenantName: t\n profileName: gold\n+bandwidth: 1Gbps\n-DSCP: 46\n+DSCP: 10\n burst: 7\n";
    assert!(stdout.contains(gold), "{stdout}");
    assert_eq!(code, 5);
}

#[test]
fn refusals_of_netmaster_are_errors() {
    let server = store::modern(&cluster_objects(), |request, _| {
        request.is_change().then(|| Reply::refused("burst 7 is\u{1b}[2J too small\nframe\n"))
    });
    let line = |item: u8, object: &str| {
        format!("netctl: FILE document 1 item {item}: {object}: burst 7 is\\u{{1b}}[2J too small\n")
    };
    let errors = line(1, "netprofile t:gold") + &line(3, "policy t:new");
    assert_eq!(show(&server, &["diff"]), (format!("{GOLD}{NEW}{GROUP}"), errors.clone(), 3));
    let (stdout, stderr, code) = show(&server, &["apply", "--dry-run"]);
    assert!(stdout.starts_with(GOLD), "{stdout}");
    assert_eq!((stderr, code), (errors, 3));
}

/// A reader may see differences; it is told that it could not apply them.
#[test]
fn diff_is_for_readers_too() {
    let why = "the role read-only does not allow this; admin does";
    let server = store::modern(&cluster_objects(), move |request, _| {
        request.is_change().then(|| Reply::new(403, "", why))
    });
    let (stdout, stderr, code) = show(&server, &["diff"]);
    assert!(stdout.contains(&format!("netprofile t:gold not checked by netmaster: {why}\n")), "{stdout}");
    assert_eq!((stderr.as_str(), code), ("", 5));
    let (_, stderr, code) = show(&server, &["apply", "--dry-run"]);
    assert!(stderr.contains(&format!("netprofile t:gold: {why}\n")), "{stderr}");
    assert_eq!(code, 3);
}

#[test]
fn unavailable_netmaster_ends_the_preview() {
    let server = store::modern(&cluster_objects(), |request, _| {
        request.is_change().then(|| Reply::new(503, "", "no netmaster leads"))
    });
    let (_, stderr, code) = show(&server, &["diff"]);
    assert_eq!((stderr.as_str(), code), ("netctl: no netmaster leads\n", 3));
}
