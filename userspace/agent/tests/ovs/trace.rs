//! Traces by `ofproto/trace`: stages, rules and ports, and that nothing changes.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use contiv_model::{
    global::ArpMode,
    tag::Encap,
    trace::{self, Egress, Query, Stage, Verdict},
};
use netplugin::datapath::{
    Backend, Datapath as _, Local, Network, Object, Scope, Service,
    trace::{Findings, Probe},
};
use testkit::needs;

use crate::{
    node::{Node, addresses, network, remote, spread, vlan, vtep, vxlan},
    traced::{self, GROUP, summary},
};

/// A packet to pod `to`.
fn query(ingress: trace::Ingress, from: u8, to: u8, port: u16, v6: bool) -> Query {
    let address = |n: u8| -> IpAddr {
        let (ip, ip6) = addresses(n);
        if v6 { ip6.into() } else { ip.into() }
    };
    traced::query(ingress, address(from), address(to), port)
}

fn of_pod(network: &Network, n: u8) -> trace::Ingress {
    trace::Ingress::Endpoint(format!("{}-pod{n}", network.id))
}

fn follow(node: &Node, query: &Query) -> Result<Findings> {
    let probe = Probe::resolve(&node.desired.borrow(), query)?;
    let trace = node.datapath.borrow().trace(probe);
    Ok(node.runtime.block_on(trace)?)
}

fn join_group(node: &Node, pod: &Object) -> Result<()> {
    if let Object::Local(local) = pod {
        node.add([Object::Local(Local { identity: Some(GROUP.try_into()?), ..local.clone() })])?;
    }
    Ok(())
}

fn packets_between_two_nodes(label: &str, encap: Encap) -> Result<()> {
    let nodes = Node::pair(label)?;
    let blue = network("blue", encap, ArpMode::Proxy);
    for node in &nodes {
        node.converge()?;
        node.add([Object::Network(blue.clone()), Object::Group(traced::group()?)])?;
    }
    let (one, two) = (spread(&nodes, 0, &blue, 1)?, spread(&nodes, 0, &blue, 2)?);
    let three = spread(&nodes, 1, &blue, 3)?;
    // On a VLAN the switch learns where the pods are.
    one.reaches(3)?;
    two.reaches(3)?;
    for (node, pod) in [(0, &one), (0, &two), (1, &three)] {
        join_group(&nodes[node], &pod.object)?;
    }
    let before = nodes[0].tables()?;
    let to_two = Egress::Endpoint { endpoint: format!("{}-pod2", blue.id), port: "vvport2".into() };
    for v6 in [false, true] {
        let local = |port| query(of_pod(&blue, 1), 1, 2, port, v6);
        let findings = follow(&nodes[0], &local(80))?;
        let (steps, outputs) = summary(&findings);
        assert_eq!(
            steps,
            [
                "guard       pass",
                "service     -",
                "connection  pass new",
                "policy out  pass no rule matches",
                "policy in   pass rule web-in",
                "forward     pass",
            ],
            "{findings:#?}"
        );
        assert_eq!(outputs, std::slice::from_ref(&to_two));
        for (port, last) in
            [(22, "policy in   drop rule no-ssh-in"), (23, "policy out  drop rule no-telnet-out")]
        {
            let (steps, outputs) = summary(&follow(&nodes[0], &local(port))?);
            assert_eq!((steps.last().unwrap().as_str(), outputs), (last, vec![]), "{steps:#?}");
        }

        // To the other node, and there.
        let findings = follow(&nodes[0], &query(of_pod(&blue, 1), 1, 3, 80, v6))?;
        let (steps, outputs) = summary(&findings);
        assert_eq!(steps[4], "policy in   -    the endpoint is not on this node");
        let (leaves, arrives) = match encap {
            Encap::Vxlan { vni, .. } => {
                (Egress::Tunnel { vtep: vtep(1), vni }, trace::Ingress::Tunnel { vtep: vtep(0), vni })
            }
            Encap::Vlan(vlan) => (Egress::Uplink { vlan }, trace::Ingress::Uplink { vlan }),
        };
        assert_eq!(outputs, [leaves], "{findings:#?}");
        let findings = follow(&nodes[1], &query(arrives, 1, 3, 80, v6))?;
        let (steps, outputs) = summary(&findings);
        assert_eq!(
            steps[3..],
            [
                "policy out  -    the endpoint is not on this node",
                "policy in   pass rule web-in",
                "forward     pass"
            ]
        );
        assert!(matches!(&outputs[..], [Egress::Endpoint { endpoint, .. }] if endpoint.ends_with("pod3")));

        // An address of another pod.
        let forged = follow(&nodes[0], &query(of_pod(&blue, 1), 2, 3, 80, v6))?;
        assert_eq!(forged.steps.len(), 1, "{forged:#?}");
        let step = &forged.steps[0];
        assert_eq!((step.stage, step.verdict), (Stage::Guard, Verdict::Drop));
        assert!(step.details.iter().any(|line| line.starts_with("table 13")), "{step:#?}");
    }
    // The packets were not counted.
    assert_eq!(nodes[0].tables()?, before);
    let telemetry = nodes[0].datapath.borrow().telemetry().unwrap();
    let counters = nodes[0]
        .runtime
        .block_on(async { tokio::task::spawn_blocking(move || telemetry.counters()).await })??;
    assert_eq!(counters.rules, []);
    Ok(())
}

