//! `apply`, `delete` and `get`.

use serde_json::json;

use super::{Bench, example};

fn all(lines: &[&str], what: &str) -> String {
    lines.iter().map(|line| format!("{line} {what}\n")).collect()
}

/// In creation order.
const EXAMPLE: [&str; 8] = [
    "tenant blue",
    "network blue:lan",
    "netprofile blue:gold",
    "policy blue:web",
    "rule blue:web:1",
    "endpointGroup blue:clients",
    "rule blue:web:2",
    "endpointGroup blue:web",
];

#[test]
fn documented_example_is_applied_listed_and_deleted() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    let file = bench.file("cluster.yaml", example());

    let preview = bench.ok(&["apply", "-f", &file, "--dry-run"]);
    for object in EXAMPLE {
        assert!(
            preview.contains(&format!("{object} create\n--- netmaster\n+++ {file} document ")),
            "{preview}"
        );
    }
    assert!(
        preview.contains("@@ -0,0 +1,4 @@\n+tenantName: blue\n+profileName: gold\n+bandwidth: 10 mbps\n")
    );
    assert_eq!(bench.ok(&["tenant", "ls", "-q"]), "default\n", "a dry run changes nothing");

    assert_eq!(bench.ok(&["apply", "-f", &file]), all(&EXAMPLE, "created"));
    let kinds_first = [0, 1, 2, 3, 4, 6, 5, 7].map(|at| EXAMPLE[at]);
    assert_eq!(bench.ok(&["apply", "-f", &file]), all(&kinds_first, "unchanged"));
    assert_eq!(bench.ok(&["apply", "-f", &file, "--dry-run"]), all(&kinds_first, "unchanged"));

    // `apply` accepts the output of `get` in both formats.
    for form in ["yaml", "json"] {
        let shown = bench.ok(&["get", "all", "-t", "blue", "-o", form]);
        let applied = bench.fed(&["apply", "-f", "-"], &shown);
        assert_eq!(applied.lines().count(), EXAMPLE.len(), "{shown}\n{applied}");
        assert!(applied.lines().all(|line| line.ends_with(" unchanged")), "{shown}\n{applied}");
    }
    let names = "tenant/blue\nnetwork/blue:lan\nnetprofile/blue:gold\npolicy/blue:web\nrule/blue:web:1\n\
                 rule/blue:web:2\nendpointGroup/blue:clients\nendpointGroup/blue:web\n";
    assert_eq!(bench.ok(&["get", "all", "-t", "blue", "-o", "name"]), names);
    let table = bench.ok(&["get", "all", "-t", "blue"]);
    assert!(
        table.starts_with("tenant:\nName    \n") && table.contains("\n\nendpointGroup:\nTenant  Group"),
        "{table}"
    );
    let everything = bench.ok(&["get", "all", "-a", "-o", "name"]);
    assert!(
        everything.starts_with("global/global\ntenant/blue\ntenant/default\nnetwork/blue:lan\n"),
        "{everything}"
    );

    let mut reversed = EXAMPLE;
    // Objects are deleted before the objects that they reference, and rules with their policy.
    reversed.reverse();
    let deleted = [7, 5, 3, 6, 4, 2, 1, 0].map(|at| EXAMPLE[at]);
    assert_eq!(bench.ok(&["delete", "-f", &file, "--dry-run"]), all(&deleted, "delete"));
    assert_eq!(bench.ok(&["delete", "-f", &file]), all(&deleted, "deleted"));
    assert_eq!(bench.ok(&["delete", "-f", &file]), all(&reversed, "absent"));
    assert_eq!(bench.ok(&["tenant", "ls", "-q"]), "default\n");
}

