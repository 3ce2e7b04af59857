//! `--prune`: objects that the files do not have.

use std::fs;

use serde_json::{Value, json};

use crate::{
    manifests::cluster_objects,
    run,
    server::{Reply, Request, Server},
    store::{self, Objects},
};

/// The group keeps the network and loses policy and profile.
const FILE: &str = "- {kind: net, tenantName: t, networkName: n, encap: vxlan, subnet: 10.1.0.0/16}\n\
                    - {kind: group, tenantName: t, groupName: g, networkName: n, policies: [], netProfile: ''}\n";

fn objects() -> Vec<(&'static str, &'static str, Value)> {
    let mut objects = cluster_objects();
    let network = |tenant: &str, name: &str, kind: &str| json!({"tenantName": tenant, "networkName": name, "encap": "vxlan", "nwType": kind, "subnet": "10.9.0.0/16"});
    objects.extend([
        ("network", "t:old", network("t", "old", "data")),
        ("network", "t:nodes", network("t", "nodes", "infra")),
        ("network", "u:n", network("u", "n", "data")),
        ("tenant", "u", json!({"tenantName": "u"})),
    ]);
    objects
}

fn prune(server: &Server, words: &[&str], text: &str) -> (String, String, i32) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    fs::write(&file, text).unwrap();
    run(server, &[words, &["-f", file.to_str().unwrap()]].concat())
}

fn changes(server: &Server) -> Vec<String> {
    let changes = server.take().into_iter().filter(Request::is_change);
    changes.map(|request| format!("{}?{}", request.line, request.query)).collect()
}

const DELETED: [&str; 4] = ["policy t:p", "rule t:p:1", "netprofile t:gold", "network t:old"];

#[test]
fn objects_of_the_tenant_that_the_files_do_not_have_are_deleted() {
    let server = store::modern(&objects(), |_, _| None);
    let done = DELETED.map(|object| format!("{object} deleted\n")).concat();
    let all = format!("network t:n unchanged\nendpointGroup t:g updated\n{done}");
    assert_eq!(prune(&server, &["apply", "--prune", "t"], FILE), (all, String::new(), 0));
    assert_eq!(
        changes(&server),
        [
            "POST /api/v1/endpointGroups/t:g/?",
            "DELETE /api/v1/policys/t:p/?",
            "DELETE /api/v1/netprofiles/t:gold/?",
            "DELETE /api/v1/networks/t:old/?",
        ]
    );
    let (again, _, code) = prune(&server, &["apply", "--prune", "t"], FILE);
    assert_eq!((again.as_str(), code), ("network t:n unchanged\nendpointGroup t:g unchanged\n", 0));
    let (names, ..) = run(&server, &["get", "network", "-a", "-o", "name"]);
    assert_eq!(names, "network/t:n\nnetwork/t:nodes\nnetwork/u:n\n");
    let (names, ..) = run(&server, &["get", "tenant", "-o", "name"]);
    assert_eq!(names, "tenant/t\ntenant/u\n");
}

#[test]
fn deletions_are_previewed() {
    let server = store::modern(&objects(), |_, _| None);
    for words in [&["diff", "--prune", "t"][..], &["apply", "--dry-run", "--prune", "t"]] {
        let (stdout, stderr, code) = prune(&server, words, FILE);
        let old = "network t:old delete\n--- netmaster\n+++ /dev/null\n@@ -1,5 +0,0 @@\n-tenantName: t\n-networkName: old\n\
                   -nwType: data\n-encap: vxlan\n-subnet: 10.9.0.0/16\n";
        assert!(stdout.ends_with(old), "{stdout}");
        // The group still names them.
        for (object, by) in [("policy t:p", "endpointGroup t:g"), ("netprofile t:gold", "endpointGroup t:g")]
        {
            let note = format!("{object} not checked by netmaster: {by} names it now\n");
            assert!(stdout.contains(&note), "{stdout}");
        }
        assert_eq!((stderr.as_str(), code), ("", if words[0] == "diff" { 5 } else { 0 }));
        assert_eq!(
            changes(&server),
            ["POST /api/v1/endpointGroups/t:g/?dryRun=All", "DELETE /api/v1/networks/t:old/?dryRun=All",]
        );
    }
    // Without the option, nothing else is different.
    let same = "{kind: tenant, tenantName: t}";
    assert_eq!(prune(&server, &["diff"], same), (String::new(), String::new(), 0));
    assert_eq!(prune(&server, &["diff", "--prune", "t"], same).2, 5);
}

