//! Checks that do not depend on endpoints.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_abi::dhcp_client;
use openflow_rs::{
    Field, Flow, Match,
    matching::{
        ETH_TYPE_ARP, ETH_TYPE_IPV4, ETH_TYPE_IPV6, ICMPV6_NEIGHBOUR_SOLICITATION, IP_PROTO_ICMPV6,
        IP_PROTO_UDP,
    },
};

use super::{
    GROUP_BIT, ND_HOP_LIMIT, PROBE, advertisement, destination, lookup, named, pass, solicitation, source,
};
use crate::datapath::ovs::pipeline::{
    family::Family,
    metadata::{self, match_from},
    slow_path,
    table::{self, priority, priority::check},
};

/// IP protocol number of IGMP. Hosts send its reports before they have an address (RFC 3376 section 4.2.13).
const IGMP: u8 = 2;
/// ICMPv6 types with which a host without an address reports its group memberships (RFC 2710, RFC 3810).
const LISTENER_REPORTS: [u8; 3] = [131, 132, 143];
/// EtherTypes of VLAN tags: 802.1Q, 802.1ad, and the values that equipment used before 802.1ad. A tag that the switch has
/// parsed is not in this field.
const TAGS: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];
/// Link-local groups (IEEE 802.1Q table 8-1), which bridges do not forward.
const LINK_GROUPS: (u64, u64) = (0x0180_c200_0000, 0xffff_ffff_fff0);
/// Bit of the fragment flags that is set in all fragments.
const ANY_FRAGMENT: u8 = 1;
const ROUTER_SOLICITATION: u8 = 133;
const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Solicited-node groups, 104 bits (RFC 4291 section 2.7.1).
const SOLICITED_NODE: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0);
const MULTICAST: (Ipv6Addr, u8) = (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8);
/// IPv4-mapped addresses and the loopback address, which must not appear on a link.
const ON_NO_LINK: [(Ipv6Addr, u8); 2] =
    [(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96), (Ipv6Addr::LOCALHOST, 128)];

/// Returns the checks that exist for any desired state.
pub(crate) fn base() -> Vec<Flow> {
    [frames(), sources(), targets(), discovery(), messages(), lookup::base()].concat()
}

/// Drops fragments of datagrams, which may come from a DHCP server: the switch reads no ports from fragments, and in IPv6
/// fragments it may read a wrong protocol.
pub(super) fn fragments(to: Match) -> Flow {
    let to = if to.exact(Field::EthType) == Some(ETH_TYPE_IPV6.into()) { to } else { to.udp() };
    drop_from(table::TARGET, check::FORM, to.masked(Field::IpFragment, ANY_FRAGMENT, ANY_FRAGMENT))
}

/// Returns the flows that drop packets that pods send to the tunnel port of a node: with the node's source address they
/// would look like tunnel packets of this node. Fragments have no ports.
pub(crate) fn to_vtep(vtep: IpAddr, port: u16) -> [Flow; 3] {
    let datagram = || destination(match_from(0), vtep).udp();
    let fragment = datagram().masked(Field::IpFragment, ANY_FRAGMENT, ANY_FRAGMENT);
    let to_port = || datagram().field(Field::UdpDst, port);
    // Packets that connection tracking has reassembled have their port only afterwards.
    [(table::TARGET, to_port()), (table::TARGET, fragment), (table::STATE, to_port())]
        .map(|(table, m)| Flow::new(table, check::FORM, m))
}

fn drop_from(table: u8, priority: u16, matching: Match) -> Flow {
    Flow::new(table, priority, matching)
}

fn frames() -> Vec<Flow> {
    let input = |m| drop_from(table::INPUT, priority::INTERCEPT, m);
    let link = Match::new().masked(Field::EthDst, LINK_GROUPS.0, LINK_GROUPS.1);
    // This flow precedes the drop of misread frames: bridges send LLC frames to each other.
    let link = drop_from(table::INPUT, priority::MISREAD + 1, link);
    let mut flows = vec![input(Match::new().multicast_src()), link];
    flows.extend(TAGS.map(|tag| input(Match::new().eth_type(tag))));
    flows
}

