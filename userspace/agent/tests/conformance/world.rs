//! A node under test and what it was told.

use std::{fmt::Write as _, net::Ipv6Addr, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use contiv_model::tag::Encap;
use netplugin::{
    datapath::{
        Desired, FailedOp, Local, Object, ObjectId, Observed, Op, Remote,
        fake::{Delivery, Origin, Target, deliver},
    },
    reconcile::diff,
};
use testkit::{
    packet::{BROADCAST, Packet},
    wait_until,
};

use crate::{
    harness::{Difference, Harness},
    topology::{self, pod},
};

const SOON: Duration = Duration::from_secs(5);
const MARK: &[u8] = b"conformance marker ";
const MARKERS_MAC: [u8; 6] = [2, 0xfe, 0, 0, 0, 1];

pub(crate) struct World<H> {
    pub(crate) node: H,
    /// What it was told and did not fail to do.
    told: Desired,
    markers: u32,
    early: Vec<Delivery>,
}

impl<H: Harness> World<H> {
    /// A node that holds the objects, with a pod for each local endpoint.
    pub(crate) fn new(objects: impl IntoIterator<Item = Object>) -> Result<World<H>> {
        let desired: Desired = objects.into_iter().collect();
        let mut node = H::start()?;
        for (_, object) in desired.iter() {
            if let Object::Local(local) = object {
                node.plug(&local.port)?;
            }
        }
        let mut world = World { node, told: Desired::default(), markers: 0, early: vec![] };
        world.reconcile(&desired).context("make the node")?;
        Ok(world)
    }

    /// The agent's way: measure, mend, and find that nothing is left to mend.
    pub(crate) fn reconcile(&mut self, desired: &Desired) -> Result<Observed> {
        let before = self.node.observe(desired)?;
        let ops = diff(desired, &before);
        let failures = self.node.apply(&ops)?;
        ensure!(failures.is_empty(), "ops failed: {}", tell_failures(&ops, &failures));
        self.told = desired.clone();
        self.in_place()?;
        self.introduce(desired.iter().map(|(_, object)| object))?;
        Ok(before)
    }

    pub(crate) fn differs(&self, how: Difference) -> bool {
        H::DIFFERENCES.contains(&how)
    }

    pub(crate) fn told(&self) -> &Desired {
        &self.told
    }

    /// Fails unless the node says that it holds what it was told and nothing else.
    pub(crate) fn in_place(&mut self) -> Result<()> {
        let observed = self.node.observe(&self.told)?;
        let missing: Vec<String> = self
            .told
            .iter()
            .filter(|(id, _)| !observed.in_sync.contains(id))
            .map(|(id, _)| id.to_string())
            .collect();
        ensure!(missing.is_empty(), "not in place: {}", missing.join(", "));
        ensure!(observed.orphans == 0, "{} strays", observed.orphans);
        Ok(())
    }

    /// Ops that must all happen.
    pub(crate) fn apply(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<()> {
        let ops: Vec<Op> = ops.into_iter().collect();
        let failures = self.try_apply(&ops)?;
        ensure!(failures.is_empty(), "ops failed: {}", tell_failures(&ops, &failures));
        Ok(())
    }

    pub(crate) fn try_apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>> {
        let failures = self.node.apply(ops)?;
        for (at, op) in ops.iter().enumerate() {
            if failures.iter().any(|failed| failed.index == at) {
                continue;
            }
            match op {
                Op::Set(object) => drop(self.told.insert(object.clone())),
                Op::Delete(id) => drop(self.told.remove(id)),
                Op::GarbageCollect => {}
            }
        }
        let now_there = ops.iter().filter_map(|op| match op {
            Op::Set(object) if self.told.get(&object.id()) == Some(object) => Some(object),
            _ => None,
        });
        self.introduce(now_there.collect::<Vec<_>>())?;
        Ok(failures)
    }

    /// A bridge that learns must have heard an endpoint before it sends frames for it to nobody else.
    fn introduce<'a>(&mut self, objects: impl IntoIterator<Item = &'a Object>) -> Result<()> {
        if !self.differs(Difference::LearnsOnVlan) {
            return Ok(());
        }
        for object in objects {
            let (origin, mac, vlan) = match object {
                Object::Local(Local { port, mac, encap: Encap::Vlan(vlan), .. }) => (pod(port), mac, vlan),
                Object::Remote(Remote { mac, encap: Encap::Vlan(vlan), .. }) => (Origin::Uplink, mac, vlan),
                _ => continue,
            };
            let hello = Packet::eth(BROADCAST, mac.0).payload(MARK).build();
            let frame = if origin == Origin::Uplink { topology::tagged(&hello, vlan.get()) } else { hello };
            self.node.emit(&origin, &frame)?;
            self.fence(&origin)?;
        }
        self.node.settle()
    }

    pub(crate) fn set(&mut self, object: Object) -> Result<()> {
        self.apply([Op::Set(object)])
    }

    pub(crate) fn delete(&mut self, id: ObjectId) -> Result<()> {
        self.apply([Op::Delete(id)])
    }

    /// Sends a frame and fails unless exactly these come out, everywhere.
    pub(crate) fn sends(
        &mut self,
        from: &Origin,
        frame: &Packet,
        expected: impl IntoIterator<Item = Delivery>,
    ) -> Result<()> {
        self.sends_bytes(from, &frame.build(), expected)
    }

    pub(crate) fn sends_bytes(
        &mut self,
        from: &Origin,
        frame: &[u8],
        expected: impl IntoIterator<Item = Delivery>,
    ) -> Result<()> {
        let mut expected: Vec<Delivery> = expected.into_iter().collect();
        expected.sort();
        let came = self.outcome(from, frame)?;
        if came != expected {
            bail!(
                "from {from:?}: {}\nexpected:\n{}came:\n{}",
                tell_frame(frame),
                tell_deliveries(&expected),
                tell_deliveries(&came)
            );
        }
        Ok(())
    }

    /// All that comes out because of this frame, sorted.
    pub(crate) fn outcome(&mut self, from: &Origin, frame: &[u8]) -> Result<Vec<Delivery>> {
        self.node.emit(from, frame)?;
        // Frames of one origin are handled in their order, so what comes before a marker is all that comes.
        // A second one, sent when the first has come: copies of one batch leave by several ports in any order.
        self.fence(from)?;
        self.fence(from)?;
        let mut came = std::mem::take(&mut self.early);
        came.sort();
        Ok(came)
    }

    /// Sends a marker and waits until it comes out somewhere.
    fn fence(&mut self, from: &Origin) -> Result<()> {
        self.markers += 1;
        let text = [MARK, &self.markers.to_be_bytes()].concat();
        let (origin, marker) = self.marker(from, &text)?;
        self.node.emit(&origin, &marker)?;
        let (node, early) = (&mut self.node, &mut self.early);
        wait_until(SOON, &format!("a broadcast from {origin:?}, sent to see what came before it"), || {
            let mut seen = None;
            for arrival in node.arrivals()? {
                if arrival.frame.ends_with(&text) {
                    seen = Some(());
                } else if !is_marker(&arrival.frame) && !is_announcement(&arrival) {
                    early.push(arrival);
                }
            }
            Ok(seen)
        })
    }

    /// A frame that must come out somewhere, if possible from the same place.
    fn marker(&self, from: &Origin, text: &[u8]) -> Result<(Origin, Vec<u8>)> {
        let other_origins = self.origins();
        let same_wire = other_origins
            .iter()
            .filter(|origin| std::mem::discriminant(*origin) == std::mem::discriminant(from));
        for origin in [from].into_iter().chain(same_wire).chain(&other_origins) {
            for frame in self.broadcasts(origin, text) {
                if !deliver(&self.told, &frame, origin).is_empty() {
                    return Ok((origin.clone(), frame));
                }
            }
        }
        bail!("no frame from anywhere would come out, so what comes out cannot be told from what is late")
    }

    fn origins(&self) -> Vec<Origin> {
        let mut origins = vec![Origin::Uplink];
        for (_, object) in self.told.iter() {
            match object {
                Object::Local(local) => origins.push(pod(&local.port)),
                Object::Peer(peer) => {
                    origins.extend(self.networks().filter_map(|encap| match encap {
                        Encap::Vxlan { vni, .. } => Some(Origin::Tunnel { vtep: peer.vtep, vni }),
                        Encap::Vlan(_) => None,
                    }));
                }
                Object::Network(_) | Object::Group(_) | Object::Remote(_) | Object::Service(_) => {}
            }
        }
        origins
    }

    fn networks(&self) -> impl Iterator<Item = Encap> {
        self.told.iter().filter_map(|(_, object)| match object {
            Object::Network(network) => Some(network.encap),
            _ => None,
        })
    }

    fn broadcasts(&self, origin: &Origin, text: &[u8]) -> Vec<Vec<u8>> {
        let frame = |source| Packet::eth(BROADCAST, source).payload(text).build();
        match origin {
            Origin::Pod(port) => {
                let mac = self.told.iter().find_map(|(_, object)| match object {
                    Object::Local(local) if local.port == *port => Some(local.mac.0),
                    _ => None,
                });
                vec![frame(mac.unwrap_or(MARKERS_MAC))]
            }
            Origin::Tunnel { .. } => vec![frame(MARKERS_MAC)],
            Origin::Uplink => self
                .networks()
                .filter_map(|encap| match encap {
                    Encap::Vlan(vlan) => Some(topology::tagged(&frame(MARKERS_MAC), vlan.get())),
                    Encap::Vxlan { .. } => None,
                })
                .collect(),
        }
    }
}

fn is_marker(frame: &[u8]) -> bool {
    frame.windows(MARK.len()).any(|window| window == MARK)
}

/// Whether a node tells the wire where a service is, which it does when it likes: an answer of ARP that says of its sender
/// where it is, or an advertisement to all nodes.
fn is_announcement(arrival: &Delivery) -> bool {
    const TAG: [u8; 2] = [0x81, 0];
    const ARP_REPLY: [u8; 10] = [0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2];
    const ALL_NODES: [u8; 16] = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).octets();
    const ADVERTISEMENT: u8 = 136;
    let frame = &arrival.frame;
    let body = if frame[12..].starts_with(&TAG) { &frame[16..] } else { &frame[12..] };
    let tells_of_sender = body.starts_with(&ARP_REPLY) && body.get(16..20) == body.get(26..30);
    let tells_everybody = body.get(26..42) == Some(&ALL_NODES) && body.get(42) == Some(&ADVERTISEMENT);
    arrival.to == Target::Uplink && (tells_of_sender || tells_everybody)
}

fn tell_failures(ops: &[Op], failures: &[FailedOp]) -> String {
    let one =
        |failed: &FailedOp| format!("{:?}: {}: {}", ops.get(failed.index), failed.error, failed.error.source);
    failures.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn tell_deliveries(deliveries: &[Delivery]) -> String {
    let mut text = String::new();
    for delivery in deliveries {
        let to = match &delivery.to {
            Target::Pod(port) => format!("pod {port}"),
            Target::Tunnel { vtep, port, vni, dscp } => format!("{vtep}:{port} vni {vni} dscp {dscp}"),
            Target::Uplink => "uplink".to_owned(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {to}: {}", tell_frame(&delivery.frame));
    }
    text
}

fn tell_frame(frame: &[u8]) -> String {
    let mut text = format!("{} bytes ", frame.len());
    for (at, byte) in frame.iter().enumerate() {
        let gap = if [6, 12, 14].contains(&at) { " " } else { "" };
        let _ = write!(text, "{gap}{byte:02x}");
    }
    text
}
