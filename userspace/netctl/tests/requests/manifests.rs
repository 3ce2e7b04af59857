//! `apply`, `diff` and `edit`: what files and editors change.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use serde_json::{Value, json};

use crate::{netctl, read, run, server::Server, store};

fn cluster() -> Server {
    store::start(&cluster_objects())
}

/// Type, key and fields of the objects of [`cluster`].
pub(crate) fn cluster_objects() -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("tenant", "t", json!({"tenantName": "t"})),
        (
            "network",
            "t:n",
            json!({"tenantName": "t", "networkName": "n", "encap": "vxlan", "nwType": "data", "subnet": "10.1.0.0/16",
                "gateway": "10.1.0.1"}),
        ),
        ("policy", "t:p", json!({"tenantName": "t", "policyName": "p"})),
        (
            "endpointGroup",
            "t:g",
            json!({"tenantName": "t", "groupName": "g", "networkName": "n", "policies": ["p"], "netProfile": "gold"}),
        ),
        (
            "rule",
            "t:p:1",
            json!({"tenantName": "t", "policyName": "p", "ruleId": "1", "priority": 1, "direction": "in",
                "fromNetwork": "n", "fromIpAddress": "10.1.0.0/16", "action": "deny"}),
        ),
        ("netprofile", "t:gold", json!({"tenantName": "t", "profileName": "gold", "DSCP": 46, "burst": 7})),
        ("aciGw", "aciGw", json!({"name": "aciGw", "physicalDomain": "phys", "enforcePolicies": "yes"})),
    ]
}

/// Bodies of the changes since the last call.
fn changes(server: &Server) -> Vec<Value> {
    server.take().into_iter().filter(|request| request.line.starts_with("POST")).map(|it| it.body).collect()
}

#[test]
fn fields_that_a_file_omits_are_left_alone_and_empty_ones_are_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let group = "kind: group, tenantName: t, groupName: g, networkName: n";
    let rule = "kind: rule, tenantName: t, policyName: p, ruleId: '1', direction: in, action: deny";
    let all = json!({"tenantName": "t", "groupName": "g", "networkName": "n", "policies": ["p"], "netProfile": "gold"});
    let without = |field: &str| {
        let mut group = all.clone();
        group.as_object_mut().unwrap().remove(field);
        group
    };
    for (text, shown, sent) in [
        (format!("{{{group}}}"), "endpointGroup t:g unchanged\n", None),
        (format!("{{{group}, policies: [p]}}"), "endpointGroup t:g unchanged\n", None),
        (format!("{{{group}, policies: []}}"), "endpointGroup t:g updated\n", Some(without("policies"))),
        (format!("{{{group}, netProfile: ''}}"), "endpointGroup t:g updated\n", Some(without("netProfile"))),
        (format!("{{{group}, policies: null}}"), "endpointGroup t:g updated\n", Some(without("policies"))),
        (
            "{kind: netprofile, tenantName: t, profileName: gold, burst: 0}".into(),
            "netprofile t:gold updated\n",
            Some(json!({"tenantName": "t", "profileName": "gold", "DSCP": 46})),
        ),
        (
            "{kind: aciGw, name: aciGw, physicalDomain: ''}".into(),
            "aciGw aciGw updated\n",
            Some(json!({"name": "aciGw", "enforcePolicies": "yes"})),
        ),
        (
            "{kind: net, tenantName: t, networkName: n, encap: vxlan, subnet: 10.1.0.0/16}".into(),
            "network t:n unchanged\n",
            None,
        ),
        // The address of the rule is derived from its network.
        (format!("{{{rule}}}"), "rule t:p:1 unchanged\n", None),
        (
            "{kind: netprofile, tenantName: t, profileName: new, DSCP: 0, bandwidth: 10 mbps}".into(),
            "netprofile t:new created\n",
            Some(json!({"tenantName": "t", "profileName": "new", "bandwidth": "10 mbps"})),
        ),
    ] {
        let server = cluster();
        let file = folder.path().join("a.yaml");
        fs::write(&file, &text).unwrap();
        let file = file.to_str().unwrap();
        let (stdout, stderr, code) = run(&server, &["apply", "-f", file]);
        assert_eq!((stdout.as_str(), stderr.as_str(), code), (shown, "", 0), "{text}");
        assert_eq!(changes(&server), Vec::from_iter(sent), "{text}");
        // A second run changes nothing.
        let (_, _, code) = run(&server, &["apply", "-f", file]);
        assert_eq!((code, changes(&server)), (0, vec![]), "{text}");
        assert_eq!(run(&server, &["diff", "-f", file]), (String::new(), String::new(), 0), "{text}");
    }

    for (text, field) in [
        (
            "{kind: net, tenantName: t, networkName: n, encap: vxlan, subnet: 10.1.0.0/16, gateway: ''}",
            "gateway",
        ),
        (&format!("{{{rule}, fromIpAddress: 10.9.0.0/16}}"), "fromNetwork, fromIpAddress"),
    ] {
        let server = cluster();
        let file = folder.path().join("b.yaml");
        fs::write(&file, text).unwrap();
        let (_, stderr, code) = run(&server, &["apply", "-f", file.to_str().unwrap()]);
        assert!(stderr.contains(&format!("netmaster cannot change {field}: recreate it")), "{stderr}");
        assert_eq!((code, changes(&server)), (3, vec![]));
    }
}

