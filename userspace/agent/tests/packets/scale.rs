//! As many services as a large cluster has. `cargo xtask bench lb` measures their cost.

use std::net::Ipv4Addr;

use anyhow::Result;
use contiv_model::service::{Port, Protocol};
use netplugin::datapath::{Backend, Datapath as _, Object, Op, Scope, Service};
use testkit::needs;

use crate::node::{Endpoint, Node, Pod, network, vtep, vxlan};

/// Services.
const COUNT: u32 = 30_000;
const HERE: Endpoint = Endpoint(1);
/// Remote backends of each service.
const BACKENDS: [Endpoint; 4] = [Endpoint(11), Endpoint(12), Endpoint(13), Endpoint(14)];
/// First service address; the others follow.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 64, 0, 0);

fn vip(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(FIRST) + number)
}

/// The services share no backends, because their target ports differ.
fn service(number: u32) -> Object {
    let encap = vxlan(10_001);
    let scope = Scope::network(&network("n1.t", encap));
    Object::Service(Service {
        ports: vec![Port { protocol: Protocol::Tcp, port: 80, target: 1000 + number as u16 }],
        backends: BACKENDS.iter().map(|endpoint| Backend::on(encap, endpoint.ip())).collect(),
        ..Service::new(format!("s{number}:t"), scope, vip(number))
    })
}

fn node(label: &str) -> Result<(Node, Pod)> {
    let mut node = Node::with(label, |options| options.sizes.services = COUNT)?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1).want_peer(2);
    for endpoint in BACKENDS {
        node.want(Object::Remote(endpoint.remote(&n1, Some(vtep(2)))));
    }
    let pod = node.pod(&n1, HERE)?;
    node.converge()?;
    Ok((node, pod))
}

#[test]
fn thirty_thousand_services_fit_and_are_adopted_after_a_restart() -> Result<()> {
    needs!(root());
    let (mut node, _pod) = node("svc-many")?;
    let ops: Vec<Op> = (0..COUNT).map(|n| Op::Set(service(n))).collect();
    assert!(node.apply(&ops)?.is_empty());
    for op in ops {
        let Op::Set(object) = op else { continue };
        node.want(object);
    }
    node.restart();
    let observed = node.observe()?;
    assert_eq!((observed.in_sync.len(), observed.orphans), (node.desired.len(), 0));
    // The cost of a change depends on the change, not on the number of services.
    let Object::Service(mut changed) = service(COUNT - 1) else { unreachable!() };
    changed.backends.pop();
    assert!(node.apply(&[Op::Set(Object::Service(changed))])?.is_empty());
    assert_eq!(node.datapath.writes(), 1);
    Ok(())
}
