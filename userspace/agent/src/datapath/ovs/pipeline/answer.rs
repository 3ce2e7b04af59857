//! Packets that the agent answers: OpenFlow actions can build neither an ICMP message nor a TCP reset.
//!
//! ```text
//!  25, 27 service without a backend ─┐
//!  7 TTL expired ────────────────────┼─ 58 meter ── 31 controller ─▶ agent ─┬─▶ port of the pod
//!  6, 25 ICMP error about a ─────────┤                                      └─▶ 9, 7, 2, 8
//!    translated packet, to its       │
//!    client or from it               │
//!  2, 8 the same from the kernel, ───┘
//!    and to it
//! ```
//!
//! Registers tell the agent what to do with the packet. For an expired packet they hold the address of the gateway that
//! sends the ICMP error. For an error they hold the address and port of the service or of the backend. For an error from
//! the kernel they hold the address of the endpoint, and for one to the kernel the private address. The agent rewrites an
//! error so that it quotes the packet that the receiver of the error has sent.
//!
//! The meters bound the load that pods put on the switch and the agent. One pod or network cannot exhaust the rate of the
//! others. There are three sets of [`SHARES`] meters: for pods (selected by port number), for packets from outside
//! (selected by network tag), and for errors from the kernel (selected by the address of the endpoint). While the agent
//! does not run, the switch drops these packets and no answer is sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_model::mac::Mac;
use ipnet::IpNet;
use openflow_rs::{
    Action, DropBand, Field, Flow, Match, Meter, MeterUnit, Port, Slice,
    packet::{PacketIn, PacketOut},
};

use super::{
    family::{Family, address_bits},
    guard,
    metadata::{Domain, FLAGS, NETWORK_SHIFT, OUTSIDE, routed, service_port_match},
    table::{self, priority},
};
use crate::datapath::wire::{
    answer::{refusal, time_exceeded},
    frame::{tagged, untag},
    packet::Packet,
};

/// Packets for the agent that a meter passes per second, and the burst size, per bridge.
const RATE: u32 = 200;
/// First meter id for pods, for packets from outside, and for endpoints that the kernel sends errors to.
const POD_METERS: u32 = 0xc0;
const OUTSIDE_METERS: u32 = POD_METERS + SHARES;
const KERNEL_METERS: u32 = OUTSIDE_METERS + SHARES;
/// Number of meters of each set, a power of two. Ports, tags and addresses with the same low bits share a meter.
const SHARES: u32 = 64;
/// Port number of the sender. Unlike `in_port`, it can be matched with a mask.
const SENDER_PORT: Field = Field::Reg10;
/// Action of the agent: [`REFUSED`], [`EXPIRED`], [`TRANSLATED`], [`REPLIED`], [`PRIVATE`] or [`OWN`]. For the last two
/// kinds, the register keeps the value after the agent has returned the packet.
const KIND: Field = Field::Reg8;
const REFUSED: u8 = 1;
const EXPIRED: u8 = 2;
const TRANSLATED: u8 = 3;
const PRIVATE: u8 = 4;
const OWN: u8 = 5;
const REPLIED: u8 = 6;
/// Port of the service or of the backend.
const PORT: Field = Field::Reg9;

/// Table whose flows send packets to the agent.
pub(super) const ANSWER_TABLE: u8 = table::ANSWER;
/// Tables that only packets for the agent pass.
pub(crate) const ANSWER_TABLES: [u8; 2] = [table::LIMIT, ANSWER_TABLE];

/// Returns the meters of the packets for the agent. The switch rejects the flows until the meters exist.
pub(crate) fn meters() -> Vec<Meter> {
    let meter =
        |id| Meter { id, unit: MeterUnit::Packets, bands: vec![DropBand { rate: RATE, burst: RATE }] };
    (POD_METERS..KERNEL_METERS + SHARES).map(meter).collect()
}

/// Informs the sender that no backend serves the address and port of the packet.
pub(super) fn refuse() -> [Action; 3] {
    answered(REFUSED)
}

/// Informs the sender that the TTL has expired.
pub(super) fn expire() -> [Action; 3] {
    answered(EXPIRED)
}

/// Rewrites an ICMP error: it quotes a packet that its receiver has sent to this service.
pub(super) fn translate(service: IpAddr, port: u16) -> [Action; 5] {
    let [kind, sender, next] = answered(TRANSLATED);
    let to = Action::set(Family::of(service).register(), address_bits(service));
    [to, Action::set(PORT, port), kind, sender, next]
}

