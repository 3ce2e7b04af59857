//! One case: a cluster before and after a change, and the packets of its connections in both stages.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::IpAddr,
    ops::AddAssign,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use netplugin::datapath::{
    Service,
    fake::{Delivery, Origin},
};

use crate::{
    cluster::{Cluster, Stage, is_vlan, located},
    exclusions, lifecycle,
    node::harness::Harness,
    oracle::{Oracle, Possible},
    packet::{Content, Phase, ROUTER, Sender, Sent, Way, destination, id_of, named, receivers},
    rig::Rig,
};

/// How long an answer of the agent may take on a busy machine.
const LATE: Duration = Duration::from_secs(2);

/// Statistics, to verify that the cases vary.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) states: u64,
    pub(crate) packets: u64,
    delivered: u64,
    dropped: u64,
    copied: u64,
    translated: u64,
    replies: u64,
    errors: u64,
    to_other_nodes: u64,
    routed: u64,
    by_kernel: u64,
    messages: u64,
    excluded: u64,
}

impl Summary {
    /// Checks that there were packets of each kind.
    pub(crate) fn check_variety(&self) -> Result<()> {
        let Summary {
            delivered,
            dropped,
            copied,
            translated,
            replies,
            errors,
            to_other_nodes,
            routed,
            by_kernel,
            ..
        } = self;
        let kinds =
            [delivered, dropped, copied, translated, replies, errors, to_other_nodes, routed, by_kernel];
        ensure!(
            kinds.into_iter().all(|count| *count > self.packets / 1000),
            "the packets do not vary: {self}"
        );
        Ok(())
    }
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.states += other.states;
        self.packets += other.packets;
        self.delivered += other.delivered;
        self.dropped += other.dropped;
        self.copied += other.copied;
        self.translated += other.translated;
        self.replies += other.replies;
        self.errors += other.errors;
        self.to_other_nodes += other.to_other_nodes;
        self.routed += other.routed;
        self.by_kernel += other.by_kernel;
        self.messages += other.messages;
        self.excluded += other.excluded;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary {
            states,
            packets,
            delivered,
            dropped,
            copied,
            translated,
            replies,
            errors,
            to_other_nodes,
            routed,
            by_kernel,
            messages,
            excluded,
        } = self;
        write!(
            f,
            "{states} states, {packets} packets: {delivered} delivered ({translated} to backends, {copied} to several \
             receivers, {to_other_nodes} to other nodes, {routed} routed, {by_kernel} by the kernel, {replies} \
             replies), {dropped} dropped ({messages} with a message); {errors} ICMP errors; {excluded} not sent \
             because of known differences"
        )
    }
}

/// What is known of the connection of a probe.
#[derive(Clone, Default)]
struct Connection {
    /// The last delivery of a packet from the client.
    delivered: Option<Delivery>,
    /// The last delivery of a reply.
    reply: Option<Delivery>,
    is_replied: bool,
    /// A reply was dropped. The datapath may know what it has acknowledged, and drop errors about older segments.
    has_lost_reply: bool,
    /// A packet was delivered before the change.
    precedes_change: bool,
    /// A packet from the client, and one to it, was lost because the pod that it was for has got another group.
    lost: [bool; 2],
    /// A packet to a service was dropped for one of several reasons, which leave different backends behind.
    is_unclear: bool,
}

impl Connection {
    fn phase(&self) -> Phase {
        if self.is_replied { Phase::Established } else { Phase::Opening }
    }
}

/// What is sent for each connection at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    There,
    Back,
    /// ICMP errors of the receivers of the last packets there, or back.
    Errors(Way),
}

/// A packet in a batch.
struct Packet {
    probe: usize,
    step: Step,
    id: u32,
    sent: Sent,
}

struct Case<'a, H> {
    rig: &'a mut Rig<H>,
    cluster: &'a Cluster,
    stage: Stage,
    oracle: Oracle,
    connections: Vec<Connection>,
    /// Backends of clients with session affinity, by client and service.
    backends: BTreeMap<(Origin, usize), IpAddr>,
    summary: &'a mut Summary,
}

