//! Lists, nodes, and the flags that create objects.

use serde_json::{Value, json};
use testkit::{etcd::etcdctl, needs};

use super::{Bench, example};

#[test]
fn every_list_has_every_format() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    bench.fed(
        &["apply", "-f", "-"],
        &example().replace("blue", "default").replace("kind: tenant\ntenantName: default", ""),
    );
    bench.endpoint("default", "lan", "web", "w1");
    let client = bench.endpoint("default", "lan", "clients", "c1");
    let neighbor = ["--neighbor-as", "65001", "--neighbor", "50.1.1.2"];
    bench
        .ok(&[&["bgp", "create", "h1", "--router-ip", "50.1.1.1/24", "--as", "65000"], &neighbor[..]]
            .concat());
    bench.ok(&["service", "create", "web", "-s", "lan", "-l", "app=web", "-p", "80:8080:TCP"]);
    bench.ok(&["app-profile", "create", "shop", "-g", "web,clients"]);
    bench.ok(&["external-contracts", "create", "ext", "-p", "-a", "uni/tn-x/brc-y"]);
    for (list, names, title) in [
        (&["tenant"][..], "default\n", "Name"),
        (&["network"], "lan\n", "Tenant"),
        (&["net"], "lan\n", "Tenant"),
        (&["group"], "clients\nweb\n", "Tenant"),
        (&["policy"], "web\n", "Tenant"),
        (&["netprofile"], "gold\n", "Name"),
        (&["bgp"], "h1\n", "HostName"),
        (&["service"], "web\n", "ServiceName"),
        (&["app-profile"], "shop\n", "Tenant"),
        (&["external-contracts"], "ext\n", "Tenant"),
        (&["node"], "", "Host"),
        (&["endpoint"], "c1\nw1\n", "Network"),
        (&["policy", "rule-ls", "web"], "1\n2\n", "Incoming Rules:"),
    ] {
        let show = |form: &[&str]| {
            let verb = if list.len() == 1 { &["ls"][..] } else { &[] };
            bench.ok(&[list, verb, form].concat())
        };
        assert!(show(&["-o", "table"]).starts_with(title), "{list:?}");
        assert_eq!(show(&[]), show(&["-o", "table"]), "{list:?}");
        assert_eq!(show(&["-o", "name"]), names, "{list:?}");
        assert_eq!(show(&["-q"]), names, "{list:?}");
        let json: Value = serde_json::from_str(&show(&["-o", "json"])).unwrap();
        assert_eq!(json.as_array().unwrap().len(), names.lines().count(), "{list:?}");
        assert_eq!(show(&["-j"]), show(&["-o", "json"]), "{list:?}");
        assert_eq!(serde_saphyr::from_str::<Value>(&show(&["-o", "yaml"])).unwrap(), json, "{list:?}");
    }
    let endpoints = bench.ok(&["ep", "ls", "-a"]);
    let row = format!("\nlan.default  c1        pod-c1  clients  n1    {client}  \n");
    assert!(endpoints.contains(&row), "{endpoints}");
    for inspected in [
        &["tenant", "inspect", "default"][..],
        &["network", "inspect", "lan"],
        &["group", "inspect", "web"],
        &["policy", "inspect", "web"],
        &["netprofile", "inspect", "gold"],
        &["service", "inspect", "web"],
        &["endpoint", "inspect", "c1"],
        &["app-profile", "inspect", "shop"],
        &["external-contracts", "inspect", "ext"],
        &["global", "inspect"],
        &["info"],
    ] {
        let json = bench.json(inspected);
        let yaml = bench.ok(&[inspected, &["-o", "yaml"]].concat());
        assert_eq!(serde_saphyr::from_str::<Value>(&yaml).unwrap(), json, "{inspected:?}");
    }
    let version = bench.ok(&["version"]);
    assert!(version.ends_with(&format!("\nLeader: {}\n", bench.master.client().server())), "{version}");
}