/// Sends a client's ICMP error to the backend whose packet it quotes. These parts of the packet's connection hold the
/// backend's address and port.
pub(super) fn return_to_backend(family: Family, address: Slice, port: Slice) -> [Action; 5] {
    let [kind, sender, next] = answered(REPLIED);
    let address = Action::Move { from: address, to: family.register().into() };
    let port = Action::Move { from: port, to: Slice::bits(PORT, 0, port.width) };
    [address, port, kind, sender, next]
}

/// Rewrites an error from the node's kernel: it is about a packet of this endpoint and quotes the endpoint's private
/// address. Applies to packets that match `matching` and that the agent has not returned yet.
pub(super) fn restore(matching: Match, endpoint: Ipv4Addr) -> (Match, [Action; 4]) {
    let [kind, sender, next] = answered(PRIVATE);
    let to = Action::set(Family::V4.register(), endpoint.to_bits());
    (matching.field(KIND, 0u8), [to, kind, sender, next])
}

/// Rewrites an error to the node's kernel: it is about a packet to this private address and quotes the address of the
/// endpoint. Applies to packets that match `matching` and that the agent has not returned yet.
pub(super) fn conceal(matching: Match, private: Ipv4Addr) -> (Match, [Action; 4]) {
    let [kind, sender, next] = answered(OWN);
    let to = Action::set(Family::V4.register(), private.to_bits());
    (matching.field(KIND, 0u8), [to, kind, sender, next])
}

/// Clears the register, which policies may have used: the agent has not processed the packet yet.
pub(super) fn unseen() -> Action {
    Action::set(KIND, 0u8)
}

fn answered(kind: u8) -> [Action; 3] {
    let sender = Action::copy(Field::InPort, SENDER_PORT);
    [Action::set(KIND, kind), sender, Action::resubmit(table::LIMIT)]
}

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let errors = [TRANSLATED, REPLIED, PRIVATE, OWN].map(|kind| to_agent(Match::new().field(KIND, kind)));
    Family::ALL.into_iter().flat_map(refused).chain(errors).chain(limits()).collect()
}

/// Returns the flows that choose a meter.
fn limits() -> Vec<Flow> {
    let limit = |priority, m, meter| {
        Flow::new(table::LIMIT, priority, m).meter(meter).apply([Action::resubmit(table::ANSWER)])
    };
    let flows = |share| {
        let pod = Match::new().masked(SENDER_PORT, share, SHARES - 1);
        let tag = u64::from(share) << NETWORK_SHIFT | OUTSIDE;
        let outside = Match::new().metadata(tag, u64::from(SHARES - 1) << NETWORK_SHIFT | OUTSIDE);
        // An error from the kernel arrives here before its network is known.
        let endpoint = Match::new().field(KIND, PRIVATE).masked(Family::V4.register(), share, SHARES - 1);
        [
            limit(priority::MATCH, pod, POD_METERS + share),
            limit(priority::MATCH + 1, outside, OUTSIDE_METERS + share),
            limit(priority::MATCH + 2, endpoint, KERNEL_METERS + share),
        ]
    };
    (0..SHARES).flat_map(flows).collect()
}

/// Returns the flows that count refused packets.
pub(super) fn refused(family: Family) -> [Flow; 2] {
    let packets = || family.packets(Match::new().field(KIND, REFUSED));
    [packets().tcp(), packets().udp()].map(to_agent)
}

/// Returns the flow for expired packets from a subnet with this gateway. Translated packets do not match, because their
/// headers are no longer those that the sender knows.
pub(super) fn expired(domain: Domain, prefix: IpNet, gateway: IpAddr) -> Flow {
    let packets = domain.packets_from(0);
    let untranslated = service_port_match(0, 0).get(Field::Metadata);
    let of_no_service = untranslated.into_iter().fold(packets, |m, none| {
        let (value, mask) = m.get(Field::Metadata).map_or((0, 0), |before| (before.value, before.mask));
        m.masked(Field::Metadata, value | none.value, mask | none.mask)
    });
    let m = guard::source_within(routed(of_no_service).field(KIND, EXPIRED), prefix);
    let flow = Flow::new(table::ANSWER, priority::MATCH, m);
    let from = Action::set(Family::of(gateway).register(), address_bits(gateway));
    flow.apply([from, Action::controller()])
}

