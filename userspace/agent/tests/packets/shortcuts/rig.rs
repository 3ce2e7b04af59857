//! A node whose packets may take shortcuts.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData, PerCpuArray};
use contiv_abi::{
    Flow, FlowCacheEntry, FlowKey, TimedFlow,
    maps::{FLOW_CACHE, FLOW_CACHE_CAPACITY, FLOWS, FROM_POD, FROM_QUEUE, FROM_UPLINK},
};
use contiv_model::{group::Rate, service::Readiness};
use netplugin::datapath::{Group, Object, Op, Scope};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};
use testkit::{Netns, packet::Packet};

use crate::{
    node::{Node, Pod, Who, network, vlan, vtep, vxlan},
    policy::{group, pod},
    run::{Code, Target},
    services::service,
};

pub(crate) const HERE: Who = Who(1);
pub(crate) const OTHER: Who = Who(2);
pub(crate) const FAR: Who = Who(3);
pub(crate) const VIP: Who = Who(250);
/// Of the network of a VLAN.
pub(crate) const TAG: u16 = 100;
/// A shortcut is made of the third packet of a second at the latest, unless a second ends meanwhile.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// What is known of flows is each processor's own.
pub(crate) fn stay() -> Result<()> {
    let mut first = CpuSet::new();
    first.set(0)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &first)?)
}

/// Two pods of groups 1 and 2, a service of the second, and an endpoint on another node.
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
        stay()?;
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

    /// The first pod's packets come out of the queue of its group's rate.
    pub(crate) fn behind_queue(label: &str) -> Result<Rig> {
        let mut rig = Rig::new(label)?;
        let rate = Some(Rate { bits_per_second: 1_000_000_000, burst_bytes: 1_000_000 });
        rig.set(Object::Group(Group { rate, ..group(1, vec![]) }))?;
        let port = rig.node.ifindex(&rig.first.local.port)?;
        rig.here = Target::new(&rig.node, FROM_QUEUE, "contivq1")?.marked(port);
        Ok(rig)
    }

    /// The network is that of a VLAN; `HERE` is on the wire, and the first pod is somebody else.
    pub(crate) fn on_wire(label: &str, vip: IpAddr, backend: IpAddr) -> Result<Rig> {
        stay()?;
        let (mut node, outside) = Node::on_wire(label)?;
        let n1 = network("n1.t", vlan(TAG));
        let mut served = service(vip, &[(backend, Readiness::Ready)]);
        served.scope = Some(Scope { network: n1.id.clone(), encap: n1.encap });
        served.backends[0].encap = n1.encap;
        node.want_network(&n1).want(Object::Remote(HERE.remote(&n1, None))).want(Object::Service(served));
        let (first, second) = (pod(&mut node, &n1, Who(4), 1)?, pod(&mut node, &n1, OTHER, 2)?);
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

    pub(crate) fn serve(&mut self, backends: &[(Who, Readiness)]) -> Result<()> {
        let backends: Vec<_> = backends.iter().map(|(who, is)| (who.ip().into(), *is)).collect();
        self.set(Object::Service(service(VIP.ip().into(), &backends)))
    }

    pub(crate) fn give(&self, from: Who, packet: &Packet) -> Result<(Code, Vec<u8>)> {
        let target = if from == HERE { &self.here } else { &self.other };
        self.node.ns.run(|| target.give(&packet.build()))
    }

    #[track_caller]
    pub(crate) fn becomes(&self, from: Who, sent: &Packet, arrives: &Packet) {
        let (code, bytes) = self.give(from, sent).unwrap();
        assert_eq!(
            (code, bytes),
            (Code::Redirect, arrives.build()),
            "left: what came, right: what should have"
        );
    }

    /// What is not counted with its flow yet.
    pub(crate) fn uncounted(&self) -> Result<Vec<FlowCacheEntry>> {
        uncounted(&self.node)
    }

    /// How many packets have taken shortcuts since they were made.
    pub(crate) fn taken(&self) -> Result<u64> {
        Ok(self.uncounted()?.iter().map(|shortcut| shortcut.packets).sum())
    }

    /// Sends packets of a flow until one has taken a shortcut; each has to arrive as it should. `packets` makes the next
    /// one, and what it is to become. Returns how many there were.
    pub(crate) fn until_taken(&self, from: Who, packets: impl Fn(u32) -> (Packet, Packet)) -> Result<u64> {
        let started = Instant::now();
        let mut count = 0;
        loop {
            let before = self.taken()?;
            for _ in 0..4 {
                let (sent, arrives) = packets(count as u32);
                self.becomes(from, &sent, &arrives);
                count += 1;
            }
            if self.taken()? > before {
                return Ok(count);
            }
            ensure!(started.elapsed() < SOON, "{count} packets, and none of them took a shortcut");
        }
    }

    /// A packet that comes just after one has taken a shortcut of the same flow takes it, too, unless the second has ended.
    pub(crate) fn never_taken(&self, from: Who, sent: &Packet, arrives: &Packet) -> Result<()> {
        for _ in 0..20 {
            let before = self.taken()?;
            self.becomes(from, sent, arrives);
            ensure!(self.taken()? <= before, "a packet has taken a shortcut");
        }
        Ok(())
    }

    pub(crate) fn flow(&self, port: u16) -> Result<(FlowKey, Flow)> {
        let flows = flows(&self.node)?;
        let of_port = |key: &FlowKey| key.low_port.get() == port || key.high_port.get() == port;
        let found = flows.into_iter().find(|(key, flow)| of_port(key) && flow.flags & Flow::FORWARD_NAT == 0);
        found.with_context(|| format!("no flow with port {port}"))
    }

    /// Packets and bytes in both directions, wherever they are counted.
    pub(crate) fn counts(&self, port: u16) -> Result<[(u64, u64); 2]> {
        let (key, flow) = self.flow(port)?;
        let mut sums = [0, 1].map(|side| (flow.packets[side], flow.bytes[side]));
        for shortcut in self.uncounted()?.iter().filter(|shortcut| shortcut.flow == key) {
            let sum = &mut sums[shortcut.side as usize];
            *sum = (sum.0 + shortcut.packets, sum.1 + shortcut.bytes);
        }
        Ok(sums)
    }
}

pub(crate) fn flows(node: &Node) -> Result<Vec<(FlowKey, Flow)>> {
    let pin = node.datapath.maps_directory().join(FLOWS);
    let map: HashMap<MapData, FlowKey, TimedFlow> =
        Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
    let entries = map.iter().collect::<Result<Vec<_>, _>>()?;
    Ok(entries.into_iter().map(|(key, timed)| (key, timed.flow)).collect())
}

pub(crate) fn uncounted(node: &Node) -> Result<Vec<FlowCacheEntry>> {
    let pin = node.datapath.maps_directory().join(FLOW_CACHE);
    let map: PerCpuArray<MapData, FlowCacheEntry> =
        Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
    let mut found = vec![];
    for place in 0..FLOW_CACHE_CAPACITY as u32 {
        found.extend(map.get(&place, 0)?.iter().filter(|shortcut| shortcut.packets != 0));
    }
    Ok(found)
}
