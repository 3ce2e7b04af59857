//! A node that is configured with one cluster after the other.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use netplugin::{
    datapath::{
        Desired, ObjectId, Op,
        fake::{Delivery, Origin},
    },
    reconcile::ordered,
};
use testkit::packet::Packet;

use crate::{
    cluster::{Cluster, NETWORKS, PODS, REMOTES, Stage, address, is_vlan, mac, port},
    exclusions,
    node::harness::{Difference, Harness},
    packet::{Sent, far, id_of, on_wire},
};

const SOON: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_micros(100);
/// Markers are ARP requests, which rules do not apply to, for addresses that begin so (RFC 2544).
const MARKED: [u8; 2] = [198, 18];
/// A station that no network has.
const STRANGER: ([u8; 6], [u8; 4]) = ([2, 0xfe, 0, 0, 0, 1], [198, 19, 0, 1]);

pub(crate) struct Rig<H> {
    node: H,
    installed: Desired,
    markers: u16,
    ids: u32,
    /// Copies that have come after the exchange of their frames.
    late: Arrived,
    /// A change has failed, so the state of the node is unknown.
    suspect: bool,
}

/// The deliveries of each frame, by its number. Frames without a number are under `None`.
pub(crate) type Arrived = BTreeMap<Option<u32>, Vec<Delivery>>;

impl<H: Harness> Rig<H> {
    pub(crate) fn new() -> Result<Rig<H>> {
        let mut node = H::start()?;
        for pod in 0..PODS {
            node.plug(&port(pod))?;
        }
        let mut rig = Rig {
            node,
            installed: Desired::default(),
            markers: 0,
            ids: 0,
            late: Arrived::new(),
            suspect: true,
        };
        rig.set(Desired::default())?;
        Ok(rig)
    }

    /// A number for a frame.
    pub(crate) fn id(&mut self) -> u32 {
        self.ids += 1;
        self.ids
    }

    /// Changes the node to the desired state.
    pub(crate) fn set(&mut self, desired: Desired) -> Result<()> {
        if std::mem::replace(&mut self.suspect, true) {
            self.resync(&desired)?;
        } else {
            let changed = |id: &ObjectId| self.installed.get(id) != desired.get(id);
            let ids: BTreeSet<_> =
                self.installed.iter().chain(desired.iter()).map(|(id, _)| id).cloned().collect();
            let ids: BTreeSet<_> = ids.into_iter().filter(changed).collect();
            let ops = ordered(&ids, &desired);
            self.apply(&ops)?;
        }
        self.installed = desired;
        self.suspect = false;
        Ok(())
    }

    fn apply(&mut self, ops: &[Op]) -> Result<()> {
        let failed = self.node.apply(ops)?;
        ensure!(failed.is_empty(), "operations failed: {failed:?}");
        Ok(())
    }

    fn resync(&mut self, desired: &Desired) -> Result<()> {
        let observed = self.node.observe(desired)?;
        self.apply(&netplugin::reconcile::diff(desired, &observed))
    }

    /// Checks that the node has what was set, and nothing else.
    pub(crate) fn check(&mut self) -> Result<()> {
        let observed = self.node.observe(&self.installed)?;
        let missing: Vec<_> =
            self.installed.iter().map(|(id, _)| id).filter(|id| !observed.in_sync.contains(id)).collect();
        ensure!(missing.is_empty(), "not in place any more: {missing:?}");
        ensure!(observed.orphans == 0, "{} orphans", observed.orphans);
        Ok(())
    }

    /// Removes all connections.
    pub(crate) fn forget(&self) -> Result<()> {
        self.node.forget()
    }

    /// Makes all connections as old as if their last packets had come a second earlier.
    pub(crate) fn pass_second(&self) -> Result<()> {
        self.node.pass_second()
    }

    /// Waits until what the datapath has learned from frames is in effect.
    pub(crate) fn settle(&self) -> Result<()> {
        self.node.settle()
    }

    pub(crate) fn differs(&self, how: Difference) -> bool {
        H::DIFFERENCES.contains(&how)
    }