/// Configures the node with the cluster, sends its packets, and compares the results with those of the oracle.
pub(crate) fn check<H: Harness>(rig: &mut Rig<H>, cluster: &Cluster, summary: &mut Summary) -> Result<()> {
    let desired = cluster.desired(Stage::Before);
    rig.forget()?;
    rig.set(desired.clone()).context("before the change")?;
    rig.introduce(cluster, Stage::Before)?;
    let connections = vec![Connection::default(); cluster.probes.len()];
    let (stage, oracle) = (Stage::Before, Oracle::new(desired));
    let mut case = Case { rig, cluster, stage, oracle, connections, backends: BTreeMap::new(), summary };
    case.packets().context("before the change")?;
    if lifecycle::has_gap(cluster) {
        case.enter(Stage::Between).context("services are deleted")?;
        case.send_first().context("without services")?;
    }
    case.enter(Stage::After).context("the change")?;
    case.rig.introduce(cluster, Stage::After)?;
    case.packets().context("after the change")?;
    summary.states += 1;
    Ok(())
}

impl<H: Harness> Case<'_, H> {
    /// Changes the node to the next stage. What has been sent to the address of a service that is created ends.
    fn enter(&mut self, stage: Stage) -> Result<()> {
        let (cluster, stages) = (self.cluster, [self.stage, stage]);
        let desired = cluster.desired(stage);
        self.rig.set(desired.clone())?;
        self.oracle.change(desired);
        self.stage = stage;
        let mut has_ended = false;
        for (connection, probe) in self.connections.iter_mut().zip(&cluster.probes) {
            if lifecycle::begins_again(cluster, stages, probe) {
                *connection = Connection::default();
                has_ended = true;
            }
        }
        if has_ended { self.rig.pass_second() } else { Ok(()) }
    }

    /// Sends the first packets of all connections that begin now.
    fn send_first(&mut self) -> Result<()> {
        let all: Vec<_> = (0..self.cluster.probes.len()).collect();
        self.send(&all, Step::There)
    }

    /// Sends the packets of all connections: there, back, there, back.
    fn packets(&mut self) -> Result<()> {
        // A client's connections with session affinity follow each other.
        let mut clients = BTreeSet::new();
        let (first, later): (Vec<_>, Vec<_>) = (0..self.cluster.probes.len()).partition(|probe| {
            let probe = &self.cluster.probes[*probe];
            let service = probe.service(self.cluster).filter(|at| self.cluster.services[*at].affinity);
            service.is_none_or(|service| clients.insert((format!("{:?}", probe.from), service)))
        });
        self.send(&first, Step::There).context("first packets")?;
        for probe in later {
            self.rig.settle()?;
            self.send(&[probe], Step::There).context("next packet of a client")?;
        }
        let all: Vec<_> = (0..self.cluster.probes.len()).collect();
        self.send(&all, Step::Back).context("replies")?;
        self.send(&all, Step::There).context("packets after the replies")?;
        self.send(&all, Step::Back).context("more replies")?;
        self.send(&all, Step::Errors(Way::There)).context("errors about packets")?;
        self.send(&all, Step::Errors(Way::Back)).context("errors about replies")
    }

    fn send(&mut self, probes: &[usize], step: Step) -> Result<()> {
        let mut packets = vec![];
        for probe in probes {
            let id = self.rig.id();
            let Some(sent) = self.packet(*probe, step, id) else { continue };
            if self.is_excluded(*probe, step, &sent) {
                self.summary.excluded += 1;
                continue;
            }
            // An error has the text of the packet that it quotes.
            let id = id_of(&sent.bytes).unwrap_or(id);
            packets.push(Packet { probe: *probe, step, id, sent });
        }
        if packets.is_empty() {
            return Ok(());
        }
        let frames: Vec<&Sent> = packets.iter().map(|packet| &packet.sent).collect();
        let mut arrived = self.rig.exchange(self.cluster, &frames)?;
        for packet in packets {
            self.rig.take_late(&mut arrived);
            let deliveries = arrived.remove(&Some(packet.id)).unwrap_or_default();
            let unnumbered = arrived.remove(&None).unwrap_or_default();
            let left = self.compare(packet, deliveries, unnumbered)?;
            if !left.is_empty() {
                arrived.insert(None, left);
            }
        }
        self.rig.take_late(&mut arrived);
        if exclusions::answers_late::<H>() {
            arrived.remove(&None);
        }
        ensure!(arrived.is_empty(), "frames that no packet explains: {}", shown_all(&arrived));
        Ok(())
    }

    fn is_excluded(&self, probe: usize, step: Step, sent: &Sent) -> bool {
        let is_error = || {
            let is_tcp =
                matches!(self.cluster.probes[probe].resolved(self.cluster).content, Content::Tcp { .. });
            exclusions::applies_to_error::<H>(self.cluster, self.stage, sent)
                || self.may_begin_again(probe, sent)
                || is_tcp && self.connections[probe].has_lost_reply
        };
        let may_be_outdated = || {
            let is_by_mac = self.cluster.probes[probe].is_by_mac();
            exclusions::may_be_outdated::<H>(self.cluster, &self.ends(probe, sent), is_by_mac)
        };
        exclusions::applies::<H>(self.cluster, self.stage, sent)
            || exclusions::shares_a_flow(self.cluster, probe)
            || self.stage == Stage::After && self.connections[probe].precedes_change && may_be_outdated()
            || step != Step::There && exclusions::applies_to_connected::<H>(self.cluster, self.stage, sent)
            || matches!(step, Step::Errors(_)) && is_error()
    }

    /// Whether an end of the connection of a packet elsewhere has got another group, which makes it another endpoint for the datapath.
    fn may_begin_again(&self, probe: usize, sent: &Sent) -> bool {
        self.stage == Stage::After && exclusions::may_begin_again::<H>(self.cluster, &self.ends(probe, sent))
    }

    /// Whether the packet may be the one that its direction of the connection loses, which goes on: the pod that it is for has got
    /// another group.
    fn may_be_lost(&self, probe: usize, step: Step, sent: &Sent) -> bool {
        let is_first = !self.connections[probe].lost[direction(step)];
        let receivers: Vec<_> = receivers(sent).into_iter().chain(self.backends(probe, sent)).collect();
        self.stage == Stage::After && is_first && exclusions::may_be_lost::<H>(self.cluster, &receivers)
    }

    /// The packet of a step, if the connection has one.
    fn packet(&self, number: usize, step: Step, id: u32) -> Option<Sent> {
        let (cluster, connection) = (self.cluster, &self.connections[number]);
        let (probe, phase) = (&cluster.probes[number], connection.phase());
        if !lifecycle::takes_part(cluster, self.stage, probe) {
            return None;
        }
        match step {
            Step::There => {
                let sent = probe.there(cluster, number, phase, id)?;
                let service = sent.service.filter(|at| cluster.is_installed(self.stage, *at));
                Some(Sent { service, ..sent })
            }
            Step::Back => probe.back(cluster, number, connection.delivered.as_ref()?, phase, id),
            Step::Errors(about) => {
                let delivered = if about == Way::There { &connection.delivered } else { &connection.reply };
                let is_translated = probe.service(cluster).is_some();
                let compared =
                    exclusions::compares_errors::<H>(probe.resolved(cluster).content, is_translated);
                delivered.as_ref().filter(|_| compared).and_then(|one| probe.error(cluster, number, one))
            }
        }
    }

    /// Compares the deliveries of a packet, and messages of the router about it, with the possible ones. Messages quote too little
    /// to have the number of the packet. Returns those of `messages` that are not about the packet.
    fn compare(
        &mut self,
        packet: Packet,
        mut deliveries: Vec<Delivery>,
        mut messages: Vec<Delivery>,
    ) -> Result<Vec<Delivery>> {
        let Packet { probe, step, id, sent } = &packet;
        let own = |possible: &Possible| -> (Vec<Delivery>, Vec<Delivery>) {
            possible.deliveries.iter().cloned().partition(|one| id_of(&one.frame) == Some(*id))
        };
        let service: Option<Service> = sent.service.map(|at| self.cluster.service(self.stage, at));
        let protocol = self.cluster.probes[*probe].resolved(self.cluster).content;
        let is_new = self.connections[*probe].delivered.is_none();
        let mut possible: Vec<Possible> = if exclusions::is_evaluated_alone::<H>(protocol) {
            vec![self.oracle.unconnected(&sent.from, &sent.bytes)]
        } else {
            let connection = &self.connections[*probe];
            let is_repeated = self.stage == Stage::After && is_new;
            let is_remembered = exclusions::is_remembered::<H>(is_repeated, connection.is_unclear);
            let states = exclusions::chosen(is_remembered);
            let may_begin_again = self.may_begin_again(*probe, sent);
            // Before `possible`, after which the oracle may know the connection.
            let again = may_begin_again
                .then(|| self.oracle.possible_again(&sent.from, &sent.bytes, service.as_ref(), states));
            let is_changed =
                sent.service.is_some_and(|at| service != Some(self.cluster.service(Stage::Before, at)));
            let resolves_again = is_changed
                && !self.connections[*probe].is_replied
                && exclusions::may_resolve_again::<H>(protocol);
            // Of the reasons for the drop, those for which the datapath remembers no connection leave it another choice.
            let may_have_none = is_new && connection.is_unclear;
            let resolved = (resolves_again || may_have_none).then(|| {
                let ended = self.oracle.ended(&sent.from, &sent.bytes);
                ended.possible(&sent.from, &sent.bytes, service.as_ref(), states)
            });
            let mut possible = self.oracle.possible(&sent.from, &sent.bytes, service.as_ref(), states);
            if is_remembered && let Some(earlier) = self.earlier(sent, service.as_ref()) {
                possible.extend(self.oracle.possible(&sent.from, &sent.bytes, Some(&earlier), states));
            }
            possible.extend(resolved.into_iter().flatten());
            possible.extend(again.into_iter().flatten());
            possible
        };
        let is_lost = deliveries.is_empty()
            && !possible.iter().any(|possible| possible.deliveries.is_empty())
            && self.may_be_lost(*probe, *step, sent);
        if is_lost {
            possible.push(self.oracle.dropped());
        }
        let is_equal = |possible: &Possible, deliveries: &[Delivery]| {
            let (copies, about) = own(possible);
            copies == deliveries
                && (exclusions::answers_late::<H>() || about.iter().all(|one| messages.contains(one)))
        };
        let start = Instant::now();
        while exclusions::answers_late::<H>()
            && !possible.iter().any(|one| is_equal(one, &deliveries))
            && start.elapsed() < LATE
        {
            deliveries.extend(self.rig.late(*id)?);
            deliveries.sort();
        }
        // The first of those that explain the most messages.
        let equal = possible.iter().enumerate().rev().filter(|(_, one)| is_equal(one, &deliveries));
        let is_unclear = deliveries.is_empty() && equal.clone().nth(1).is_some();
        let Some((at, _)) = equal.max_by_key(|(_, possible)| own(possible).1.len()) else {
            let mut expected: Vec<String> =
                possible.iter().map(|possible| shown(&possible.deliveries)).collect();
            expected.dedup();
            bail!(
                "{step:?} {probe}, {:?}\n from {:?}: {}\ncame:\n{}expected:\n{}",
                self.cluster.probes[*probe],
                sent.from,
                hex(&sent.bytes),
                shown(&[&deliveries[..], &messages[..]].concat()),
                expected.join("or\n")
            );
        };
        self.count(&packet, &deliveries);
        let Packet { probe, step, id, sent } = packet;
        let possible = possible.into_iter().nth(at).context("the possible result")?;
        for message in possible.deliveries.iter().filter(|one| id_of(&one.frame) != Some(id)) {
            if let Some(at) = messages.iter().position(|one| one == message) {
                self.summary.messages += 1;
                messages.remove(at);
            }
        }
        self.oracle.adopt(possible);
        let connection = &mut self.connections[probe];
        connection.is_unclear |= is_unclear;
        connection.lost[direction(step)] |= is_lost;
        connection.precedes_change |= self.stage != Stage::After && !deliveries.is_empty();
        let one = match &deliveries[..] {
            [one] => Some(one.clone()),
            _ => None,
        };
        match step {
            Step::There => {
                connection.delivered.clone_from(&one);
                // For the oracle, an error is about addresses, also if their groups are those of Ethernet addresses.
                let is_by_mac = self.cluster.probes[probe].is_by_mac();
                connection.reply = connection.reply.take().filter(|_| one.is_some() || !is_by_mac);
            }
            Step::Back => {
                connection.is_replied |= !deliveries.is_empty();
                connection.has_lost_reply |= deliveries.is_empty();
                connection.reply.clone_from(&one);
            }
            Step::Errors(_) => {}
        }
        // After the change, a client may choose again.
        let is_compared = (self.stage, step) == (Stage::Before, Step::There);
        if let (Some(at), Some(one), true) = (sent.service, one, is_compared) {
            self.keeps_its_backend(&sent, at, &one)?;
        }
        Ok(messages)
    }

    /// The service of a packet with the ports that it had before the change, if they were others.
    fn earlier(&self, sent: &Sent, service: Option<&Service>) -> Option<Service> {
        let ports = self.cluster.service(Stage::Before, sent.service?).ports;
        service.filter(|service| service.ports != ports).map(|service| Service { ports, ..service.clone() })
    }

    /// Endpoints of the connection of a packet, and the backends that it may be with.
    fn ends(&self, probe: usize, sent: &Sent) -> Vec<(usize, u8)> {
        // The kernel has another address of the pod.
        let pod = match self.cluster.probes[probe].from {
            Sender::Pod(pod) if sent.from == Origin::Kernel => {
                self.cluster.pods[pod].network.zip(self.cluster.last(pod))
            }
            _ => None,
        };
        named(sent).into_iter().chain(self.backends(probe, sent)).chain(pod).collect()
    }

    /// Backends that the connection of a packet may be with.
    fn backends(&self, probe: usize, sent: &Sent) -> Vec<(usize, u8)> {
        let Some(at) = self.cluster.probes[probe].service(self.cluster) else { return vec![] };
        let backends = self.cluster.service(Stage::Before, at).backends.into_iter();
        backends.filter_map(|backend| located(sent.network, backend.ip)).collect()
    }

    fn count(&mut self, packet: &Packet, deliveries: &[Delivery]) {
        let summary = &mut *self.summary;
        summary.packets += 1;
        summary.dropped += u64::from(deliveries.is_empty());
        summary.delivered += u64::from(!deliveries.is_empty());
        summary.copied += u64::from(deliveries.len() > 1);
        let is_there = packet.step == Step::There;
        summary.replies += u64::from(packet.step == Step::Back && !deliveries.is_empty());
        summary.errors += u64::from(matches!(packet.step, Step::Errors(_)));
        summary.translated += u64::from(is_there && packet.sent.service.is_some() && !deliveries.is_empty());
        let leaves = |delivery: &Delivery| !matches!(delivery.to, netplugin::datapath::fake::Target::Pod(_));
        summary.to_other_nodes += u64::from(deliveries.iter().any(leaves));
        let by_kernel = |one: &Delivery| one.to == netplugin::datapath::fake::Target::Kernel;
        summary.by_kernel +=
            u64::from(packet.sent.from == Origin::Kernel || deliveries.iter().any(by_kernel));
        summary.routed += u64::from(deliveries.iter().any(|one| one.frame[6..12] == ROUTER));
    }

    /// With session affinity, a client has one backend, whichever ports of the service it uses.
    fn keeps_its_backend(&mut self, sent: &Sent, at: usize, delivery: &Delivery) -> Result<()> {
        if !self.cluster.services[at].affinity {
            return Ok(());
        }
        let is_tagged = is_vlan(sent.network);
        let backend = destination(delivery, is_tagged).context("the backend")?;
        let known = *self.backends.entry((sent.from.clone(), at)).or_insert(backend);
        ensure!(known == backend, "the client at {:?} is with {known} and with {backend}", sent.from);
        Ok(())
    }
}

/// 0 for what goes to the receiver of the connection, 1 for what goes to its client. An error goes the other way than the packet.
fn direction(step: Step) -> usize {
    usize::from(matches!(step, Step::Back | Step::Errors(Way::There)))
}

fn shown(deliveries: &[Delivery]) -> String {
    if deliveries.is_empty() {
        return "  nothing\n".to_owned();
    }
    deliveries.iter().map(|one| format!("  {:?}: {}\n", one.to, hex(&one.frame))).collect()
}

fn shown_all(arrived: &crate::rig::Arrived) -> String {
    arrived.iter().map(|(id, deliveries)| format!("{id:?}\n{}", shown(deliveries))).collect()
}

fn hex(frame: &[u8]) -> String {
    let byte = |(at, byte): (usize, &u8)| {
        let gap = if [6, 12, 14].contains(&at) { " " } else { "" };
        format!("{gap}{byte:02x}")
    };
    frame.iter().enumerate().map(byte).collect()
}