#[test]
fn diff_shows_differences_and_sends_nothing() {
    let server = cluster();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let text = "- {kind: netprofile, tenantName: t, profileName: gold, DSCP: 10}\n\
                - {kind: policy, tenantName: t, policyName: p}\n\
                - {kind: tenant, tenantName: new}\n\
                - {kind: net, tenantName: t, networkName: n, encap: vlan, subnet: 10.1.0.0/16}\n";
    fs::write(&file, text).unwrap();
    let name = file.display().to_string();
    let (stdout, stderr, code) = run(&server, &["diff", "-f", &name]);
    assert_eq!((stderr.as_str(), code), ("", 5));
    let expected = format!(
        "tenant new create\n--- netmaster\n+++ {name} document 1 item 3\n@@ -0,0 +1,1 @@\n+tenantName: new\n\
         network t:n cannot change encap: recreate needed\n--- netmaster\n+++ {name} document 1 item 4\n\
         @@ -1,6 +1,6 @@\n tenantName: t\n networkName: n\n nwType: data\n-encap: vxlan\n+encap: vlan\n \
         subnet: 10.1.0.0/16\n gateway: 10.1.0.1\n\
         netprofile t:gold update\n--- netmaster\n+++ {name} document 1 item 1\n@@ -1,4 +1,4 @@\n tenantName: t\n \
         profileName: gold\n-DSCP: 46\n+DSCP: 10\n burst: 7\n"
    );
    assert_eq!(stdout, expected);
    assert_eq!(changes(&server), Vec::<Value>::new());
    fs::write(&file, "{kind: tenant, tenantName: t_1}").unwrap();
    assert_eq!(run(&server, &["diff", "-f", &name]).2, 3);
}

/// Runs `netctl edit WORDS` with a shell script as the editor; returns output, error and exit code, and what is left in the
/// folder of temporary files.
pub(crate) fn edit(server: &Server, words: &[&str], script: &str) -> ((String, String, i32), Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let editor = folder.path().join("editor");
    fs::write(&editor, format!("#!/bin/sh\nset -e\nf=$2\n{script}\n")).unwrap();
    fs::set_permissions(&editor, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = netctl(&server.url(), &[&["edit"], words].concat());
    command.env("TMPDIR", &temporary).env("EDITOR", format!("/bin/sh {} --wait", editor.display()));
    let ran = read(&command.env("PATH", "/usr/bin:/bin").output().unwrap());
    (ran, texts(&temporary))
}

fn texts(folder: &Path) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|entry| fs::read_to_string(entry.unwrap().path()).unwrap()).collect()
}

#[test]
fn edit_sends_what_the_editor_changes() {
    let server = cluster();
    let done = |text: &str| ((text.to_owned(), String::new(), 0), vec![]);
    let script =
        "test $1 = --wait; test $(stat -c %a \"$f\") = 600; sed -i 's/DSCP: 46/DSCP: 10/; /burst/d' \"$f\"";
    assert_eq!(
        edit(&server, &["netprofile", "gold", "-t", "t"], script),
        done("netprofile t:gold updated\n")
    );
    assert_eq!(changes(&server), [json!({"tenantName": "t", "profileName": "gold", "DSCP": 10})]);

    assert_eq!(edit(&server, &["group", "g", "-t", "t"], "true"), done("endpointGroup t:g unchanged\n"));
    assert_eq!(changes(&server), Vec::<Value>::new());

    for (words, script, message) in [
        (&["net", "n", "-t", "t"][..], "sed -i /gateway/d \"$f\"", "netmaster cannot change gateway"),
        (&["group", "g", "-t", "t"], "sed -i s/policies/polices/ \"$f\"", "polices: no such field"),
        (
            &["group", "g", "-t", "t"],
            "sed -i 's/groupName: g/groupName: h/' \"$f\"",
            "must have this object only",
        ),
        (&["group", "g", "-t", "t"], "echo '# x' >> \"$f\"; exit 9", "nothing was sent"),
    ] {
        let ((stdout, stderr, code), kept) = edit(&server, words, script);
        assert!(stderr.contains(message), "{stderr}");
        assert!(stderr.contains("the edited object is kept in "), "{stderr}");
        assert_eq!((stdout.as_str(), code, kept.len()), ("", 3, 1), "{stderr}");
        assert_eq!(changes(&server), Vec::<Value>::new());
    }
    for (words, message, code) in
        [(&["node", "n1"][..], "they cannot be changed", 1), (&["group", "x"], "endpointGroup not found", 3)]
    {
        let ((_, stderr, got), kept) = edit(&server, words, "true");
        assert!(stderr.contains(message), "{stderr}");
        assert_eq!((got, kept), (code, vec![]));
    }
}