#[test]
fn refused_deletion_does_not_stop_later_ones() {
    let server = store::modern(&objects(), |request, _| {
        let is_policy = request.line == "DELETE /api/v1/policys/t:p/";
        is_policy.then(|| Reply::refused("policy is in use"))
    });
    let (stdout, stderr, code) = prune(&server, &["apply", "--prune", "t"], FILE);
    assert_eq!((stderr.as_str(), code), ("netctl: delete policy t:p: policy is in use\n", 3));
    let done = "endpointGroup t:g updated\nnetprofile t:gold deleted\nnetwork t:old deleted\n";
    assert!(stdout.ends_with(done), "{stdout}");
}

#[test]
fn failure_after_a_refused_deletion_is_reported_with_it() {
    let named = "- {kind: policy, tenantName: t, policyName: p}\n\
                 - {kind: netprofile, tenantName: t, profileName: gold}\n\
                 - {kind: net, tenantName: t, networkName: old}\n";
    let failures: [fn() -> Reply; 2] = [|| Reply::new(503, "", "no netmaster leads"), Reply::lost];
    for failure in failures {
        for (words, file) in [(&["apply", "--prune", "t"][..], FILE), (&["delete"], named)] {
            let server = store::modern(&objects(), move |request, _| match request.line.as_str() {
                "DELETE /api/v1/policys/t:p/" => Some(Reply::refused("policy is in use")),
                "DELETE /api/v1/netprofiles/t:gold/" => Some(failure()),
                _ => None,
            });
            let (_, stderr, code) = prune(&server, words, file);
            let lines: Vec<&str> = stderr.lines().collect();
            assert_eq!((lines.len(), code), (2, 3), "{words:?}: {stderr}");
            assert!(lines[0].ends_with("policy t:p: policy is in use"), "{words:?}: {stderr}");
            assert!(lines[1].contains("netprofile t:gold: "), "{words:?}: {stderr}");
            assert!(lines[1].ends_with(" (later changes not sent: 1)"), "{words:?}: {stderr}");
            let sent = changes(&server);
            assert!(sent.iter().all(|line| !line.contains("/networks/")), "{words:?}: {sent:?}");
        }
    }
}

#[test]
fn object_that_others_change_meanwhile_is_kept() {
    let changed = || json!({"tenantName": "t", "profileName": "gold", "DSCP": 9, "burst": 7});
    // After the list was read, and after the object was read.
    for time in ["GET /api/v1/netprofiles/t:gold/", "DELETE /api/v1/netprofiles/t:gold/"] {
        let server = store::modern(&objects(), move |request, objects: &mut Objects| {
            if request.line == time {
                objects.put("netprofile", "t:gold", &changed());
            }
            None
        });
        let (stdout, stderr, code) = prune(&server, &["apply", "--prune", "t"], FILE);
        let why = "changed by another client meanwhile: DSCP is 9, was 46; apply the files again";
        assert_eq!((stderr, code), (format!("netctl: delete netprofile t:gold: {why}\n"), 3), "{time}");
        let done = "policy t:p deleted\nrule t:p:1 deleted\nnetwork t:old deleted\n";
        assert!(stdout.ends_with(done), "{time}: {stdout}");
        let (names, ..) = run(&server, &["get", "netprofile", "-a", "-o", "name"]);
        assert_eq!(names, "netprofile/t:gold\n", "{time}");
    }
}

/// netmaster deletes the rules of a policy with it.
#[test]
fn policy_to_which_others_add_a_rule_is_kept() {
    // After the list was read, and after the policy was read.
    for time in ["GET /api/v1/policys/t:p/", "DELETE /api/v1/policys/t:p/"] {
        let server = store::modern(&objects(), move |request, objects: &mut Objects| {
            if request.line == time {
                let link = |key: &str| json!({"type": "rule", "key": key});
                let rules = json!({"t:p:1": link("t:p:1"), "t:p:2": link("t:p:2")});
                let policy = json!({"tenantName": "t", "policyName": "p", "link-sets": {"Rules": rules}});
                objects.put("policy", "t:p", &policy);
                objects.put("rule", "t:p:2", &json!({"tenantName": "t", "policyName": "p", "ruleId": "2"}));
            }
            None
        });
        let (stdout, stderr, code) = prune(&server, &["apply", "--prune", "t"], FILE);
        let why = "changed by another client meanwhile: rule t:p:2 was added; apply the files again";
        assert_eq!((stderr, code), (format!("netctl: delete policy t:p: {why}\n"), 3), "{time}");
        let done = "endpointGroup t:g updated\nnetprofile t:gold deleted\nnetwork t:old deleted\n";
        assert!(stdout.ends_with(done), "{time}: {stdout}");
        let (names, ..) = run(&server, &["get", "rule", "-a", "-o", "name"]);
        assert_eq!(names, "rule/t:p:1\nrule/t:p:2\n", "{time}");
    }
}

