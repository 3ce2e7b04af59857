//! ICMPv6 of the link as a channel past rules: ND is exempt from them only if it is valid (RFC 4861, 7.1), everything else is
//! judged as ICMP.

use std::net::Ipv6Addr;

use testkit::packet::{Packet, solicited_node, solicited_node_mac};

use super::{ALL_NODES, ALL_NODES_MAC, Message};
use crate::{
    attack::{Attack, Step},
    rules::Rules,
    scene::{PAYLOAD, Scene},
};

pub(super) fn attacks() -> Vec<Attack> {
    let attacks = [invalid(), from_link_local(), mld()].into_iter().flatten();
    attacks.map(|attack| attack.against(Rules::DENIES_ANY)).collect()
}

/// The valid message of the kind, which the attacker may send to the victim.
fn valid(s: &Scene, kind: u8) -> Message {
    match kind {
        135 => Message::solicitation(s.victim.ip6(), s.attacker.mac()),
        136 => Message::advertisement(s.attacker.ip6(), s.attacker.mac()),
        133 => Message { kind, code: 0, rest: [0; 4], body: vec![] }.option(1, s.attacker.mac()),
        134 => Message::router(s.attacker.mac()),
        _ => Message::redirect(s.attacker.link_local(), s.attacker.ip6(), s.attacker.mac()),
    }
}

/// From both of the attacker's addresses to both of the victim's.
fn pairs(s: &Scene, packet: impl Fn(Ipv6Addr, Ipv6Addr) -> Packet) -> Vec<Step> {
    let mut steps = vec![];
    for from in [s.attacker.ip6(), s.attacker.link_local()] {
        for to in [s.victim.ip6(), s.victim.link_local()] {
            steps.push(s.send(&packet(from, to)));
        }
    }
    steps
}

fn invalid() -> Vec<Attack> {
    let mut attacks = vec![];
    for kind in 133..=137 {
        let changed = |name: &str, change: fn(&Scene, Packet, &mut Message) -> Packet| {
            Attack::new("E22", format!("ICMPv6 type {kind}: {name}"), move |s| {
                pairs(s, |from, to| {
                    let mut message = valid(s, kind);
                    let headers = change(s, s.eth().ipv6(from, to).ttl(255), &mut message);
                    message.after(headers)
                })
            })
        };
        attacks.extend([
            changed("hop limit 64", |_, headers, _| headers.ttl(64)),
            changed("hop limit 64 and 400 bytes of data", |_, headers, message| {
                message.body.resize(400, b'x');
                headers.ttl(64)
            }),
            changed("400 bytes that are no options", |_, headers, message| {
                message.body.resize(400, 0);
                headers
            }),
            changed("code 1", |_, headers, message| {
                message.code = 1;
                headers
            }),
            changed("a long unknown option", |_, headers, message| {
                message.body.extend([253, 32]);
                message.body.extend([b'x'; 254]);
                headers
            }),
        ]);
    }
    let one = |name: &str, kind: u8, change: fn(&mut Message)| {
        Attack::new("E22", format!("ICMPv6 type {kind}: {name}"), move |s| {
            let mut message = valid(s, kind);
            change(&mut message);
            vec![s.send(&message.packet(s.eth(), s.attacker.ip6(), s.victim.ip6()))]
        })
    };
    attacks.extend([
        one("option of length 0", 135, |message| message.body[17] = 0),
        one("option of length 0", 136, |message| message.body[17] = 0),
        one("option beyond the end", 135, |message| message.body[17] = 9),
        one("half an option", 135, |message| message.body.truncate(20)),
        one("half a target", 135, |message| message.body.truncate(8)),
        one("half a target", 136, |message| message.body.truncate(8)),
        one("nothing behind the type", 135, |message| message.body.clear()),
        one("target that is a group", 135, |message| message.body[..16].copy_from_slice(&ALL_NODES.octets())),
        one("target that is a group", 136, |message| message.body[..16].copy_from_slice(&ALL_NODES.octets())),
        Attack::new("E22", "ICMPv6 type 135: for another than it is sent to", |s| {
            let message = Message::solicitation(s.attacker.ip6(), s.attacker.mac());
            vec![s.send(&message.packet(s.eth(), s.attacker.ip6(), s.victim.ip6()))]
        }),
        Attack::new("E22", "ICMPv6 type 135: to a group of the site", |s| {
            let site = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 2);
            let eth = Packet::eth([0x33, 0x33, 0, 0, 0, 2], s.attacker.mac());
            vec![s.send(&valid(s, 135).packet(eth, s.attacker.ip6(), site))]
        })
        .for_groups(),
        Attack::new("E22", "ICMPv6 type 135: data behind the packet", |s| {
            let mut bytes = valid(s, 135).packet(s.eth(), s.attacker.ip6(), s.victim.ip6()).build();
            bytes.extend([b'x'; 400]);
            vec![s.send_bytes(bytes)]
        }),
    ]);
    for kind in 130..=137 {
        attacks.push(Attack::new("E22", format!("protocol 58 type {kind} over IPv4"), move |s| {
            let message = [&[kind, 0, 0, 0, 0, 0, 0, 0][..], PAYLOAD].concat();
            let headers = s.eth().ipv4(s.attacker.ip(), s.victim.ip()).protocol(58);
            vec![s.send(&headers.clone().payload(&message)), s.send(&headers.ttl(255).payload(&message))]
        }));
    }
    attacks
}

