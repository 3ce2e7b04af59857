//! What is not compared: known differences between a datapath and the oracle.
//!
//! `node::harness::Difference` has the list of each datapath; the reasons are in the harnesses and in
//! `docs/src/architecture/ovs.md`. Besides, no case has what the oracle does not model: fragments and rates.

use contiv_model::service::Readiness;
use netplugin::datapath::fake::Origin;

use crate::{
    cluster::{Cluster, GATEWAY, PODS, REMOTES, Stage, is_vlan, located, mac},
    node::harness::{Difference, Harness},
    packet::{Content, Phase, Sent, is_by_kernel, sender},
};

/// Flag of a segment that opens a connection.
const TCP_SYN: u8 = 0x02;

fn differs<H: Harness>(how: Difference) -> bool {
    H::DIFFERENCES.contains(&how)
}

/// Whether the packet is not sent.
pub(crate) fn applies<H: Harness>(cluster: &Cluster, stage: Stage, sent: &Sent) -> bool {
    let at = Station::of(cluster, stage, sent);
    // A service's address is translated before the station is looked up.
    let is_unknown = at == Station::Unknown && sent.service.is_none();
    let is_learning = is_vlan(sent.network) && !cluster.is_on_node(sent.network);
    differs::<H>(Difference::LearnsOnVlan) && is_learning && is_unknown
        || differs::<H>(Difference::FloodsStrayUnicast)
            && matches!(sent.from, Origin::Tunnel { .. })
            && at == Station::Remote
}

/// Whether an earlier probe sends packets with the same tuple, which has no ports, to another station, or such with the reversed one
/// between other stations: the datapath takes them for one connection, and drops what would leave it.
pub(crate) fn shares_a_flow(cluster: &Cluster, probe: usize) -> bool {
    let first = |number: usize| {
        let probe = &cluster.probes[number];
        let has_no_ports = matches!(probe.resolved(cluster).content, Content::Sctp | Content::Gre);
        has_no_ports.then(|| probe.there(cluster, number, Phase::Opening, 0)).flatten()
    };
    let Some(own) = first(probe) else { return false };
    let (receiver, sender) = (own.bytes.get(..6), own.bytes.get(6..12));
    let Some((protocol, from, to)) = tuple(&own.bytes) else { return false };
    let leaves = |other: &Sent| {
        let (to_station, from_station) = (other.bytes.get(..6), other.bytes.get(6..12));
        let other = tuple(&other.bytes);
        other == Some((protocol, from, to)) && to_station != receiver
            || other == Some((protocol, to, from)) && (to_station, from_station) != (sender, receiver)
    };
    (0..probe).filter_map(first).any(|other| other.network == own.network && leaves(&other))
}

/// Protocol, source and destination of a packet in a frame, with the tag of a VLAN or without.
fn tuple(frame: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let at = if frame.get(12..14) == Some(&[0x81, 0]) { 16 } else { 12 };
    let (protocol, addresses) = match frame.get(at..at + 2)? {
        [0x08, 0] => (at + 11, frame.get(at + 14..at + 22)?),
        _ => (at + 8, frame.get(at + 10..at + 42)?),
    };
    let (from, to) = addresses.split_at(addresses.len() / 2);
    Some((*frame.get(protocol)?, from, to))
}

/// Whether a reply or an ICMP error is not sent, because its receiver has no record.
pub(crate) fn applies_to_connected<H: Harness>(cluster: &Cluster, stage: Stage, sent: &Sent) -> bool {
    let is_unknown = Station::of(cluster, stage, sent) == Station::Unknown && !is_by_kernel(cluster, sent);
    differs::<H>(Difference::FloodsNoReplies) && is_unknown
}

/// Whether an ICMP error is not sent, because its receiver or the other end of the connection has no record. Which rules apply to copies
/// of an error differs: those for its connection, or those for ICMP.
pub(crate) fn applies_to_error<H: Harness>(cluster: &Cluster, stage: Stage, sent: &Sent) -> bool {
    let is_unknown = |(number, last): (usize, u8)| {
        let has_record = cluster.is_remote(stage, number, last) || cluster.pod_at(number, last).is_some();
        cluster.has_subnets(number) && last != GATEWAY && !has_record
    };
    let by_kernel = is_by_kernel(cluster, sent);
    // The agent translates those of host access, later than copies leave.
    let is_late = answers_late::<H>() && by_kernel && !cluster.is_on_node(sent.network);
    is_late
        || Station::of(cluster, stage, sent) == Station::Unknown && !by_kernel
        || differs::<H>(Difference::DropsErrorsOfStrangers)
            && sender(sent).is_some_and(|from| located(sent.network, from).is_some_and(is_unknown))
}

