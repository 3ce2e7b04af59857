//! Services for clients outside the cluster, on the wire of a VLAN.
//!
//! One node answers ARP or ND for a service's address: the service's [speaker](crate::datapath::Service::speaker). It
//! chooses the backend. A backend on this node receives the packets as it would from a pod. For a backend on another
//! node, the speaker sends the frame back to the wire with other Ethernet addresses (direct server return). That node
//! translates the packet for the pod that has the Ethernet address, and the replies go directly to the client. So the
//! node of the backend evaluates rules with the client's address.
//!
//! ```text
//!  3 to the service's Ethernet address ─ 26 relayed before? ─┬─ no ─ 32 ct ─ 25 ─ 26 ─┬─ 27 ─ 30 ─ 28 ─ 34 ─┬─ here: commit ─ 29
//!                                                            └─ yes ─ 32 ─────────────┘                     └─ 7 ─ 4 ─▶ wire
//!  3 to a pod's Ethernet address ─ 33 its address ─ 27 ─ 28 ─ 29 translate ─ 7 ─ 4 policy
//! ```
//!
//! Connection tracking cannot follow a connection of which it sees only one direction. So each relayed connection has a
//! learned flow, installed by its second packet: a flood of packets that open connections installs none. Without a
//! learned flow, for example if the limit is reached, the hash selects the backend. It selects the same backend until the
//! set of backends changes.

use std::net::IpAddr;

use contiv_model::{addresses::Addresses, mac::Mac, service::Protocol};
use openflow_rs::{
    Action, Ct, Field, Flow, Match, Port as SwitchPort, Slice,
    matching::{IP_PROTO_TCP, IP_PROTO_UDP, mac_bits},
    nicira::{HashFields, Learn, LearnSpec},
};

use super::{
    answer,
    family::{Family, address_bits},
    group::UPLINK_GROUP,
    guard,
    metadata::{
        Domain, OUTSIDE, Segment, external_match, external_port_match, network_match, service_match,
        service_slice, service_value,
    },
    neighbour,
    service::{
        self, DELETE_LEARNED, FRAGMENT, IS_CHOSEN, IS_ESTABLISHED, affinity, bytes, choice_by, chosen_at,
        clients, constant, remember, with_backend, with_protocol,
    },
    table::{self, LEARNED, priority, priority::service as rank},
};
use crate::datapath::Service;

/// How a packet arrived: [`ARRIVED`] or [`RELAYED`]. Policies use the register later.
const PATH: Field = Field::Reg10;
/// Another node has chosen the backend.
const ARRIVED: u8 = 1;
/// The backend is, or may be, on another node.
const RELAYED: u8 = 2;

/// Mark of a connection whose backend is on this node. Policies use the register later.
const MARK: Field = Field::Reg11;

const SYN: u16 = 0x02;
/// Bit in the cookies of the learned flows of relayed connections. Other learned flows do not have it.
const RELAY_COOKIE: u64 = LEARNED | 1 << 48;
/// The same for clients with session affinity. The switch limits the number of flows per cookie, so these flows need
/// other cookies than those of pods.
const AFFINITY_COOKIE: u64 = LEARNED | 1 << 49;
/// Maximum number of learned flows of a service for connections, and likewise for clients.
const MAX_RELAYS: u32 = 8192;
/// Idle timeouts of a connection, in seconds: for TCP (RFC 5382 section 5 requires at least 2 h 4 min), for UDP (RFC 4787
/// section 4.3 recommends 5 minutes), and for TCP after a FIN or RST.
const TCP_IDLE: u16 = 7440;
const UDP_IDLE: u16 = 300;
const CLOSING: u16 = 10;

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let came = |path: u8| Match::new().field(PATH, path);
    let relay = |family: Family| {
        Flow::new(table::PLACE, priority::MISS, family.packets(Match::new())).apply([
            Action::set(PATH, RELAYED),
            Action::copy(family.register(), family.destination()),
            Action::resubmit(table::IP),
        ])
    };
    let mut flows = vec![
        Flow::new(table::EXTERNAL, rank::FIRST, came(RELAYED)).apply([Action::resubmit(table::BACKEND)]),
        // The endpoint is not, or no longer, a backend.
        Flow::new(table::BACKEND, rank::ANY + 3, came(ARRIVED)),
        // The backend may have moved to this node. The connection then uses the current target port of the service.
        Flow::new(table::CHOSEN, rank::FIRST + 1, came(RELAYED).field(IS_ESTABLISHED, 1u8))
            .apply([Action::set(MARK, IS_CHOSEN)])
            .goto(table::PLACE),
    ];
    flows.extend(Family::ALL.map(relay));
    flows
}

