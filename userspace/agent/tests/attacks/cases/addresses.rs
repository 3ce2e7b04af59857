//! Rules about addresses: other addresses of the same endpoints, and none at all, are no way around them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use testkit::packet::{BROADCAST, Mac, Packet, protocol};

use super::headers::extension;
use crate::{
    attack::{Attack, POD, V4, V6},
    node::topology,
    rules::{Attacker, Rules},
    scene::{Scene, Transport, ip},
};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];

pub(super) fn attacks() -> Vec<Attack> {
    [of_endpoints(), to_groups(), to_subnet(), out_to_groups()].into_iter().flatten().collect()
}

fn of_endpoints() -> Vec<Attack> {
    let attacks = [
        Attack::new("held", "UDP and TCP between assigned addresses", |s| {
            Transport::WITH_PORTS.map(|transport| s.send(&transport.after(s, s.ip()))).to_vec()
        }),
        Attack::new("new", "UDP and TCP between link-local addresses", |s| {
            let headers = || s.eth().ipv6(s.attacker.link_local(), s.victim.link_local());
            Transport::WITH_PORTS.map(|transport| s.send(&transport.after(s, headers()))).to_vec()
        })
        .by(V6),
        Attack::new("new", "datagrams from 0.0.0.0 to the limited broadcast", |s| {
            let eth = || Packet::eth(BROADCAST, s.attacker.mac());
            let headers = || eth().ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST);
            vec![
                s.send(&s.udp(headers())),
                s.send(&headers().udp(68, 5000)),
                s.send(&headers().udp(5000, 67)),
            ]
        })
        .by(V4),
        Attack::new("new", "packets from :: to all nodes", |s| {
            let headers = || unspecified(s, ALL_NODES_MAC, ALL_NODES);
            // Behind the options that reports have.
            let behind = headers().protocol(0).payload(&extension(0, protocol::UDP));
            let plain = [s.udp(headers()), s.udp(behind), s.echo(headers())];
            let messages = [2, 128, 130, 133, 135, 136, 200].map(|kind| report(s, kind));
            plain.iter().chain(&messages).map(|packet| s.send(packet)).collect()
        })
        .by(V6)
        .honest(|s| [131, 132, 143].map(|kind| s.send(&report(s, kind)).arrives()).to_vec())
        .control(Rules::Unprotected),
    ];
    attacks.into_iter().map(|attack| attack.against(Rules::ADDRESSES)).collect()
}

/// Headers of the attacker, from no address to a group.
fn unspecified(s: &Scene, mac: Mac, group: Ipv6Addr) -> Packet {
    Packet::eth(mac, s.attacker.mac()).ipv6(Ipv6Addr::UNSPECIFIED, group)
}

/// What a host without an address reports its groups by, with any type: hop-by-hop options with a router alert (RFC 3810, 5).
fn report(s: &Scene, kind: u8) -> Packet {
    let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    let headers = unspecified(s, [0x33, 0x33, 0, 0, 0, 0x16], routers).ttl(1);
    let options = headers.protocol(0).payload(&[protocol::ICMPV6, 0, 5, 2, 0, 0, 1, 0]);
    options.icmpv6(kind, 0, [0, 0, 0, 1]).payload(&[4, 0, 0, 0]).payload(&ALL_NODES.octets())
}

/// A kernel takes a packet to a group for its own also from a frame for it alone.
fn to_groups() -> Vec<Attack> {
    let v4 = [Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(239, 1, 2, 3)];
    let v6 = [1, 0xfb].map(|last| Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, last));
    let to = |group: IpAddr| {
        let families = if group.is_ipv4() { V4 } else { V6 };
        Attack::new("new", format!("UDP to {group} in a frame for the victim"), move |s| {
            vec![s.send(&s.udp(s.ip_to(s.victim.mac(), group))).nowhere()]
        })
        .by(families)
        .against(Rules::ADDRESSES)
    };
    v4.map(IpAddr::from).into_iter().chain(v6.map(IpAddr::from)).map(to).collect()
}

/// The same of the addresses of all hosts of its subnet: the last one, and the first one for Linux before 5.14.
fn to_subnet() -> Vec<Attack> {
    let to = |last: u8| {
        let all = topology::ip(last);
        Attack::new("new", format!("UDP to {all} in a frame for the victim"), move |s| {
            let headers = || s.ip_to(s.victim.mac(), all.into());
            vec![s.send(&s.udp(headers())).nowhere(), s.send(&s.echo(headers())).nowhere()]
        })
        .by(V4)
        .against(&[Rules::DenyNetwork, Rules::DenyAddress, Rules::DenyOutAddress])
        // All hosts get it in a frame for all.
        .honest(move |s| vec![s.send(&s.udp(s.ip_to(BROADCAST, all.into()))).arrives()])
    };
    [0, 255].map(to).into_iter().collect()
}

/// The receivers on other nodes are not known.
fn out_to_groups() -> Vec<Attack> {
    let all: [IpAddr; 2] = [Ipv4Addr::BROADCAST.into(), ALL_NODES.into()];
    let to = |group: IpAddr| {
        let families = if group.is_ipv4() { V4 } else { V6 };
        let mac = if group.is_ipv4() { BROADCAST } else { ALL_NODES_MAC };
        Attack::new("new", format!("UDP to {group}, and thus to other nodes"), move |s| {
            let frame = s.udp(ip(Packet::eth(mac, s.attacker.mac()), s.from(), group));
            vec![s.send(&frame).expecting(crate::attack::Expect::NotOnWire)]
        })
        .by(families)
        .from(POD)
        .only(Attacker::Kept)
        .against(&[Rules::DenyOutAddress])
    };
    all.map(to).into_iter().collect()
}