#[test]
fn rule_flags_set_every_field() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    bench.fed(
        &["apply", "-f", "-"],
        &example().replace("blue", "default").replace("kind: tenant\ntenantName: default", ""),
    );
    let own = bench.endpoint("default", "lan", "web", "w1");
    let add = |args: &str| bench.ok(&args.split(' ').collect::<Vec<_>>());
    assert_eq!(
        add(&format!(
            "policy rule-add web 10 -p 7 -d in -g clients -i 10.1.0.0/16 -s {own} -l tcp -P 80 -j deny"
        )),
        ""
    );
    add("policy rule-add web 11 --direction in --from-network lan --protocol 132 --action allow");
    add(
        "policy rule-add web 12 --direction out --to-group clients --to-ip-address 2001:db8::/64 --priority 100",
    );
    add("policy rule-add web 13 -d out -o lan -l udp -P 53");
    let rule = |id: &str| {
        let mut rule = bench.json(&["get", "rule", &format!("web:{id}"), "-o", "json"]);
        for known in ["kind", "tenantName", "policyName", "ruleId"] {
            rule.as_object_mut().unwrap().remove(known).unwrap();
        }
        rule
    };
    assert_eq!(
        rule("10"),
        json!({"priority": 7, "direction": "in", "fromEndpointGroup": "clients", "fromIpAddress": "10.1.0.0/16",
            "toIpAddress": own, "protocol": "tcp", "port": 80, "action": "deny"})
    );
    assert_eq!(
        rule("11"),
        json!({"priority": 1, "direction": "in", "fromNetwork": "lan", "protocol": "132", "action": "allow"})
    );
    assert_eq!(
        rule("12"),
        json!({"priority": 100, "direction": "out", "toEndpointGroup": "clients", "toIpAddress": "2001:db8::/64",
            "action": "allow"})
    );
    assert_eq!(
        rule("13"),
        json!({"priority": 1, "direction": "out", "toNetwork": "lan", "protocol": "udp", "port": 53, "action": "allow"})
    );
    let table = bench.ok(&["policy", "rule-ls", "web"]);
    assert!(table.contains("\n10    7         clients"), "{table}");
    bench.ok(&["policy", "rule-rm", "web", "10"]);
    assert_eq!(bench.refused(&["get", "rule", "web:10"], 3), ["rule not found"]);
    let error = bench.refused(&["policy", "rule-add", "web", "14", "-l", "gre"], 3);
    assert_eq!(error, ["protocol string invalid format"]);
}

#[test]
fn settings_without_a_flag_keep_their_values() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    bench.ok(&["global", "set", "-s", "172.20.0.0/16", "-v", "1-100"]);
    bench.ok(&["global", "set", "-a", "flood"]);
    let global = "Fabric mode: default\nForward mode: bridge\nARP mode: flood\nVlan Range: 1-100\nVxlan range: 1-10000\n\
                  Private subnet: 172.20.0.0/16\n";
    assert_eq!(bench.ok(&["global", "info"]), global);

    assert_eq!(bench.ok(&["aci-gw", "info"]), "");
    let bindings = "topology/pod-1/node-101";
    bench.ok(&["aci-gw", "set", "-d", "phys", "-n", bindings, "-e", "no", "-i", "yes"]);
    bench.ok(&["aci-gw", "set", "-p", "topology/pod-1/paths-101/pathep-[eth1/1]"]);
    let settings = format!(
        "Path bindings: topology/pod-1/paths-101/pathep-[eth1/1]\nNode bindings: {bindings}\nPhysical domain: phys\n\
         Enforce policies: no\nInclude Common-Tenant: yes\n"
    );
    assert_eq!(bench.ok(&["aci-gw", "info"]), settings);
}

#[test]
fn node_list_shows_state_and_reason() {
    needs!(binary("etcdctl"));
    let _machine = testkit::shared();
    let bench = Bench::new();
    let put = |key: &str, body: Value| {
        etcdctl(&bench.master.store().endpoint(), &["put", &format!("/contiv.io/{key}"), &body.to_string()])
            .unwrap();
    };
    let reason = "2 groups: not supported by this datapath yet";
    let none: &[&str] = &[];
    for (host, address, ready, degraded, revision) in [
        ("n1", "10.0.0.1", true, none, 17),
        ("n2", "10.0.0.2", true, &[reason], 16),
        ("n3", "10.0.0.3", false, none, 0),
    ] {
        put(
            &format!("service/netplugin/{address}:9002"),
            json!({"ServiceName": "netplugin", "HostAddr": address, "Port": 9002, "Hostname": host, "TTL": 10}),
        );
        put(
            &format!("oper/node/{host}"),
            json!({"host": host, "datapath": "ebpf", "vtepIP": address, "vxlanPort": 4789, "version": "0.1.0",
                "ready": ready, "failed": 2 * degraded.len(), "degraded": degraded, "appliedRevision": revision}),
        );
    }
    put(
        "oper/node/n4",
        json!({"host": "n4", "datapath": "ovs", "vtepIP": "10.0.0.4", "ready": true, "version": "0.1.0"}),
    );
    testkit::wait_until(std::time::Duration::from_secs(10), "four nodes", || {
        Ok((bench.ok(&["node", "ls", "-q"]) == "n1\nn2\nn3\nn4\n").then_some(()))
    })
    .unwrap();
    let table = bench.ok(&["node", "ls"]);
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(lines[0], ["Host", "Datapath", "State", "Revision", "VTEP", "Version", "Reason"]);
    assert_eq!(lines[2], ["n1", "ebpf", "ready", "17", "10.0.0.1", "0.1.0"]);
    assert_eq!(lines[3], ["n2", "ebpf", "degraded", "16", "10.0.0.2", "0.1.0", reason]);
    assert_eq!(lines[4][2..], ["starting", "0", "10.0.0.3", "0.1.0"]);
    assert_eq!(lines[5][2], "gone");
    assert_eq!(bench.json(&["node", "inspect", "n2"])["failed"], 2);
    assert_eq!(bench.refused(&["node", "inspect", "n9"], 3), ["node not found"]);
}