/// Returns the flows of a local endpoint on a VLAN that is only bridged. The endpoint may be a backend of services.
pub(super) fn local(segment: Segment, mac: Mac, addresses: &Addresses) -> impl Iterator<Item = Flow> {
    let Segment { tag, domain, .. } = segment;
    addresses.iter().flat_map(move |ip| {
        let family = Family::of(ip);
        let named = family.packets(network_match(tag).eth_dst(mac.0));
        let arrived = Flow::new(table::NAMED, priority::MATCH, named).apply([
            Action::set(family.register(), address_bits(ip)),
            Action::set(IS_ESTABLISHED, 1u8),
            Action::set(PATH, ARRIVED),
            Action::resubmit(table::BACKEND),
        ]);
        let here = Flow::new(table::PLACE, priority::MATCH, with_backend(network_match(tag), ip));
        // Also for a relayed connection that had another backend.
        let remember = remember(family, domain, Action::copy(MARK, Field::CtMark));
        let stay = [Action::set(PATH, 0u8), remember, Action::resubmit(table::TRANSLATE)];
        [arrived, here.apply(stay)]
    })
}

/// Returns the flows of a service on a VLAN that is only bridged. `answers`: this node answers ARP and ND for the
/// service. `has_bond`: the node has several uplinks.
pub(crate) fn external(
    service: &Service,
    domain: Domain,
    number: u32,
    answers: bool,
    has_bond: bool,
) -> Vec<Flow> {
    if !domain.is_learning() {
        return vec![];
    }
    let to = || guard::destination(domain.packets_from(OUTSIDE), service.vip);
    let mut flows: Vec<Flow> = service::fragments(service, domain, OUTSIDE).into();
    flows.push(Flow::new(table::SERVICE_DNAT, rank::ANY, to()));
    for port in &service.ports {
        let number = Action::load(service_value(number, port.port), service_slice());
        let packets = with_protocol(to(), port).field(service::ports(port.protocol)[1], port.port);
        let arrived = Flow::new(table::SERVICE_DNAT, rank::PORT, packets.clone());
        flows.push(arrived.apply([number.clone()]).goto(table::NAMED));
        if answers {
            let asked = packets.eth_dst(Mac::of_service(service.vip).0);
            let asked = Flow::new(table::SERVICE_DNAT, rank::PORT + 1, asked);
            flows.push(asked.apply([number, Action::resubmit(table::AFFINITY)]).goto(table::EXTERNAL));
        }
    }
    if answers {
        flows.extend(answered(service, domain, number, has_bond));
    }
    flows
}

/// Returns the flows of the node that answers ARP and ND for the service.
fn answered(service: &Service, domain: Domain, number: u32, has_bond: bool) -> Vec<Flow> {
    let (family, mac) = (Family::of(service.vip), Mac::of_service(service.vip));
    let to = || guard::destination(domain.packets_from(OUTSIDE).eth_dst(mac.0), service.vip);
    let whole = || to().masked(Field::IpFragment, 0u8, FRAGMENT);
    let refused = [whole().tcp(), whole().udp()].map(|m| Flow::new(table::SERVICE_DNAT, rank::ANY + 1, m));
    let mut flows: Vec<Flow> = refused.map(|flow| flow.apply(answer::refuse())).into();
    let track = Ct { zone: clients(domain), table: Some(table::SERVICE_STATE), ..Ct::default() };
    let unknown = Flow::new(table::EXTERNAL, rank::PORT, family.packets(service_match(number)));
    flows.push(unknown.apply([Action::Ct(track)]));
    flows.push(neighbour::service_outside(domain, mac, service.vip));
    flows.extend(choice(service, domain, number));
    flows.extend(relays(number, service.vip, mac, has_bond));
    flows
}

