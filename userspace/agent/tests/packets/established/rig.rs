//! A node for tests of established flows.

use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use contiv_abi::{
    Flow,
    maps::{FROM_POD, FROM_QUEUE, FROM_UPLINK},
};
use contiv_model::{group::Rate, service::Readiness};
use netplugin::datapath::{Group, Object, Op, Scope};
use testkit::{Netns, packet::Packet};

use crate::{
    flow_table::flows,
    node::{Endpoint, Node, Pod, network, vlan, vtep, vxlan},
    policy::{group, pod},
    run::{Code, Target},
    services::service,
};

pub(crate) const HERE: Endpoint = Endpoint(1);
pub(crate) const OTHER: Endpoint = Endpoint(2);
pub(crate) const FAR: Endpoint = Endpoint(3);
pub(crate) const VIP: Endpoint = Endpoint(250);
/// VLAN id of the network.
pub(crate) const TAG: u16 = 100;

/// Two pods in groups 1 and 2, a service with the second as backend, and an endpoint on another node.
pub(crate) struct Rig {
    pub(crate) here: Target,
    pub(crate) other: Target,
    pub(crate) first: Pod,
    pub(crate) second: Pod,
    pub(crate) node: Node,
    /// The other end of the uplink, if there is one.
    _outside: Option<Netns>,
}

impl Rig {
    pub(crate) fn new(label: &str) -> Result<Rig> {
        Rig::at(label, VIP.ip().into(), OTHER.ip().into())
    }

    pub(crate) fn at(label: &str, vip: IpAddr, backend: IpAddr) -> Result<Rig> {
        let mut node = Node::new(label)?;
        let n1 = network("n1.t", vxlan(10_001));
        node.want_network(&n1).want_peer(2).want(Object::Remote(FAR.remote(&n1, Some(vtep(2)))));
        node.want(Object::Service(service(vip, &[(backend, Readiness::Ready)])));
        let (first, second) = (pod(&mut node, &n1, HERE, 1)?, pod(&mut node, &n1, OTHER, 2)?);
        node.converge()?;
        let here = Target::new(&node, FROM_POD, &first.local.port)?;
        let other = Target::new(&node, FROM_POD, &second.local.port)?;
        Ok(Rig { here, other, first, second, node, _outside: None })
    }

    /// A rig whose first pod's packets are queued because of its group's rate.
    pub(crate) fn behind_queue(label: &str) -> Result<Rig> {
        let mut rig = Rig::new(label)?;
        let rate = Some(Rate { bits_per_second: 1_000_000_000, burst_bytes: 1_000_000 });
        rig.set(Object::Group(Group { rate, ..group(1, vec![]) }))?;
        let port = rig.node.ifindex(&rig.first.local.port)?;
        rig.here = Target::new(&rig.node, FROM_QUEUE, "contivq1")?.marked(port);
        Ok(rig)
    }

    /// A rig on a VLAN: `HERE` is an external endpoint, and the first pod is another endpoint.
    pub(crate) fn on_wire(label: &str, vip: IpAddr, backend: IpAddr) -> Result<Rig> {
        let (mut node, outside) = Node::on_wire(label)?;
        let n1 = network("n1.t", vlan(TAG));
        let mut served = service(vip, &[(backend, Readiness::Ready)]);
        served.scope = Scope::network(&n1);
        served.backends[0].encap = Some(n1.encap);
        node.want_network(&n1).want(Object::Remote(HERE.remote(&n1, None))).want(Object::Service(served));
        let (first, second) = (pod(&mut node, &n1, Endpoint(4), 1)?, pod(&mut node, &n1, OTHER, 2)?);
        node.converge()?;
        let here = Target::new(&node, FROM_UPLINK, "trunk")?;
        let other = Target::new(&node, FROM_POD, &second.local.port)?;
        Ok(Rig { here, other, first, second, node, _outside: Some(outside) })
    }

    pub(crate) fn set(&mut self, object: Object) -> Result<()> {
        self.node.want(object.clone());
        let failed = self.node.apply(&[Op::Set(object)])?;
        ensure!(failed.is_empty(), "{failed:?}");
        Ok(())
    }

    pub(crate) fn serve(&mut self, backends: &[(Endpoint, Readiness)]) -> Result<()> {
        let backends: Vec<_> = backends.iter().map(|(endpoint, is)| (endpoint.ip().into(), *is)).collect();
        self.set(Object::Service(service(VIP.ip().into(), &backends)))
    }

    pub(crate) fn give(&self, from: Endpoint, packet: &Packet) -> Result<(Code, Vec<u8>)> {
        let target = if from == HERE { &self.here } else { &self.other };
        self.node.ns.run(|| target.give(&packet.build()))
    }

    #[track_caller]
    pub(crate) fn becomes(&self, from: Endpoint, sent: &Packet, arrives: &Packet) {
        let (code, bytes) = self.give(from, sent).unwrap();
        assert_eq!((code, bytes), (Code::Redirect, arrives.build()), "left: received, right: expected");
    }

    /// Sends some packets of a flow and checks each result. `packets` returns the next packet as sent and as received.
    /// Returns the number of packets.
    #[track_caller]
    pub(crate) fn repeat(&self, from: Endpoint, packets: impl Fn(u32) -> (Packet, Packet)) -> u64 {
        const COUNT: u32 = 8;
        for number in 0..COUNT {
            let (sent, arrives) = packets(number);
            self.becomes(from, &sent, &arrives);
        }
        COUNT.into()
    }

    /// The flow from this port.
    pub(crate) fn flow(&self, port: u16) -> Result<Flow> {
        let found = flows(&self.node)?.into_iter().find(|flow| flow.client_port.get() == port);
        found.with_context(|| format!("no flow from port {port}"))
    }

    /// Packets and bytes in both directions.
    pub(crate) fn counts(&self, port: u16) -> Result<[(u64, u64); 2]> {
        Ok(self.flow(port)?.halves.map(|half| (half.packets, half.bytes)))
    }
}
