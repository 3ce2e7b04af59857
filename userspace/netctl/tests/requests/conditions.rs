//! Changes that another client makes at the same time.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    manifests::{cluster_objects, edit},
    run,
    server::{Reply, Request, Server},
    store::{self, Objects},
};

const FILE: &str = "{kind: netprofile, tenantName: t, profileName: gold, DSCP: 10}\n---\n\
                    {kind: netprofile, tenantName: t, profileName: new, burst: 3}\n";

/// Applies [`FILE`].
fn apply(server: &Server, folder: &Path) -> (String, String, i32) {
    let file = folder.join("a.yaml");
    fs::write(&file, FILE).unwrap();
    run(server, &["apply", "-f", file.to_str().unwrap()])
}

/// `If-Match` or `If-None-Match`, and body of each change.
fn changes(server: &Server) -> Vec<(String, Value)> {
    let change = |request: Request| {
        let condition = ["if-match", "if-none-match"].map(|name| request.header(name).map(str::to_owned));
        (condition.into_iter().flatten().collect(), request.body)
    };
    server.take().into_iter().filter(Request::is_change).map(change).collect()
}

fn gold(dscp: u8) -> Value {
    json!({"tenantName": "t", "profileName": "gold", "DSCP": dscp, "burst": 7})
}

fn is_get_of_gold(request: &Request) -> bool {
    request.line == "GET /api/v1/netprofiles/t:gold/"
}

#[test]
fn changes_are_made_to_the_version_that_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let server = store::modern(&cluster_objects(), |_, _| None);
    let done = "netprofile t:gold updated\nnetprofile t:new created\n".to_owned();
    assert_eq!(apply(&server, folder.path()), (done.clone(), String::new(), 0));
    let new = json!({"tenantName": "t", "profileName": "new", "burst": 3});
    // Objects have the tags "1" to "7".
    assert_eq!(changes(&server), [("\"6\"".to_owned(), gold(10)), ("*".to_owned(), new.clone())]);

    // A server without tags, which ignores the condition of a creation.
    let server = store::start(&cluster_objects());
    assert_eq!(apply(&server, folder.path()), (done, String::new(), 0));
    assert_eq!(changes(&server), [(String::new(), gold(10)), ("*".to_owned(), new)]);

    // A proxy that compresses weakens tags.
    let server = store::modern(&cluster_objects(), |request, _| {
        is_get_of_gold(request).then(|| Reply::json(&with_key("t:gold", gold(46))).with("ETag", "W/\"6\""))
    });
    assert_eq!(apply(&server, folder.path()).2, 0);
    assert_eq!(changes(&server)[0].0, "\"6\"");
}

fn with_key(key: &str, mut object: Value) -> Value {
    object["key"] = json!(key);
    object
}

#[test]
fn apply_refuses_to_overwrite_what_others_change() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let refused = |document: u8, text: &str, later: &str| {
        let start = format!("netctl: {} document {document}: netprofile", file.display());
        (String::new(), format!("{start} {text}; apply the files again{later}\n"), 3)
    };
    let changed = "t:gold: changed by another client meanwhile: DSCP is 9, was 46, burst is empty, was 7";
    let later = " (later changes not sent: 1)";

    // Between the list and the look at the version.
    let others = |dscp: u8| json!({"tenantName": "t", "profileName": "gold", "DSCP": dscp});
    let server = store::modern(&cluster_objects(), move |request, objects| {
        if is_get_of_gold(request) {
            objects.put("netprofile", "t:gold", &others(9));
        }
        None
    });
    assert_eq!(apply(&server, folder.path()), refused(1, changed, later));
    assert!(changes(&server).is_empty());

    // Between the look and the change.
    let server = store::modern(&cluster_objects(), move |request, objects| {
        if request.is_change() {
            objects.put("netprofile", "t:gold", &others(9));
        }
        None
    });
    assert_eq!(apply(&server, folder.path()), refused(1, changed, later));
    assert_eq!(changes(&server), [("\"6\"".to_owned(), gold(10))]);

    let server = store::modern(&cluster_objects(), |request, objects| {
        if is_get_of_gold(request) {
            objects.remove("netprofile", "t:gold");
        }
        None
    });
    let deleted = "t:gold: deleted by another client meanwhile";
    assert_eq!(apply(&server, folder.path()), refused(1, deleted, later));

    let server = store::modern(&cluster_objects(), |request, objects| {
        if request.line == "POST /api/v1/netprofiles/t:new/" {
            objects.put("netprofile", "t:new", &json!({"tenantName": "t", "profileName": "new", "burst": 4}));
        }
        None
    });
    let (_, stderr, code) = refused(2, "t:new: created by another client meanwhile", "");
    assert_eq!(apply(&server, folder.path()), ("netprofile t:gold updated\n".into(), stderr, code));
}

/// netmaster may have carried the change out.
#[test]
fn change_whose_answer_is_lost_is_reported_with_its_object() {
    type Failure = fn() -> Reply;
    let folder = tempfile::tempdir().unwrap();
    let failures: [(Failure, &str); 2] = [
        (Reply::lost, "t:gold: POST http://"),
        (|| Reply::new(200, "", "<html>"), "t:gold: read the answer to POST http://"),
    ];
    for (failure, why) in failures {
        let server = store::modern(&cluster_objects(), move |request, _| request.is_change().then(failure));
        let (stdout, stderr, code) = apply(&server, folder.path());
        let file = folder.path().join("a.yaml");
        let start = format!("netctl: {} document 1: netprofile {why}", file.display());
        assert!(stderr.starts_with(&start), "{stderr}");
        assert!(stderr.ends_with(" (later changes not sent: 1)\n"), "{stderr}");
        assert_eq!((stdout.as_str(), stderr.lines().count(), code), ("", 1, 3), "{stderr}");
        assert_eq!(changes(&server).len(), 1);
    }
}

