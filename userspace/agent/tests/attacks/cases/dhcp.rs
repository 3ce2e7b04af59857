//! DHCP: endpoints get their addresses from the agent, so no endpoint is a server, and clients ask in vain.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use testkit::packet::{BROADCAST, Mac, Packet, solicited_node, solicited_node_mac};

use crate::{
    attack::{Attack, Family, Step, V4, V6},
    rules::Rules,
    scene::{Scene, ip},
};

const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const ALL_SERVERS_MAC: Mac = [0x33, 0x33, 0, 1, 0, 2];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// Length of the first fragment in units of 8 bytes. The connection tracking of userspace OVS refuses small ones.
const SIZES: [(&str, u16); 2] = [("large", 160), ("small", 4)];
/// The beginning of an offer by IPv4.
const OFFER: &[u8] = &[2, 1, 6, 0];
/// No server's port. Clients do not ask which port a message comes from.
const OTHER_SOURCE: u16 = 1067;
/// Beside the port of clients.
const OTHER_PORT: u16 = 69;

pub(super) fn attacks() -> Vec<Attack> {
    let server = |name: &str, packet: fn(&Scene) -> Packet| {
        Attack::new("E2", format!("DHCP server: {name}"), move |s| vec![s.send(&packet(s)).nowhere()])
            // Rules deny it as any datagram; between endpoints without rules it is the anti-spoofing that does.
            .against(Rules::ANY)
            .from(crate::attack::POD)
    };
    // The control: from there to another port than the clients'.
    let by_other_port = |name: &str, packet: fn(&Scene) -> Packet| {
        let beside = |s: &Scene| vec![s.send(&s.ip().udp(OTHER_SOURCE, OTHER_PORT).payload(OFFER)).arrives()];
        server(&format!("{name} from another port"), packet).honest(beside)
    };
    let mut attacks = in_fragments();
    attacks.extend([
        server("offer to all", |s| offer(s, BROADCAST, [255; 4].into())).by(V4),
        server("offer to the victim", |s| offer(s, s.victim.mac(), s.victim.ip().into())).by(V4),
        server("offer to the victim in a broadcast frame", |s| offer(s, BROADCAST, s.victim.ip().into()))
            .by(V4),
        server("DHCPv6 advertisement", |s| {
            let headers = s.eth().ipv6(s.attacker.link_local(), s.victim.link_local());
            headers.udp(547, 546).payload(&[2, 1, 2, 3])
        })
        .by(V6),
        server("DHCPv6 advertisement from the global address", |s| {
            s.ip().udp(547, 546).payload(&[2, 1, 2, 3])
        })
        .by(V6),
        by_other_port("offer to all", |s| {
            s.ip_to(BROADCAST, [255; 4].into()).udp(OTHER_SOURCE, 68).payload(OFFER)
        })
        .by(V4),
        by_other_port("offer to the victim", |s| s.ip().udp(OTHER_SOURCE, 68).payload(OFFER)).by(V4),
        by_other_port("DHCPv6 advertisement", |s| {
            let headers = s.eth().ipv6(s.attacker.link_local(), s.victim.link_local());
            headers.udp(OTHER_SOURCE, 546).payload(&[2, 1, 2, 3])
        })
        .by(V6),
        by_other_port("DHCPv6 advertisement to all nodes", |s| {
            all_nodes(s).udp(OTHER_SOURCE, 546).payload(&[2, 1, 2, 3])
        })
        .by(V6),
        Attack::new("E2", "DHCP client past the rules", |s| vec![s.send(&discover(s))])
            .against(Rules::DENIES_ANY)
            .for_groups()
            .honest(|s| vec![s.send(&discover(s)).arrives()])
            .control(Rules::Unprotected),
    ]);
    attacks
}

/// Name and headers of what is sent to a destination, in these families.
type Destination = (&'static str, &'static [Family], fn(&Scene) -> Packet);

/// What a server sends in fragments, of which the first one has the ports.
fn in_fragments() -> Vec<Attack> {
    let destinations: [Destination; 7] = [
        ("all", V4, |s| s.ip_to(BROADCAST, [255; 4].into())),
        ("the subnet", V4, |s| s.ip_to(BROADCAST, [10, 7, 0, 255].into())),
        ("all hosts", V4, |s| s.ip_to([1, 0, 0x5e, 0, 0, 1], [224, 0, 0, 1].into())),
        ("the victim", V4, |s| s.ip()),
        ("the victim", V6, |s| s.eth().ipv6(s.attacker.link_local(), s.victim.link_local())),
        ("all nodes", V6, all_nodes),
        ("a solicited node", V6, |s| {
            let node = s.victim.link_local();
            let eth = Packet::eth(solicited_node_mac(node), s.attacker.mac());
            eth.ipv6(s.attacker.link_local(), solicited_node(node))
        }),
    ];
    let mut attacks = vec![];
    for (to, families, headers) in destinations {
        for (size, units) in SIZES {
            for (by, source) in [("", None), (" from another port", Some(OTHER_SOURCE))] {
                let name = format!("DHCP server: offer to {to} in {size} fragments{by}");
                let attack = Attack::new("new", name, move |s| two_fragments(s, headers, units, source));
                attacks.push(attack.by(families).against(Rules::ANY).from(crate::attack::POD));
            }
        }
    }
    attacks
}

/// Splits a datagram of a server after a number of bytes, in units of 8. `source` is the port if it is not a server's.
fn two_fragments(s: &Scene, headers: fn(&Scene) -> Packet, units: u16, source: Option<u16>) -> Vec<Step> {
    const UDP: u8 = 17;
    let (from, to, header) = match s.family {
        Family::V4 => (67, 68, 34),
        Family::V6 => (547, 546, 54),
    };
    let length = usize::from(units) * 8;
    let whole = headers(s).udp(source.unwrap_or(from), to).payload(&vec![2; length]).build();
    let (first, last) = whole[header..].split_at(length);
    let piece = |offset, more, bytes: &[u8]| {
        s.send(&headers(s).protocol(UDP).fragment(s.id(), offset, more).payload(bytes)).nowhere()
    };
    let (begin, end) = (piece(0, true, first), piece(units, false, last));
    // OVS reads no protocol from the later fragments of IPv6, which are nothing without the first one.
    let is_harmless = s.family == Family::V6 && whole[0] & 1 != 0;
    vec![begin, if is_harmless { end.anything() } else { end }]
}

/// Headers from the attacker's link-local address.
fn all_nodes(s: &Scene) -> Packet {
    Packet::eth([0x33, 0x33, 0, 0, 0, 1], s.attacker.mac()).ipv6(s.attacker.link_local(), ALL_NODES)
}

fn offer(s: &Scene, mac: Mac, to: IpAddr) -> Packet {
    ip(Packet::eth(mac, s.attacker.mac()), s.attacker.ip().into(), to).udp(67, 68).payload(OFFER)
}

fn discover(s: &Scene) -> Packet {
    match s.family {
        Family::V4 => Packet::eth(BROADCAST, s.attacker.mac())
            .ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)
            .udp(68, 67)
            .payload(&[1, 1, 6, 0]),
        Family::V6 => Packet::eth(ALL_SERVERS_MAC, s.attacker.mac())
            .ipv6(s.attacker.link_local(), ALL_SERVERS)
            .udp(546, 547)
            .payload(&[1, 1, 2, 3]),
    }
}
