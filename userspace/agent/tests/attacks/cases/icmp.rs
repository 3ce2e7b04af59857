//! Forged ICMP errors. An error belongs to a flow if it comes from the flow's other end, or from a router on the way, of which
//! a bridged network has none: never from an endpoint that is neither.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use testkit::packet::{BROADCAST, Mac, Packet, solicited_node, tcp_flags};

use crate::{
    attack::{ANYWHERE, Attack, Family, OUTSIDE, POD, Step, V4, V6},
    rules::{Attacker, FAR_FRIEND, FRIEND, GATEWAY, OTHER_PORT, PORT, Rules, Station, UNUSED, WITNESS},
    scene::{PAYLOAD, Scene, ip},
};

const ERRORS_V4: [(&str, u8, u8, [u8; 4]); 12] = [
    ("port unreachable", 3, 3, [0; 4]),
    ("host unreachable", 3, 1, [0; 4]),
    ("network unreachable", 3, 0, [0; 4]),
    ("protocol unreachable", 3, 2, [0; 4]),
    ("fragmentation needed", 3, 4, [0, 0, 2, 64]),
    ("source route failed", 3, 5, [0; 4]),
    ("administratively prohibited", 3, 13, [0; 4]),
    ("source quench", 4, 0, [0; 4]),
    ("redirect", 5, 1, [10, 7, 0, 1]),
    ("time exceeded", 11, 0, [0; 4]),
    ("reassembly time exceeded", 11, 1, [0; 4]),
    ("parameter problem", 12, 0, [9, 0, 0, 0]),
];
const ERRORS_V6: [(&str, u8, u8, [u8; 4]); 10] = [
    ("port unreachable", 1, 4, [0; 4]),
    ("address unreachable", 1, 3, [0; 4]),
    ("no route", 1, 0, [0; 4]),
    ("administratively prohibited", 1, 1, [0; 4]),
    ("packet too big", 2, 0, [0, 0, 5, 0]),
    ("time exceeded", 3, 0, [0; 4]),
    ("parameter problem", 4, 1, [0, 0, 0, 6]),
    ("unassigned error", 50, 0, [0; 4]),
    ("experimental error", 100, 0, [0; 4]),
    ("reserved error", 127, 0, [0; 4]),
];

pub(super) fn attacks() -> Vec<Attack> {
    let attacks = [about_others(), about_nothing(), odd_quotes(), in_fragments().into()];
    let attacks = attacks.into_iter().flatten();
    // The control: the victim sends to the attacker, whose kernel has no such port. Rules for what comes in do not stop it.
    let attacks = attacks.map(|attack| attack.honest(genuine).control(Rules::DenyAll));
    attacks.chain([blind(), astray(), misdirected()]).collect()
}

