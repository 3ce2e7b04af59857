//! Services: a client's node translates packets to a service's address to one of its backends.
//!
//! ```text
//!  3 ─ address and port ── ct ── 25 ─┬─ established ──────── 27 backend ─┬─ 28 ─ 29, 54 translate ─ 7 MAC address ─ 4 policy
//!                                    └─ new ── 26 affinity ─ 27 ─ group ─┘ ct(commit)
//!  24 accepted ─ 22 ─ 6 reply of a backend? ── ct ── 9
//!  3 ─ ICMP message ───── ct ── 25 ─── error about a reply ────── 31 agent ─ 7
//!  3 ─ address, no port ─ ct ── 25 ─┬─ reply of a pod to itself ── 7
//!  27 no backend ───────────────────┴─ 31 refused
//! ```
//!
//! Connection tracking translates nothing; it only stores state. A client's connection to the service has its own entry
//! in a second zone of the domain, whose label is the backend's address. The translated connection, which policies
//! evaluate, has the service's number and port as its label. Table 6 uses this label to translate replies. Both entries
//! see both directions. So a connection keeps its backend without the agent, whatever the group selects for others, and
//! client ports can be reused at once. (The NAT of the userspace datapath's connection tracking fails in this case, see
//! docs/src/architecture/ovs.md.)
//!
//! A client that sends from one port to two services with a backend in common has two entries in the clients' zone, and
//! one connection to the backend. The label of that connection is that of the latest packet (table 59 compares).
//!
//! The kernel datapath reassembles fragments before their ports are matched. The userspace datapath's connection tracking
//! outputs fragments again. When it translates addresses, it corrupts the data of later fragments, as if each had a UDP
//! or TCP header. So fragments to services and fragments of their replies are dropped with it.
//!
//! A pod that connects to itself through a service receives its packets from the service's address, as on eBPF nodes. The
//! packets that it returns match no port of the service. They are sent back to the pod's own address, where they are
//! replies of the connection.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use contiv_model::{
    mac::Mac,
    service::{Port, Protocol, Readiness},
    tag::Encap,
};
use openflow_rs::{
    Action, Bucket, Ct, Field, Flow, Group, GroupKind, Match, Port as SwitchPort, Slice, Zone, ct_state,
    matching::{IP_PROTO_TCP, IP_PROTO_UDP},
    nicira::{HashFields, Learn, LearnSpec, LinkAlgorithm, Multipath},
};

use super::{
    answer,
    family::{Family, address_bits, with_address},
    group::backend_group,
    guard,
    metadata::{
        Domain, SERVICE_MASK, bridge_and_tag, matched_service, service_match, service_port_match,
        service_slice, service_value,
    },
    neighbour, policy, released,
    table::{
        self, LEARNED, priority,
        priority::{policy as accept, service as rank},
    },
};
use crate::datapath::{Backend, Service};

/// Bit of the mark of a client's connection whose backend is chosen.
pub(super) const IS_CHOSEN: u32 = 1;
/// Bit of the mark that says that the mark holds the backend's port, and the port's position and width.
const HAS_TARGET: u32 = 2;
const TARGET: (u16, u16) = (16, 16);
/// Not zero if the connection already has a backend.
pub(super) const IS_ESTABLISHED: Field = Field::Reg1;
/// Index of the chosen backend.
const INDEX: Field = Field::Reg9;
/// Fragment flag that is set in all fragments.
pub(super) const FRAGMENT: u8 = 1;
/// `NX_LEARN_F_DELETE_LEARNED`: deleting a flow also deletes the flows learned from it.
pub(super) const DELETE_LEARNED: u16 = 2;

