//! Runs the list on a node: one node for each kind of network, all attackers and victims on it.

use std::{
    env,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use netplugin::datapath::{
    Object, ObjectId,
    fake::{Delivery, Origin, Target},
};
use nix::{
    sched::{CpuSet, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};
use testkit::{packet::Packet, wait_until};

use crate::{
    attack::{Attack, Expect, Kind, Step, Try},
    cases,
    fragment::{self, Datagram},
    node::{
        harness::Harness,
        topology::{Net, VTEPS},
        world::{self, World, is_announcement},
    },
    report::{Report, SELECTION, Success},
    rules::{self, Attacker, FAR, FAR_FRIEND, FRIEND, HEIR, Rules, Station, WITNESS},
    scene::Scene,
};

/// Tries after which there is a new node: connections of the oracle do not end.
const TRIES_PER_NODE: u16 = 4000;
const SOON: Duration = Duration::from_secs(30);
/// After this time without a marker it is sent once more.
const AGAIN: Duration = Duration::from_secs(1);
const MARK: &[u8] = b"end of a step ";

/// Tries all attacks and their controls on both kinds of networks. Fails if an attack succeeds or a control does not.
pub(crate) fn run<H: Harness>(datapath: &'static str) -> Result<()> {
    let selection = env::var(SELECTION).unwrap_or_default();
    let mut attacks = if H::IS_ORACLE { cases::of_the_oracle() } else { cases::all() };
    attacks.retain(|attack| H::OPEN_ATTACKS.iter().all(|(part, _)| !attack.name.contains(part)));
    for (part, reason) in H::open_controls() {
        println!("{datapath}: control not tried: {part}: {reason}");
    }
    for (part, reason) in H::OPEN_ATTACKS {
        println!("{datapath}: not tried: {part}: {reason}");
    }
    attacks.retain(|attack| {
        attack.name.contains(&selection) || attack.defect.split('/').any(|defect| defect == selection)
    });
    ensure!(!attacks.is_empty(), "no attack has {selection:?} in its name");
    let mut report = Report::new(datapath, attacks.len());
    for (net, other) in [(Net::vxlan(1)?, Net::vxlan(2)?), (Net::vlan(100)?, Net::vlan(200)?)] {
        let mut arena = Arena::<H>::new(net.clone(), &other)?;
        for attack in &attacks {
            if arena.tries > TRIES_PER_NODE {
                arena.world.check_in_sync()?;
                arena = Arena::new(net.clone(), &other)?;
            }
            arena.run(attack, &mut report).with_context(|| format!("{}, in {:?}", attack.name, arena.net))?;
        }
        arena.world.check_in_sync()?;
    }
    report.finish()
}

/// A node with all attackers and victims.
struct Arena<H> {
    world: World<H>,
    net: Net,
    /// Number of the last try.
    tries: u16,
    steps: u32,
}

impl<H: Harness> Arena<H> {
    fn new(net: Net, other: &Net) -> Result<Arena<H>> {
        let objects = rules::objects(&net, other)?;
        let mut world = World::<H>::new(objects)?;
        // It has no object until it takes the place of another pod.
        world.node.plug(HEIR.port.context("the heir is a pod")?)?;
        stay_on_this_cpu()?;
        Ok(Arena { world, net, tries: 0, steps: 0 })
    }

    fn run(&mut self, attack: &Attack, report: &mut Report) -> Result<()> {
        let net = self.net.clone();
        let kind = Kind::of(&net);
        for of in attack.tries(&net) {
            self.tries += 1;
            let scene = Scene::new(&net, &of, self.tries);
            let failure = self.play(&scene, attack.hostile(&scene)).with_context(|| format!("{of:?}"))?;
            report.tried();
            if let Some(harm) = failure {
                report.succeeded(Success {
                    attack: attack.name.clone(),
                    defect: defect_of(attack, &of),
                    of,
                    kind,
                    harm,
                });
            }
        }
        let is_open = H::open_controls().iter().any(|(part, _)| attack.name.contains(part));
        for of in attack.controls(&net).into_iter().filter(|_| !is_open) {
            self.tries += 1;
            let scene = Scene::new(&net, &of, self.tries);
            let failure =
                self.play(&scene, attack.honest_steps(&scene)).with_context(|| format!("control {of:?}"))?;
            report.controlled();
            if let Some(harm) = failure {
                report.failed(Success { attack: attack.name.clone(), defect: attack.defect, of, kind, harm });
            }
        }
        Ok(())
    }

    /// Plays a script to its end; returns the first expectation that was not met.
    fn play(&mut self, scene: &Scene, steps: Vec<Step>) -> Result<Option<String>> {
        let mut failure = None;
        let mut has_arrived = false;
        let mut held = vec![];
        for (at, step) in steps.into_iter().enumerate() {
            let (from, frame, expect) = match step {
                Step::Send { from, frame, expect } => (from, frame, expect),
                Step::Answer(_) if !has_arrived => continue,
                Step::Answer(frame) => {
                    let from = scene.victim.origin(&self.net);
                    let frame = if from == Origin::Uplink { self.net.on_wire(&frame) } else { frame };
                    (from, frame, Expect::Anything)
                }
                Step::Set(object) => {
                    self.set(object)?;
                    continue;
                }
                Step::Delete(id) => {
                    self.delete(id)?;
                    continue;
                }
            };
            let came = self.outcome(&from, &frame).with_context(|| format!("step {at}"))?;
            let at_victim = |delivery: &&Delivery| is_at(delivery, scene.victim);
            has_arrived = came.iter().find(at_victim).is_some();
            let unmet = if H::joins_fragments() {
                check_joined(scene, &from, &frame, expect, &came, &mut held)
            } else {
                check(scene, &from, &frame, expect, &came)
            };
            failure = failure.or(unmet.map(|text| format!("step {at}: {text}")));
        }
        Ok(failure)
    }

    fn set(&mut self, object: Object) -> Result<()> {
        self.world.set(object)
    }

    fn delete(&mut self, id: ObjectId) -> Result<()> {
        self.world.delete(id)
    }

    /// Sends a frame and returns all copies that leave the node.
    fn outcome(&mut self, from: &Origin, frame: &[u8]) -> Result<Vec<Delivery>> {
        self.world.node.emit(from, frame)?;
        let mut came = self.fence(from)?;
        self.world.node.forward()?;
        if H::REORDERS {
            // Sent after the first marker has arrived, so that it is in another batch than the frame.
            came.extend(self.fence(from)?);
        }
        Ok(came)
    }

    /// Sends a marker and returns what arrives before it.
    fn fence(&mut self, from: &Origin) -> Result<Vec<Delivery>> {
        self.steps += 1;
        let text = [MARK, &self.steps.to_be_bytes()].concat();
        let (origin, marker) = self.marker(from, &text);
        let (node, mut came) = (&mut self.world.node, vec![]);
        let mut collect = |node: &mut H| -> Result<bool> {
            let mut seen = false;
            for arrival in node.arrivals()? {
                if is_marker(&arrival.frame) {
                    seen |= arrival.frame.ends_with(&text);
                } else if !world::is_marker(&arrival.frame) && !is_announcement(&arrival) {
                    came.push(arrival);
                }
            }
            Ok(seen)
        };
        let mut sent: Option<Instant> = None;
        wait_until(SOON, &format!("a datagram from {origin:?} that follows the frame"), || {
            // A switch drops packets that need its slow path while it reconfigures itself.
            if sent.is_none_or(|sent| sent.elapsed() > AGAIN) {
                node.emit(&origin, &marker)?;
                sent = Some(Instant::now());
            }
            Ok(collect(node)?.then_some(()))
        })?;
        // Ports that were read before the marker arrived at the witness.
        collect(node)?;
        Ok(came)
    }

    /// Returns a datagram to the witness that nothing forbids, from the same origin if that is one of the cluster. It is
    /// unicast, so that storm control does not count it.
    fn marker(&self, from: &Origin, text: &[u8]) -> (Origin, Vec<u8>) {
        let sender = self.sender(from);
        let origin = sender.origin(&self.net);
        let to = if sender == WITNESS { FRIEND } else { WITNESS };
        let marker = Packet::eth(to.mac(), sender.mac()).ipv4(sender.ip(), to.ip()).udp(7, 9).payload(text);
        let frame = marker.build();
        let frame = if origin == Origin::Uplink { self.net.on_wire(&frame) } else { frame };
        (origin, frame)
    }

    /// Returns the endpoint that sends the marker after a frame from this origin.
    fn sender(&self, from: &Origin) -> Station {
        match from {
            Origin::Pod(port) => {
                rules::pods().into_iter().find(|pod| pod.port == Some(port)).unwrap_or(FRIEND)
            }
            Origin::Tunnel { vtep, .. } if *vtep == VTEPS[1] => FAR_FRIEND,
            Origin::Tunnel { .. } | Origin::Uplink | Origin::Kernel => FAR,
        }
    }
}

/// Whether this is a marker of any step.
fn is_marker(frame: &[u8]) -> bool {
    let step = size_of::<u32>();
    frame.len() > step && frame[..frame.len() - step].ends_with(MARK)
}

/// What denies the packets of unknown endpoints to those that rules deny a group is the same, whatever the packets are.
fn defect_of(attack: &Attack, of: &Try) -> &'static str {
    if (of.attacker, of.rules) == (Attacker::Unknown, Rules::DenyGroup) { "E6" } else { attack.defect }
}

fn is_at(delivery: &Delivery, station: Station) -> bool {
    match (&delivery.to, station.port) {
        (Target::Pod(to), Some(port)) => to == port,
        (Target::Tunnel { vtep, .. }, None) => *vtep == VTEPS[station.node],
        (Target::Uplink, None) => true,
        _ => false,
    }
}

/// Returns how the deliveries differ from what is expected.
fn check(scene: &Scene, from: &Origin, frame: &[u8], expect: Expect, came: &[Delivery]) -> Option<String> {
    let at_victim = || came.iter().find(|delivery| is_at(delivery, scene.victim));
    match expect {
        Expect::Anything => None,
        // A datapath that does not join fragments holds nothing that could arrive now.
        Expect::NotAtVictim | Expect::OnlyTo(_) => at_victim().map(|_| "arrives at the victim".to_owned()),
        Expect::Nowhere => {
            let harm = came.iter().find(|delivery| !is_back(&delivery.to, from))?;
            Some(format!("arrives at {:?}: {:02x?}", harm.to, harm.frame))
        }
        Expect::NotOnWire => {
            let harm = came.iter().find(|delivery| !matches!(delivery.to, Target::Pod(_)))?;
            Some(format!("arrives at {:?}: {:02x?}", harm.to, harm.frame))
        }
        Expect::ReachesVictim => at_victim().is_none().then(|| "does not arrive".to_owned()),
        Expect::AtVictim => {
            let inner = inner(from, frame);
            match at_victim() {
                Some(delivery) if delivery.frame == inner => None,
                Some(_) => Some("arrives modified".to_owned()),
                None => Some("does not arrive".to_owned()),
            }
        }
    }
}

/// Does the same for a datapath that joins fragments before it forwards them. It holds those before the last one of a datagram.
fn check_joined(
    scene: &Scene,
    from: &Origin,
    frame: &[u8],
    expect: Expect,
    came: &[Delivery],
    held: &mut Vec<Vec<u8>>,
) -> Option<String> {
    let inner = inner(from, frame);
    let at_victim = came.iter().filter(|delivery| is_at(delivery, scene.victim));
    let at_victim: Vec<&[u8]> = at_victim.map(|delivery| delivery.frame.as_slice()).collect();
    match (expect, fragment::position(&inner)) {
        (Expect::OnlyTo(port), _) => {
            let arrived = Datagram::join(&at_victim);
            let is_harmless =
                at_victim.is_empty() || arrived.is_some_and(|arrived| arrived.port() == Some(port));
            (!is_harmless).then(|| "arrives at the victim".to_owned())
        }
        (Expect::AtVictim, Some(is_last)) => {
            held.push(inner);
            let sent = Datagram::join(held);
            let is_missing = is_last && (sent.is_none() || sent != Datagram::join(&at_victim));
            is_missing.then(|| format!("what arrives is not the datagram: {at_victim:02x?}"))
        }
        _ => check(scene, from, frame, expect, came),
    }
}

/// Whether this is where a frame came from.
fn is_back(to: &Target, from: &Origin) -> bool {
    match (to, from) {
        (Target::Pod(to), Origin::Pod(from)) => to == from,
        (Target::Tunnel { vtep: to, .. }, Origin::Tunnel { vtep: from, .. }) => to == from,
        (Target::Uplink, Origin::Uplink) => true,
        _ => false,
    }
}

/// Returns a frame without the tag that it has on the wire.
fn inner(from: &Origin, frame: &[u8]) -> Vec<u8> {
    if *from == Origin::Uplink { [&frame[..12], &frame[16..]].concat() } else { frame.to_vec() }
}

/// Frames that one CPU sends are processed in order.
fn stay_on_this_cpu() -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(sched_getcpu()?)?;
    sched_setaffinity(Pid::from_raw(0), &cpus).context("stay on this CPU")
}