#[test]
fn object_that_others_delete_meanwhile_is_absent() {
    for time in ["GET /api/v1/netprofiles/t:gold/", "DELETE /api/v1/netprofiles/t:gold/"] {
        let server = store::modern(&objects(), move |request, objects: &mut Objects| {
            if request.line == time {
                objects.remove("netprofile", "t:gold");
            }
            None
        });
        let (stdout, stderr, code) = prune(&server, &["apply", "--prune", "t"], FILE);
        assert_eq!((stderr.as_str(), code), ("", 0), "{time}");
        assert!(stdout.ends_with("netprofile t:gold absent\nnetwork t:old deleted\n"), "{time}: {stdout}");
    }
}

/// A group that stops naming the profile changes its links, and so its version.
#[test]
fn other_version_of_the_same_fields_is_deleted() {
    let mut is_first = true;
    let server = store::modern(&objects(), move |request, objects: &mut Objects| {
        if request.line == "DELETE /api/v1/netprofiles/t:gold/" && std::mem::take(&mut is_first) {
            let mut same = objects.get("netprofile", "t:gold").unwrap().clone();
            same["link-sets"] = json!({"EndpointGroups": {}});
            objects.put("netprofile", "t:gold", &same);
        }
        None
    });
    assert_eq!(prune(&server, &["apply", "--prune", "t"], FILE).2, 0);
    let is_deletion = |request: &Request| request.line == "DELETE /api/v1/netprofiles/t:gold/";
    let deletions: Vec<Request> = server.take().into_iter().filter(is_deletion).collect();
    let tags: Vec<_> = deletions.iter().map(|request| request.header("if-match")).collect();
    assert!(tags.len() == 2 && tags[0].is_some() && tags[1].is_some() && tags[0] != tags[1], "{tags:?}");
}

/// Type, key and fields of a rule of tenant t; the group may be empty.
fn rule(key: &'static str, from_group: &str) -> (&'static str, &'static str, Value) {
    let [_, policy, id] = key.split(':').collect::<Vec<_>>()[..] else { unreachable!() };
    let rule = json!({"tenantName": "t", "policyName": policy, "ruleId": id, "priority": 1, "direction": "in",
        "fromEndpointGroup": from_group, "action": "deny"});
    ("rule", key, rule)
}

/// netmaster deletes a policy with its rules, and so the rule that the file has.
#[test]
fn policy_of_a_rule_is_kept_without_the_other_rules() {
    let file = "{kind: rule, tenantName: t, policyName: p, ruleId: '1', direction: in, action: deny}";
    let objects = [
        ("tenant", "t", json!({"tenantName": "t"})),
        ("policy", "t:p", json!({"tenantName": "t", "policyName": "p"})),
        rule("t:p:1", ""),
        rule("t:p:2", ""),
    ];
    for (words, query, code) in [
        (&["diff", "--prune", "t"][..], "dryRun=All", 5),
        (&["apply", "--dry-run", "--prune", "t"], "dryRun=All", 0),
        (&["apply", "--prune", "t"], "", 0),
    ] {
        let server = store::modern(&objects, |_, _| None);
        let (stdout, stderr, ended) = prune(&server, words, file);
        assert_eq!((stderr.as_str(), ended), ("", code), "{words:?}");
        assert!(!stdout.contains("policy t:p"), "{words:?}: {stdout}");
        assert_eq!(changes(&server), [format!("DELETE /api/v1/rules/t:p:2/?{query}")], "{words:?}");
    }
}

#[test]
fn objects_that_the_files_need_are_kept() {
    let peer = json!({"tenantName": "t", "groupName": "peer", "networkName": "old", "policies": ["q"]});
    let mut objects = objects();
    objects.extend([
        ("endpointGroup", "t:peer", peer),
        ("policy", "t:q", json!({"tenantName": "t", "policyName": "q"})),
        rule("t:q:1", ""),
        ("policy", "t:r", json!({"tenantName": "t", "policyName": "r"})),
        rule("t:r:1", "peer"),
    ]);
    for (file, kept, deleted) in [
        (
            // By the group: the network, and the policy with its rules.
            "{kind: rule, tenantName: t, policyName: r, ruleId: '1', direction: in, action: deny, \
              fromEndpointGroup: peer}",
            "rule t:r:1",
            &["endpointGroups/t:g", "netprofiles/t:gold", "networks/t:n", "policys/t:p"][..],
        ),
        (
            // The group keeps the policy and the profile that the file omits.
            "{kind: group, tenantName: t, groupName: g, networkName: n}",
            "endpointGroup t:g",
            &["endpointGroups/t:peer", "networks/t:old", "policys/t:q", "policys/t:r"],
        ),
    ] {
        for (words, is_trial) in [
            (&["diff", "--prune", "t"][..], true),
            (&["apply", "--dry-run", "--prune", "t"], true),
            (&["apply", "--prune", "t"], false),
        ] {
            let server = store::modern(&objects, |_, _| None);
            let (stdout, stderr, _) = prune(&server, words, file);
            assert_eq!(stderr, "", "{words:?} {file}");
            let shown =
                stdout.lines().filter(|line| line.ends_with(if is_trial { " delete" } else { " deleted" }));
            let shown = shown.filter(|line| !line.starts_with("rule ")).count();
            assert_eq!(shown, deleted.len(), "{words:?} {file}: {stdout}");
            if !is_trial {
                let mut sent = changes(&server);
                sent.sort();
                let expected: Vec<String> =
                    deleted.iter().map(|object| format!("DELETE /api/v1/{object}/?")).collect();
                assert_eq!(sent, expected, "{file}");
                assert!(stdout.starts_with(&format!("{kept} unchanged\n")), "{stdout}");
            }
        }
    }
}