/// Checks source addresses: packets from pods that no flow accepts are dropped, and packets from outside whose source
/// cannot be an endpoint's address.
fn sources() -> Vec<Flow> {
    let claimed = [ETH_TYPE_IPV4, ETH_TYPE_IPV6, ETH_TYPE_ARP];
    let mut flows: Vec<Flow> = claimed
        .into_iter()
        .map(|kind| drop_from(table::GUARD, check::RESERVED, Match::new().eth_type(kind)))
        .collect();

    let reserved = |m| drop_from(table::CLAIM, check::RESERVED, m);
    let v4 = [(0, 8), (127, 8), (224, 3)];
    flows
        .extend(v4.map(|(first, bits)| reserved(Match::new().ipv4_src(Ipv4Addr::new(first, 0, 0, 0), bits))));
    let v6 = [MULTICAST, (Ipv6Addr::UNSPECIFIED, 128)].into_iter().chain(ON_NO_LINK);
    flows.extend(v6.map(|(ip, bits)| reserved(Match::new().ipv6_src(ip, bits))));
    flows.extend(
        asking(Match::new()).map(|m| Flow::new(table::CLAIM, check::UNSPECIFIED, m).goto(table::TARGET)),
    );
    let group = Match::new().arp().masked(Field::ArpSha, GROUP_BIT, GROUP_BIT);
    flows.push(drop_from(table::CLAIM, check::FORM, group));
    flows.push(pass(Flow::new(table::CLAIM, priority::MISS, Match::new())));
    flows
}

/// Matches what a host without an address sends: requests for an address, group reports, and neighbour discovery, whose
/// form is checked later.
pub(super) fn asking(from: Match) -> [Match; 7] {
    let of = |ip: IpAddr, protocol: u8| source(from.clone(), ip).ip_proto(protocol).multicast_dst();
    let whole = |m: Match| m.masked(Field::IpFragment, 0u8, ANY_FRAGMENT);
    let request = whole(of(Ipv4Addr::UNSPECIFIED.into(), IP_PROTO_UDP));
    let message = |kind: u8| whole(of(Ipv6Addr::UNSPECIFIED.into(), IP_PROTO_ICMPV6)).icmpv6(kind);
    let discovery = |kind: u8| message(kind).field(Field::IpTtl, ND_HOP_LIMIT);
    let [report, done, report_v2] = LISTENER_REPORTS;
    [
        request.field(Field::UdpSrc, 68u16).field(Field::UdpDst, 67u16),
        of(Ipv4Addr::UNSPECIFIED.into(), IGMP),
        message(report),
        message(done),
        message(report_v2),
        discovery(ROUTER_SOLICITATION),
        discovery(ICMPV6_NEIGHBOUR_SOLICITATION),
    ]
}

/// Checks destinations: endpoints are not DHCP servers, and some addresses must not appear on a link.
fn targets() -> Vec<Flow> {
    let drop = |m| drop_from(table::TARGET, check::FORM, m);
    let server = |family: Family| {
        drop(family.packets(Match::new()).udp().field(Field::UdpDst, dhcp_client(family == Family::V6)))
    };
    let mut flows: Vec<Flow> = Family::ALL.map(server).into();
    // Unicast fragments are reassembled later.
    let v4 = [Ipv4Addr::BROADCAST, ALL_HOSTS].map(|ip| Match::new().ipv4_dst(ip, 32));
    let v6 = [(ALL_NODES, 128), (SOLICITED_NODE, 104)].map(|(ip, bits)| Match::new().ipv6_dst(ip, bits));
    flows.extend(v4.into_iter().chain(v6).map(fragments));
    flows.extend(ON_NO_LINK.map(|(ip, bits)| drop(Match::new().ipv6_dst(ip, bits))));
    // A station accepts a packet to a multicast group also from a unicast frame, and no rules about the station's address
    // would apply. (Also, the kernel's connection tracking reassembles fragments to two Ethernet addresses: the packet is
    // evaluated with one address and sent with the other.)
    let unicast = || Match::new().masked(Field::EthDst, 0u64, GROUP_BIT);
    flows.push(drop(unicast().ipv4_dst(Ipv4Addr::new(224, 0, 0, 0), 3)));
    flows.push(drop(unicast().ipv6_dst(MULTICAST.0, MULTICAST.1)));
    flows
}