fn to_agent(matching: Match) -> Flow {
    Flow::new(table::ANSWER, priority::MATCH, matching).apply([Action::controller()])
}

/// Returns the answer to a packet that these flows have sent to the agent. Returns `None` for packets that must not be
/// answered and for packets of other flows.
pub(crate) fn answer(packet: &PacketIn) -> Option<PacketOut> {
    let PacketIn { table: table::ANSWER, matching, data, .. } = packet else { return None };
    let kind = matching.exact(KIND).and_then(|kind| u8::try_from(kind).ok())?;
    let from = Port(matching.exact(Field::InPort).and_then(|port| u32::try_from(port).ok())?);
    match kind {
        TRANSLATED => return translated(from, matching, data, Packet::rewrite_error, table::DESTINATION),
        REPLIED => return translated(from, matching, data, returned, table::IP),
        PRIVATE => return restored(from, matching, data),
        OWN => return concealed(from, matching, data),
        _ => {}
    }
    // Frames from an uplink carry their VLAN tag.
    let tag = untag(data);
    let data = tag.as_ref().map_or(data, |(_, inner)| inner);
    let read = Packet::read(data)?;
    let frame = match kind {
        REFUSED => refusal(data, &read)?,
        EXPIRED => time_exceeded(data, &read, address(matching, read.tuple.source.0)?)?,
        _ => return None,
    };
    let frame = tag.map_or(frame.clone(), |(vlan, _)| tagged(&frame, vlan));
    Some(PacketOut { in_port: Port::CONTROLLER, actions: vec![Action::output(from)], data: frame })
}

/// Translates an error with the address and the port in the registers, and forwards it to this table.
fn translated(
    in_port: Port,
    matching: &Match,
    data: &[u8],
    translate: impl FnOnce(&Packet, &mut [u8], (IpAddr, u16)) -> Option<()>,
    next: u8,
) -> Option<PacketOut> {
    // Frames from an uplink carry their VLAN tag.
    let tag = untag(data);
    let mut frame = tag.as_ref().map_or_else(|| data.to_vec(), |(_, inner)| inner.clone());
    let packet = Packet::read(&frame)?;
    let port = matching.exact(PORT).and_then(|port| u16::try_from(port).ok())?;
    translate(&packet, &mut frame, (address(matching, packet.tuple.source.0)?, port))?;
    let data = tag.map_or(frame.clone(), |(vlan, _)| tagged(&frame, vlan));
    let actions = metadata(matching).into_iter().chain([Action::resubmit(next)]).collect();
    Some(PacketOut { in_port, actions, data })
}

/// Rewrites an error to a backend. The table that forwards the error sets its Ethernet destination.
fn returned(packet: &Packet, frame: &mut [u8], backend: (IpAddr, u16)) -> Option<()> {
    let mac = Mac(*frame.first_chunk()?);
    packet.return_error(frame, backend, mac)
}

/// Restores the metadata of a packet.
fn metadata(matching: &Match) -> [Action; 2] {
    [Field::Metadata, FLAGS].map(|field| Action::set(field, matching.exact(field).unwrap_or_default()))
}

/// Forwards an error from the kernel as the table that sent it to the agent would.
fn restored(in_port: Port, matching: &Match, data: &[u8]) -> Option<PacketOut> {
    let mut frame = data.to_vec();
    let packet = Packet::read(&frame)?;
    let IpAddr::V4(endpoint) = address(matching, packet.tuple.source.0)? else { return None };
    packet.rewrite_quoted_source(&mut frame, endpoint)?;
    let actions = vec![Action::set(KIND, PRIVATE), Action::resubmit(table::HOST_DNAT)];
    Some(PacketOut { in_port, actions, data: frame })
}

/// Forwards an error to the kernel as the table that sent it to the agent would.
fn concealed(in_port: Port, matching: &Match, data: &[u8]) -> Option<PacketOut> {
    let mut frame = data.to_vec();
    let packet = Packet::read(&frame)?;
    let IpAddr::V4(private) = address(matching, packet.tuple.source.0)? else { return None };
    packet.rewrite_quoted_destination(&mut frame, private)?;
    let again = [Action::set(KIND, OWN), Action::resubmit(table::HOST_SNAT)];
    let actions = metadata(matching).into_iter().chain(again).collect();
    Some(PacketOut { in_port, actions, data: frame })
}

