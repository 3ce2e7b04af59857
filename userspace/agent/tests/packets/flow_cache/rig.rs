//! A node for tests of the flow cache.

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
/// Limit for the creation of an entry: the third packet of a second at the latest, unless the second ends meanwhile.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Pins the thread to one CPU, because the flow cache is per CPU.
pub(crate) fn stay() -> Result<()> {
    let mut first = CpuSet::new();
    first.set(0)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &first)?)
}

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
        stay()?;
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

    /// Entries with counters that are not flushed.
    pub(crate) fn pending(&self) -> Result<Vec<FlowCacheEntry>> {
        pending(&self.node)
    }

    /// Number of packets that used existing entries.
    pub(crate) fn cached(&self) -> Result<u64> {
        Ok(self.pending()?.iter().map(|entry| entry.packets).sum())
    }

    /// Sends packets of a flow until one has used the flow cache, and checks each result. `packets` returns the next
    /// packet as sent and as received. Returns the number of packets.
    pub(crate) fn until_cached(
        &self,
        from: Endpoint,
        packets: impl Fn(u32) -> (Packet, Packet),
    ) -> Result<u64> {
        let started = Instant::now();
        let mut count = 0;
        loop {
            let before = self.cached()?;
            for _ in 0..4 {
                let (sent, arrives) = packets(count as u32);
                self.becomes(from, &sent, &arrives);
                count += 1;
            }
            if self.cached()? > before {
                return Ok(count);
            }
            ensure!(started.elapsed() < TIMEOUT, "{count} packets, and none of them used the flow cache");
        }
    }

    /// Sends packets of a flow, none of which may use the flow cache.
    pub(crate) fn never_cached(&self, from: Endpoint, sent: &Packet, arrives: &Packet) -> Result<()> {
        for _ in 0..20 {
            let before = self.cached()?;
            self.becomes(from, sent, arrives);
            ensure!(self.cached()? <= before, "a packet used the flow cache");
        }
        Ok(())
    }

    pub(crate) fn flow(&self, port: u16) -> Result<(FlowKey, Flow)> {
        let flows = flows(&self.node)?;
        let of_port = |key: &FlowKey| key.low_port.get() == port || key.high_port.get() == port;
        let found = flows.into_iter().find(|(key, flow)| of_port(key) && flow.flags & Flow::FORWARD_NAT == 0);
        found.with_context(|| format!("no flow with port {port}"))
    }

    /// Packets and bytes in both directions, from the flow and its cache entries.
    pub(crate) fn counts(&self, port: u16) -> Result<[(u64, u64); 2]> {
        let (key, flow) = self.flow(port)?;
        let mut sums = [0, 1].map(|side| (flow.packets[side], flow.bytes[side]));
        for entry in self.pending()?.iter().filter(|entry| entry.flow == key) {
            let sum = &mut sums[entry.side as usize];
            *sum = (sum.0 + entry.packets, sum.1 + entry.bytes);
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

pub(crate) fn pending(node: &Node) -> Result<Vec<FlowCacheEntry>> {
    let pin = node.datapath.maps_directory().join(FLOW_CACHE);
    let map: PerCpuArray<MapData, FlowCacheEntry> =
        Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
    let mut found = vec![];
    for place in 0..FLOW_CACHE_CAPACITY as u32 {
        found.extend(map.get(&place, 0)?.iter().filter(|entry| entry.packets != 0));
    }
    Ok(found)
}
