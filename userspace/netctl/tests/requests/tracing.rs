//! `netctl trace`: which agents are asked for what, and the path that is printed.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicU8, Ordering},
};

use serde_json::{Value, json};

use crate::{
    run,
    server::{Reply, Request, Server},
};

/// Loopback addresses of the agents of two nodes, other ones for each test.
fn agents() -> [Ipv4Addr; 2] {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let [a, b] = (std::process::id() as u16).to_be_bytes();
    let count = COUNT.fetch_add(2, Ordering::Relaxed);
    [count, count + 1].map(|last| Ipv4Addr::new(127, a | 0x40, b, last))
}

fn endpoint(id: &str, host: &str, ip: &str) -> Value {
    json!({"endpointID": id, "homingHost": host, "network": "n.default", "ipAddress": [ip, ""]})
}

/// A netmaster with two nodes, and two endpoints on a network.
fn netmaster(agents: [Ipv4Addr; 2]) -> Server {
    netmaster_with(agents, "vxlan")
}

/// The same with a network of this encapsulation.
fn netmaster_with(agents: [Ipv4Addr; 2], encap: &'static str) -> Server {
    let endpoints = [endpoint("c1", "node1", "10.1.1.2"), endpoint("c2", "node2", "10.1.1.3")];
    Server::start(move |request: &Request| match request.line.as_str() {
        "GET /api/v1/networks/" => Reply::json(&json!([
            {"key": "default:n", "tenantName": "default", "networkName": "n", "encap": encap}
        ])),
        "GET /api/v1/inspect/networks/default:n/" => {
            Reply::json(&json!({"Config": {}, "Oper": {"endpoints": endpoints}}))
        }
        "GET /api/v1/inspect/endpoints/c1/" => Reply::json(&json!({"Oper": endpoints[0]})),
        "GET /api/v1/inspect/endpoints/c2/" => Reply::json(&json!({"Oper": endpoints[1]})),
        "GET /api/v1/inspect/nodes/" => Reply::json(&json!([
            {"host": "node1", "vtepIP": "192.168.0.1", "controlIP": agents[0], "state": "ready"},
            {"host": "node2", "vtepIP": "192.168.0.2", "controlIP": agents[1], "state": "ready"},
        ])),
        _ => Reply::refused("endpoint not found"),
    })
}

fn packet() -> Value {
    json!({"sourceMac": "02:02:0a:01:01:02", "destinationMac": "02:02:0a:01:01:03", "source": "10.1.1.2",
           "destination": "10.1.1.3", "protocol": 6, "sourcePort": 40000, "destinationPort": 22,
           "tcpFlags": "syn", "dscp": 0})
}

fn trace(host: &str, ingress: Value, steps: Value, outputs: Value) -> Value {
    json!({"host": host, "datapath": "fake", "method": "oracle", "ingress": ingress, "network": "n.default",
           "packet": packet(), "steps": steps, "outputs": outputs})
}

/// The agents of two nodes, the second of which drops the packet or delivers it.
fn nodes(agents: [Ipv4Addr; 2], delivered: bool) -> [Server; 2] {
    let tunnel = json!([{"to": {"tunnel": {"vtep": "192.168.0.2", "vni": 10001}}, "packet": packet()}]);
    let first = trace(
        "node1",
        json!({"endpoint": "n.default-c1"}),
        json!([{"stage": "guard", "verdict": "pass"},
               {"stage": "connection", "verdict": "pass", "connection": "new"}]),
        tunnel,
    );
    let (verdict, outputs) = match delivered {
        true => ("pass", json!([{"to": {"endpoint": {"endpoint": "n.default-c2", "port": "vvport1"}}}])),
        false => ("drop", json!([])),
    };
    let ingress = json!({"tunnel": {"vtep": "192.168.0.1", "vni": 10001}});
    let step = json!([{"stage": "policyIn", "verdict": verdict, "rule": "no-ssh"}]);
    let second = trace("node2", ingress, step, outputs);
    let [one, two] = agents.map(|address| (IpAddr::from(address), 9090).into());
    [Server::at(one, move |_| Reply::json(&first)), Server::at(two, move |_| Reply::json(&second))]
}