/// The backend's address in the label of the client's connection.
fn label(family: Family) -> Slice {
    Slice::bits(Field::CtLabel, 0, family.register().bits())
}

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let established = |family: Family| {
        let m = is_chosen(family.packets(Match::new()));
        let actions = [
            Action::Move { from: label(family), to: Slice::whole(family.register()) },
            Action::set(IS_ESTABLISHED, 1u8),
        ];
        Flow::new(table::SERVICE_STATE, rank::PORT, m).apply(actions).goto(table::BACKEND)
    };
    let invalid = Match::new().ct_state(ct_state::INVALID, ct_state::INVALID);
    let mut flows: Vec<Flow> = Family::ALL.map(established).into();
    flows.extend([
        // The userspace datapath also finds the connection of an invalid packet.
        Flow::new(table::SERVICE_STATE, rank::ANY, invalid),
        Flow::new(table::SERVICE_STATE, priority::MISS, Match::new())
            .apply([Action::resubmit(table::AFFINITY)])
            .goto(table::BACKEND),
        Flow::new(table::CHOSEN, rank::FIRST, Match::new().field(IS_ESTABLISHED, 1u8)).goto(table::TRANSLATE),
    ]);
    flows.extend(Family::ALL.into_iter().flat_map(to_no_port));
    flows.extend(Family::ALL.into_iter().flat_map(errors_of_clients));
    flows.extend(Family::ALL.into_iter().flat_map(kept_ports));
    let of_service = Flow::new(table::TARGET_PORT, priority::MISS, Match::new());
    flows.push(of_service.apply([Action::resubmit(table::IP)]));
    flows.push(Flow::new(table::SERVICE_STATE, rank::FIRST, service_port_match(0, 0)));
    flows.extend(Family::ALL.into_iter().flat_map(fragments_of_replies));
    let reply = ct_state::TRACKED | ct_state::REPLY;
    let to_no_service = policy::returning(service_port_match(0, 0));
    flows.extend([
        // Packets of a pod to a service's address, but to none of its ports: only replies return to the pod.
        Flow::new(table::ACCEPT, accept::RETURNING, to_no_service.clone()),
        Flow::new(table::ACCEPT, accept::RETURNING + 1, to_no_service.ct_state(reply, reply))
            .apply([Action::resubmit(table::DSCP)]),
        Flow::new(table::DESTINATION, priority::INTERCEPT, policy::returning(Match::new()))
            .apply([Action::output(SwitchPort::IN_PORT)]),
    ]);
    flows
}

/// Fragments that passed connection tracking. Fragments of a backend's replies are dropped.
fn fragments_of_replies(family: Family) -> [Flow; 2] {
    let reply = ct_state::TRACKED | ct_state::REPLY;
    let fragments = || family.packets(Match::new()).masked(Field::IpFragment, FRAGMENT, FRAGMENT);
    let replies = || fragments().ct_state(reply, reply);
    let of_no_service = replies().masked(Field::CtLabel, 0u64, SERVICE_MASK);
    [
        Flow::new(table::SERVICE_SNAT, rank::FIRST + 1, of_no_service).goto(table::DESTINATION),
        Flow::new(table::SERVICE_SNAT, rank::FIRST, replies()),
    ]
}

/// Fragments to a service's address: the ports of a reassembled packet are matched again.
pub(super) fn fragments(service: &Service, domain: Domain, origin: u64) -> [Flow; 2] {
    let to = guard::destination(domain.packets_from(origin), service.vip);
    let fragments = to.masked(Field::IpFragment, FRAGMENT, FRAGMENT);
    let tracked = |state| fragments.clone().ct_state(state, ct_state::TRACKED);
    let track = Ct { zone: clients(domain), table: Some(table::REASSEMBLED), ..Ct::default() };
    [
        Flow::new(table::SERVICE_DNAT, rank::FIRST, tracked(0)).apply([Action::Ct(track)]),
        Flow::new(table::SERVICE_DNAT, rank::FIRST, tracked(ct_state::TRACKED)),
    ]
}

/// Packets of a pod to a service's address, but to none of its ports, after [`returned`]: replies return to the pod, and
/// packets that open a connection are refused.
fn to_no_port(family: Family) -> [Flow; 3] {
    let packets = || family.packets(service_port_match(0, 0));
    let reply = ct_state::TRACKED | ct_state::REPLY;
    let sent = Action::copy(family.register(), family.destination());
    let refused = |m: Match| {
        let flow = Flow::new(table::SERVICE_STATE, rank::FIRST + 1, m);
        flow.apply([sent.clone()]).apply(answer::refuse())
    };
    let replies = Flow::new(table::SERVICE_STATE, rank::FIRST + 2, packets().ct_state(reply, reply));
    [refused(packets().tcp()), refused(packets().udp()), replies.apply([Action::resubmit(table::IP)])]
}

/// ICMP messages of a pod to a service's address, after [`of_client`]. Messages that are not an error about a packet of
/// the backend are dropped.
fn errors_of_clients(family: Family) -> [Flow; 2] {
    let state = ct_state::TRACKED | ct_state::RELATED;
    let messages = || family.packets(service_port_match(0, 0)).ip_proto(family.icmp());
    let errors = has_target(messages().ct_state(state, state | ct_state::REPLY));
    [
        Flow::new(table::SERVICE_STATE, rank::FIRST + 3, messages()),
        Flow::new(table::SERVICE_STATE, rank::FIRST + 4, errors).apply(answer::return_to_backend(
            family,
            label(family),
            target(),
        )),
    ]
}