/// Chooses a backend by a hash that has the same value on all nodes.
fn choice(service: &Service, domain: Domain, number: u32) -> Vec<Flow> {
    if service::ready(service, domain).next().is_none() {
        return vec![];
    }
    let fields = match service.affinity {
        Some(_) => HashFields::IpSrc,
        None => HashFields::SymmetricL3L4Udp,
    };
    let chosen = Flow::new(table::BACKEND, rank::ANY + 2, external_match(number));
    let mut flows = vec![chosen.apply(choice_by(fields, service, domain))];
    if service::hashed(service).is_none() {
        flows.extend(service::members_by_index(service, domain, number));
    }
    let family = Family::of(service.vip);
    // Without a learned flow, the hash of the client's address selects the backend.
    let learn = service.affinity.map(|time| {
        Action::Learn(Learn {
            cookie: AFFINITY_COOKIE | u64::from(number),
            limit: MAX_RELAYS,
            ..affinity(family, number, time)
        })
    });
    flows.extend(service.ports.iter().map(|port| {
        let m = with_protocol(family.packets(external_port_match(number, port.port)), port);
        Flow::new(table::CHOSEN, rank::PORT + 1, m)
            .apply([Action::set(MARK, chosen_at(port.target))])
            .apply(learn.clone())
            .goto(table::PLACE)
    }));
    flows
}

/// Returns the flows for packets of relayed connections, which already have the backend's Ethernet address. With several
/// uplinks, the packets leave through the active one, even if the frame arrived through another: switches forward to the
/// uplink on which they last saw the service's Ethernet address. `NORMAL` is not used: the bridge may not have learned
/// the backend's port and would then flood the frame to pods.
fn relays(number: u32, vip: IpAddr, mac: Mac, has_bond: bool) -> [Flow; 3] {
    let family = Family::of(vip);
    let packets = || family.packets(external_match(number).field(PATH, RELAYED));
    let opening = packets().tcp().masked(Field::TcpFlags, SYN, SYN);
    let others = packets().tcp().masked(Field::TcpFlags, 0u8, SYN);
    let out = || match has_bond {
        // The switch does not output to the ingress port, and the frame may have arrived at that uplink.
        true => {
            vec![Action::load(SwitchPort::CONTROLLER.0.into(), Field::InPort), Action::Group(UPLINK_GROUP)]
        }
        false => vec![Action::output(SwitchPort::IN_PORT)],
    };
    let learned = |protocol| Some(relayed(family, number, protocol));
    [(opening, None), (others, learned(Protocol::Tcp)), (packets().udp(), learned(Protocol::Udp))].map(
        |(matching, learn)| {
            Flow::new(table::DESTINATION_GROUP, priority::INTERCEPT + 1, matching)
                .apply(learn.map(Action::Learn))
                .apply([
                    Action::set(family.destination(), address_bits(vip)),
                    Action::set(Field::EthSrc, mac_bits(mac.0)),
                ])
                .apply(out())
        },
    )
}

/// Keeps the backend of a relayed connection.
fn relayed(family: Family, number: u32, protocol: Protocol) -> Learn {
    let [port, _] = service::ports(protocol);
    let (ip_proto, idle_timeout) = match protocol {
        Protocol::Tcp => (IP_PROTO_TCP, TCP_IDLE),
        Protocol::Udp => (IP_PROTO_UDP, UDP_IDLE),
    };
    let same = |slice: Slice| LearnSpec::MatchField { from: slice, to: slice };
    let load =
        |value: u8, to: Field| LearnSpec::LoadValue { value: bytes(value.into(), to.bits()), to: to.into() };
    let backend = Slice::whole(family.register());
    Learn {
        idle_timeout,
        fin_idle_timeout: if protocol == Protocol::Tcp { CLOSING } else { 0 },
        priority: rank::FIRST,
        cookie: RELAY_COOKIE | u64::from(number),
        flags: DELETE_LEARNED,
        table: table::AFFINITY,
        limit: MAX_RELAYS,
        specs: vec![
            constant(family.eth_type().into(), Field::EthType.into()),
            constant(ip_proto.into(), Field::IpProto.into()),
            same(service_slice()),
            same(family.source().into()),
            same(port.into()),
            LearnSpec::LoadField { from: backend, to: backend },
            load(1, IS_ESTABLISHED),
            load(RELAYED, PATH),
        ],
        ..Learn::default()
    }
}
