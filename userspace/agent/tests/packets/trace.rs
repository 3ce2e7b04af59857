//! Traces: the stages, rules and ports of a frame, and that nothing changes and nothing is sent.

use std::net::IpAddr;

use anyhow::Result;
use contiv_abi::{TRACED_COPIES, maps::METERS};
use contiv_model::{
    group::Rate,
    mac::Mac,
    policy::{Action, Direction, ICMP, Rule},
    service::Readiness,
    tag::Encap,
    trace::{self, Egress, Query, Stage, Verdict},
};
use netplugin::datapath::{
    Backend, Datapath as _, Gateway, Group, Local, Network, Object, Remote, Scope, Service, Subnet,
    trace::{Findings, Probe},
};
use testkit::{capture::Tap, needs};

use crate::{
    node::{Endpoint, Node, Pod, network, runtime, vlan, vtep, vxlan},
    policy::{group, number, pod, rule},
    services::service,
    traced::{self, GROUP, summary},
};

const ONE: Endpoint = Endpoint(1);
const TWO: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
const GATEWAY: Endpoint = Endpoint(254);
const VIP: Endpoint = Endpoint(250);

/// A packet to endpoint `to`.
fn query(ingress: trace::Ingress, from: Endpoint, to: Endpoint, port: u16, v6: bool) -> Query {
    let address = |of: Endpoint| -> IpAddr { if v6 { of.ip6().into() } else { of.ip().into() } };
    traced::query(ingress, address(from), address(to), port)
}

fn of_pod(pod: &Pod) -> trace::Ingress {
    trace::Ingress::Endpoint(pod.local.id.to_string())
}

fn follow(node: &Node, query: &Query) -> Result<Findings> {
    let probe = Probe::resolve(&node.desired, query)?;
    node.ns.run(|| Ok(runtime()?.block_on(node.datapath.trace(probe))?))
}

/// Two pods of a node, an endpoint of another node, and the rules.
struct Rig {
    node: Node,
    blue: Network,
    one: Pod,
    two: Pod,
}

impl Rig {
    fn new(mut node: Node, encap: Encap) -> Result<Rig> {
        let blue = network("blue.t", encap);
        let there = matches!(encap, Encap::Vxlan { .. }).then(|| vtep(2));
        let far = Remote { identity: Some(number(3)), ..FAR.remote(&blue, there) };
        node.want_network(&blue).want_peer(2).want(Object::Remote(far)).want(Object::Group(traced::group()?));
        let (one, two) = (pod(&mut node, &blue, ONE, GROUP)?, pod(&mut node, &blue, TWO, GROUP)?);
        node.converge()?;
        Ok(Rig { node, blue, one, two })
    }

    fn to(&self, pod: &Pod) -> Egress {
        Egress::Endpoint { endpoint: pod.local.id.to_string(), port: pod.local.port.clone() }
    }

    /// The steps and outputs of a packet from the first pod.
    fn send(&self, to: Endpoint, port: u16, v6: bool) -> Result<(Vec<String>, Vec<Egress>)> {
        Ok(summary(&follow(&self.node, &query(of_pod(&self.one), ONE, to, port, v6))?))
    }
}

fn packets_of_one_node(rig: &Rig, v6: bool) -> Result<()> {
    let (steps, outputs) = rig.send(TWO, 80, v6)?;
    let passed = [
        "guard       pass",
        "service     -",
        "connection  pass new",
        "policy out  pass no rule matches",
        "policy in   pass rule web-in",
        "forward     pass",
    ];
    assert_eq!((&steps[..], outputs), (&passed.map(str::to_owned)[..], vec![rig.to(&rig.two)]));
    for (port, last) in [(22, "policy in   drop rule no-ssh-in"), (23, "policy out  drop rule no-telnet-out")]
    {
        let (steps, outputs) = rig.send(TWO, port, v6)?;
        assert_eq!((steps.last().unwrap().as_str(), outputs), (last, vec![]), "{steps:#?}");
    }
    // An address of another pod.
    let forged = follow(&rig.node, &query(of_pod(&rig.one), TWO, FAR, 80, v6))?;
    let steps: Vec<_> = forged.steps.iter().map(|step| (step.stage, step.verdict)).collect();
    assert_eq!(steps, [(Stage::Guard, Verdict::Drop)], "{forged:#?}");
    assert_eq!(forged.steps[0].reason, "spoofed-ip");
    Ok(())
}