/// Looks up an ICMP message to the service's address as an error about a packet of one of its backends.
fn of_client(service: &Service, domain: Domain) -> Flow {
    let family = Family::of(service.vip);
    let m = guard::destination(domain.packets_from(0), service.vip).ip_proto(family.icmp());
    let track = Ct { zone: clients(domain), table: Some(table::SERVICE_STATE), ..Ct::default() };
    Flow::new(table::SERVICE_DNAT, rank::ANY + 1, m).apply([Action::Ct(track)])
}

/// Established connections keep their backend port, even if the service's target port has changed.
fn kept_ports(family: Family) -> [Flow; 2] {
    let established = || has_target(family.packets(Match::new().field(IS_ESTABLISHED, 1u8)));
    [(established().tcp(), Protocol::Tcp), (established().udp(), Protocol::Udp)].map(|(m, protocol)| {
        let port = Action::Move { from: target(), to: Slice::whole(ports(protocol)[1]) };
        Flow::new(table::TARGET_PORT, rank::PORT, m).apply([port, Action::resubmit(table::IP)])
    })
}

/// The backend's port in the mark of the client's connection.
fn target() -> Slice {
    let (at, width) = TARGET;
    Slice::bits(Field::CtMark, at, width)
}

/// Requires a client's connection whose mark holds the backend's port.
fn has_target(matching: Match) -> Match {
    matching.masked(Field::CtMark, HAS_TARGET, HAS_TARGET)
}

/// Requires a client's connection whose backend is chosen.
fn is_chosen(matching: Match) -> Match {
    matching.masked(Field::CtMark, IS_CHOSEN, IS_CHOSEN)
}

/// Looks up a packet as one that a pod returns to itself, to its own address. A register holds the address that the
/// packet was sent to.
fn returned(family: Family, domain: Domain) -> [Action; 3] {
    let track = Ct { zone: Zone::Number(domain.zone()), table: Some(table::SERVICE_STATE), ..Ct::default() };
    [
        Action::copy(family.destination(), family.register()),
        Action::copy(family.source(), family.destination()),
        Action::Ct(track),
    ]
}

/// Returns the flows of a service with this number in its domain.
pub(crate) fn service(service: &Service, domain: Domain, number: u32) -> Vec<Flow> {
    let family = Family::of(service.vip);
    let mut flows: Vec<Flow> = service
        .ports
        .iter()
        .flat_map(|port| [request(service, domain, number, port), translation(family, number, port)])
        .collect();
    flows.extend(service.ports.iter().map(|port| reply(service, domain, number, port)));
    flows.extend(service.ports.iter().map(|port| error(service, domain, number, port)));
    // One flow for both protocols of a port.
    let ports: BTreeSet<u16> = service.ports.iter().map(|port| port.port).collect();
    flows.extend(ports.into_iter().map(|port| policy::known_service(number, port)));
    flows.extend(backends(service, domain).map(|backend| member(&backend, number)));
    flows.push(choice(service, domain, number));
    flows.extend(indexed(service, domain, number));
    flows.extend(service.ports.iter().map(|port| commit(service, domain, number, port)));
    flows.extend(fragments(service, domain, 0));
    // Other packets of a pod to the address may be packets that it returns to itself.
    let to = guard::destination(domain.packets_from(0), service.vip);
    flows.push(Flow::new(table::SERVICE_DNAT, rank::ANY, to).apply(returned(family, domain)));
    flows.push(of_client(service, domain));
    flows.push(returning(service, number));
    let mac = Mac::of_service(service.vip);
    flows.extend(guard::known_service(domain, mac, service.vip));
    flows.push(neighbour::service(domain, mac, service.vip));
    flows
}

/// Returns the group that selects a backend for a new connection.
pub(crate) fn selection(service: &Service, domain: Domain, number: u32) -> Group {
    let backend = Family::of(service.vip).register();
    let bucket = |ip: IpAddr| {
        let address = Action::set(backend, address_bits(ip));
        Bucket::new([address, Action::resubmit(table::CHOSEN)]).weight(1)
    };
    let buckets = ready(service, domain).map(|ready| bucket(ready.ip)).collect();
    Group { id: backend_group(number), kind: GroupKind::Select, buckets }
}

