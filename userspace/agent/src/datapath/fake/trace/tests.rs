use std::net::Ipv4Addr;

use contiv_model::{
    mac::Mac,
    policy::{Direction as RuleDirection, Priority, Rule, Tier},
    route::NextHop,
    service::{Port, Protocol},
    tag::{Encap, Vni},
    trace::{self, Query, TcpFlags},
};

use super::*;
use crate::datapath::{
    Backend, Group, Local, Network as NetworkObject, Object, Peer, Remote, Scope, Service, fake::Switch,
};

fn vni() -> Vni {
    10_001.try_into().unwrap()
}

fn encap() -> Encap {
    Encap::Vxlan { vni: vni(), local: 1.try_into().unwrap() }
}

fn ip(last: u8) -> Ipv4Addr {
    [10, 1, 1, last].into()
}

const VTEP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2));

/// Two endpoints on this node, one on another, and a service with the latter as its backend.
fn node() -> Switch {
    let network = NetworkObject::new("n.default", encap());
    let local = |name: &str, last| {
        Local::new(name, &network, format!("vvport{last}"), Mac::of_endpoint(ip(last)), ip(last))
    };
    let identity = |number: u32| Some(contiv_model::group::GroupNumber::try_from(number).unwrap().into());
    let tier = Tier::Contiv(Priority::try_from(10).unwrap());
    let deny = |id: &str, direction, port: u16| {
        let mut rule = Rule::new(id, direction, Action::Deny, tier);
        rule.protocol = Some(6);
        rule.ports = Some(port.into());
        rule
    };
    let group = Group::new(
        contiv_model::group::GroupNumber::try_from(5).unwrap(),
        [deny("no-ssh-in", RuleDirection::In, 22), deny("no-telnet-out", RuleDirection::Out, 23)],
    );
    let next_hop = NextHop::Vtep { address: VTEP, vni: vni() };
    let remote = Remote::new("n.default-c", &network, next_hop, Mac::of_endpoint(ip(4)), ip(4));
    let mut service = Service::new("web:default", Scope::network(&network), ip(9));
    service.ports = [80, 81].map(|port| Port { protocol: Protocol::Tcp, port, target: 8080 }).into();
    service.backends = vec![Backend::on(encap(), ip(4))];
    let empty = Service {
        ports: service.ports.clone(),
        ..Service::new("empty:default", Scope::network(&network), ip(10))
    };
    let objects = [
        Object::Local(Local { identity: identity(5), ..local("n.default-a", 2) }),
        Object::Local(Local { identity: identity(5), ..local("n.default-b", 3) }),
        Object::Remote(remote),
        Object::Group(group),
        Object::Service(service),
        Object::Service(empty),
        Object::Peer(Peer::new(VTEP, 4789)),
        Object::Network(network),
    ];
    let switch = Switch::default();
    for object in objects {
        switch.put_object(object);
    }
    switch
}

fn query(destination: Ipv4Addr, port: u16) -> Query {
    Query {
        ingress: trace::Ingress::Endpoint("n.default-a".into()),
        source: None,
        destination: destination.into(),
        protocol: 6,
        source_port: 40_000,
        destination_port: port,
        tcp_flags: TcpFlags::SYN,
        dscp: 0,
        source_mac: None,
        destination_mac: None,
    }
}

/// Lines of the stages, and the outputs.
fn traced(switch: &Switch, query: &Query) -> (Vec<String>, Vec<Egress>) {
    let probe = Probe::resolve(&switch.objects(), query).unwrap();
    let findings = switch.trace(&probe);
    let outputs = findings.outputs.into_iter().map(|output| output.to).collect();
    (findings.steps.iter().map(ToString::to_string).collect(), outputs)
}

#[test]
fn each_stage_is_reported_up_to_the_endpoint() {
    let (steps, outputs) = traced(&node(), &query(ip(3), 80));
    assert_eq!(
        steps,
        [
            "guard       pass",
            "service     -",
            "connection  pass new",
            "policy out  pass no rule matches",
            "policy in   pass no rule matches",
            "forward     pass",
        ]
    );
    assert_eq!(outputs, [Egress::Endpoint { endpoint: "n.default-b".into(), port: "vvport3".into() }]);
}

#[test]
fn the_deciding_rule_ends_the_trace() {
    for (port, last) in [(22, "policy in   drop rule no-ssh-in"), (23, "policy out  drop rule no-telnet-out")]
    {
        let (steps, outputs) = traced(&node(), &query(ip(3), port));
        assert_eq!((steps.last().unwrap().as_str(), outputs), (last, vec![]));
    }
}

#[test]
fn a_service_is_translated_or_refuses() {
    let switch = node();
    let probe = Probe::resolve(&switch.objects(), &query(ip(9), 81)).unwrap();
    let findings = switch.trace(&probe);
    assert_eq!(findings.steps[1].to_string(), "service     pass service web:default, backend 10.1.1.4:8080");
    assert_eq!(findings.steps[4].to_string(), "policy in   -    the endpoint is not on this node");
    let [output] = &findings.outputs[..] else { panic!("{findings:?}") };
    assert_eq!(output.to, Egress::Tunnel { vtep: VTEP, vni: vni() });
    let packet = output.packet.as_ref().unwrap();
    assert_eq!((packet.destination, packet.destination_port), (ip(4).into(), 8080));
    assert_eq!(packet.destination_mac, Mac::of_endpoint(ip(4)));

    let (steps, outputs) = traced(&switch, &query(ip(10), 80));
    assert_eq!(steps[1], "service     drop service empty:default, no ready backend");
    assert_eq!((steps.len(), outputs), (2, vec![Egress::Answer]));
    let (steps, outputs) = traced(&switch, &query(ip(9), 82));
    assert_eq!(steps[1], "service     drop service web:default, the service has no such port");
    assert_eq!((steps.len(), outputs), (2, vec![Egress::Answer]));
}

#[test]
fn a_forged_source_is_dropped_by_the_guard() {
    let forged = Query { source: Some(ip(3).into()), ..query(ip(4), 80) };
    assert_eq!(traced(&node(), &forged).0, ["guard       drop address or form is not allowed"]);
    let tunnel = trace::Ingress::Tunnel { vtep: VTEP, vni: vni() };
    let arrives = Query { ingress: tunnel, source: Some(ip(4).into()), ..query(ip(3), 80) };
    let (steps, outputs) = traced(&node(), &arrives);
    assert_eq!(steps[3], "policy out  -    the endpoint is not on this node");
    assert_eq!(outputs, [Egress::Endpoint { endpoint: "n.default-b".into(), port: "vvport3".into() }]);
}

/// A traced packet opens no connection; a forwarded one does.
#[test]
fn a_trace_leaves_no_connection() {
    let switch = node();
    let probe = Probe::resolve(&switch.objects(), &query(ip(3), 80)).unwrap();
    let state = |switch: &Switch| switch.trace(&probe).steps[2].connection.unwrap();
    assert_eq!([state(&switch), state(&switch)], [ConnectionState::New; 2]);
    assert_eq!(switch.deliver(&probe.frame(), &Origin::Pod("vvport2".into())).len(), 1);
    assert_eq!(state(&switch), ConnectionState::Established);
}
