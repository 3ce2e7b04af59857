//! Connections: replies to nothing, segments that begin no connection, ports that are used again.

use testkit::packet::{Packet, tcp_flags};

use crate::{
    attack::{Attack, POD, Step},
    rules::{FAR, PORT, Rules},
    scene::{PAYLOAD, Scene, ip},
};

pub(super) fn attacks() -> Vec<Attack> {
    [flags(), ports(), malformed(), replies(), reversed(), ended()].into_iter().flatten().collect()
}

/// Under a deny no segment passes, whatever it claims to be.
fn flags() -> Vec<Attack> {
    let kinds: [(&str, u8); 13] = [
        ("SYN", 0x02),
        ("ACK", 0x10),
        ("SYN ACK", 0x12),
        ("FIN", 0x01),
        ("FIN ACK", 0x11),
        ("RST", 0x04),
        ("RST ACK", 0x14),
        ("PSH ACK", 0x18),
        ("SYN FIN", 0x03),
        ("SYN RST", 0x06),
        ("no flags", 0x00),
        ("all flags", 0xff),
        ("FIN PSH URG", 0x29),
    ];
    let first = |(name, flags): (&str, u8)| {
        Attack::new("held", format!("segment with {name} first"), move |s| {
            let segment = || s.ip().tcp(s.sport(), PORT, flags);
            vec![s.send(&segment()), s.send(&segment().payload(PAYLOAD)), s.send(&segment())]
        })
        .honest(move |s| vec![s.send(&s.ip().tcp(s.sport(), PORT, flags)).arrives()])
    };
    let mut attacks: Vec<Attack> = kinds.into_iter().map(first).collect();
    attacks.push(Attack::new("held", "SYN again and again", |s| {
        (0..20).map(|_| s.send(&s.syn(s.ip()))).collect()
    }));
    attacks.push(Attack::new("held", "SYN, then data as if it was accepted", |s| {
        let ack = || s.ip().tcp(s.sport(), PORT, tcp_flags::ACK).sequence(1, 1);
        vec![
            s.send(&s.syn(s.ip())),
            s.send(&ack()),
            s.send(&ack().payload(PAYLOAD)),
            s.send(&s.ip().tcp(s.sport(), PORT, tcp_flags::RST)),
        ]
    }));
    attacks
}

/// Source ports of services do not make a reply.
fn ports() -> Vec<Attack> {
    let mut attacks: Vec<Attack> = [0, 20, 53, 67, 80, 123, 443, 547, 2379, 4789, 6443, 65_535]
        .into_iter()
        .map(|port| {
            Attack::new("held", format!("source port {port}"), move |s| {
                vec![
                    s.send(&s.ip().udp(port, PORT).payload(PAYLOAD)),
                    s.send(&s.ip().tcp(port, PORT, tcp_flags::SYN | tcp_flags::ACK)),
                ]
            })
        })
        .collect();
    attacks.push(Attack::new("held", "same port on both sides", |s| {
        vec![
            s.send(&s.ip().udp(PORT, PORT).payload(PAYLOAD)),
            s.send(&s.ip().tcp(PORT, PORT, tcp_flags::SYN)),
        ]
    }));
    attacks.push(
        Attack::new("held", "echo reply to nothing", |s| {
            let reply = match s.to().is_ipv4() {
                true => s.ip().icmp_echo_reply(s.id(), 1),
                false => s.ip().icmpv6_echo_reply(s.id(), 1),
            };
            vec![s.send(&reply)]
        })
        .against(Rules::DENIES_ANY),
    );
    attacks
}

fn malformed() -> Vec<Attack> {
    /// Changes the header of UDP or TCP, which begins `offset` bytes into the frame.
    fn changed(s: &Scene, packet: &Packet, change: fn(&mut [u8])) -> Step {
        let mut bytes = packet.build();
        let offset = if s.to().is_ipv4() { 34 } else { 54 };
        change(&mut bytes[offset..]);
        s.send_bytes(bytes)
    }
    let udp = |name: &str, change: fn(&mut [u8])| {
        Attack::new("held", format!("UDP with {name}"), move |s| vec![changed(s, &s.datagram(), change)])
    };
    let tcp = |name: &str, change: fn(&mut [u8])| {
        Attack::new("held", format!("TCP with {name}"), move |s| vec![changed(s, &s.syn(s.ip()), change)])
    };
    vec![
        udp("length 0", |header| header[4..6].fill(0)),
        udp("length 4", |header| header[4..6].copy_from_slice(&[0, 4])),
        udp("a length beyond the packet", |header| header[4..6].copy_from_slice(&[4, 0])),
        udp("a false checksum", |header| header[6] ^= 0x55),
        udp("no checksum", |header| header[6..8].fill(0)),
        tcp("a header of 16 bytes", |header| header[12] = 0x40),
        tcp("a header beyond the packet", |header| header[12] = 0xf0),
        tcp("a false checksum", |header| header[16] ^= 0x55),
    ]
}