#[test]
fn packets_are_followed_on_vxlan() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    packets_between_two_nodes("trx", vxlan(5000))
}

#[test]
fn packets_are_followed_on_vlan() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    packets_between_two_nodes("trl", vlan(100))
}

#[test]
fn what_prevents_a_trace_is_named() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("trf", &[])?;
    node.converge()?;
    let (blue, green) =
        (network("blue", vxlan(5000), ArpMode::Proxy), network("green", vlan(9), ArpMode::Proxy));
    node.add([Object::Network(blue.clone()), Object::Network(green.clone())])?;
    let _pod = node.run_pod(&blue, 1)?;
    node.desired.borrow_mut().insert(remote(&blue, 3, Some(vtep(1))));
    let text = |query: &Query| {
        let error = follow(&node, query).unwrap_err();
        format!("{error:#}")
    };
    let Encap::Vxlan { vni, .. } = blue.encap else { unreachable!() };
    let stranger = trace::Ingress::Tunnel { vtep: [192, 0, 2, 1].into(), vni };
    let why = text(&query(stranger, 3, 1, 80, false));
    assert!(why.contains("VTEP 192.0.2.1 is not a node of the cluster"), "{why}");
    let why = text(&query(trace::Ingress::Uplink { vlan: 9.try_into()? }, 3, 1, 80, false));
    assert!(why.contains("set --vlan-uplinks"), "{why}");
    node.switch.borrow_mut().kill_vswitchd()?;
    let why = text(&query(of_pod(&blue, 1), 1, 3, 80, false));
    assert!(why.contains("ovs-vswitchd.") && why.contains(".ctl"), "{why}");
    Ok(())
}

/// Port 0 is what the switch reads of a truncated header.
#[test]
fn what_looks_misread_is_named() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("trm", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone())])?;
    let _pods = [node.run_pod(&blue, 1)?, node.run_pod(&blue, 2)?];
    let mut query = query(of_pod(&blue, 1), 1, 2, 0, false);
    query.source_port = 0;
    let findings = follow(&node, &query)?;
    let step = findings.steps.last().unwrap();
    assert_eq!(
        (step.stage, step.verdict, step.reason.as_str()),
        (Stage::Guard, Verdict::Drop, "it looks like a packet that the switch misreads")
    );
    Ok(())
}

/// `ofproto/trace` ends where the datapath selects a backend, which is no drop.
#[test]
fn a_backend_that_the_datapath_selects_is_reported() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let vip = Ipv4Addr::new(10, 1, 0, 200);
    let node = Node::new("trs", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone())])?;
    let _pods = [node.run_pod(&blue, 1)?, node.run_pod(&blue, 2)?];
    let service = Service {
        ports: vec!["80:8080:TCP".parse()?],
        backends: vec![Backend::on(blue.encap, addresses(2).0)],
        ..Service::new("web:net", Scope::network(&blue), vip)
    };
    node.add([Object::Service(service.clone())])?;
    let to = Query { destination: vip.into(), ..query(of_pod(&blue, 1), 1, 1, 80, false) };
    let error = format!("{:#}", follow(&node, &to).unwrap_err());
    assert!(error.contains("use the address and port of a backend"), "{error}");
    // Without a backend the agent answers.
    node.add([Object::Service(Service { backends: vec![], ..service })])?;
    let (steps, outputs) = summary(&follow(&node, &to)?);
    assert_eq!(steps, ["guard       pass", "service     drop service web:net, no-backend"]);
    assert_eq!(outputs, [Egress::Answer]);
    Ok(())
}