/// Checks the form of ND messages (RFC 4861 section 7.1), and passes the valid ones to the check of their contents. Each
/// message is checked. Gateways are configured, so that there are no router advertisements and redirects.
fn discovery() -> Vec<Flow> {
    let nd = |kind: u8| Match::new().icmpv6(kind).field(Field::IpTtl, ND_HOP_LIMIT);
    let whole = |kind: u8| nd(kind).field(Field::Icmpv6Code, 0u8);
    let valid = |rank: u16, m: Match| Flow::new(table::TARGET, check::VALID_FORM + rank, m).goto(table::LINK);
    let contents = |rank: u16, m: Match| valid(rank, m).apply([slow_path::take(Field::Icmpv6Code)]);
    let invalid = |rank: u16, m: Match| drop_from(table::TARGET, check::VALID_FORM + rank, m);
    let (multicast, bits) = MULTICAST;
    let [solicitation, advertisement] = [ICMPV6_NEIGHBOUR_SOLICITATION, 136];
    let mut flows = vec![
        valid(4, whole(ROUTER_SOLICITATION).ipv6_dst(ALL_ROUTERS, 128)),
        contents(4, whole(solicitation).ipv6_dst(SOLICITED_NODE, 104)),
        invalid(3, detection(whole(solicitation))),
        invalid(5, whole(advertisement).ipv6_src(Ipv6Addr::UNSPECIFIED, 128)),
        contents(4, whole(advertisement).ipv6_dst(ALL_NODES, 128)),
    ];
    for kind in [solicitation, advertisement] {
        flows.push(invalid(2, whole(kind).ipv6_dst(multicast, bits)));
        flows.push(contents(1, whole(kind)));
    }
    flows.extend((133..=137).map(|kind| invalid(0, nd(kind))));
    // RFC 6980. The switch reads neither types nor ports from fragments.
    let fragment = Match::new().ipv6().ip_proto(IP_PROTO_ICMPV6).field(Field::IpTtl, ND_HOP_LIMIT);
    flows.push(invalid(6, fragment.masked(Field::IpFragment, ANY_FRAGMENT, ANY_FRAGMENT)));
    flows
}

/// Requires duplicate address detection, which has no source address.
fn detection(solicitation: Match) -> Match {
    solicitation.ipv6_src(Ipv6Addr::UNSPECIFIED, 128)
}

/// Checks the contents of ARP and ND messages.
fn messages() -> Vec<Flow> {
    let link = |priority, m| Flow::new(table::LINK, priority, m);
    // The switch reads the operation only from ARP for IPv4 over Ethernet.
    let mut flows: Vec<Flow> =
        [1, 2].map(|operation| pass(link(check::CLAIMED_BY_OWNER, Match::new().arp_op(operation)))).into();
    flows.push(pass(link(check::UNKNOWN, Match::new().icmpv6(ROUTER_SOLICITATION))));
    let from_outside = || match_from(metadata::OUTSIDE);
    for message in [solicitation, advertisement] {
        // The switch reads the target of a message that has an option twice as the unspecified address.
        let on_no_link = ON_NO_LINK.into_iter().chain([MULTICAST, (Ipv6Addr::UNSPECIFIED, 128)]);
        flows.extend(on_no_link.map(|(target, bits)| {
            let mask = u128::MAX << (128 - u32::from(bits));
            let target = message(Match::new()).masked(Field::NdTarget, target.to_bits(), mask);
            link(check::VALID_FORM + 10, target)
        }));
    }
    for (message, option) in
        [(solicitation(from_outside()), Field::NdSll), (advertisement(from_outside()), Field::NdTll)]
    {
        flows.push(link(check::FORM, message.masked(option, GROUP_BIT, GROUP_BIT)));
    }
    // Duplicate address detection has no link-layer address option.
    flows.push(link(check::FORM, detection(solicitation(Match::new()))));
    flows.push(pass(link(
        check::FORM + 5,
        named(detection(solicitation(from_outside())), Field::NdSll, [0; 6]),
    )));
    // Drops a request that may only be answered and was not answered.
    let probe = || Match::new().field(PROBE, 1u8);
    flows.push(drop_from(table::DESTINATION_GROUP, priority::INTERCEPT, probe()));
    flows.push(drop_from(table::NEIGHBOUR, priority::PROBE, probe()));
    flows
}