/// A new group that names the profile changes its links, and so its version.
#[test]
fn other_versions_of_the_same_fields_are_no_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let touching = |mut times: usize| {
        store::modern(&cluster_objects(), move |request, objects| {
            if request.is_change() && request.line.contains("gold") && times > 0 {
                times -= 1;
                let mut same = gold(46);
                same["link-sets"] = json!({"EndpointGroups": {"n": times}});
                objects.put("netprofile", "t:gold", &same);
            }
            None
        })
    };
    let server = touching(3);
    assert_eq!(apply(&server, folder.path()).2, 0);
    let tags: Vec<String> = changes(&server).into_iter().map(|(tag, _)| tag).collect();
    assert_eq!(tags, ["\"6\"", "\"8\"", "\"9\"", "\"10\"", "*"]);

    let (_, stderr, code) = apply(&touching(1_000), folder.path());
    assert!(stderr.contains("netprofile t:gold: changed by other clients all the time"), "{stderr}");
    assert_eq!(code, 3);
}

#[test]
fn fields_that_netctl_does_not_know_keep_their_values() {
    let folder = tempfile::tempdir().unwrap();
    let mut objects = cluster_objects();
    let profile = objects.iter_mut().find(|(_, key, _)| *key == "t:gold").unwrap();
    profile.2["queue"] = json!({"depth": 4});
    profile.2["links"] = json!({"Tenant": {"type": "tenant", "key": "t"}});
    let server = store::modern(&objects, |_, _| None);
    assert_eq!(apply(&server, folder.path()).2, 0);
    let mut sent = gold(10);
    sent["queue"] = json!({"depth": 4});
    assert_eq!(changes(&server)[0].1, sent);
}

#[test]
fn edit_changes_the_version_that_the_user_saw() {
    let words = ["netprofile", "gold", "-t", "t"];
    let script = "sed -i 's/DSCP: 46/DSCP: 10/' \"$f\"";
    let server = store::modern(&cluster_objects(), |_, _| None);
    let ((stdout, stderr, code), _) = edit(&server, &words, script);
    assert_eq!((stdout.as_str(), stderr.as_str(), code), ("netprofile t:gold updated\n", "", 0));
    assert_eq!(changes(&server), [("\"6\"".to_owned(), gold(10))]);

    // While the editor is open, and just before the change.
    let others = || json!({"tenantName": "t", "profileName": "gold", "DSCP": 46, "burst": 8});
    type Hook = fn(&Request) -> bool;
    let hooks: [Hook; 2] = [|request| request.line == "GET /api/v1/netprofiles/", Request::is_change];
    for is_time in hooks {
        let server = store::modern(&cluster_objects(), move |request, objects: &mut Objects| {
            if is_time(request) {
                objects.put("netprofile", "t:gold", &others());
            }
            None
        });
        let ((stdout, stderr, code), kept) = edit(&server, &words, script);
        let why =
            "netprofile t:gold: changed by another client meanwhile: burst is 8, was 7; nothing was changed";
        assert!(stderr.contains(why), "{stderr}");
        assert_eq!((stdout.as_str(), code, kept.len()), ("", 3, 1));
    }

    let server = store::modern(&cluster_objects(), |request, objects| {
        if request.line == "GET /api/v1/netprofiles/" {
            objects.remove("netprofile", "t:gold");
        }
        None
    });
    let ((_, stderr, code), _) = edit(&server, &words, script);
    assert!(stderr.contains("deleted by another client meanwhile; nothing was changed"), "{stderr}");
    assert_eq!((code, changes(&server)), (3, vec![]));
}

#[test]
fn settings_that_others_change_meanwhile_are_kept() {
    let stored = json!({"name": "global", "fwdMode": "bridge", "vlans": "1-4094"});
    let mut is_first = true;
    let server = store::modern(&[("global", "global", stored)], move |request, objects| {
        if request.is_change() && std::mem::take(&mut is_first) {
            let others = json!({"name": "global", "fwdMode": "bridge", "vlans": "1-100"});
            objects.put("global", "global", &others);
        }
        None
    });
    assert_eq!(run(&server, &["global", "set", "--arp-mode", "flood"]), (String::new(), String::new(), 0));
    let sent = changes(&server);
    assert_eq!(sent.iter().map(|(tag, _)| tag.as_str()).collect::<Vec<_>>(), ["\"1\"", "\"2\""]);
    assert_eq!((&sent[1].1["vlans"], &sent[1].1["arpMode"]), (&json!("1-100"), &json!("flood")));

    // The first settings of an ACI gateway.
    let server = store::modern(&[], |_, _| None);
    assert_eq!(run(&server, &["aci-gw", "set", "-d", "phys"]).2, 0);
    let sent = changes(&server);
    assert_eq!((sent[0].0.as_str(), &sent[0].1["physicalDomain"]), ("*", &json!("phys")));
    let (_, stderr, code) = run(&server, &["global", "set", "-a", "flood"]);
    assert_eq!((stderr.as_str(), code), ("netctl: global not found\n", 3));
}

#[test]
fn settings_that_are_no_object_are_reported() {
    for answer in ["[]", "null", "\"x\""] {
        let server = Server::start(move |_| Reply::new(200, "", answer));
        let (stdout, stderr, code) = run(&server, &["global", "set", "-a", "flood"]);
        let message = format!("netctl: read global: expected a JSON object, got {answer}\n");
        assert_eq!((stdout.as_str(), stderr, code), ("", message, 3));
        assert!(!server.take().iter().any(Request::is_change));
    }
}