type Kind = (&'static str, u8, u8, [u8; 4]);

/// An error about a flow of the victim, to a group that it is a member of.
fn to_group(name: &str, mac: Mac, address: fn(&Scene) -> IpAddr) -> Attack {
    Attack::new("E26", format!("error about another's datagram to {name}"), move |s| {
        let (mut steps, quoted) = flow(s, WITNESS);
        steps.push(s.send(&error(s, s.ip_to(mac, address(s)), port_unreachable(s), &quoted)));
        steps
    })
}

/// Continues headers with an error about a packet.
fn error(s: &Scene, headers: Packet, (_, kind, code, rest): Kind, quoted: &[u8]) -> Packet {
    match s.family {
        Family::V4 => headers.icmp(kind, code, rest).payload(quoted),
        Family::V6 => headers.icmpv6(kind, code, rest).payload(quoted),
    }
}

fn port_unreachable(s: &Scene) -> Kind {
    match s.family {
        Family::V4 => ERRORS_V4[0],
        Family::V6 => ERRORS_V6[0],
    }
}

/// The IP packet of a frame.
fn packet_of(frame: &Packet) -> Vec<u8> {
    frame.build()[14..].to_vec()
}

fn genuine(s: &Scene) -> Vec<Step> {
    let question = s.ip_of_victim(s.attacker).udp(s.sport(), 33_434).payload(PAYLOAD);
    vec![
        s.send_by(s.victim, &question),
        s.send(&error(s, s.ip(), port_unreachable(s), &packet_of(&question))).arrives(),
    ]
}

/// A flow of UDP that the victim has with somebody else, answered.
fn flow(s: &Scene, peer: Station) -> (Vec<Step>, Vec<u8>) {
    let question = s.ip_of_victim(peer).udp(s.sport(), 53).payload(b"question");
    let answer =
        ip(Packet::eth(s.victim.mac(), peer.mac()), peer.address(s.family), s.to()).udp(53, s.sport());
    (vec![s.send_by(s.victim, &question), s.send_by(peer, &answer.payload(b"answer"))], packet_of(&question))
}

/// A flow of UDP that somebody else has with the victim, and what the victim answers.
fn answered(s: &Scene, peer: Station) -> (Vec<Step>, Vec<u8>) {
    let question =
        ip(Packet::eth(s.victim.mac(), peer.mac()), peer.address(s.family), s.to()).udp(53, s.sport());
    let answer = s.ip_of_victim(peer).udp(s.sport(), 53).payload(b"answer");
    (vec![s.send_by(peer, &question.payload(b"question")), s.send_by(s.victim, &answer)], packet_of(&answer))
}

/// A connection of the victim by TCP. Numbers of the client and the server: 1000 and 5000.
fn connection(s: &Scene, peer: Station) -> Vec<Step> {
    let there = |flags| s.ip_of_victim(peer).tcp(s.sport(), 80, flags);
    let back = || ip(Packet::eth(s.victim.mac(), peer.mac()), peer.address(s.family), s.to());
    vec![
        s.send_by(s.victim, &there(tcp_flags::SYN).sequence(1000, 0)),
        s.send_by(peer, &back().tcp(80, s.sport(), tcp_flags::SYN | tcp_flags::ACK).sequence(5000, 1001)),
        s.send_by(s.victim, &there(tcp_flags::ACK).sequence(1001, 5001)),
    ]
}

/// An error in the name of the connection's other end, from somebody who does not see the connection: the sequence number is
/// not one that is on the way (RFC 5927, 4.1).
fn blind() -> Attack {
    let quoting = |s: &Scene, sequence| {
        let quoted = s
            .ip_of_victim(FAR_FRIEND)
            .tcp(s.sport(), 80, tcp_flags::ACK)
            .sequence(sequence, 5001)
            .payload(PAYLOAD);
        let headers = ip(Packet::eth(s.victim.mac(), FAR_FRIEND.mac()), FAR_FRIEND.address(s.family), s.to());
        s.send_by(FAR_FRIEND, &error(s, headers, port_unreachable(s), &packet_of(&quoted)))
    };
    let data = |s: &Scene| {
        let segment = s.ip_of_victim(FAR_FRIEND).tcp(s.sport(), 80, tcp_flags::ACK).sequence(1001, 5001);
        s.send_by(s.victim, &segment.payload(PAYLOAD))
    };
    Attack::new(
        "E26",
        "error about a segment that is not on the way, in the name of the connection's end",
        move |s| {
            let forged =
                [77_777, 1_000_000_000, 3_000_000_000].map(|sequence| quoting(s, sequence).not_at_victim());
            [connection(s, FAR_FRIEND), vec![data(s)], forged.to_vec()].concat()
        },
    )
    .from(OUTSIDE)
    .only(Attacker::Plain)
    .against(&[Rules::DenyAll, Rules::DenyPort, Rules::FriendsOnly, Rules::Unprotected])
    .control(Rules::DenyAll)
    .honest(move |s| [connection(s, FAR_FRIEND), vec![data(s), quoting(s, 1001).arrives()]].concat())
}

/// An error about the attacker's own flow, to an address that has no record and thus no Ethernet address of its own: it goes
/// no other way than the packets of the flow, past the rules of another station.
fn astray() -> Attack {
    fn outside(s: &Scene) -> IpAddr {
        match s.family {
            Family::V4 => Ipv4Addr::new(192, 0, 2, 1).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1).into(),
        }
    }
    let datagram = |s: &Scene, to: Mac| s.send(&s.udp(s.ip_to(to, outside(s))));
    let error_to_victim = |s: &Scene| {
        let reply = ip(s.eth(), outside(s), s.from()).udp(PORT, s.sport()).payload(PAYLOAD);
        let headers = s.ip_to(s.victim.mac(), outside(s));
        s.send(&error(s, headers, port_unreachable(s), &packet_of(&reply)))
    };
    Attack::new("new", "error about an own flow in a frame to another station", move |s| {
        vec![datagram(s, WITNESS.mac()).anything(), error_to_victim(s)]
    })
    .honest(move |s| vec![datagram(s, s.victim.mac()).arrives(), error_to_victim(s).arrives()])
}