/// Whether the service needs a group.
pub(crate) fn has_selection(service: &Service, domain: Domain) -> bool {
    service.affinity.is_none() && ready(service, domain).next().is_some()
}

/// Meaning of the packet count of a service's flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// The first packets of connections.
    Connections,
    ToBackends,
    ToClients,
}

/// Tables with the flows that count packets of services.
pub(crate) const SERVICE_TABLES: [u8; 3] = [table::SERVICE_SNAT, table::CHOSEN, table::TRANSLATE];

/// Returns the flows that count packets of a service, with the port that each counts for.
pub(crate) fn counted_services(service: &Service, domain: Domain, number: u32) -> Vec<(Flow, Port, Counted)> {
    let family = Family::of(service.vip);
    let of = |port: &Port| {
        [
            (commit(service, domain, number, port), *port, Counted::Connections),
            (translation(family, number, port), *port, Counted::ToBackends),
            (reply(service, domain, number, port), *port, Counted::ToClients),
        ]
    };
    service.ports.iter().flat_map(of).collect()
}

/// Table with flows that identify the number of their service.
pub(crate) const SERVICE_NUMBERS: u8 = table::BACKEND;

/// Returns the number of the service that a flow belongs to, if the flow is in [`SERVICE_NUMBERS`].
pub(crate) fn service_number(flow: &Flow) -> Option<u32> {
    (flow.table == SERVICE_NUMBERS).then(|| matched_service(&flow.matching)).flatten()
}

/// Reports whether a connection with this label has been translated to a service's backend.
pub(crate) fn is_of_service(label: u128) -> bool {
    label & u128::from(SERVICE_MASK) != 0
}

/// Returns the backend of a client's connection to a service from the mark and the label of its entry; `None` if it has
/// none.
pub(crate) fn chosen_backend(is_ipv4: bool, mark: u32, label: u128) -> Option<IpAddr> {
    let address = || if is_ipv4 { IpAddr::V4((label as u32).into()) } else { IpAddr::V6(label.into()) };
    (mark & IS_CHOSEN != 0).then(address)
}

/// Returns the backend port that a client's connection to a service keeps, from the mark of its entry; `None` if the
/// current target port of the service applies.
pub(crate) fn chosen_port(mark: u32) -> Option<u16> {
    (mark & HAS_TARGET != 0).then_some((mark >> TARGET.0) as u16)
}

/// Reports whether a packet made the switch learn this flow.
pub(crate) fn is_learned(flow: &Flow) -> bool {
    [table::AFFINITY, table::EXPIRING].contains(&flow.table) && flow.cookie >> 56 == LEARNED >> 56
}

/// Returns the backends that clients of the service can reach: on its network, or on any network that is routed to it.
fn backends(service: &Service, domain: Domain) -> impl Iterator<Item = Backend> {
    let is_reachable = move |backend: &&Backend| match domain {
        Domain::Network(encap) => backend.encap == Some(encap),
        Domain::RoutedVlan(vlan) => backend.encap == Some(Encap::Vlan(vlan)),
        Domain::Vrf(bridge, _) => backend.encap.is_some_and(|encap| bridge_and_tag(encap).0 == bridge),
    };
    let same_family = |backend: &&Backend| backend.ip.is_ipv4() == service.vip.is_ipv4();
    service.backends.iter().filter(is_reachable).filter(same_family).copied()
}

/// Returns the backends that receive new connections.
pub(crate) fn ready(service: &Service, domain: Domain) -> impl Iterator<Item = Backend> {
    backends(service, domain).filter(|backend| backend.readiness == Readiness::Ready)
}

/// Requires this backend in the registers.
pub(super) fn with_backend(matching: Match, ip: IpAddr) -> Match {
    with_address(Family::of(ip).packets(matching), ip)
}

pub(super) fn with_protocol(matching: Match, port: &Port) -> Match {
    match port.protocol {
        Protocol::Tcp => matching.ip_proto(IP_PROTO_TCP),
        Protocol::Udp => matching.ip_proto(IP_PROTO_UDP),
    }
}

/// Fields of the source and the destination port.
pub(super) fn ports(protocol: Protocol) -> [Field; 2] {
    match protocol {
        Protocol::Tcp => [Field::TcpSrc, Field::TcpDst],
        Protocol::Udp => [Field::UdpSrc, Field::UdpDst],
    }
}

pub(super) fn clients(domain: Domain) -> Zone {
    Zone::Number(domain.clients_zone())
}