/// A link-local address is as much the endpoint's as the other one: its group is known.
fn from_link_local() -> Vec<Attack> {
    let types = [
        1, 2, 3, 4, 100, 127, 128, 129, 138, 139, 140, 141, 142, 144, 145, 146, 147, 148, 149, 151, 152, 153,
        155, 160, 161, 200, 255,
    ];
    let mut attacks: Vec<Attack> = types
        .into_iter()
        .map(|kind| {
            Attack::new(
                "E21",
                format!("ICMPv6 type {kind} between link-local and global addresses"),
                move |s| {
                    pairs(s, |from, to| {
                        s.eth()
                            .ipv6(from, to)
                            .icmpv6(kind, 0, [0, 0, (s.id() >> 8) as u8, s.id() as u8])
                            .payload(PAYLOAD)
                    })
                },
            )
        })
        .collect();
    let datagram = |name: &str, packet: fn(&Scene, Packet) -> Packet| {
        Attack::new("E21", format!("{name} between link-local addresses"), move |s| {
            vec![s.send(&packet(s, s.eth().ipv6(s.attacker.link_local(), s.victim.link_local())))]
        })
    };
    attacks.extend([
        datagram("UDP", |s, headers| s.udp(headers)),
        datagram("TCP", |s, headers| s.syn(headers)),
        datagram("protocol 253", |_, headers| headers.protocol(253).payload(PAYLOAD)),
        Attack::new("E21", "echo request from the link-local address in frames to all nodes", |s| {
            let eth = || Packet::eth(ALL_NODES_MAC, s.attacker.mac());
            let from = s.attacker.link_local();
            vec![
                s.send(&s.echo(eth().ipv6(from, ALL_NODES))),
                s.send(&s.echo(eth().ipv6(from, s.victim.link_local()))),
                s.send(&s.echo(eth().ipv6(from, s.victim.ip6()))),
            ]
        })
        .for_groups(),
        Attack::new("E21", "echo request from the link-local address to the solicited-node group", |s| {
            let target = s.victim.ip6();
            let eth = Packet::eth(solicited_node_mac(target), s.attacker.mac());
            vec![s.send(&s.echo(eth.ipv6(s.attacker.link_local(), solicited_node(target))))]
        })
        .for_groups(),
    ]);
    attacks
}

/// Multicast listener discovery is ICMP like any other to endpoints with rules. Those without hear it.
fn mld() -> Vec<Attack> {
    let reports = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    let message = move |s: &Scene, kind: u8| {
        let eth = Packet::eth([0x33, 0x33, 0, 0, 0, 0x16], s.attacker.mac());
        // Hop-by-hop options with router alert (RFC 3810, 5).
        let headers =
            eth.ipv6(s.attacker.link_local(), reports).ttl(1).protocol(0).payload(&[58, 0, 5, 2, 0, 0, 1, 0]);
        headers.icmpv6(kind, 0, [0, 0, 0, 1]).payload(&[4, 0, 0, 0]).payload(&ALL_NODES.octets())
    };
    let mut attacks: Vec<Attack> = [130, 131, 132, 143]
        .into_iter()
        .map(|kind| {
            Attack::new("E2", format!("MLD type {kind}"), move |s| vec![s.send(&message(s, kind))])
                .for_groups()
                .honest(move |s| vec![s.send(&message(s, kind)).arrives()])
                .control(Rules::Unprotected)
        })
        .collect();
    attacks.extend([130, 131, 132, 143].map(|kind| {
        Attack::new("E21/E22", format!("MLD type {kind} to the victim with data"), move |s| {
            pairs(s, |from, to| s.eth().ipv6(from, to).ttl(1).icmpv6(kind, 0, [0; 4]).payload(&[b'x'; 400]))
        })
    }));
    attacks
}
