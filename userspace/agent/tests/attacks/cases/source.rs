//! False source addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use testkit::packet::{BROADCAST, Packet};

use crate::{
    attack::{ANYWHERE, Attack, Family, OUTSIDE, POD, Step, V4, V6, VXLAN},
    rules::{FAR, FAR_FRIEND, FRIEND, GATEWAY, Rules, Station, UNUSED, WITNESS},
    scene::{Scene, Transport, ip},
};

pub(super) fn attacks() -> Vec<Attack> {
    [from_pods(), invalid(), unspecified().into_iter().map(Attack::for_groups).collect(), from_outside()]
        .into_iter()
        .flatten()
        .collect()
}

/// Packets from this address with each transport, with the attacker's own Ethernet address.
fn packets(s: &Scene, source: IpAddr) -> Vec<Step> {
    Transport::ALL.map(|transport| s.send(&transport.after(s, s.ip_from(source))).nowhere()).to_vec()
}

fn of_station(defect: &'static str, name: &str, station: Station) -> Attack {
    Attack::new(defect, format!("source address of {name}"), move |s| packets(s, station.address(s.family)))
        .against(Rules::ANY)
}

fn from_pods() -> Vec<Attack> {
    vec![
        of_station("held", "a friend on the node", FRIEND).from(POD),
        of_station("held", "a friend on another node", FAR_FRIEND).from(POD),
        of_station("held", "another pod", WITNESS).from(POD),
        of_station("held", "an endpoint on another node", FAR).from(POD),
        of_station("held", "the gateway", GATEWAY).from(POD),
        of_station("held", "no endpoint", UNUSED).from(POD),
        Attack::new("held", "source address outside the cluster", |s| {
            let source = match s.family {
                Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
                Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1).into(),
            };
            packets(s, source)
        })
        .from(POD)
        .against(Rules::ANY),
        Attack::new("held", "a friend's address and MAC", |s| {
            let eth = || Packet::eth(s.victim.mac(), FRIEND.mac());
            let headers = || ip(eth(), FRIEND.address(s.family), s.to());
            vec![s.send(&s.udp(headers())).nowhere(), s.send(&s.syn(headers())).nowhere()]
        })
        .from(POD)
        .against(Rules::ANY),
        Attack::new("held", "a friend's address in a broadcast frame", |s| {
            let eth = Packet::eth(BROADCAST, s.attacker.mac());
            vec![s.send(&s.udp(ip(eth, FRIEND.address(s.family), s.to()))).nowhere()]
        })
        .from(POD)
        .against(Rules::ANY),
        Attack::new("held", "source address of the other family's neighbour, mapped", |s| {
            packets(s, FRIEND.ip().to_ipv6_mapped().into())
        })
        .from(POD)
        .against(Rules::ANY)
        .by(V6),
        Attack::new("held", "own IPv4 address, mapped", |s| {
            packets(s, s.attacker.ip().to_ipv6_mapped().into())
        })
        .from(POD)
        .against(Rules::ANY)
        .by(V6),
        Attack::new("E25", "link-local source address of a friend", |s| {
            packets(s, FRIEND.link_local().into())
        })
        .from(POD)
        .against(Rules::ANY)
        .by(V6),
        Attack::new("E21", "link-local source address of no endpoint", |s| {
            packets(s, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x99).into())
        })
        .from(POD)
        .against(Rules::ANY)
        .by(V6),
    ]
}

/// Addresses that no endpoint sends from, from pods and from outside.
fn invalid() -> Vec<Attack> {
    let v4: [(&str, Ipv4Addr); 7] = [
        ("127.0.0.1", Ipv4Addr::LOCALHOST),
        ("224.0.0.5", Ipv4Addr::new(224, 0, 0, 5)),
        ("255.255.255.255", Ipv4Addr::BROADCAST),
        ("240.0.0.1", Ipv4Addr::new(240, 0, 0, 1)),
        ("0.0.0.0", Ipv4Addr::UNSPECIFIED),
        ("0.1.2.3", Ipv4Addr::new(0, 1, 2, 3)),
        ("10.7.0.255", Ipv4Addr::new(10, 7, 0, 255)),
    ];
    let v6: [(&str, Ipv6Addr); 4] = [
        ("::1", Ipv6Addr::LOCALHOST),
        ("::", Ipv6Addr::UNSPECIFIED),
        ("ff02::1", Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)),
        ("ff0e::1", Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 1)),
    ];
    let from = |name: &str, address: IpAddr| {
        Attack::new("E10", format!("source address {name}"), move |s| packets(s, address))
            .from(ANYWHERE)
            .against(Rules::ANY)
            .by(if address.is_ipv4() { V4 } else { V6 })
    };
    let mut attacks: Vec<Attack> = v4.into_iter().map(|(name, address)| from(name, address.into())).collect();
    attacks.extend(v6.into_iter().map(|(name, address)| from(name, address.into())));
    attacks.push(
        Attack::new("E10/E24", "source and destination address of the victim", |s| {
            let headers = || s.ip_from(s.to());
            // To the same port as well: "land".
            let land = match s.family {
                Family::V4 => headers().tcp(5000, 5000, 2),
                Family::V6 => headers().udp(5000, 5000),
            };
            vec![s.send(&s.udp(headers())).nowhere(), s.send(&land).nowhere()]
        })
        .from(ANYWHERE)
        .against(Rules::ANY),
    );
    attacks
}