/// An error to an address without a record that has opened a connection to the attacker, in a frame to another station: that station
/// has not opened the connection, and its rules for what it receives would not be asked.
fn misdirected() -> Attack {
    Attack::new("new", "error to the unrecorded opener of a connection in a frame to another station", |s| {
        let opener = s.strangers()[0];
        let headers = ip(Packet::eth(s.attacker.mac(), FAR_FRIEND.mac()), opener, s.from());
        let question = headers.udp(s.sport(), PORT).payload(PAYLOAD);
        let headers = s.ip_to(s.victim.mac(), opener);
        vec![
            s.send_by(FAR_FRIEND, &question),
            s.send(&error(s, headers, port_unreachable(s), &packet_of(&question))),
        ]
    })
    .against(Rules::DENIES_ANY)
    .from(POD)
}

fn about_others() -> Vec<Attack> {
    let about_udp = |defect, (quoted, flow): Quote, kind: Kind, families| {
        let (name, ..) = kind;
        Attack::new(defect, format!("{name} about {quoted}"), move |s| {
            let (mut steps, quoted) = flow(s, WITNESS);
            steps.push(s.send(&error(s, s.ip(), kind, &quoted)));
            steps
        })
        .by(families)
    };
    let about_datagram = |kind, families| about_udp("E26", DATAGRAM, kind, families);
    let about_answer = |kind, families| about_udp("new", ANSWER, kind, families);
    let about_tcp = |kind: Kind, families| {
        let (name, ..) = kind;
        Attack::new("E26", format!("{name} about another's segment"), move |s| {
            let mut steps = connection(s, WITNESS);
            for sequence in [1001, 77_777] {
                let quoted =
                    s.ip_of_victim(WITNESS).tcp(s.sport(), 80, tcp_flags::ACK).sequence(sequence, 5001);
                steps.push(s.send(&error(s, s.ip(), kind, &packet_of(&quoted))));
            }
            steps
        })
        .by(families)
    };
    let mut attacks: Vec<Attack> = ERRORS_V4.into_iter().map(|kind| about_datagram(kind, V4)).collect();
    attacks.extend([ERRORS_V4[0], ERRORS_V4[4]].map(|kind| about_answer(kind, V4)));
    attacks.extend([ERRORS_V6[0], ERRORS_V6[4]].map(|kind| about_answer(kind, V6)));
    attacks.extend(ERRORS_V6.into_iter().map(|kind| about_datagram(kind, V6)));
    attacks.extend([ERRORS_V4[0], ERRORS_V4[4]].map(|kind| about_tcp(kind, V4)));
    attacks.extend([ERRORS_V6[0], ERRORS_V6[4]].map(|kind| about_tcp(kind, V6)));
    attacks.extend([
        Attack::new("E26", "error about another's datagram in a broadcast frame", |s| {
            let (mut steps, quoted) = flow(s, WITNESS);
            steps.push(s.send(&error(s, s.ip_in(BROADCAST), port_unreachable(s), &quoted)));
            steps
        }),
        to_group("all nodes", [0x33, 0x33, 0, 0, 0, 1], |_| {
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into()
        })
        .by(V6),
        to_group("the solicited-node group", [0x33, 0x33, 0xff, 0, 0, 1], |s| {
            solicited_node(s.victim.ip6()).into()
        })
        .by(V6),
        to_group("all hosts", [1, 0, 0x5e, 0, 0, 1], |_| Ipv4Addr::new(224, 0, 0, 1).into()).by(V4),
        Attack::new("E26", "error about a datagram that was not answered", |s| {
            let question = s.ip_of_victim(WITNESS).udp(s.sport(), 53).payload(b"question");
            let forged = error(s, s.ip(), port_unreachable(s), &packet_of(&question));
            vec![s.send_by(s.victim, &question), s.send(&forged)]
        }),
        Attack::new("E26", "error about another's echo request", |s| {
            let question = s.echo(s.ip_of_victim(WITNESS));
            let forged = error(s, s.ip(), port_unreachable(s), &packet_of(&question));
            vec![s.send_by(s.victim, &question), s.send(&forged)]
        }),
        // The address of the flow's other end, which is on the node.
        Attack::new("E24", "error from outside in the name of a pod on the node", |s| {
            let (mut steps, quoted) = flow(s, WITNESS);
            steps.push(s.send(&error(s, s.ip_from(WITNESS.address(s.family)), port_unreachable(s), &quoted)));
            steps
        })
        .from(OUTSIDE),
        Attack::new("E21/E26", "error from the attacker's link-local address", |s| {
            let (mut steps, quoted) = flow(s, WITNESS);
            let headers = s.eth().ipv6(s.attacker.link_local(), s.victim.ip6());
            steps.push(s.send(&error(s, headers, port_unreachable(s), &quoted)));
            steps
        })
        .by(V6),
    ]);
    attacks.extend(by_routers());
    // Without rules, too: the error is about a flow that the attacker has no part in.
    attacks
        .into_iter()
        .map(|attack| {
            attack.against(&[
                Rules::DenyAll,
                Rules::DenyGroup,
                Rules::DenyPort,
                Rules::DenyOut,
                Rules::FriendsOnly,
                Rules::Unprotected,
            ])
        })
        .collect()
}