#[test]
fn every_kind_is_applied_and_deleted() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    let others = "\
---
- {kind: aci-gw, name: aciGw, physicalDomain: phys, enforcePolicies: yes, includeCommonTenant: no}
- {kind: global, name: global, arpMode: flood}
- {kind: app-profile, tenantName: blue, appProfileName: shop, endpointGroups: [web, clients]}
- {kind: external-contracts, tenantName: blue, contractsGroupName: ext, contractsType: provided, contracts: [uni/tn-x/brc-y]}
- {kind: service, tenantName: blue, serviceName: vip, networkName: lan, selectors: [app=web], ports: ['80:8080:TCP']}
- {kind: bgp, hostname: n1, routerip: 50.1.1.1/24, as: '65000', neighbor: 50.1.1.2, neighbor-as: '65001'}
";
    let file = bench.file("all.yaml", &format!("{}{others}", example()));
    let applied = bench.ok(&["apply", "-f", &file]);
    assert_eq!(applied.lines().count(), EXAMPLE.len() + 6, "{applied}");
    assert!(
        applied.contains("serviceLB blue:vip created\n") && applied.contains("aciGw aciGw created\n"),
        "{applied}"
    );
    let everything = bench.ok(&["get", "all", "-a", "-o", "yaml"]);
    let again = bench.fed(&["apply", "-f", "-"], &everything);
    assert_eq!(again.lines().count(), EXAMPLE.len() + 7, "{everything}\n{again}");
    assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{everything}\n{again}");

    let changed = others
        .replace("arpMode: flood", "arpMode: proxy")
        .replace("[web, clients]", "[web]")
        .replace("80:8080", "81:8080")
        .replace("65001", "65002")
        .replace("includeCommonTenant: no", "includeCommonTenant: yes");
    let applied = bench.fed(&["apply", "-f", "-"], &changed);
    for object in ["aciGw aciGw", "global global", "serviceLB blue:vip", "appProfile blue:shop", "Bgp n1"] {
        assert!(applied.contains(&format!("{object} updated\n")), "{applied}");
    }
    let again = bench.fed(&["apply", "-f", "-"], &changed);
    assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
    let file = bench
        .file("moved.yaml", &others.replace("networkName: lan", "networkName: lan, ipAddress: 10.36.1.9"));
    let errors = bench.refused(&["apply", "-f", &file], 3);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(
        errors[0].contains("serviceLB blue:vip: netmaster cannot change ipAddress: recreate it"),
        "{errors:?}"
    );

    let file = bench.file("all.yaml", &format!("{}{others}", example()));
    let deleted = bench.ok(&["delete", "-f", &file]);
    assert!(deleted.lines().all(|line| line.ends_with(" deleted") || line.contains(" kept: ")), "{deleted}");
    assert_eq!(bench.ok(&["get", "all", "-a", "-o", "name"]), "global/global\naciGw/aciGw\ntenant/default\n");
}

#[test]
fn differences_are_updated_and_immutable_fields_reject_the_file() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    let file = bench.file("a.yaml", example());
    bench.ok(&["apply", "-f", &file]);

    let changed = example()
        .replace("10 mbps", "20 mbps")
        .replace("policies: [web], netProfile: gold", "policies: [], netProfile: ''");
    let file = bench.file("b.yaml", &changed);
    let preview = bench.ok(&["apply", "-f", &file, "--dry-run"]);
    let diff = format!(
        "netprofile blue:gold update\n--- netmaster\n+++ {file} document 3\n@@ -1,4 +1,4 @@\n tenantName: blue\n \
         profileName: gold\n-bandwidth: 10 mbps\n+bandwidth: 20 mbps\n DSCP: 46\n"
    );
    assert!(preview.contains(&diff), "{preview}");
    assert!(preview.contains("-policies: [\"web\"]\n-netProfile: gold\n"), "{preview}");
    let applied = bench.ok(&["apply", "-f", &file]);
    assert!(
        applied.contains("netprofile blue:gold updated\n")
            && applied.contains("endpointGroup blue:web updated\n")
    );
    let group = bench.json(&["get", "group", "web", "-t", "blue", "-o", "json"]);
    let expected =
        json!({"kind": "endpointGroup", "tenantName": "blue", "groupName": "web", "networkName": "lan"});
    assert_eq!(group, expected);

    // Networks and rules are immutable: nothing of the file is sent.
    let immutable = example()
        .replace("10.36.1.0/24", "10.36.2.0/24")
        .replace("10.36.1.254", "10.36.2.254")
        .replace("direction: in, action: deny", "direction: in, action: allow");
    let file = bench.file("c.yaml", &immutable);
    let errors = bench.refused(&["apply", "-f", &file], 3);
    let reason = "recreate it with `netctl delete` and `netctl apply`; nothing was sent";
    assert_eq!(
        errors,
        [
            format!("{file} document 2: network blue:lan: netmaster cannot change subnet, gateway: {reason}"),
            format!("{file} document 5 item 1: rule blue:web:1: netmaster cannot change action: {reason}"),
        ]
    );
    assert_eq!(bench.json(&["get", "group", "web", "-t", "blue", "-o", "json"]), expected);
    let dry = bench.run(&["apply", "-f", &file, "--dry-run"]);
    let preview = String::from_utf8(dry.stdout).unwrap();
    assert!(
        preview.contains("network blue:lan cannot change subnet, gateway: recreate needed\n"),
        "{preview}"
    );
    assert_eq!(dry.status.code(), Some(3));
}