fn packets_between_nodes(rig: &Rig, v6: bool) -> Result<()> {
    let (leaves, arrives) = match rig.blue.encap {
        Encap::Vxlan { vni, .. } => {
            let there = IpAddr::from(vtep(2));
            (Egress::Tunnel { vtep: there, vni }, trace::Ingress::Tunnel { vtep: there, vni })
        }
        Encap::Vlan(vlan) => (Egress::Uplink { vlan }, trace::Ingress::Uplink { vlan }),
    };
    let (steps, outputs) = rig.send(FAR, 80, v6)?;
    assert_eq!(steps[4], "policy in   -    the endpoint is not on this node");
    assert_eq!(outputs, [leaves]);
    let arrived = query(arrives, FAR, TWO, 80, v6);
    let (steps, outputs) = summary(&follow(&rig.node, &arrived)?);
    assert_eq!(
        steps[3..],
        [
            "policy out  -    the endpoint is not on this node",
            "policy in   pass rule web-in",
            "forward     pass"
        ]
    );
    assert_eq!(outputs, [rig.to(&rig.two)]);
    let denied = summary(&follow(&rig.node, &Query { destination_port: 22, ..arrived })?);
    assert_eq!((denied.0.last().unwrap().as_str(), denied.1), ("policy in   drop rule no-ssh-in", vec![]));
    Ok(())
}

fn packets_are_followed(node: Node, encap: Encap) -> Result<()> {
    let mut rig = Rig::new(node, encap)?;
    let writes = rig.node.datapath.writes();
    for v6 in [false, true] {
        packets_of_one_node(&rig, v6)?;
        packets_between_nodes(&rig, v6)?;
    }
    // Nothing was counted or remembered.
    assert_eq!(rig.node.drops()?, [].into());
    let counters = rig.node.datapath.counters()?;
    assert_eq!((counters.rules, rig.node.datapath.writes()), (vec![], writes));
    // A pod's kernel may have sent a multicast, which has a meter.
    let tables = counters.tables.iter().filter(|usage| usage.table != METERS);
    let used: Vec<_> = tables.filter(|usage| usage.entries != 0).collect();
    assert!(used.is_empty(), "{used:?}");
    // A rate delays the packet, which goes on after its time.
    let slow = Rate { bits_per_second: 1_000_000, burst_bytes: 100_000 };
    rig.node.want(Object::Group(Group { rate: Some(slow), ..traced::group()? }));
    rig.node.converge()?;
    let (steps, outputs) = rig.send(TWO, 80, false)?;
    assert_eq!((steps.len(), outputs), (6, vec![rig.to(&rig.two)]), "{steps:#?}");
    Ok(())
}

#[test]
fn packets_are_followed_on_vxlan() -> Result<()> {
    needs!(root());
    packets_are_followed(Node::new("trace-x")?, vxlan(5000))
}

#[test]
fn packets_are_followed_on_vlan() -> Result<()> {
    needs!(root());
    let (node, _outside) = Node::on_wire("trace-l")?;
    packets_are_followed(node, vlan(100))
}

#[test]
fn copies_are_listed_and_not_sent() -> Result<()> {
    needs!(root());
    let rig = Rig::new(Node::new("trace-b")?, vxlan(5000))?;
    let tap = Tap::open(&rig.two.ns, "eth0")?;
    let everyone = Query {
        destination: [255; 4].into(),
        protocol: 17,
        destination_port: 67,
        ..query(of_pod(&rig.one), ONE, TWO, 0, false)
    };
    let (steps, outputs) = summary(&follow(&rig.node, &everyone)?);
    let Encap::Vxlan { vni, .. } = rig.blue.encap else { unreachable!() };
    let tunnel = Egress::Tunnel { vtep: vtep(2).into(), vni };
    assert_eq!(outputs, [rig.to(&rig.two), tunnel], "{steps:#?}");
    // The kernels of the pods send multicasts of IPv6.
    let came: Vec<_> = tap.drain()?.into_iter().filter(|frame| frame.bytes[12..14] == [8, 0]).collect();
    assert!(came.is_empty(), "{came:?}");
    Ok(())
}

#[test]
fn copies_that_are_not_recorded_are_counted() -> Result<()> {
    needs!(root());
    const PEERS: u8 = 70;
    let mut node = Node::new("trace-m")?;
    let blue = network("blue.t", vxlan(5000));
    node.want_network(&blue);
    for n in 2..2 + PEERS {
        node.want_peer(n);
    }
    let one = node.pod(&blue, ONE)?;
    node.converge()?;
    let everyone = Query { destination: [255; 4].into(), ..query(of_pod(&one), ONE, TWO, 9, false) };
    let findings = follow(&node, &everyone)?;
    let omitted = u32::from(PEERS) - TRACED_COPIES as u32;
    assert_eq!((findings.outputs.len(), findings.omitted_copies), (TRACED_COPIES, omitted), "{findings:#?}");
    let details = &findings.steps.last().unwrap().details;
    assert!(details.contains(&format!("{omitted} more copies")), "{details:?}");
    Ok(())
}