/// Returns the flow for a client's packets. Packets from outside arrive already translated.
fn request(service: &Service, domain: Domain, number: u32, port: &Port) -> Flow {
    let to = guard::destination(domain.packets_from(0), service.vip);
    let m = with_protocol(to, port).field(ports(port.protocol)[1], port.port);
    let track = Ct { zone: clients(domain), table: Some(table::SERVICE_STATE), ..Ct::default() };
    let number = Action::load(service_value(number, port.port), service_slice());
    Flow::new(table::SERVICE_DNAT, rank::PORT, m).apply([number, Action::Ct(track)])
}

/// Returns the flow of a backend of the service. Terminating backends keep only established connections.
fn member(backend: &Backend, number: u32) -> Flow {
    let m = with_backend(service_match(number), backend.ip);
    let m = match backend.readiness {
        Readiness::Ready => m,
        Readiness::Terminating => m.field(IS_ESTABLISHED, 1u8),
    };
    Flow::new(table::BACKEND, rank::PORT, m).goto(table::CHOSEN)
}

/// Returns the flow for connections without a backend, or whose backend is gone.
fn choice(service: &Service, domain: Domain, number: u32) -> Flow {
    let flow = Flow::new(table::BACKEND, rank::ANY, service_match(number));
    match hashed(service) {
        _ if ready(service, domain).next().is_none() => flow.apply(answer::refuse()),
        // The switch still uses datapath flows from before a client's first connection for a moment after it.
        Some(HashFields::IpSrc) => flow.apply(choice_by(HashFields::IpSrc, service, domain)),
        _ => flow.apply([Action::set(IS_ESTABLISHED, 0u8), Action::Group(backend_group(number))]),
    }
}

/// Returns the fields that a flow hashes to select a backend, for all packets of a client or for datagrams. Otherwise a
/// group selects by the hash that the datapath computes, so that a few datapath flows serve all connections. That hash
/// does not include UDP ports: all datagrams of a client would go to one backend.
pub(super) fn hashed(service: &Service) -> Option<HashFields> {
    if service.affinity.is_some() {
        return Some(HashFields::IpSrc);
    }
    let has_udp = service.ports.iter().any(|port| port.protocol == Protocol::Udp);
    has_udp.then_some(HashFields::SymmetricL3L4Udp)
}

pub(super) fn choice_by(fields: HashFields, service: &Service, domain: Domain) -> [Action; 3] {
    let last = ready(service, domain).count().saturating_sub(1);
    let hash = Multipath {
        fields,
        basis: 0,
        algorithm: LinkAlgorithm::Modulo,
        max_link: u16::try_from(last).unwrap_or(u16::MAX),
        arg: 0,
        to: INDEX.into(),
    };
    [Action::set(IS_ESTABLISHED, 0u8), Action::Multipath(hash), Action::resubmit(table::INDEX)]
}

/// Returns the flows of the backends by their index, and the flow that selects one for a datagram.
fn indexed(service: &Service, domain: Domain, number: u32) -> Vec<Flow> {
    let (Some(fields), Some(_)) = (hashed(service), ready(service, domain).next()) else { return vec![] };
    let mut flows: Vec<Flow> = members_by_index(service, domain, number).collect();
    if fields == HashFields::SymmetricL3L4Udp {
        let datagrams = Family::of(service.vip).packets(service_match(number)).udp();
        let choice = Flow::new(table::BACKEND, rank::ANY + 1, datagrams);
        flows.push(choice.apply(choice_by(fields, service, domain)));
    }
    flows
}

/// Returns the flows of the backends that receive new connections, by their index.
pub(super) fn members_by_index(service: &Service, domain: Domain, number: u32) -> impl Iterator<Item = Flow> {
    let family = Family::of(service.vip);
    (0u32..).zip(ready(service, domain)).map(move |(index, backend)| {
        let m = service_match(number).field(INDEX, index);
        Flow::new(table::INDEX, rank::PORT, m).apply([
            Action::set(family.register(), address_bits(backend.ip)),
            Action::resubmit(table::CHOSEN),
        ])
    })
}

fn commit(service: &Service, domain: Domain, number: u32, port: &Port) -> Flow {
    let family = Family::of(service.vip);
    let learn = service.affinity.map(|time| Action::Learn(affinity(family, number, time)));
    let m = with_protocol(family.packets(service_port_match(number, port.port)), port);
    Flow::new(table::CHOSEN, rank::PORT, m)
        .apply([remember(family, domain, mark(port.target))].into_iter().chain(learn))
        .goto(table::TRANSLATE)
}