#[test]
fn each_node_on_the_way_is_asked() {
    let agents = agents();
    let (master, [one, two]) = (netmaster(agents), nodes(agents, false));
    let words = ["trace", "--from", "c1", "--to", "c2", "-l", "tcp", "-P", "22"];
    let (out, error, code) = run(&master, &words);
    assert_eq!((error.as_str(), code), ("", 5));
    assert_eq!(
        out.lines().map(str::trim_end).collect::<Vec<_>>(),
        [
            "Node   Stage       Result  Details",
            "----   -----       ------  -------",
            "node1  guard       pass",
            "node1  connection  pass    new",
            "node1  output              tunnel to 192.168.0.2, vni 10001",
            "node2  policy in   drop    rule no-ssh",
            "not delivered: tcp 10.1.1.2:40000 -> 10.1.1.3:22 syn on n.default",
        ]
    );
    let [first] = &one.take()[..] else { unreachable!() };
    assert_eq!(first.line, "POST /trace");
    assert_eq!(first.body["ingress"], json!({"endpoint": "n.default-c1"}));
    assert_eq!((&first.body["destination"], &first.body["tcpFlags"]), (&json!("10.1.1.3"), &json!("syn")));
    let [second] = &two.take()[..] else { unreachable!() };
    assert_eq!(second.body["ingress"], json!({"tunnel": {"vtep": "192.168.0.1", "vni": 10001}}));
    assert_eq!(second.body["destinationMac"], json!("02:02:0a:01:01:03"));
}

#[test]
fn json_has_the_traces_of_all_nodes() {
    let agents = agents();
    let (master, _nodes) = (netmaster(agents), nodes(agents, true));
    let words = ["trace", "--from", "10.1.1.2", "--to", "10.1.1.3", "-l", "tcp", "-P", "22", "-o", "json"];
    let (out, error, code) = run(&master, &words);
    assert_eq!((error.as_str(), code), ("", 0));
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&answer["delivered"], &answer["error"]), (&json!(true), &Value::Null));
    assert_eq!(answer["nodes"][1]["steps"][0]["stage"], json!("policyIn"));
}

#[test]
fn packets_that_a_node_answers_are_delivered_unless_it_refuses_them() {
    let forwarded = json!({"stage": "forward", "verdict": "pass"});
    let service = |backend: &str| json!({"stage": "service", "verdict": "pass", "backend": [backend, 8080]});
    let refused = json!({"stage": "service", "verdict": "drop", "reason": "no-backend"});
    for (steps, output, code) in [
        (json!([forwarded]), "answered by the node", 0),
        (json!([service("10.1.1.2"), forwarded]), "the sender, which is the backend", 0),
        (json!([refused]), "answered by the node", 5),
    ] {
        let agents = agents();
        let master = netmaster(agents);
        let answer = json!([{"to": "answer"}]);
        let answered = trace("node1", json!({"endpoint": "n.default-c1"}), steps, answer);
        let one = Server::at((IpAddr::from(agents[0]), 9090).into(), move |_| Reply::json(&answered));
        let url = one.url();
        let to = ["trace", "--to", "10.1.1.9", "-l", "tcp", "-P", "80"];
        for from in [&["--from", "c1"][..], &["--from", "n.default-c1", "--agent", &url]] {
            let (out, error, exit) = run(&master, &[&to[..], from].concat());
            assert_eq!((error.as_str(), exit), ("", code), "{out}");
            let lines: Vec<_> = out.lines().map(str::trim_end).collect();
            assert!(lines[lines.len() - 2].ends_with(output), "{out}");
            let result = if code == 0 { "delivered: " } else { "not delivered: " };
            assert!(lines[lines.len() - 1].starts_with(result), "{out}");
        }
    }
}

/// The node of the receiver is not asked, whose rules decide.
#[test]
fn the_end_of_a_path_through_the_kernel_of_a_node_is_unknown() {
    let outside = json!("192.0.2.7");
    for (encap, destination, result, code) in [
        ("vlan", &packet()["destination"], "unknown: ", 3),
        ("vlan", &outside, "delivered: ", 0),
        ("vxlan", &packet()["destination"], "delivered: ", 0),
    ] {
        let agents = agents();
        let master = netmaster_with(agents, encap);
        let mut sent = packet();
        sent["destination"] = destination.clone();
        let routed = trace(
            "node1",
            json!({"endpoint": "n.default-c1"}),
            json!([{"stage": "forward", "verdict": "pass"}]),
            json!([{"to": {"interface": "contivh2"}, "packet": sent}]),
        );
        let _one = Server::at((IpAddr::from(agents[0]), 9090).into(), move |_| Reply::json(&routed));
        let words = ["trace", "--from", "c1", "--to", "c2", "-l", "tcp", "-P", "22"];
        let (out, error, exit) = run(&master, &words);
        assert!(exit == code && out.lines().last().unwrap().starts_with(result), "{encap}: {exit} {out}");
        let is_unknown = error.contains("node node1: the packet continues in the node's kernel");
        assert_eq!(is_unknown, code == 3, "{encap}: {error}");
    }
}

