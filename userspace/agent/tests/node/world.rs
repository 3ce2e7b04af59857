//! A node under test with its installed objects.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use contiv_model::tag::Encap;
use netplugin::{
    datapath::{
        Desired, FailedOp, Local, Object, ObjectId, Observed, Op, Remote,
        fake::{Delivery, Origin, Target, deliver},
    },
    reconcile::diff,
};
use nix::{
    sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};
use testkit::{
    packet::{BROADCAST, Packet},
    wait_until,
};

use crate::node::{
    harness::{Difference, Harness},
    topology::{self, pod},
};

const SOON: Duration = Duration::from_secs(5);
/// A marker comes in any case, later on a machine that stalls.
const MARKER_TIMEOUT: Duration = Duration::from_secs(30);
const MARK: &[u8] = b"conformance marker ";
/// Markers are ARP requests, which rules do not apply to, for addresses that begin so (RFC 2544).
const MARKED: [u8; 2] = [198, 18];
const MARKERS_MAC: [u8; 6] = [2, 0xfe, 0, 0, 0, 1];
const MARKERS_IP: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);

/// Keeps the thread on its processor. Frames are received by the processor that has sent them: a marker sent by another one may come
/// before frames that the first one is late with.
struct Pinned(CpuSet);

impl Pinned {
    fn here() -> Result<Pinned> {
        let this_thread = Pid::from_raw(0);
        let allowed = sched_getaffinity(this_thread).context("read the processors of the thread")?;
        let mut one = CpuSet::new();
        one.set(sched_getcpu()?)?;
        sched_setaffinity(this_thread, &one).context("keep the thread on its processor")?;
        Ok(Pinned(allowed))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(Pid::from_raw(0), &self.0) {
            eprintln!("let the thread run on all processors: {error}");
        }
    }
}

pub(crate) struct World<H> {
    pub(crate) node: H,
    /// Installed objects.
    installed: Desired,
    markers: u32,
    early: Vec<Delivery>,
}

impl<H: Harness> World<H> {
    /// Creates a node with the objects and a pod for each local endpoint.
    pub(crate) fn new(objects: impl IntoIterator<Item = Object>) -> Result<World<H>> {
        let desired: Desired = objects.into_iter().collect();
        let mut node = H::start()?;
        for (_, object) in desired.iter() {
            if let Object::Local(local) = object {
                node.plug(&local.port)?;
            }
        }
        let mut world = World { node, installed: Desired::default(), markers: 0, early: vec![] };
        world.reconcile(&desired).context("make the node")?;
        Ok(world)
    }

    /// Resyncs the node as the agent does, and checks that nothing remains out of sync.
    pub(crate) fn reconcile(&mut self, desired: &Desired) -> Result<Observed> {
        let before = self.node.observe(desired)?;
        let ops = diff(desired, &before);
        let failures = self.node.apply(&ops)?;
        ensure!(failures.is_empty(), "ops failed: {}", describe_failures(&ops, &failures));
        self.installed = desired.clone();
        self.check_in_sync()?;
        self.introduce(desired.iter().map(|(_, object)| object))?;
        Ok(before)
    }

    pub(crate) fn differs(&self, how: Difference) -> bool {
        H::DIFFERENCES.contains(&how)
    }

    pub(crate) fn installed(&self) -> &Desired {
        &self.installed
    }

    /// Checks that the installed objects are in sync and that there are no orphans.
    pub(crate) fn check_in_sync(&mut self) -> Result<()> {
        let observed = self.node.observe(&self.installed)?;
        let missing: Vec<String> = self
            .installed
            .iter()
            .filter(|(id, _)| !observed.in_sync.contains(id))
            .map(|(id, _)| id.to_string())
            .collect();
        ensure!(missing.is_empty(), "not in place: {}", missing.join(", "));
        ensure!(observed.orphans == 0, "{} orphans", observed.orphans);
        Ok(())
    }