/// From no address a pod may look for one: DHCP, duplicate address detection, MLD reports. Nothing else passes rules so.
fn unspecified() -> Vec<Attack> {
    vec![
        Attack::new("E2", "datagram from 0.0.0.0 to all", |s| {
            let eth = Packet::eth(BROADCAST, s.attacker.mac());
            vec![s.send(&s.udp(eth.ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)))]
        })
        .by(V4),
        Attack::new("E2", "unicast datagram from 0.0.0.0 in a broadcast frame", |s| {
            let eth = Packet::eth(BROADCAST, s.attacker.mac());
            vec![s.send(&s.udp(eth.ipv4(Ipv4Addr::UNSPECIFIED, s.victim.ip())))]
        })
        .by(V4),
        Attack::new("E2", "datagram from :: to all nodes", |s| {
            let eth = Packet::eth([0x33, 0x33, 0, 0, 0, 1], s.attacker.mac());
            let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            vec![s.send(&s.udp(eth.ipv6(Ipv6Addr::UNSPECIFIED, all)))]
        })
        .by(V6),
        Attack::new("E2", "echo request from :: to all nodes", |s| {
            let eth = Packet::eth([0x33, 0x33, 0, 0, 0, 1], s.attacker.mac());
            let all = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            vec![s.send(&s.echo(eth.ipv6(Ipv6Addr::UNSPECIFIED, all)))]
        })
        .by(V6)
        .against(Rules::DENIES_ANY),
    ]
}

/// What comes in must not be from an address that is on this node, nor from one that the records put on another node.
fn from_outside() -> Vec<Attack> {
    let eth_of = |s: &Scene, station: Station| Packet::eth(s.victim.mac(), station.mac());
    let whole = move |s: &Scene, station: Station| {
        let headers = || ip(eth_of(s, station), station.address(s.family), s.to());
        Transport::ALL.map(|transport| s.send(&transport.after(s, headers())).nowhere()).to_vec()
    };
    let link_local = |s: &Scene, station: Station| {
        let headers =
            || Packet::eth(s.victim.mac(), station.mac()).ipv6(station.link_local(), s.victim.link_local());
        Transport::ALL.map(|transport| s.send(&transport.after(s, headers())).nowhere()).to_vec()
    };
    vec![
        of_station("E24", "a friend on the node", FRIEND).from(OUTSIDE),
        of_station("E24", "another pod", WITNESS).from(OUTSIDE),
        of_station("E10", "a friend on another node", FAR_FRIEND).from(OUTSIDE).on(VXLAN),
        Attack::new("E24", "address and MAC of a friend on the node", move |s| whole(s, FRIEND))
            .from(OUTSIDE)
            .against(Rules::ANY),
        Attack::new("E10", "address and MAC of a friend on another node", move |s| whole(s, FAR_FRIEND))
            .from(OUTSIDE)
            .against(Rules::ANY)
            .on(VXLAN),
        Attack::new("E24", "MAC of a pod on the node, own address", move |s| {
            vec![s.send(&s.udp(ip(eth_of(s, WITNESS), s.from(), s.to()))).nowhere()]
        })
        .from(OUTSIDE)
        .against(Rules::ANY),
        Attack::new("E10", "MAC of an endpoint on another node, own address", move |s| {
            vec![s.send(&s.udp(ip(eth_of(s, FAR_FRIEND), s.from(), s.to()))).nowhere()]
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
        .on(VXLAN),
        Attack::new("E24", "MAC of a pod on the node in a broadcast frame", |s| {
            let headers = Packet::eth(BROADCAST, WITNESS.mac()).ipv4(s.attacker.ip(), Ipv4Addr::BROADCAST);
            vec![s.send(&s.udp(headers)).nowhere()]
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
        .by(V4),
        Attack::new("E24", "link-local address of a friend on the node", move |s| link_local(s, FRIEND))
            .from(OUTSIDE)
            .against(Rules::ANY)
            .by(V6),
        Attack::new("E10", "link-local address of a friend on another node", move |s| {
            link_local(s, FAR_FRIEND)
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
        .by(V6)
        .on(VXLAN),
        Attack::new("E24", "address of a pod on the node to a group", |s| {
            let (eth, all) =
                (|to| Packet::eth(to, s.attacker.mac()), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
            let headers = match s.family {
                Family::V4 => eth(BROADCAST).ipv4(WITNESS.ip(), Ipv4Addr::BROADCAST),
                Family::V6 => eth([0x33, 0x33, 0, 0, 0, 1]).ipv6(WITNESS.ip6(), all),
            };
            vec![s.send(&s.udp(headers)).nowhere()]
        })
        .from(OUTSIDE)
        .against(Rules::ANY),
    ]
}
