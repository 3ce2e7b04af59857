//! `policy check`.

use serde_json::{Value, json};

use super::{Bench, example};

fn check(bench: &Bench, args: &str) -> (Value, i32) {
    let args: Vec<&str> = args.split(' ').collect();
    let output = bench.run(&[&["policy", "check", "-o", "json"], &args[..]].concat());
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&output.stdout).unwrap(), output.status.code().unwrap())
}

#[test]
fn the_oracle_names_the_rule_and_the_side() {
    let bench = Bench::new();
    bench.fed(&["apply", "-f", "-"], example());
    let web = bench.endpoint("blue", "lan", "web", "w1");
    let client = bench.endpoint("blue", "lan", "clients", "c1");

    let (said, code) = check(&bench, "--from c1 --to w1 -l tcp -P 443");
    assert_eq!(code, 0);
    assert_eq!(
        said,
        json!({
            "action": "allow", "decidedBy": null, "protocol": 6, "port": 443, "dscp": null, "out": null,
            "source": {"address": client, "endpoint": "c1", "group": "blue:clients", "network": "lan.blue", "node": "n1"},
            "destination": {"address": web, "endpoint": "w1", "group": "blue:web", "network": "lan.blue", "node": "n1"},
            "in": {"rule": "blue:web:2", "action": "allow", "priority": 10},
        })
    );
    // Another port, and the outside, fall to the rule that denies all; by name, address or container.
    for args in [
        "--from c1 --to w1 -l tcp -P 80",
        &format!("--from {client} --to pod-w1 -l tcp -P 80"),
        "--from 192.0.2.7 --to w1 -l icmp",
    ] {
        let (said, code) = check(&bench, args);
        assert_eq!((code, &said["action"], &said["decidedBy"]), (5, &json!("deny"), &json!("in")), "{args}");
        assert_eq!(said["in"], json!({"rule": "blue:web:1", "action": "deny", "priority": 1}), "{args}");
    }
    let (said, code) = check(&bench, &format!("--from w1 --to {client} --protocol udp --port 53"));
    assert_eq!((code, &said["in"], &said["dscp"]), (0, &Value::Null, &json!(46)));

    // On the sender's side.
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
    let (said, code) = check(&bench, "--from w1 --to 198.51.100.9 -l udp -P 53");
    assert_eq!((code, &said["decidedBy"], &said["out"]["rule"]), (5, &json!("out"), &json!("blue:web:9")));
    assert_eq!(said["destination"]["endpoint"], Value::Null);

    // A group that is taken away from its policy is open.
    bench.fed(&["apply", "-f", "-"], "{kind: group, tenantName: blue, groupName: web, networkName: lan}");
    assert_eq!(check(&bench, "--from c1 --to w1 -l tcp -P 80").1, 0);
}

#[test]
fn it_tells_people_why() {
    let bench = Bench::new();
    bench.fed(&["apply", "-f", "-"], example());
    let web = bench.endpoint("blue", "lan", "web", "w1");
    let output =
        bench.run(&["policy", "check", "--from", "192.0.2.7", "--to", "w1", "-l", "tcp", "-P", "80"]);
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        format!(
            "deny: 192.0.2.7 (no endpoint) to {web} (w1), tcp port 80\n  out of the sender:    allow: it is outside\n  \
             into the receiver:    deny by rule blue:web:1 (priority 1) of group blue:web\n"
        )
    );
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn what_cannot_be_asked_is_a_line() {
    let bench = Bench::new();
    bench.fed(&["apply", "-f", "-"], example());
    bench.fed(&["apply", "-f", "-"], &example().replace("blue", "red"));
    let address = bench.endpoint("blue", "lan", "web", "w1");
    assert_eq!(bench.endpoint("red", "lan", "web", "r1"), address);
    for (args, said, code) in [
        ("--from w1 --to w --protocol tcp --port 1", "no endpoint is called w; did you mean w1?", 3),
        ("--from nobody --to w1 -l icmp", "no endpoint is called nobody", 3),
        ("--from w1 --to w1 -l tcp", "--port is needed with tcp and udp", 1),
        ("--from w1 --to w1 -l icmp -P 1", "--port goes with tcp and udp only", 1),
        ("--from w1 --to 2001:db8::1 -l icmp", "endpoint w1 has no IPv6 address", 3),
        (
            "--from 1.1.1.1 --to 2001:db8::1 -l icmp",
            "--from 1.1.1.1 --to 2001:db8::1: one is IPv4, the other IPv6",
            1,
        ),
    ] {
        let args: Vec<&str> = args.split(' ').collect();
        assert_eq!(bench.refused(&[&["policy", "check"], &args[..]].concat(), code), [said], "{args:?}");
    }
    let both = format!("--from 192.0.2.7 --to {address} -l icmp");
    let both: Vec<&str> = both.split(' ').collect();
    let said = bench.refused(&[&["policy", "check"], &both[..]].concat(), 1);
    assert!(said[0].contains("w1 on lan.blue and r1 on lan.red: name one of them, or --tenant"), "{said:?}");
    let (said, code) = check(&bench, &format!("--from 192.0.2.7 --to {address} -l icmp --tenant red"));
    assert_eq!((code, &said["destination"]["endpoint"]), (5, &json!("r1")));
    // The other end tells which network is meant.
    let (said, _) = check(&bench, &format!("--from r1 --to {address} -l icmp"));
    assert_eq!(said["destination"]["endpoint"], "r1");
}