/// Returns the address in the register of the family of `sender`.
fn address(matching: &Match, sender: IpAddr) -> Option<IpAddr> {
    // The switch omits fields that are zero.
    let part = |field| matching.exact(field).map_or(Some(0), |part| u32::try_from(part).ok());
    match sender {
        IpAddr::V4(_) => Some(Ipv4Addr::from_bits(part(Field::Reg4)?).into()),
        IpAddr::V6(_) => {
            let whole = matching.exact(Field::XXReg1);
            let parts = Family::PARTS
                .into_iter()
                .try_fold(0, |bits: u128, field| Some(bits << 32 | u128::from(part(field)?)));
            Some(Ipv6Addr::from_bits(whole.or(parts)?).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use openflow_rs::packet::PacketInReason;
    use testkit::packet;

    use super::*;

    fn sent_by(kind: u8, matching: Match, data: Vec<u8>) -> PacketIn {
        PacketIn {
            total_len: data.len() as u16,
            reason: PacketInReason::Action,
            table: table::ANSWER,
            cookie: 0,
            matching: matching.in_port(Port(7)).field(KIND, kind),
            data,
        }
    }

    #[test]
    fn answers_leave_by_the_port_of_the_sender() {
        let frame = packet::Packet::eth([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 9]).udp(1, 2).build();
        let PacketOut { in_port, actions, data } =
            answer(&sent_by(REFUSED, Match::new(), frame.clone())).unwrap();
        assert_eq!((in_port, actions), (Port::CONTROLLER, vec![Action::output(7)]));
        assert_eq!(data[26..30], [10, 0, 0, 9]);
        let other = PacketIn { table: 5, ..sent_by(REFUSED, Match::new(), frame.clone()) };
        assert_eq!(answer(&other), None);
        assert_eq!(answer(&sent_by(9, Match::new(), frame)), None);
    }

    /// Returns the meter of packets that match this.
    fn meter_of(packets: &Match) -> u32 {
        let passes = |flow: &Flow| {
            flow.matching.iter().all(|(field, wanted)| {
                let value = packets.get(field).map_or(0, |masked| masked.value);
                value & wanted.mask == wanted.value
            })
        };
        let flow = limits().into_iter().filter(passes).max_by_key(|flow| flow.priority).unwrap();
        flow.instructions.meter.filter(|id| meters().iter().any(|meter| meter.id == *id)).unwrap()
    }

    #[test]
    fn pods_networks_and_endpoints_have_different_meters() {
        let from_port = |port: u32| Match::new().field(SENDER_PORT, port).field(KIND, REFUSED);
        let pods = (3..3 + SHARES).map(|port| from_port(port).metadata(u64::from(port) << 40, u64::MAX));
        // They arrive at one port, as from an uplink.
        let outside =
            (9..9 + SHARES).map(|tag| from_port(1).metadata(u64::from(tag) << 40 | OUTSIDE, u64::MAX));
        let endpoints = (0x0a01_0005..)
            .take(SHARES as usize)
            .map(|ip: u32| Match::new().field(SENDER_PORT, 1u8).field(KIND, PRIVATE).field(Field::Reg4, ip));
        let all: HashSet<u32> =
            pods.chain(outside).chain(endpoints).map(|packets| meter_of(&packets)).collect();
        assert_eq!(all.len(), 3 * SHARES as usize);
        // The kernel's errors about packets of one network do not use the meter of other packets from outside.
        let again = Match::new().field(KIND, PRIVATE).metadata(OUTSIDE, OUTSIDE);
        assert_eq!(meter_of(&again), KERNEL_METERS);
    }

    #[test]
    fn errors_are_about_what_the_client_has_sent() {
        let [client, service, backend] = [1, 200, 9].map(|last| [10, 0, 0, last]);
        let packet = |to| packet::Packet::eth([2; 6], [4; 6]).ipv4(client, to).ip_id(7);
        let sent = packet(service).udp(4000, 53).payload(b"question").build();
        let arrived = packet(backend).udp(4000, 5353).payload(b"question").build();
        let registers = || {
            let m = Match::new().field(Field::Reg4, u32::from_be_bytes(service)).field(PORT, 53u8);
            m.metadata(5 << 40 | 1, u64::MAX)
        };
        for (from, shown, tag) in [(backend, service, None), ([10, 0, 0, 254], [10, 0, 0, 254], Some(5))] {
            let error = |from: [u8; 4], quoted: &[u8]| {
                let eth = packet::Packet::eth([4; 6], [2; 6]);
                let eth = tag.map_or(eth.clone(), |tag| eth.vlan(tag));
                eth.ipv4(from, client).icmp(3, 4, [0, 0, 5, 0]).payload(&quoted[14..14 + 28]).build()
            };
            let PacketOut { in_port, actions, data } =
                answer(&sent_by(TRANSLATED, registers(), error(from, &arrived))).unwrap();
            assert_eq!(data, error(shown, &sent));
            assert_eq!((in_port, actions.len()), (Port(7), 3));
            assert_eq!(actions[0], Action::set(Field::Metadata, 5_u64 << 40 | 1));
            assert_eq!(actions[2], Action::resubmit(table::DESTINATION));
        }
    }

    #[test]
    fn errors_of_clients_are_about_what_the_backend_has_sent() {
        let [client, service, backend] = [1, 200, 9].map(|last| [10, 0, 0, last]);
        let reply = |from, port| {
            let packet = packet::Packet::eth([2; 6], [4; 6]).ipv4(from, client).ip_id(7);
            packet.udp(port, 4000).payload(b"answer").build()
        };
        let error = |to: [u8; 4], quoted: &[u8]| {
            let packet = packet::Packet::eth([4; 6], [2; 6]).ipv4(client, to);
            packet.icmp(3, 3, [0; 4]).payload(&quoted[14..14 + 28]).build()
        };
        let registers =
            |port: u16| Match::new().field(Field::Reg4, u32::from_be_bytes(backend)).field(PORT, port);
        let sent = error(service, &reply(service, 53));
        let PacketOut { in_port, actions, data } =
            answer(&sent_by(REPLIED, registers(5353), sent.clone())).unwrap();
        assert_eq!(data, error(backend, &reply(backend, 5353)));
        assert_eq!((in_port, &actions[2..]), (Port(7), &[Action::resubmit(table::IP)][..]));
        // A connection that was opened before its port was recorded.
        let unknown = Match::new().field(Field::Reg4, u32::from_be_bytes(backend));
        assert_eq!(answer(&sent_by(REPLIED, unknown, sent)), None);
    }

    #[test]
    fn errors_from_the_kernel_are_about_what_the_endpoint_has_sent() {
        let [endpoint, private, outside] = [[10, 1, 0, 5], [172, 19, 0, 7], [192, 0, 2, 9]];
        let packet = |from| packet::Packet::eth([2; 6], [4; 6]).ipv4(from, outside).ip_id(7);
        let sent = packet(endpoint).udp(4000, 53).payload(b"question").build();
        let left = packet(private).udp(4000, 53).payload(b"question").build();
        let error = |quoted: &[u8]| {
            let eth = packet::Packet::eth([2; 6], [2; 6]).ipv4(outside, private);
            eth.icmp(3, 3, [0; 4]).payload(&quoted[14..14 + 28]).build()
        };
        let endpoint = Match::new().field(Field::Reg4, u32::from_be_bytes(endpoint));
        let PacketOut { in_port, actions, data } = answer(&sent_by(PRIVATE, endpoint, error(&left))).unwrap();
        assert_eq!(data, error(&sent));
        let again = [Action::set(KIND, PRIVATE), Action::resubmit(table::HOST_DNAT)];
        assert_eq!((in_port, &actions[..]), (Port(7), &again[..]));
    }

    #[test]
    fn the_gateway_tells_that_the_ttl_has_expired() {
        let [a, b]: [Ipv6Addr; 2] = ["2001:db8::1", "2001:db8::9"].map(|ip| ip.parse().unwrap());
        let frame = packet::Packet::eth([2; 6], [4; 6]).ipv6(a, b).udp(1, 2).ttl(1).build();
        let parts = Match::new().field(Field::Reg4, 0x2001_0db8_u32).field(Field::Reg7, 0xfe_u8);
        let whole = Match::new().field(Field::XXReg1, 0x2001_0db8_u128 << 96 | 0xfe);
        for registers in [parts, whole] {
            let told = answer(&sent_by(EXPIRED, registers, frame.clone())).unwrap().data;
            let from = Ipv6Addr::from(<[u8; 16]>::try_from(&told[22..38]).unwrap());
            assert_eq!(from, "2001:db8::fe".parse::<Ipv6Addr>().unwrap());
            assert_eq!(told[54..56], [3, 0]);
        }
    }
}
