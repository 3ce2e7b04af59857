//! `policy check`.

use contiv_model::{
    endpoint,
    group::GroupNumber,
    policy::{self, Action, Connection, Identity, Packet, Policy, PolicyState, Side},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testkit::{etcd::etcdctl, needs};

use super::{Bench, example};

fn check(bench: &Bench, args: &str) -> (Value, i32) {
    let args: Vec<&str> = args.split(' ').collect();
    let output = bench.run(&[&["policy", "check", "-o", "json"], &args[..]].concat());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code().unwrap())
}

#[test]
fn check_names_the_deciding_rule_and_side() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    bench.fed(&["apply", "-f", "-"], example());
    let web = bench.endpoint("blue", "lan", "web", "w1");
    let client = bench.endpoint("blue", "lan", "clients", "c1");

    let (trace, code) = check(&bench, "--from c1 --to w1 -l tcp -P 443");
    assert_eq!(code, 0);
    assert_eq!(
        trace,
        json!({
            "action": "allow", "decidedBy": null, "protocol": 6, "port": 443, "dscp": null, "out": null,
            "source": {"address": client, "endpoint": "c1", "group": "blue:clients", "network": "lan.blue", "node": "n1"},
            "destination": {"address": web, "endpoint": "w1", "group": "blue:web", "network": "lan.blue", "node": "n1"},
            "in": {"rule": "blue:web:2", "action": "allow", "priority": 10},
        })
    );
    // The rule that denies all decides for other ports and external sources. Endpoints are found by name, address or container.
    for args in [
        "--from c1 --to w1 -l tcp -P 80",
        &format!("--from {client} --to pod-w1 -l tcp -P 80"),
        "--from 192.0.2.7 --to w1 -l icmp",
    ] {
        let (trace, code) = check(&bench, args);
        assert_eq!(
            (code, &trace["action"], &trace["decidedBy"]),
            (5, &json!("deny"), &json!("in")),
            "{args}"
        );
        assert_eq!(trace["in"], json!({"rule": "blue:web:1", "action": "deny", "priority": 1}), "{args}");
    }
    // The rules name a group, in which an address of the network without an endpoint may be.
    let (trace, code) = check(&bench, "--from 10.36.1.99 --to w1 -l tcp -P 443");
    let unknown = json!({"rule": null, "action": "deny", "priority": null, "reason": "unknown-source"});
    assert_eq!((code, &trace["decidedBy"], &trace["in"]), (5, &json!("in"), &unknown));
    let (trace, code) = check(&bench, &format!("--from w1 --to {client} --protocol udp --port 53"));
    assert_eq!((code, &trace["in"], &trace["dscp"]), (0, &Value::Null, &json!(46)));

    // `out` rules decide on the side of the source.
    bench.ok(&[
        "policy",
        "rule-add",
        "-t",
        "blue",
        "web",
        "9",
        "-d",
        "out",
        "-s",
        "198.51.100.0/24",
        "-j",
        "deny",
    ]);
    let (trace, code) = check(&bench, "--from w1 --to 198.51.100.9 -l udp -P 53");
    assert_eq!((code, &trace["decidedBy"], &trace["out"]["rule"]), (5, &json!("out"), &json!("blue:web:9")));
    assert_eq!(trace["destination"]["endpoint"], Value::Null);

    // A group without a policy allows everything.
    bench.fed(
        &["apply", "-f", "-"],
        "{kind: group, tenantName: blue, groupName: web, networkName: lan, policies: []}",
    );
    assert_eq!(check(&bench, "--from c1 --to w1 -l tcp -P 80").1, 0);
}