/// A flow of the victim with the attacker lets in its replies, and nothing else.
fn replies() -> Vec<Attack> {
    let begun = |s: &Scene| s.ip_of_victim(s.attacker).udp(s.sport(), 53).payload(b"question");
    let attack = |name: &str, packet: fn(&Scene) -> Packet| {
        Attack::new("held", format!("reply {name}"), move |s| {
            vec![s.send_by(s.victim, &begun(s)), s.send(&packet(s))]
        })
        // The victim's question gets its answer.
        .honest(move |s| {
            let answer = s.ip().udp(53, s.sport()).payload(b"answer");
            vec![s.send_by(s.victim, &begun(s)), s.send(&answer).arrives()]
        })
        .control(Rules::DenyAll)
    };
    vec![
        attack("to another port", |s| s.ip().udp(53, PORT).payload(PAYLOAD)),
        attack("from another port to the denied one", |s| s.ip().udp(54, PORT).payload(PAYLOAD)),
        attack("by another protocol", |s| s.ip().tcp(53, PORT, tcp_flags::SYN)),
        attack("by another family", |s| match s.to().is_ipv4() {
            true => s.eth().ipv6(s.attacker.ip6(), s.victim.ip6()).udp(53, PORT),
            false => s.eth().ipv4(s.attacker.ip(), s.victim.ip()).udp(53, PORT),
        }),
        Attack::new("held", "reply from another port", move |s| {
            vec![s.send_by(s.victim, &begun(s)), s.send(&s.ip().udp(54, s.sport()).payload(PAYLOAD))]
        })
        .against(Rules::DENIES_ANY),
        Attack::new("held", "echo reply with another identifier", |s| {
            let question = s.echo(s.ip_of_victim(s.attacker));
            let reply = match s.to().is_ipv4() {
                true => s.ip().icmp_echo_reply(s.id() ^ 0x8000, 1),
                false => s.ip().icmpv6_echo_reply(s.id() ^ 0x8000, 1),
            };
            vec![s.send_by(s.victim, &question), s.send(&reply)]
        })
        .against(Rules::DENIES_ANY),
        Attack::new("new", "echo request with the identifier of the victim's", |s| {
            // Same identifier, other direction: RFC 5508 makes no session of it, but a question is no reply.
            let question = s.echo(s.ip_of_victim(s.attacker));
            vec![s.send_by(s.victim, &question), s.send(&s.echo(s.ip()))]
        })
        .against(Rules::DENIES_ANY),
        // Out rules are about the other end, which two attackers hide behind an address without a record.
        Attack::new("new", "reply to an address without a record, in a frame to the victim", |s| {
            let [opener, _] = s.strangers();
            let opened = ip(Packet::eth(s.attacker.mac(), FAR.mac()), opener, s.from());
            let reply = s.ip_to(s.victim.mac(), opener).udp(PORT, s.sport()).payload(PAYLOAD);
            vec![s.send_by(FAR, &opened.udp(s.sport(), PORT).payload(b"question")), s.send(&reply)]
        })
        .from(POD)
        .against(&[Rules::DenyOut, Rules::DenyOutFar]),
    ]
}

/// The victim opens a connection to the attacker.
fn connection(s: &Scene) -> Vec<Step> {
    let there = |flags| s.ip_of_victim(s.attacker).tcp(PORT, s.sport(), flags);
    let back = |flags| s.ip().tcp(s.sport(), PORT, flags);
    vec![
        s.send_by(s.victim, &there(tcp_flags::SYN).sequence(1000, 0)),
        s.send(&back(tcp_flags::SYN | tcp_flags::ACK).sequence(5000, 1001)).anything(),
        s.send_by(s.victim, &there(tcp_flags::ACK).sequence(1001, 5001)),
    ]
}

/// The ports of the victim's connection let none of the other end in.
fn reversed() -> Vec<Attack> {
    fn syn(s: &Scene, sequence: u32) -> Step {
        s.send(&s.ip().tcp(s.sport(), PORT, tcp_flags::SYN).sequence(sequence, 0))
    }
    vec![
        Attack::new("new", "SYN with the ports of an established connection", |s| {
            [connection(s), vec![syn(s, 5001), syn(s, 90_000), syn(s, 5000)]].concat()
        }),
        Attack::new("new", "SYN with the ports of a connection that the victim opens", |s| {
            let opening = s.ip_of_victim(s.attacker).tcp(PORT, s.sport(), tcp_flags::SYN);
            vec![s.send_by(s.victim, &opening.sequence(1000, 0)), syn(s, 5000), syn(s, 5000)]
        }),
    ]
}

/// The ports of a connection that has ended let no new one in.
fn ended() -> Vec<Attack> {
    let ended_by = |name: &str, end: fn(&Scene) -> Vec<Step>| {
        Attack::new("held", format!("SYN with the ports of a connection that ended by {name}"), move |s| {
            let syn = s.ip().tcp(s.sport(), PORT, tcp_flags::SYN).sequence(90_000, 0);
            [connection(s), end(s), vec![s.send(&syn), s.send(&syn)]].concat()
        })
    };
    vec![
        ended_by("the victim's RST", |s| {
            vec![s.send_by(
                s.victim,
                &s.ip_of_victim(s.attacker).tcp(PORT, s.sport(), tcp_flags::RST).sequence(1001, 0),
            )]
        }),
        // The victim's kernel ignores what the attacker acknowledges there.
        ended_by("the victim's RST, after ACKs of what it has not sent", |s| {
            let ack = |ahead: u32| {
                let ack = s.ip().tcp(s.sport(), PORT, tcp_flags::ACK).sequence(5001, 1001 + ahead);
                s.send(&ack).anything()
            };
            let reset = s.ip_of_victim(s.attacker).tcp(PORT, s.sport(), tcp_flags::RST).sequence(1001, 0);
            vec![ack(1 << 15), ack(1 << 30), s.send_by(s.victim, &reset)]
        }),
        ended_by("the attacker's RST", |s| {
            vec![s.send(&s.ip().tcp(s.sport(), PORT, tcp_flags::RST).sequence(5001, 0)).anything()]
        }),
        ended_by("FIN from both", |s| {
            let flags = tcp_flags::FIN | tcp_flags::ACK;
            vec![
                s.send_by(
                    s.victim,
                    &s.ip_of_victim(s.attacker).tcp(PORT, s.sport(), flags).sequence(1001, 5001),
                ),
                s.send(&s.ip().tcp(s.sport(), PORT, flags).sequence(5001, 1002)).anything(),
            ]
        }),
    ]
}