/// Whether the first packets of a connection may be dropped, or begin a new one: an end of the connection on another node has changed
/// its group.
pub(crate) fn may_begin_again<H: Harness>(cluster: &Cluster, ends: &[(usize, u8)]) -> bool {
    differs::<H>(Difference::EndsConnectionsOfRegrouped)
        && ends.iter().any(|end| cluster.is_regrouped_remote(*end))
}

/// Whether the first packet of a connection to one of these receivers may be dropped, which goes on with the next one: a pod of them has
/// changed its group.
pub(crate) fn may_be_lost<H: Harness>(cluster: &Cluster, receivers: &[(usize, u8)]) -> bool {
    differs::<H>(Difference::EndsConnectionsOfRegrouped)
        && receivers.iter().any(|receiver| cluster.is_regrouped_pod(*receiver))
}

/// Whether the connection of a packet may go on as it was evaluated, although the change would have it evaluated otherwise.
/// `is_by_mac` if an address of the packet is not that of its Ethernet address.
pub(crate) fn may_be_outdated<H: Harness>(cluster: &Cluster, ends: &[(usize, u8)], is_by_mac: bool) -> bool {
    let of_stranger = || is_by_mac && ends.iter().any(|end| cluster.is_regrouped(*end));
    differs::<H>(Difference::KeepsConnectionsOfRemoved) && ends.iter().any(|end| cluster.is_removed(*end))
        || differs::<H>(Difference::KeepsConnectionsOfStrangers) && of_stranger()
}

/// Whether a packet that is repeated before the first reply may go to another backend of a service that has changed.
pub(crate) fn may_resolve_again<H: Harness>(content: Content) -> bool {
    let is_syn = matches!(content, Content::Tcp { flags } if flags & TCP_SYN != 0);
    differs::<H>(Difference::ResolvesUnrepliedAgain) && is_syn
}

/// Whether each packet of the protocol is evaluated by its own header.
pub(crate) fn is_evaluated_alone<H: Harness>(content: Content) -> bool {
    differs::<H>(Difference::TracksNoOtherProtocols) && matches!(content, Content::Sctp | Content::Gre)
}

/// Whether a connection may have the backend and the port that were chosen before a change. `is_repeated` if it was denied then,
/// `is_unclear` if its backend may have been chosen nevertheless.
pub(crate) fn is_remembered<H: Harness>(is_repeated: bool, is_unclear: bool) -> bool {
    is_repeated && (is_unclear || differs::<H>(Difference::RemembersDeniedConnections))
}

/// States of the backends that a connection may get.
pub(crate) fn chosen(is_remembered: bool) -> &'static [Readiness] {
    if is_remembered { &[Readiness::Ready, Readiness::Terminating] } else { &[Readiness::Ready] }
}

/// Whether ICMP errors about packets of the protocol, which are of a connection to a service if `is_translated`, come where they
/// should, and no later than other packets.
pub(crate) fn compares_errors<H: Harness>(content: Content, is_translated: bool) -> bool {
    !(is_evaluated_alone::<H>(content) || is_translated && answers_late::<H>())
}

/// Whether messages about expired packets and to refused clients come at any time, or not at all.
pub(crate) fn answers_late<H: Harness>() -> bool {
    differs::<H>(Difference::AnswersByAgent)
}

/// The station that a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Station {
    Pod,
    Remote,
    Group,
    Unknown,
}

impl Station {
    fn of(cluster: &Cluster, stage: Stage, sent: &Sent) -> Station {
        let to = sent.bytes.get(..6);
        let is = |last: u8| to == Some(&mac(sent.network, last));
        let is_pod = |last: u8| cluster.pod_at(sent.network, last).is_some();
        if to.is_some_and(|mac| mac[0] & 1 != 0) {
            Station::Group
        } else if (1..=PODS as u8).any(|last| is_pod(last) && is(last)) {
            Station::Pod
        } else if REMOTES.into_iter().any(|last| cluster.is_remote(stage, sent.network, last) && is(last)) {
            Station::Remote
        } else {
            Station::Unknown
        }
    }
}