/// Name and address of the sender of an error.
type Source = (&'static str, fn(&Scene) -> IpAddr);

/// What the victim has sent, and a flow with it.
type Quote = (&'static str, fn(&Scene, Station) -> (Vec<Step>, Vec<u8>));

const DATAGRAM: Quote = ("another's datagram", flow);
const ANSWER: Quote = ("an answer to another", answered);

/// An address without a record may be a router's, on a VLAN also one in the subnet, and the gateway's is; but between endpoints of a subnet there is no router.
fn by_routers() -> Vec<Attack> {
    let sources: [Source; 3] = [
        ("an address outside", |s| s.strangers()[0]),
        ("an unused address", |s| UNUSED.address(s.family)),
        ("the gateway's address", |s| GATEWAY.address(s.family)),
    ];
    let kinds = [(ERRORS_V4[0], V4), (ERRORS_V4[4], V4), (ERRORS_V6[0], V6), (ERRORS_V6[4], V6)];
    let mut attacks = vec![];
    for (source, from) in sources {
        for (kind, families) in kinds {
            let (name, ..) = kind;
            for (quoted, flow) in [DATAGRAM, ANSWER] {
                let attack = Attack::new("new", format!("{name} about {quoted} from {source}"), move |s| {
                    let (mut steps, quoted) = flow(s, WITNESS);
                    steps.push(s.send(&error(s, s.ip_from(from(s)), kind, &quoted)));
                    steps
                });
                attacks.push(attack.from(OUTSIDE).by(families));
            }
        }
    }
    attacks
}

/// Errors about packets that the victim has not sent are judged as what they are: packets from the attacker.
fn about_nothing() -> Vec<Attack> {
    let quoting = |name: &str, packet: fn(&Scene) -> Packet| {
        Attack::new("E26", format!("error about {name}"), move |s| {
            vec![s.send(&error(s, s.ip(), port_unreachable(s), &packet_of(&packet(s))))]
        })
        .against(Rules::DENIES_ANY)
        .from(ANYWHERE)
    };
    vec![
        quoting("a datagram of the victim to the attacker that was not sent", |s| {
            s.ip_of_victim(s.attacker).udp(PORT, s.sport()).payload(PAYLOAD)
        }),
        quoting("a datagram of the victim to another that was not sent", |s| {
            s.ip_of_victim(FRIEND).udp(PORT, s.sport()).payload(PAYLOAD)
        }),
        quoting("a segment that was not sent", |s| {
            s.ip_of_victim(s.attacker).tcp(PORT, s.sport(), tcp_flags::ACK)
        }),
        quoting("a datagram of the attacker itself", |s| s.datagram()),
        quoting("a flow between others", |s| {
            ip(Packet::eth(FRIEND.mac(), WITNESS.mac()), WITNESS.address(s.family), FRIEND.address(s.family))
                .udp(1, 2)
        }),
        Attack::new("E26", "error about the own datagram that was denied", |s| {
            let denied = s.datagram();
            let answer = s.ip_of_victim(s.attacker).udp(PORT, s.sport()).payload(PAYLOAD);
            vec![
                s.send(&denied),
                s.send(&error(s, s.ip(), port_unreachable(s), &packet_of(&denied))),
                s.send(&error(s, s.ip(), port_unreachable(s), &packet_of(&answer))),
            ]
        })
        .against(Rules::DENIES_ANY),
    ]
}

/// The protocol of ICMP.
fn protocol(s: &Scene) -> u8 {
    match s.family {
        Family::V4 => 1,
        Family::V6 => 58,
    }
}

/// Errors that are fragments, and fragments of the packet that an error quotes.
fn in_fragments() -> [Attack; 3] {
    let split = Attack::new("new", "error in two fragments about another's datagram", |s| {
        let (mut steps, quoted) = flow(s, WITNESS);
        // With the eight bytes of ICMP before it.
        let (head, rest) = quoted.split_at(quoted.len() & !7);
        let first = error(s, s.ip().fragment(s.id(), 0, true), port_unreachable(s), head);
        let offset = (8 + head.len()) / 8;
        let last = s.ip().protocol(protocol(s)).fragment(s.id(), offset as u16, false);
        steps.extend([s.send(&first), s.send(&last.payload(&[rest, &[0; 8]].concat()))]);
        steps
    });
    // What it quotes of a fragment is not kept for those of the attacker, whose ports would be unknown.
    let quoted = Attack::new("new", "fragment under the identification that an error quotes", |s| {
        let first =
            s.ip_of_victim(s.attacker).fragment(s.id(), 0, true).udp(PORT, s.sport()).payload(&[0; 24]);
        let forged = error(s, s.ip(), port_unreachable(s), &packet_of(&first));
        let later = s.ip().protocol(17).fragment(s.id(), 4, false).payload(PAYLOAD);
        vec![s.send(&forged).anything(), s.send(&later)]
    });
    // The receiver joins the packets up to their ends: what follows the first one in its frame is not what the error quotes.
    let behind = Attack::new("E26", "error whose quote is behind the end of its first fragment", |s| {
        let (mut steps, others) = flow(s, WITNESS);
        let question = s.ip().udp(s.sport(), OTHER_PORT).payload(PAYLOAD);
        let own = s.ip_of_victim(s.attacker).udp(OTHER_PORT, s.sport()).payload(PAYLOAD);
        let mut first = error(s, s.ip().fragment(s.id(), 0, true), port_unreachable(s), &[]).build();
        first.extend(packet_of(&own));
        let last = s.ip().protocol(protocol(s)).fragment(s.id(), 1, false).payload(&others);
        steps.extend([s.send(&question).anything(), s.send_bytes(first), s.send(&last)]);
        steps
    });
    [
        split.against(Rules::DENIES_ANY),
        quoted,
        behind.against(&[Rules::DenyAll, Rules::DenyPort, Rules::Unprotected]),
    ]
}

fn odd_quotes() -> Vec<Attack> {
    let quoting = |name: &str, quote: fn(&Scene) -> Vec<u8>| {
        Attack::new("E26", format!("error that quotes {name}"), move |s| {
            let (mut steps, _) = flow(s, WITNESS);
            steps.push(s.send(&error(s, s.ip(), port_unreachable(s), &quote(s))));
            steps
        })
        .against(Rules::DENIES_ANY)
    };
    fn question(s: &Scene) -> Vec<u8> {
        packet_of(&s.ip_of_victim(WITNESS).udp(s.sport(), 53).payload(b"question"))
    }
    vec![
        quoting("nothing", |_| vec![]),
        quoting("half an IP header", |s| question(s)[..12].to_vec()),
        quoting("an IP header alone", |s| {
            let length = if s.family == Family::V4 { 20 } else { 40 };
            question(s)[..length].to_vec()
        }),
        quoting("a fragment", |s| {
            packet_of(&s.ip_of_victim(WITNESS).protocol(17).fragment(s.id(), 4, false).payload(&[0; 16]))
        }),
        quoting("a first fragment", |s| {
            packet_of(&s.ip_of_victim(WITNESS).fragment(s.id(), 0, true).udp(s.sport(), 53).payload(&[0; 16]))
        }),
        quoting("an error", |s| {
            packet_of(&error(s, s.ip_of_victim(WITNESS), port_unreachable(s), &question(s)))
        }),
        quoting("another version of IP", |s| {
            let mut quoted = question(s);
            quoted[0] ^= 0x20;
            quoted
        }),
        quoting("a long packet", |s| [question(s), vec![0; 800]].concat()),
    ]
}