#[test]
fn a_broadcast_without_receivers_is_no_delivery() -> Result<()> {
    needs!(root());
    let mut node = Node::new("trace-n")?;
    let blue = network("blue.t", vxlan(5000));
    node.want_network(&blue);
    let one = node.pod(&blue, ONE)?;
    node.converge()?;
    let everyone = Query { destination: [255; 4].into(), ..query(of_pod(&one), ONE, TWO, 9, false) };
    let (steps, outputs) = summary(&follow(&node, &everyone)?);
    assert_eq!(
        (steps.last().unwrap().as_str(), outputs),
        ("forward     drop no receiver", vec![]),
        "{steps:#?}"
    );
    Ok(())
}

#[test]
fn backends_and_refusals_are_named() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new(Node::new("trace-s")?, vxlan(5000))?;
    let empty = service(VIP.ip().into(), &[]);
    let ready = service(VIP.ip().into(), &[(TWO.ip().into(), Readiness::Ready)]);
    let on_blue = |service: Service| {
        let blue = &rig.blue;
        let mut backends = service.backends.clone();
        for backend in &mut backends {
            *backend = Backend::on(blue.encap, backend.ip);
        }
        let scope = Scope::network(blue);
        Object::Service(Service { scope, backends, ..service })
    };
    let (empty, ready) = (on_blue(empty), on_blue(ready));
    rig.node.want(empty);
    rig.node.converge()?;
    let (steps, outputs) = rig.send(VIP, 80, false)?;
    assert_eq!(steps, ["guard       pass", "service     drop service web:t, no-backend"]);
    assert_eq!(outputs, [Egress::Answer]);
    rig.node.want(ready);
    rig.node.converge()?;
    let findings = follow(&rig.node, &query(of_pod(&rig.one), ONE, VIP, 80, false))?;
    let (steps, outputs) = summary(&findings);
    let backend = format!("service     pass service web:t, backend {}:8080", TWO.ip());
    assert_eq!((steps[1].as_str(), outputs), (backend.as_str(), vec![rig.to(&rig.two)]), "{findings:#?}");
    let packet = findings.outputs[0].packet.as_ref().unwrap();
    assert_eq!((packet.destination, packet.destination_port), (IpAddr::from(TWO.ip()), 8080));
    Ok(())
}

#[test]
fn the_rule_that_denies_a_ping_of_the_gateway_is_named() -> Result<()> {
    needs!(root());
    let mut node = Node::new("trace-g")?;
    let blue = network("blue.t", vxlan(5000));
    node.want_network(&blue);
    node.want(Object::Subnet(Subnet {
        network: blue.id.clone(),
        vrf: blue.vrf.clone(),
        encap: blue.encap,
        prefix: "10.1.1.0/24".parse()?,
        gateway: Some(Gateway { ip: GATEWAY.ip().into(), mac: Some(Mac::ROUTER) }),
    }));
    let one = pod(&mut node, &blue, ONE, GROUP)?;
    node.converge()?;
    let ping = Query { protocol: ICMP, ..query(of_pod(&one), ONE, GATEWAY, 0, false) };
    let (steps, outputs) = summary(&follow(&node, &ping)?);
    assert_eq!(steps[3], "policy out  pass no rule matches", "{steps:#?}");
    assert_eq!((steps.len(), outputs), (6, vec![Egress::Answer]), "{steps:#?}");
    let deny = Rule { protocol: Some(ICMP), ..rule("no-icmp-out", Direction::Out, Action::Deny, 2) };
    node.want(Object::Group(group(GROUP, vec![deny])));
    node.converge()?;
    let (steps, outputs) = summary(&follow(&node, &ping)?);
    let last = steps.last().unwrap().as_str();
    assert_eq!((last, outputs), ("policy out  drop rule no-icmp-out", vec![]), "{steps:#?}");
    Ok(())
}

#[test]
fn what_prevents_a_trace_is_named() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new(Node::new("trace-f")?, vxlan(5000))?;
    let green = network("green.t", vlan(9));
    rig.node.want_network(&green);
    rig.node.converge()?;
    let why = |query: &Query| format!("{:#}", follow(&rig.node, query).unwrap_err());
    let text = why(&query(trace::Ingress::Uplink { vlan: 9.try_into()? }, FAR, ONE, 80, false));
    assert!(text.contains("set --vlan-uplinks"), "{text}");
    // It is not attached yet.
    let local = Local { port: "vvport9".into(), id: "blue.t-9".into(), ..rig.one.local.clone() };
    let probe = Probe::resolve(
        &[Object::Network(rig.blue.clone()), Object::Local(local)].into_iter().collect(),
        &query(trace::Ingress::Endpoint("blue.t-9".into()), ONE, TWO, 80, false),
    )?;
    let failed = rig.node.ns.run(|| Ok(runtime()?.block_on(rig.node.datapath.trace(probe))));
    let text = format!("{:#}", anyhow::Error::from(failed?.unwrap_err()));
    assert!(text.contains("endpoint blue.t-9 has no interface on this node"), "{text}");
    Ok(())
}