/// Returns the mark of a client's connection with a chosen backend at this port.
pub(super) fn chosen_at(target: u16) -> u32 {
    IS_CHOSEN | HAS_TARGET | u32::from(target) << TARGET.0
}

/// Marks a client's connection: its backend is chosen, at this port.
pub(super) fn mark(target: u16) -> Action {
    Action::set(Field::CtMark, chosen_at(target))
}

/// Records a client's connection with its backend, and the mark that this action sets.
pub(super) fn remember(family: Family, domain: Domain, mark: Action) -> Action {
    let exec = vec![mark, Action::Move { from: Slice::whole(family.register()), to: label(family) }];
    released::record(Ct { commit: true, zone: clients(domain), exec, ..Ct::default() })
}

/// Encodes a constant of a learned flow.
pub(super) fn bytes(value: u128, bits: u16) -> Vec<u8> {
    let bytes = 2 * usize::from(bits).div_ceil(16);
    value.to_be_bytes()[16 - bytes..].to_vec()
}

/// Makes the learned flow match this value.
pub(super) fn constant(value: u128, to: Slice) -> LearnSpec {
    LearnSpec::MatchValue { value: bytes(value, to.width), to }
}

/// Sends the client's next connections to the same backend. The learned flow expires this time after the last one.
pub(super) fn affinity(family: Family, number: u32, time: Duration) -> Learn {
    let (source, backend) = (Slice::whole(family.source()), Slice::whole(family.register()));
    let service = Slice::bits(Field::Metadata, service_slice().offset + 16, service_slice().width - 16);
    Learn {
        idle_timeout: time.as_secs().clamp(1, u16::MAX.into()) as u16,
        priority: rank::PORT,
        cookie: LEARNED | u64::from(number),
        flags: DELETE_LEARNED,
        table: table::AFFINITY,
        specs: vec![
            constant(family.eth_type().into(), Slice::whole(Field::EthType)),
            constant(number.into(), service),
            LearnSpec::MatchField { from: source, to: source },
            LearnSpec::LoadField { from: backend, to: backend },
        ],
        ..Learn::default()
    }
}

fn translation(family: Family, number: u32, port: &Port) -> Flow {
    let m = with_protocol(family.packets(service_port_match(number, port.port)), port);
    Flow::new(table::TRANSLATE, rank::PORT, m).apply([
        Action::copy(family.register(), family.destination()),
        Action::set(ports(port.protocol)[1], port.target),
        Action::resubmit(table::TARGET_PORT),
    ])
}

/// Returns the flow for replies of a backend: their connection has the label of the service's port.
fn reply(service: &Service, domain: Domain, number: u32, port: &Port) -> Flow {
    let family = Family::of(service.vip);
    let reply = ct_state::TRACKED | ct_state::REPLY;
    let m = with_protocol(family.packets(domain.packets()), port).ct_state(reply, reply);
    let m = policy::replied(m).masked(Field::CtLabel, service_value(number, port.port), SERVICE_MASK);
    Flow::new(table::SERVICE_SNAT, rank::PORT, m).apply([
        Action::set(family.source(), address_bits(service.vip)),
        Action::set(ports(port.protocol)[0], port.port),
        Action::Ct(Ct { zone: clients(domain), table: Some(table::TRANSLATED), ..Ct::default() }),
    ])
}

/// Returns the flow for ICMP errors about a packet that a client of this node has sent to the service.
fn error(service: &Service, domain: Domain, number: u32, port: &Port) -> Flow {
    let family = Family::of(service.vip);
    // Errors of the client do not match.
    let related = ct_state::TRACKED | ct_state::RELATED | ct_state::REPLY;
    let m = family.packets(domain.packets()).ip_proto(family.icmp()).ct_state(related, related);
    let m = m.masked(Field::CtLabel, service_value(number, port.port), SERVICE_MASK);
    Flow::new(table::SERVICE_SNAT, rank::PORT, m).apply(answer::translate(service.vip, port.port))
}

/// Returns the flow for packets of a pod to itself. With its own source address, the pod could not distinguish replies
/// from its requests.
fn returning(service: &Service, number: u32) -> Flow {
    let family = Family::of(service.vip);
    let m = policy::returning(family.packets(service_match(number)));
    let source = Action::set(family.source(), address_bits(service.vip));
    Flow::new(table::SERVICE_SNAT, rank::ANY, m).apply([source]).goto(table::DESTINATION)
}