    /// Sends a frame from each endpoint of the VLANs, so that a learning bridge knows its port.
    pub(crate) fn introduce(&mut self, cluster: &Cluster, stage: Stage) -> Result<()> {
        if !self.differs(Difference::LearnsOnVlan) {
            return Ok(());
        }
        let mut origins = BTreeSet::new();
        for number in (0..NETWORKS).filter(|number| is_vlan(*number) && !cluster.is_on_node(*number)) {
            let pods = (1..=PODS as u8).filter_map(|last| Some((last, cluster.pod_at(number, last)?)));
            let here = pods.map(|(last, pod)| (last, Origin::Pod(port(pod))));
            let there = REMOTES.into_iter().filter(|last| cluster.is_remote(stage, number, *last));
            let there = there.map(|last| (last, Origin::Uplink));
            for (last, origin) in here.chain(there) {
                let source = station(number, last);
                let frame = on_wire(&origin, number, marker(source, [MARKED[0], MARKED[1], 0xff, 0xff]));
                self.node.emit(&origin, &frame)?;
                origins.insert(origin);
            }
        }
        let mut strays = self.wait(cluster, &origins, 1)?;
        if exclusions::answers_late::<H>() {
            strays.remove(&None);
        }
        ensure!(strays.is_empty(), "nothing was sent, and arrived: {strays:?}");
        self.settle()
    }

    /// Sends frames of different connections at once. Returns all copies that leave the node.
    pub(crate) fn exchange(&mut self, cluster: &Cluster, frames: &[&Sent]) -> Result<Arrived> {
        /// Frames that a switch takes from a port before it looks at the next one.
        const BATCH: usize = 32;
        for sent in frames {
            self.node.emit(&sent.from, &sent.bytes)?;
        }
        // No marker comes from the kernel.
        let from_kernel = frames.iter().filter(|sent| sent.from == Origin::Kernel).count();
        let rounds = 1 + from_kernel.div_ceil(BATCH);
        self.wait(cluster, &frames.iter().map(|sent| sent.from.clone()).collect(), rounds)
    }

    /// Waits until all frames from these origins are forwarded: those of an origin are in order, so all copies precede that of
    /// a marker. More markers follow the first one, because copies of one batch leave several ports in any order.
    fn wait(&mut self, cluster: &Cluster, origins: &BTreeSet<Origin>, rounds: usize) -> Result<Arrived> {
        let mut arrived = Arrived::new();
        let first: Vec<_> = origins.iter().map(|origin| self.marker_from(cluster, origin)).collect();
        let next = first.first().cloned();
        self.fence(first, &mut arrived)?;
        for (origin, frame, _) in std::iter::repeat_n(next, rounds).flatten() {
            // Same frame with another address.
            let text = self.marker_text();
            let at = frame.len() - text.len();
            let frame = [&frame[..at], &text[..]].concat();
            self.fence(vec![(origin, frame, text)], &mut arrived)?;
        }
        for deliveries in arrived.values_mut() {
            deliveries.sort();
        }
        Ok(arrived)
    }

    /// Returns copies of this frame that have arrived since the exchange. Those of others are kept.
    pub(crate) fn late(&mut self, id: u32) -> Result<Vec<Delivery>> {
        thread::sleep(PAUSE);
        let mut arrived = std::mem::take(&mut self.late);
        self.collect(&mut arrived, &mut BTreeSet::new())?;
        self.late = arrived;
        Ok(self.late.remove(&Some(id)).unwrap_or_default())
    }

    /// Adds what has arrived beside late copies.
    pub(crate) fn take_late(&mut self, arrived: &mut Arrived) {
        for (id, deliveries) in std::mem::take(&mut self.late) {
            arrived.entry(id).or_default().extend(deliveries);
        }
    }

    /// Reads what has arrived. Markers are no longer missing.
    fn collect(&mut self, arrived: &mut Arrived, missing: &mut BTreeSet<[u8; 4]>) -> Result<()> {
        for delivery in self.node.arrivals()? {
            if let Some(text) = marker_of(&delivery.frame) {
                missing.remove(&text);
            } else if !crate::node::world::is_announcement(&delivery) {
                arrived.entry(id_of(&delivery.frame)).or_default().push(delivery);
            }
        }
        Ok(())
    }