#[test]
fn text_output_names_the_rules() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    bench.fed(&["apply", "-f", "-"], example());
    let web = bench.endpoint("blue", "lan", "web", "w1");
    let output =
        bench.run(&["policy", "check", "--from", "192.0.2.7", "--to", "w1", "-l", "tcp", "-P", "80"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!(
            "deny: 192.0.2.7 (no endpoint) to {web} (w1), tcp port 80\n  source (out rules):     allow: the address is external\n  \
             destination (in rules): deny by rule blue:web:1 (priority 1) of group blue:web\n"
        )
    );
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn invalid_checks_fail_with_one_line() {
    let _machine = testkit::shared();
    let bench = Bench::new();
    bench.fed(&["apply", "-f", "-"], example());
    bench.fed(&["apply", "-f", "-"], &example().replace("blue", "red"));
    let address = bench.endpoint("blue", "lan", "web", "w1");
    assert_eq!(bench.endpoint("red", "lan", "web", "r1"), address);
    for (args, trace, code) in [
        ("--from w1 --to w --protocol tcp --port 1", "no endpoint w; did you mean w1?", 3),
        ("--from absent --to w1 -l icmp", "no endpoint absent", 3),
        ("--from w1 --to w1 -l tcp", "--port is required for tcp and udp", 1),
        ("--from w1 --to w1 -l icmp -P 1", "--port is valid for tcp and udp only", 1),
        ("--from w1 --to 2001:db8::1 -l icmp", "endpoint w1 has no IPv6 address", 3),
        (
            "--from 1.1.1.1 --to 2001:db8::1 -l icmp",
            "--from 1.1.1.1 --to 2001:db8::1: one is IPv4, the other IPv6",
            1,
        ),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        assert_eq!(bench.refused(&[&["policy", "check"], &args[..]].concat(), code), [trace], "{args:?}");
    }
    let both = format!("--from 192.0.2.7 --to {address} -l icmp");
    let both: Vec<&str> = both.split(' ').collect();
    let trace = bench.refused(&[&["policy", "check"], &both[..]].concat(), 1);
    assert!(
        trace[0].contains("w1 on lan.blue and r1 on lan.red; use an endpoint id or --tenant"),
        "{trace:?}"
    );
    let (trace, code) = check(&bench, &format!("--from 192.0.2.7 --to {address} -l icmp --tenant red"));
    assert_eq!((code, &trace["destination"]["endpoint"]), (5, &json!("r1")));
    // The network of the other end disambiguates the address.
    let (trace, _) = check(&bench, &format!("--from r1 --to {address} -l icmp"));
    assert_eq!(trace["destination"]["endpoint"], "r1");
}

/// The bodies below a key, as the nodes' agents read them.
fn stored<T: DeserializeOwned>(bench: &Bench, below: &str) -> Vec<T> {
    let store = bench.master.store().endpoint();
    let found = etcdctl(&store, &["get", "--prefix", "--print-value-only", &format!("/contiv.io/{below}/")]);
    found
        .unwrap()
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn side<'a>(endpoint: &endpoint::State, rules: &'a [policy::Rule]) -> Side<'a> {
    let identity = Identity::try_from(endpoint.endpoint_group_id as u32).ok();
    Side::endpoint(endpoint.ip_address.parse().unwrap(), identity, rules)
}

#[test]
fn check_agrees_with_the_stored_policies() {
    needs!(binary("etcdctl"));
    let _machine = testkit::shared();
    let bench = Bench::new();
    bench.fed(&["apply", "-f", "-"], example());
    for (group, container) in [("web", "w1"), ("clients", "c1"), ("clients", "c2")] {
        bench.endpoint("blue", "lan", group, container);
    }
    let more = "\
- {kind: policy, tenantName: blue, policyName: more}
- {kind: group, tenantName: blue, groupName: gone, networkName: lan}
- {kind: group, tenantName: blue, groupName: clients, networkName: lan, policies: [more]}
- {kind: rule, tenantName: blue, policyName: more, ruleId: a, direction: out, action: deny, toIpAddress: 10.36.1.0/30, priority: 5}
- {kind: rule, tenantName: blue, policyName: more, ruleId: b, direction: out, action: allow, toEndpointGroup: web, protocol: udp, priority: 5}
- {kind: rule, tenantName: blue, policyName: more, ruleId: c, direction: out, action: allow, toNetwork: lan, protocol: tcp, port: 443, priority: 9}
- {kind: rule, tenantName: blue, policyName: more, ruleId: d, direction: in, action: deny, fromEndpointGroup: gone, priority: 100}
- {kind: rule, tenantName: blue, policyName: more, ruleId: e, direction: in, action: deny, protocol: icmp}
";
    bench.fed(&["apply", "-f", "-"], more);
    // A rule that names a deleted group matches no peer.
    bench.ok(&["group", "rm", "-t", "blue", "gone"]);

    let policies: Vec<Policy> =
        stored::<PolicyState>(&bench, "state/policy").iter().map(|body| body.try_into().unwrap()).collect();
    let endpoints: Vec<endpoint::State> = stored(&bench, "state/eps");
    assert_eq!((policies.len(), endpoints.len()), (2, 3));
    let rules = |endpoint: &endpoint::State| -> Vec<policy::Rule> {
        let group = GroupNumber::try_from(endpoint.endpoint_group_id as u32).unwrap();
        policies.iter().filter(|it| it.group == group).flat_map(|it| it.rules.clone()).collect()
    };
    let mut denied = 0;
    for from in &endpoints {
        for to in &endpoints {
            for (text, protocol, port) in
                [("-l tcp -P 443", 6, Some(443)), ("-l udp -P 53", 17, Some(53)), ("-l icmp", 1, None)]
            {
                let (source, destination) = (rules(from), rules(to));
                let connection = Connection {
                    source: side(from, &source),
                    destination: side(to, &destination),
                    packet: Packet { protocol, port },
                };
                let expected = policy::decide(&connection);
                let args = format!("--from {} --to {} {text}", from.endpoint_id, to.endpoint_id);
                let (trace, code) = check(&bench, &args);
                assert_eq!(code == 5, expected.action == Action::Deny, "{args}: {trace}");
                for (rule, side) in [(expected.out_rule(), "out"), (expected.in_rule(), "in")] {
                    match rule {
                        Some(rule) => {
                            let key = trace[side]["rule"].as_str().unwrap();
                            assert!(rule.id.as_str().contains(&format!(":{key}:")), "{args}: {trace}");
                        }
                        None => assert_eq!(trace[side], Value::Null, "{args}"),
                    }
                }
                denied += i32::from(code == 5);
            }
        }
    }
    assert!((5..22).contains(&denied), "expected allowed and denied connections: {denied} of 27 are denied");
}