#[test]
fn a_trace_without_all_copies_is_incomplete() {
    let agents = agents();
    let master = netmaster(agents);
    let mut flooded = trace(
        "node1",
        json!({"endpoint": "n.default-c1"}),
        json!([{"stage": "forward", "verdict": "pass"}]),
        json!([{"to": {"endpoint": {"endpoint": "n.default-c3", "port": "vvport3"}}, "packet": packet()}]),
    );
    flooded["omittedCopies"] = json!(6);
    let one = Server::at((IpAddr::from(agents[0]), 9090).into(), move |_| Reply::json(&flooded));
    let url = one.url();
    for from in [&["--from", "c1"][..], &["--from", "n.default-c1", "--agent", &url]] {
        let (out, error, code) = run(&master, &[&["trace", "--to", "10.1.1.255"], from].concat());
        assert_eq!(code, 3, "{out}{error}");
        let lines: Vec<_> = out.lines().map(str::trim_end).collect();
        assert!(lines[lines.len() - 2].ends_with("6 more copies"), "{out}");
        assert!(lines[lines.len() - 1].starts_with("delivered, incomplete: "), "{out}");
        assert!(error.contains("node node1: 6 more copies of the packet are not in the trace"), "{error}");
    }
}

#[test]
fn a_node_that_does_not_answer_is_named_after_the_part_that_is_known() {
    let agents = agents();
    let [one, two] = nodes(agents, true);
    drop(two);
    let master = netmaster([agents[0], Ipv4Addr::new(127, 0, 0, 0)]);
    let (out, error, code) = run(&master, &["trace", "--from", "c1", "--to", "c2"]);
    assert!(out.contains("node1  guard") && out.contains("unknown: "), "{out}");
    assert!(error.contains("127.0.0.0:9090/trace"), "{error}");
    assert_eq!((code, one.take().len()), (3, 1));
}

#[test]
fn one_agent_is_asked_without_netmaster() {
    let agents = agents();
    let [one, _two] = nodes(agents, true);
    let url = one.url();
    let trace =
        |words: &[&str]| run(&one, &[&["trace", "--agent", &url, "--from", "n.default-c1"], words].concat());
    let (out, error, code) = trace(&["--to", "2001:db8::3"]);
    assert!(code == 0 && out.contains("delivered: tcp") && error.is_empty(), "{out}{error}");
    let [request] = &one.take()[..] else { unreachable!() };
    assert_eq!((&request.line[..], &request.body["protocol"]), ("POST /trace", &json!(58)));
}

#[test]
fn invalid_arguments_name_the_flag_and_the_accepted_form() {
    let agents = agents();
    let master = netmaster(agents);
    let agent = master.url();
    for (words, what) in [
        (&["--from", "c1", "--to", "c2", "-l", "tcp"][..], "--port is required"),
        (&["--from", "c1", "--to", "c2", "-P", "80"], "--port is valid for tcp and udp only"),
        (&["--from", "c1", "--to", "c2", "--tcp-flags", "syn"], "--tcp-flags is valid for tcp only"),
        (&["--from", "c1", "--to", "c2", "--tcp-flags", "sin"], "expected names separated by commas"),
        (&["--from", "c1", "--to", "c2", "--dscp", "64"], "0..=63"),
        (&["--from", "192.0.2.7", "--to", "c2"], "a trace starts at an endpoint"),
        (&["--from", "c1", "--to", "c2", "--agent", &agent], "expected an IP address"),
    ] {
        let (_, error, code) = run(&master, &[&["trace"], words].concat());
        assert!(code == 1 && error.contains(what), "{words:?}: {code} {error}");
    }
}