    fn fence(&mut self, markers: Vec<(Origin, Vec<u8>, [u8; 4])>, arrived: &mut Arrived) -> Result<()> {
        for (origin, frame, _) in &markers {
            self.node.emit(origin, frame)?;
        }
        let mut missing: BTreeSet<[u8; 4]> = markers.iter().map(|(.., text)| *text).collect();
        let start = Instant::now();
        while !missing.is_empty() {
            self.collect(arrived, &mut missing)?;
            if start.elapsed() > SOON {
                let origins: Vec<_> = markers
                    .iter()
                    .filter(|(.., text)| missing.contains(text))
                    .map(|(from, ..)| from)
                    .collect();
                bail!("no copy of a marker from {origins:?} arrived within {SOON:?}");
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn marker_text(&mut self) -> [u8; 4] {
        self.markers = (self.markers + 1) % 0xfff0;
        let [high, low] = self.markers.to_be_bytes();
        [MARKED[0], MARKED[1], high, low]
    }

    /// A marker that follows the frames of an origin, and has a receiver.
    fn marker_from(&mut self, cluster: &Cluster, origin: &Origin) -> (Origin, Vec<u8>, [u8; 4]) {
        let text = self.marker_text();
        let with_pods = |number: &usize| cluster.pod_at(*number, 1).is_some();
        let by_wire = |is_vlan_wanted: bool| {
            (0..NETWORKS)
                .filter(|number| is_vlan(*number) == is_vlan_wanted && !cluster.is_on_node(*number))
                .find(with_pods)
        };
        // To other nodes or to the other pods of the network.
        let has_receiver = |number: usize| !cluster.is_on_node(number) || cluster.pod_at(number, 2).is_some();
        let number = match origin {
            Origin::Pod(name) => {
                let own = (0..PODS).find(|pod| port(*pod) == *name);
                let known = own.and_then(|pod| Some((cluster.pods[pod].network?, cluster.last(pod)?)));
                if let Some((number, last)) = known.filter(|(number, _)| has_receiver(*number)) {
                    return (origin.clone(), marker(station(number, last), text), text);
                }
                by_wire(true)
            }
            Origin::Tunnel { .. } => by_wire(false),
            Origin::Uplink | Origin::Kernel => by_wire(true),
        };
        match number {
            Some(number) => {
                let from = far(number, REMOTES[0]);
                let frame = on_wire(&from, number, marker(STRANGER, text));
                (from, frame, text)
            }
            // No pod receives anything from there; any pod serves to see that the switch is idle.
            None => {
                let station_of = |pod: usize| {
                    let number = cluster.pods[pod].network.filter(|number| has_receiver(*number))?;
                    Some(station(number, cluster.last(pod)?))
                };
                let pods = (0..PODS).find_map(|pod| Some((pod, station_of(pod)?)));
                let (pod, source) = pods.unwrap_or((0, station(0, 1)));
                (Origin::Pod(port(pod)), marker(source, text), text)
            }
        }
    }

    /// Checks the end state of a run.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.check().context("at the end")
    }
}

/// Ethernet and IPv4 address of an endpoint.
fn station(number: usize, last: u8) -> ([u8; 6], [u8; 4]) {
    let ip = match address(number, last, false) {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => [0; 4],
    };
    (mac(number, last), ip)
}

fn marker((mac, ip): ([u8; 6], [u8; 4]), target: [u8; 4]) -> Vec<u8> {
    Packet::arp_request(mac, ip, target).build()
}

/// The target of a marker.
fn marker_of(frame: &[u8]) -> Option<[u8; 4]> {
    const ARP: [u8; 2] = [0x08, 0x06];
    // With the tag of a VLAN or without.
    let target = |at: usize| {
        let is_arp = frame.get(at..at + 2) == Some(&ARP);
        is_arp.then(|| frame.get(at + 26..at + 30)?.try_into().ok()).flatten()
    };
    target(12).or_else(|| target(16)).filter(|target: &[u8; 4]| target[..2] == MARKED)
}
