//! ARP and ND requests.
//!
//! Table 10 has one flow for each known address, which loads the Ethernet address. Table 11 turns the request into the
//! reply. Its flows are the same for all addresses.

use std::net::{IpAddr, Ipv6Addr};

use contiv_model::{addresses::Addresses, mac::Mac};

use openflow_rs::{
    Action, Field, Flow, Match, Port, Slice,
    matching::{ICMPV6_NEIGHBOUR_ADVERTISEMENT, ICMPV6_NEIGHBOUR_SOLICITATION, mac_bits},
};

use super::{
    metadata::{Domain, OUTSIDE, Segment, match_from, network_match, network_match_from},
    table::{self, priority},
};
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u8 = 2;
/// Type of the target link-layer address option (RFC 4861 section 4.6.1). It replaces the source link-layer address
/// option, which has the same length.
const TARGET_LINK_LAYER_ADDRESS: u32 = 2;
/// S flag of an advertisement (RFC 4861 section 4.4).
const SOLICITED: u32 = 0x4000_0000;
/// O flag of an advertisement (RFC 4861 section 4.4).
const OVERRIDE: u32 = 0x2000_0000;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];
/// Register that holds the Ethernet address of the reply, in its low 48 bits.
const REPLY_MAC: Field = Field::XReg0;
/// Registers for the parts of an advertisement that only `move` can set: with the kernel datapath, Open vSwitch rejects
/// flows that load these fields. ovs-vswitchd rewrites such packets itself.
const ND_FLAGS: Field = Field::Reg2;
const ND_OPTION: Field = Field::Reg3;

/// Returns flows that send the requests of local pods to the neighbour tables.
pub(crate) fn intercept_requests(tag: u32) -> [Flow; 2] {
    let from_pods = || network_match_from(tag, 0);
    [
        Flow::new(table::SERVICE_DNAT, priority::INTERCEPT, from_pods().arp_op(ARP_REQUEST)),
        // Other messages are not valid neighbour discovery, and rules apply to them (RFC 4861, section 7.1.1).
        Flow::new(
            table::SERVICE_DNAT,
            priority::INTERCEPT,
            from_pods().icmpv6(ICMPV6_NEIGHBOUR_SOLICITATION).field(Field::IpTtl, 255u8),
        ),
    ]
    .map(|flow| flow.goto(table::NEIGHBOUR))
}

fn request(matching: Match, ip: IpAddr) -> Match {
    match ip {
        IpAddr::V4(ip) => matching.arp_op(ARP_REQUEST).arp_tpa(ip),
        IpAddr::V6(ip) => matching.neighbour_solicitation(ip),
    }
}

/// Returns flows that look up the addresses of an endpoint. On the other networks of its VRF, requests are answered with
/// the router's Ethernet address.
pub(crate) fn known_addresses(
    segment: Segment,
    mac: Mac,
    addresses: &Addresses,
) -> impl Iterator<Item = Flow> {
    let Segment { tag, domain, routed } = segment;
    addresses.iter().flat_map(move |ip| {
        let elsewhere = matches!(domain, Domain::Vrf(..)) && routed.has(ip);
        let by_router = elsewhere.then(|| {
            let asked = request(domain.packets(), ip);
            answer(Flow::new(table::NEIGHBOUR, priority::OTHER_NETWORK, asked), Mac::ROUTER)
        });
        [known(network_match(tag), mac, ip)].into_iter().chain(by_router)
    })
}

/// Returns flows that look up the addresses of an endpoint that is reached through the router on another node, on all
/// networks of the VRF.
pub(crate) fn routed_addresses(domain: Domain, addresses: &Addresses) -> impl Iterator<Item = Flow> {
    addresses.iter().map(move |ip| known(domain.packets(), Mac::ROUTER, ip))
}

/// Returns the flow that answers the requests of pods for the address of a service, in each ARP mode.
pub(super) fn service(domain: Domain, mac: Mac, ip: IpAddr) -> Flow {
    of_service(domain.packets_from(0), mac, ip)
}

/// Returns the flow that answers requests from outside for the address of a service.
pub(super) fn service_outside(domain: Domain, mac: Mac, ip: IpAddr) -> Flow {
    of_service(domain.packets_from(OUTSIDE), mac, ip)
}

/// In each ARP mode, because no endpoint would answer.
fn of_service(packets: Match, mac: Mac, ip: IpAddr) -> Flow {
    answer(Flow::new(table::SERVICE_DNAT, priority::INTERCEPT + 1, request(packets, ip)), mac)
}

fn known(packets: Match, mac: Mac, ip: IpAddr) -> Flow {
    answer(Flow::new(table::NEIGHBOUR, priority::MATCH, request(packets, ip)), mac)
}

fn answer(flow: Flow, mac: Mac) -> Flow {
    flow.apply([Action::set(REPLY_MAC, mac_bits(mac.0))]).goto(table::REPLY)
}

/// Returns the flow that answers the requests of pods for the gateway of their network, in each ARP mode.
pub(crate) fn gateway(tag: u32, ip: IpAddr) -> Flow {
    let asked = request(network_match_from(tag, 0), ip);
    answer(Flow::new(table::SERVICE_DNAT, priority::INTERCEPT + 1, asked), Mac::ROUTER)
}