/// Without its rules, a policy that a group has lets everything pass. Here, another client gives it to a group.
#[test]
fn policy_in_use_keeps_its_rules() {
    let mut objects = objects();
    objects.retain(|(_, key, _)| *key != "t:g");
    let server = store::modern(&objects, |request, _| {
        let is_policy = request.line == "DELETE /api/v1/policys/t:p/";
        is_policy.then(|| Reply::refused("Policy is being used"))
    });
    let pruned = "- {kind: net, tenantName: t, networkName: n, encap: vxlan, subnet: 10.1.0.0/16}\n\
                  - {kind: net, tenantName: t, networkName: old, encap: vxlan, subnet: 10.9.0.0/16}\n\
                  - {kind: netprofile, tenantName: t, profileName: gold}\n";
    let named = "- {kind: rule, tenantName: t, policyName: p, ruleId: '1'}\n\
                 - {kind: policy, tenantName: t, policyName: p}\n";
    let unchanged = "network t:n unchanged\nnetwork t:old unchanged\nnetprofile t:gold unchanged\n";
    let policy =
        "policy t:p delete\n--- netmaster\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-tenantName: t\n-policyName: p\n";
    for (words, file, out, error) in [
        (&["apply", "--prune", "t"][..], pruned, unchanged.to_owned(), "delete policy t:p"),
        (
            &["apply", "--prune", "t", "--dry-run"],
            pruned,
            format!("{unchanged}{policy}"),
            "delete policy t:p",
        ),
        (&["diff", "--prune", "t"], pruned, policy.to_owned(), "delete policy t:p"),
        (&["delete"], named, String::new(), "FILE document 1 item 2: policy t:p"),
        (&["delete", "--dry-run"], named, String::new(), "FILE document 1 item 2: policy t:p"),
    ] {
        let (stdout, stderr, code) = prune(&server, words, file);
        assert_eq!((stdout, code), (out, 3), "{words:?}");
        let why =
            stderr.split_once("a.yaml").map_or(stderr.clone(), |(_, rest)| format!("netctl: FILE{rest}"));
        assert_eq!(why, format!("netctl: {error}: Policy is being used\n"), "{words:?}");
        let is_trial = words.contains(&"--dry-run") || words.contains(&"diff");
        let query = if is_trial { "dryRun=All" } else { "" };
        assert_eq!(changes(&server), [format!("DELETE /api/v1/policys/t:p/?{query}")], "{words:?}");
    }
    let (names, ..) = run(&server, &["get", "rule", "-a", "-o", "name"]);
    assert_eq!(names, "rule/t:p:1\n");
}

#[test]
fn wrong_files_delete_nothing() {
    let server = store::modern(&objects(), |_, _| None);
    for (tenant, file) in [("u", FILE), ("x", FILE), ("t", "{kind: global, name: global, arpMode: flood}")] {
        let (stdout, stderr, code) = prune(&server, &["apply", "--prune", tenant], file);
        let why =
            format!("netctl: --prune {tenant}: the files have no object of this tenant; nothing was sent\n");
        assert_eq!((stdout.as_str(), stderr, code), ("", why, 1));
    }
    // An immutable field, and a change that is refused.
    let server = store::modern(&objects(), |request, _| {
        request.line.starts_with("POST").then(|| Reply::refused("no"))
    });
    for file in [FILE, "{kind: net, tenantName: t, networkName: n, encap: vlan, subnet: 10.1.0.0/16}"] {
        assert_eq!(prune(&server, &["apply", "--prune", "t"], file).2, 3);
        let deletions: Vec<String> =
            changes(&server).into_iter().filter(|line| line.starts_with("DELETE")).collect();
        assert_eq!(deletions, Vec::<String>::new(), "{file}");
    }
}