#[test]
fn edit_does_not_undo_changes_of_others() {
    let server = cluster();
    let other = format!(
        "NETMASTER={} HOME=/nonexistent {} netprofile create -t t -s 9 gold >/dev/null; sed -i 's/DSCP: 46/DSCP: 10/' \"$f\"",
        server.url(),
        env!("CARGO_BIN_EXE_netctl")
    );
    let ((_, stderr, code), kept) = edit(&server, &["netprofile", "gold", "-t", "t"], &other);
    let why = "netprofile t:gold: changed by another client meanwhile: DSCP is empty, was 46, burst is 9, was 7; nothing \
               was changed";
    assert!(stderr.contains(why), "{stderr}");
    assert_eq!((code, kept.len(), changes(&server).len()), (3, 1, 1));
}

/// The original's clients can store them.
#[test]
fn rules_whose_port_or_protocol_has_no_effect_are_not_created() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let file = file.to_str().unwrap();
    for (fields, why) in [
        (json!({"port": 443}), "port 443 requires protocol tcp or udp"),
        (json!({"port": -1, "protocol": "tcp"}), "port -1: expected a number from 0 to 65535"),
        (json!({"protocol": "300"}), "protocol 300: expected tcp, udp, icmp or a number from 0 to 255"),
    ] {
        let mut rule = json!({"tenantName": "t", "policyName": "p", "ruleId": "2", "priority": 1, "direction": "in",
            "action": "allow"});
        rule.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let mut manifest = rule.clone();
        manifest["kind"] = json!("rule");
        fs::write(file, manifest.to_string()).unwrap();
        let server = cluster();
        let (stdout, stderr, code) = run(&server, &["apply", "-f", file]);
        assert!(stderr.contains(&format!("{file} document 1: rule t:p:2: {why}")), "{stderr}");
        assert_eq!((stdout.as_str(), code, changes(&server)), ("", 3, vec![]), "{rule}");

        let mut objects = cluster_objects();
        objects.push(("rule", "t:p:2", rule));
        let server = store::start(&objects);
        let (stdout, ..) = run(&server, &["apply", "-f", file]);
        assert_eq!(stdout, "rule t:p:2 unchanged\n");
        assert_eq!(run(&server, &["delete", "-f", file]).0, "rule t:p:2 deleted\n");
    }
}

#[test]
fn settings_that_agents_keep_are_not_cleared() {
    let stored = json!({"name": "global", "networkInfraType": "default", "fwdMode": "bridge", "arpMode": "proxy",
        "vlans": "1-4094", "pvtSubnet": "172.19.0.0/16"});
    let server = store::start(&[("global", "global", stored)]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.yaml");
    let clear = |field: &str| {
        fs::write(&file, format!("{{kind: global, name: global, {field}: ''}}")).unwrap();
        run(&server, &["apply", "-f", file.to_str().unwrap()])
    };
    for (field, expected) in [
        ("networkInfraType", "default or aci or aci-opflex"),
        ("fwdMode", "bridge or routing"),
        ("arpMode", "proxy or flood"),
        ("pvtSubnet", "an IPv4 subnet of length 16"),
    ] {
        let script = format!("sed -i /{field}/d \"$f\"");
        let (edited, _) = edit(&server, &["global", "global"], &script);
        for (stdout, stderr, code) in [clear(field), edited] {
            let message =
                format!("global global: {field}: this setting cannot be cleared: expected {expected}");
            assert!(stderr.contains(&message), "{stderr}");
            assert_eq!((stdout.as_str(), code), ("", 3));
        }
        assert_eq!(changes(&server), Vec::<Value>::new());
    }
    assert_eq!(clear("vlans"), ("global global updated\n".to_owned(), String::new(), 0));
    assert!(changes(&server)[0].get("vlans").is_none());
}