/// Returns flows that flood the requests of a pod for its own addresses: duplicate address detection and gratuitous ARP.
/// These requests update the caches of other endpoints and of the switches of the physical network.
pub(crate) fn own_addresses(tag: u32, port: u32, addresses: &Addresses) -> impl Iterator<Item = Flow> {
    addresses.iter().map(move |ip| {
        let from_pod = network_match(tag).in_port(port.into());
        Flow::new(table::NEIGHBOUR, priority::OWN_ADDRESS, request(from_pod, ip))
            .apply([Action::resubmit(table::DESTINATION)])
    })
}

fn put_mac(to: Field) -> Action {
    Action::Move { from: Slice::bits(REPLY_MAC, 0, 48), to: Slice::whole(to) }
}

/// Where a request came from, which determines the output of the reply.
#[derive(Clone, Copy, Debug)]
enum Asker {
    /// A port of the bridge. The reply is sent to the same port.
    Port,
    /// Outside, through a member of a bond. The switches flood a request to each member and forward to the member on
    /// which they see the address of the reply. So the bond must choose the member, as it does for announcements.
    Bond,
}

impl Asker {
    fn packets(self) -> Match {
        match self {
            Asker::Port => Match::new(),
            Asker::Bond => match_from(OUTSIDE),
        }
    }

    fn priority(self, of_port: u16) -> u16 {
        match self {
            Asker::Port => of_port,
            Asker::Bond => of_port + 1,
        }
    }

    fn back(self) -> Vec<Action> {
        match self {
            Asker::Port => vec![Action::output(Port::IN_PORT)],
            // For a frame from the controller port, `NORMAL` accepts all networks, learns no address, and can output to
            // any port.
            Asker::Bond => {
                vec![Action::load(Port::CONTROLLER.0.into(), Field::InPort), Action::output(Port::NORMAL)]
            }
        }
    }
}

/// Returns the flow that turns an ARP request into its reply (RFC 826).
pub(crate) fn arp_reply() -> Flow {
    arp_reply_to(Asker::Port)
}

/// Returns the flows that turn a neighbour solicitation into its advertisement (RFC 4861 section 7.2.4).
pub(crate) fn nd_replies() -> Vec<Flow> {
    let reply = Flow::new(table::REPLY, priority::MATCH, solicitation(Match::new()))
        .apply([Action::copy(Field::EthSrc, Field::EthDst), put_mac(Field::EthSrc)])
        .apply([Action::copy(Field::Ipv6Src, Field::Ipv6Dst)])
        .apply(advertise(SOLICITED | OVERRIDE))
        .apply([Action::set(ND_OPTION, TARGET_LINK_LAYER_ADDRESS)])
        .apply([Action::Move { from: Slice::bits(ND_OPTION, 0, 8), to: Slice::whole(Field::NdOptionsType) }])
        .goto(table::ND_OPTION);
    vec![reply, nd_option(Asker::Port), duplicate_of(Asker::Port)]
}

/// Returns the flows that send replies to outside through a bond, instead of through the port at which the request
/// arrived.
pub(crate) fn replies_by_bond() -> [Flow; 3] {
    [arp_reply_to(Asker::Bond), nd_option(Asker::Bond), duplicate_of(Asker::Bond)]
}

fn arp_reply_to(asker: Asker) -> Flow {
    let asked = asker.packets().arp_op(ARP_REQUEST);
    Flow::new(table::REPLY, asker.priority(priority::MATCH), asked)
        .apply([
            Action::copy(Field::EthSrc, Field::EthDst),
            put_mac(Field::EthSrc),
            Action::set(Field::ArpOp, ARP_REPLY),
            Action::copy(Field::ArpSha, Field::ArpTha),
            put_mac(Field::ArpSha),
            // Swaps sender and target address.
            Action::copy(Field::ArpTpa, Field::Reg2),
            Action::copy(Field::ArpSpa, Field::ArpTpa),
            Action::copy(Field::Reg2, Field::ArpSpa),
        ])
        .apply(asker.back())
}

fn solicitation(packets: Match) -> Match {
    packets.icmpv6(ICMPV6_NEIGHBOUR_SOLICITATION).field(Field::Icmpv6Code, 0u8)
}

fn advertise(flags: u32) -> [Action; 4] {
    [
        Action::copy(Field::NdTarget, Field::Ipv6Src),
        Action::set(Field::Icmpv6Type, ICMPV6_NEIGHBOUR_ADVERTISEMENT),
        Action::set(ND_FLAGS, flags),
        Action::copy(ND_FLAGS, Field::NdReserved),
    ]
}

/// Returns the flow that completes an advertisement.
fn nd_option(asker: Asker) -> Flow {
    let advertisement = asker.packets().icmpv6(ICMPV6_NEIGHBOUR_ADVERTISEMENT);
    Flow::new(table::ND_OPTION, asker.priority(priority::MATCH), advertisement)
        .apply([put_mac(Field::NdTll)])
        .apply(asker.back())
}

/// Returns the flow that answers duplicate address detection. Its source is the unspecified address, so that the
/// advertisement goes to all nodes. The request has no link-layer address option that the reply could reuse.
fn duplicate_of(asker: Asker) -> Flow {
    let detection = solicitation(asker.packets()).ipv6_src(Ipv6Addr::UNSPECIFIED, 128);
    Flow::new(table::REPLY, asker.priority(priority::OWN_ADDRESS), detection)
        .apply([Action::set(Field::EthDst, mac_bits(ALL_NODES_MAC)), put_mac(Field::EthSrc)])
        .apply([Action::set(Field::Ipv6Dst, ALL_NODES.to_bits())])
        .apply(advertise(OVERRIDE))
        .apply(asker.back())
}