    /// Applies ops that must all succeed.
    pub(crate) fn apply(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<()> {
        let ops: Vec<Op> = ops.into_iter().collect();
        let failures = self.try_apply(&ops)?;
        ensure!(failures.is_empty(), "ops failed: {}", describe_failures(&ops, &failures));
        Ok(())
    }

    pub(crate) fn try_apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>> {
        let failures = self.node.apply(ops)?;
        for (at, op) in ops.iter().enumerate() {
            if failures.iter().any(|failed| failed.index == at) {
                continue;
            }
            match op {
                Op::Set(object) => drop(self.installed.insert(object.clone())),
                Op::Delete(id) => drop(self.installed.remove(id)),
                Op::GarbageCollect => {}
            }
        }
        let now_there = ops.iter().filter_map(|op| match op {
            Op::Set(object) if self.installed.get(&object.id()) == Some(object) => Some(object),
            _ => None,
        });
        self.introduce(now_there.collect::<Vec<_>>())?;
        Ok(failures)
    }

    /// Sends a frame from each endpoint, so that learning bridges know its port and stop flooding frames to it.
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

    /// Sends a frame and checks that exactly these copies leave the node.
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
        let mut came = self.outcome(from, frame)?;
        if came != expected && self.differs(Difference::AnswersByAgent) {
            came = self.answered(came, expected.len())?;
        }
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

    /// Adds what comes until there are so many deliveries, or for some time.
    fn answered(&mut self, mut came: Vec<Delivery>, number: usize) -> Result<Vec<Delivery>> {
        let node = &mut self.node;
        // What does not come is reported by the caller.
        let _complete = wait_until(SOON, "answers of the agent", || {
            came.extend(node.arrivals()?.into_iter().filter(|arrival| !is_of_itself(arrival)));
            Ok((came.len() >= number).then_some(()))
        });
        came.sort();
        Ok(came)
    }

    /// Sends a frame and returns all copies that leave the node, sorted.
    pub(crate) fn outcome(&mut self, from: &Origin, frame: &[u8]) -> Result<Vec<Delivery>> {
        let _pinned = Pinned::here()?;
        self.node.emit(from, frame)?;
        // Frames of one origin are processed in order, so all copies precede that of a marker frame. The second marker is
        // sent after the first has arrived, because copies of one batch leave several ports in any order.
        self.fence(from)?;
        self.node.forward()?;
        self.fence(from)?;
        let mut came = std::mem::take(&mut self.early);
        came.sort();
        Ok(came)
    }

    /// Sends a marker frame and waits for a copy of it.
    fn fence(&mut self, from: &Origin) -> Result<()> {
        self.markers += 1;
        let [high, low] = (self.markers as u16).to_be_bytes();
        let text = [MARKED[0], MARKED[1], high, low];
        let (origin, marker) = self.marker(from, &text)?;
        self.node.emit(&origin, &marker)?;
        let (node, early) = (&mut self.node, &mut self.early);
        wait_until(
            MARKER_TIMEOUT,
            &format!("a broadcast from {origin:?}, sent to see what came before it"),
            || {
                let mut seen = None;
                for arrival in node.arrivals()? {
                    if arrival.frame.ends_with(&text) {
                        seen = Some(());
                    } else if !is_of_itself(&arrival) {
                        early.push(arrival);
                    }
                }
                Ok(seen)
            },
        )
    }

    /// Returns a marker frame that is delivered somewhere, if possible from the same origin.
    fn marker(&self, from: &Origin, text: &[u8; 4]) -> Result<(Origin, Vec<u8>)> {
        let other_origins = self.origins();
        let same_wire = other_origins
            .iter()
            .filter(|origin| std::mem::discriminant(*origin) == std::mem::discriminant(from));
        for origin in [from].into_iter().chain(same_wire).chain(&other_origins) {
            for frame in self.broadcasts(origin, text) {
                if !deliver(&self.installed, &frame, origin).is_empty() {
                    return Ok((origin.clone(), frame));
                }
            }
        }
        bail!("no origin delivers a marker frame, so late copies cannot be excluded")
    }

    fn origins(&self) -> Vec<Origin> {
        let mut origins = vec![Origin::Uplink];
        for (_, object) in self.installed.iter() {
            match object {
                Object::Local(local) => origins.push(pod(&local.port)),
                Object::Peer(peer) => {
                    origins.extend(self.networks().filter_map(|encap| match encap {
                        Encap::Vxlan { vni, .. } => Some(Origin::Tunnel { vtep: peer.vtep, vni }),
                        Encap::Vlan(_) => None,
                    }));
                }
                _ => {}
            }
        }
        origins
    }

    fn networks(&self) -> impl Iterator<Item = Encap> {
        self.installed.iter().filter_map(|(_, object)| match object {
            Object::Network(network) => Some(network.encap),
            _ => None,
        })
    }

    fn broadcasts(&self, origin: &Origin, target: &[u8; 4]) -> Vec<Vec<u8>> {
        let frame = |source: ([u8; 6], Ipv4Addr)| Packet::arp_request(source.0, source.1, *target).build();
        let stranger = (MARKERS_MAC, MARKERS_IP);
        match origin {
            Origin::Pod(port) => {
                let source = self.installed.iter().find_map(|(_, object)| match object {
                    Object::Local(local) if local.port == *port => {
                        Some((local.mac.0, local.addresses.v4().next()?))
                    }
                    _ => None,
                });
                vec![frame(source.unwrap_or(stranger))]
            }
            Origin::Tunnel { .. } => vec![frame(stranger)],
            Origin::Kernel => vec![],
            Origin::Uplink => self
                .networks()
                .filter_map(|encap| match encap {
                    Encap::Vlan(vlan) => Some(topology::tagged(&frame(stranger), vlan.get())),
                    Encap::Vxlan { .. } => None,
                })
                .collect(),
        }
    }
}

/// Whether a frame comes at any time, and says nothing of another one.
fn is_of_itself(arrival: &Delivery) -> bool {
    is_marker(&arrival.frame) || is_announcement(arrival)
}

/// Whether this is a frame that the world sends to see what came before it, or to introduce an endpoint. Copies for several ports
/// may be late.
pub(crate) fn is_marker(frame: &[u8]) -> bool {
    const ARP: [u8; 2] = [0x08, 0x06];
    // With the tag of a VLAN or without.
    let is_request =
        |at: usize| frame.get(at..at + 2) == Some(&ARP) && frame.get(at + 26..at + 28) == Some(&MARKED);
    is_request(12) || is_request(16) || frame.windows(MARK.len()).any(|window| window == MARK)
}

/// Whether a frame announces a service, which a node does at any time: a gratuitous ARP reply, or an unsolicited
/// neighbour advertisement to all nodes.
pub(crate) fn is_announcement(arrival: &Delivery) -> bool {
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

fn describe_failures(ops: &[Op], failures: &[FailedOp]) -> String {
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
            Target::Kernel => "kernel".to_owned(),
        };
        // Writing to a string does not fail.
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