#[test]
fn settings_keep_fields_that_a_file_omits() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    let file = bench.file("g.json", r#"{"kind": "global", "name": "global", "arpMode": "flood"}"#);
    assert_eq!(bench.ok(&["apply", "-f", &file]), "global global updated\n");
    assert_eq!(bench.ok(&["apply", "-f", &file]), "global global unchanged\n");
    let info = bench.ok(&["global", "info"]);
    assert!(info.contains("ARP mode: flood\nVlan Range: 1-4094\n"), "{info}");
    assert_eq!(bench.ok(&["delete", "-f", &file]), "global global kept: settings cannot be deleted\n");
}

#[test]
fn nothing_is_sent_if_a_file_is_invalid() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    let good = bench.file("good.yaml", "kind: tenant\ntenantName: red");
    let bad = bench.file(
        "bad.yaml",
        "kind: group\ntenantName: red\ngroupName: g\nnetworkName: n\npolicies: [p]\nnetProfil: x\n---\nkind: tenant\n",
    );
    let errors = bench.refused(&["apply", "-f", &good, "-f", &bad], 3);
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(
        errors[0].starts_with(&format!("{bad} document 1: endpointGroup red:g: netProfil: no such field"))
    );
    assert!(errors[1].starts_with(&format!("{bad} document 2: tenant : tenantName is missing")));

    let lost = bench
        .file("lost.yaml", "kind: group\ntenantName: red\ngroupName: g\nnetworkName: n\npolicies: [p]\n");
    let errors = bench.refused(&["apply", "-f", &good, "-f", &lost], 3);
    let missing = |field, what| {
        format!("{lost} document 1: endpointGroup red:g: {field}: no {what} in the files or at netmaster")
    };
    assert_eq!(errors, [missing("networkName", "network red:n"), missing("policies", "policy red:p")]);
    assert_eq!(bench.ok(&["tenant", "ls", "-q"]), "default\n");
}

#[test]
fn rejection_stops_apply_but_not_delete() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    // netmaster, not netctl, detects overlapping subnets.
    let text = "\
kind: tenant
tenantName: red
---
- {kind: network, tenantName: red, networkName: n1, encap: vxlan, subnet: 10.1.0.0/24}
- {kind: network, tenantName: red, networkName: n2, encap: vxlan, subnet: 10.1.0.0/25}
- {kind: group, tenantName: red, groupName: g, networkName: n1}
";
    let file = bench.file("red.yaml", text);
    let output = bench.run(&["apply", "-f", &file]);
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "tenant red created\nnetwork red:n1 created\n");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        stderr,
        format!(
            "netctl: {file} document 2 item 2: network red:n2: network n1 conflicts with subnet 10.1.0.0/25 (later changes \
             not sent: 1)\n"
        )
    );
    assert_eq!(output.status.code(), Some(3));

    // A network that is not in the file keeps the tenant. The other objects are deleted.
    bench.ok(&["net", "create", "-t", "red", "-s", "10.2.0.0/24", "other"]);
    let output = bench.run(&["delete", "-f", &file]);
    let deleted = "endpointGroup red:g absent\nnetwork red:n2 absent\nnetwork red:n1 deleted\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), deleted);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(stderr, format!("netctl: {file} document 1: tenant red: cannot delete red has 1 networks\n"));
    assert_eq!(output.status.code(), Some(3));
}
