//! Fragments: those that hide ports, that come in another order, and that overlap.

use testkit::packet::{BROADCAST, Packet, tcp_flags};

use crate::{
    attack::{Attack, Step, V4, V6},
    rules::{Attacker, FRIEND, OTHER_PORT, PORT, Rules},
    scene::{PAYLOAD, Scene, ip},
};

const TCP: u8 = 6;
const UDP: u8 = 17;

pub(super) fn attacks() -> Vec<Attack> {
    let attacks = [first(), later(), overlapping(), of_ipv6()].into_iter().flatten();
    // The control: an honest packet in two fragments.
    let honest =
        |s: &Scene| vec![s.send(&start(s, UDP, OTHER_PORT)).arrives(), s.send(&end(s, UDP)).arrives()];
    attacks.map(|attack| attack.honest(honest)).chain([behind_options()]).collect()
}

fn piece(s: &Scene, protocol: u8, offset: u16, more: bool) -> Packet {
    s.ip().protocol(protocol).fragment(s.id(), offset, more)
}

/// The first fragment, 32 bytes, to this port.
fn start(s: &Scene, protocol: u8, port: u16) -> Packet {
    let headers = piece(s, protocol, 0, true);
    match protocol {
        TCP => headers.tcp(s.sport(), port, tcp_flags::SYN).payload(&[0; 12]),
        _ => headers.udp(s.sport(), port).payload(&[0; 24]),
    }
}

/// The last fragment.
fn end(s: &Scene, protocol: u8) -> Packet {
    piece(s, protocol, 4, false).payload(PAYLOAD)
}

fn first() -> Vec<Attack> {
    let ports = |s: &Scene| [s.sport().to_be_bytes(), PORT.to_be_bytes()].concat();
    vec![
        Attack::new("held", "first and last fragment", |s| {
            vec![
                s.send(&start(s, UDP, PORT)),
                s.send(&end(s, UDP)),
                s.send(&start(s, TCP, PORT)),
                s.send(&end(s, TCP)),
            ]
        }),
        Attack::new("held", "first fragment with 8 bytes of TCP", move |s| {
            let tiny = [ports(s), vec![0; 4]].concat();
            vec![
                s.send(&piece(s, TCP, 0, true).payload(&tiny)),
                s.send(&piece(s, TCP, 1, false).payload(&[0; 40])),
            ]
        }),
        Attack::new("held", "first fragment without ports", |s| {
            let rest = s.sport().to_be_bytes();
            vec![
                s.send(&piece(s, TCP, 0, true)),
                s.send(&piece(s, UDP, 0, true)),
                s.send(&piece(s, UDP, 0, true).payload(&rest)),
                s.send(&piece(s, TCP, 0, true).payload(&rest)),
            ]
        }),
        Attack::new("E1", "first fragment in a broadcast frame", |s| {
            let headers = ip(Packet::eth(BROADCAST, s.attacker.mac()), s.from(), s.to()).protocol(UDP);
            vec![s.send(&s.udp(headers.fragment(s.id(), 0, true)))]
        }),
        Attack::new("held", "first fragments of ICMP", |s| {
            vec![s.send(&s.echo(s.ip().fragment(s.id(), 0, true)))]
        })
        .against(Rules::DENIES_ANY),
        Attack::new("held", "don't fragment, more fragments", |s| {
            let mut bytes = start(s, UDP, PORT).build();
            bytes[20] |= 0x40;
            vec![s.send_bytes(bytes)]
        })
        .by(V4),
    ]
}

fn later() -> Vec<Attack> {
    vec![
        Attack::new("held", "last fragment without the first", |s| {
            vec![
                s.send(&end(s, UDP)),
                s.send(&end(s, TCP)),
                s.send(&piece(s, UDP, 100, true).payload(&[0; 64])),
            ]
        }),
        Attack::new("held", "last fragment before the first", |s| {
            vec![s.send(&end(s, UDP)), s.send(&start(s, UDP, PORT)), s.send(&end(s, UDP))]
        }),
        Attack::new("held", "last fragment beyond 65535", |s| {
            vec![s.send(&piece(s, UDP, 8191, false).payload(&[0; 400]))]
        }),
        Attack::new("held", "fragment of another protocol under an allowed identification", |s| {
            vec![s.send(&start(s, UDP, OTHER_PORT)).anything(), s.send(&end(s, TCP)).only_to(OTHER_PORT)]
        })
        .against(Rules::PORTS),
        Attack::new("held", "fragment under another pod's identification", |s| {
            let friends = ip(Packet::eth(s.victim.mac(), FRIEND.mac()), FRIEND.address(s.family), s.to());
            let first =
                friends.protocol(UDP).fragment(s.id(), 0, true).udp(s.sport(), OTHER_PORT).payload(&[0; 24]);
            vec![s.send_by(FRIEND, &first), s.send(&end(s, UDP))]
        })
        .against(&[Rules::FriendsOnly, Rules::DenyAll, Rules::DenyPort]),
        Attack::new("held", "fragment under the identification of an attacker that is allowed", |s| {
            let plain = Attacker::Plain.at(s.place);
            let allowed = ip(Packet::eth(s.victim.mac(), plain.mac()), plain.address(s.family), s.to());
            let first =
                allowed.protocol(UDP).fragment(s.id(), 0, true).udp(s.sport(), PORT).payload(&[0; 24]);
            vec![s.send_by(plain, &first), s.send(&end(s, UDP))]
        })
        .against(&[Rules::DenyGroup, Rules::DenyOut]),
        // Nothing of the first fragment is left that the pod's own one would be taken for a part of.
        spoofed("a false source", |s| s.ip_from(FRIEND.address(s.family))),
        spoofed("a false source and Ethernet address", |s| {
            ip(Packet::eth(s.victim.mac(), FRIEND.mac()), FRIEND.address(s.family), s.to())
        }),
    ]
}

/// The attacker sends a first fragment with the address of a pod, which sends a later one.
fn spoofed(what: &str, headers: fn(&Scene) -> Packet) -> Attack {
    Attack::new("new", format!("fragment of a pod under a first one with {what}"), move |s| {
        let first = headers(s).protocol(UDP).fragment(s.id(), 0, true);
        let friends = ip(Packet::eth(s.victim.mac(), FRIEND.mac()), FRIEND.address(s.family), s.to());
        let later = friends.protocol(UDP).fragment(s.id(), 4, false).payload(PAYLOAD);
        vec![
            s.send(&first.udp(s.sport(), OTHER_PORT).payload(&[0; 24])),
            s.send_by(FRIEND, &later).not_at_victim(),
        ]
    })
    .against(&[Rules::FriendsOnly, Rules::DenyPort, Rules::Unprotected])
}

fn overlapping() -> Vec<Attack> {
    let allowed = |s: &Scene, protocol| s.send(&start(s, protocol, OTHER_PORT)).anything();
    vec![
        Attack::new("held", "second first fragment with another port", move |s| {
            vec![allowed(s, UDP), s.send(&start(s, UDP, PORT))]
        })
        .against(Rules::PORTS),
        Attack::new("held", "second first fragment with another port, TCP", move |s| {
            vec![allowed(s, TCP), s.send(&start(s, TCP, PORT))]
        })
        .against(Rules::PORTS),
        Attack::new("held", "last fragment of a denied first one, after an allowed one", move |s| {
            vec![allowed(s, UDP), s.send(&start(s, UDP, PORT)), s.send(&end(s, UDP)).only_to(OTHER_PORT)]
        })
        .against(Rules::PORTS),
        // RFC 3128: no fragment begins in the header of TCP.
        Attack::new("E18", "fragment over the flags of TCP", move |s| {
            let flags = [0, 0, 0, 0, 0x50, tcp_flags::SYN, 0xff, 0xff];
            vec![allowed(s, TCP), s.send(&piece(s, TCP, 1, false).payload(&flags))]
        })
        .against(Rules::PORTS),
        // RFC 5722: overlapping fragments make the packet void. A fragment inside the header of UDP overlaps.
        Attack::new("held", "whole packet under an allowed identification", move |s| {
            vec![allowed(s, UDP), s.send(&s.udp(piece(s, UDP, 0, false)))]
        })
        .against(Rules::PORTS),
    ]
}

fn of_ipv6() -> Vec<Attack> {
    let options = |next: u8| super::headers::extension(60, next);
    let fragment = |s: &Scene, next: u8, offset: u16, more: bool| {
        let [high, low] = (offset << 3 | u16::from(more)).to_be_bytes();
        let [a, b] = s.id().to_be_bytes();
        [next, 0, high, low, 0, 0, a, b].to_vec()
    };
    let attacks = vec![
        Attack::new("held", "atomic fragment", |s| {
            vec![s.send(&s.udp(piece(s, UDP, 0, false))), s.send(&s.syn(piece(s, TCP, 0, false)))]
        }),
        Attack::new("held", "fragments behind destination options", move |s| {
            let headers = |offset, more| {
                s.ip().protocol(60).payload(&options(44)).payload(&fragment(s, UDP, offset, more))
            };
            vec![
                s.send(&headers(0, true).udp(s.sport(), PORT).payload(&[0; 24])),
                s.send(&headers(4, false).payload(PAYLOAD)),
            ]
        }),
        Attack::new("E18", "fragments with different next headers", move |s| {
            vec![
                s.send(&start(s, UDP, OTHER_PORT)).anything(),
                s.send(&piece(s, 60, 4, false).payload(&options(UDP)).payload(PAYLOAD)).only_to(OTHER_PORT),
            ]
        })
        .against(Rules::PORTS),
        // RFC 7112: the first fragment holds all headers.
        Attack::new("E18", "first fragment that ends before the header of UDP", move |s| {
            vec![
                s.send(&piece(s, 60, 0, true).payload(&options(UDP))),
                s.send(&piece(s, 60, 1, false).udp(s.sport(), PORT).payload(PAYLOAD)),
            ]
        }),
        Attack::new("held", "fragment header in a fragment", move |s| {
            let headers =
                s.ip().protocol(44).payload(&fragment(s, 44, 0, true)).payload(&fragment(s, UDP, 0, true));
            vec![s.send(&headers.udp(s.sport(), PORT).payload(&[0; 24]))]
        }),
        Attack::new("held", "later fragment header behind a first one", move |s| {
            let headers =
                s.ip().protocol(44).payload(&fragment(s, 44, 0, false)).payload(&fragment(s, UDP, 4, false));
            vec![s.send(&s.udp(headers))]
        }),
        Attack::new("E21", "fragments from the link-local address", |s| {
            let headers = s.eth().ipv6(s.attacker.link_local(), s.victim.link_local()).protocol(58);
            vec![s.send(&s.echo(headers.fragment(s.id(), 0, true)))]
        })
        .against(Rules::DENIES_ANY),
    ];
    attacks.into_iter().map(|attack| attack.by(V6)).collect()
}

/// Honest fragments with options behind the fragment header belong together as well: their control is such a packet.
fn behind_options() -> Attack {
    Attack::new("E18", "destination options behind the fragment header", |s| with_options(s, PORT).to_vec())
        .by(V6)
        .honest(|s| with_options(s, OTHER_PORT).map(Step::arrives).to_vec())
}

/// A datagram in two fragments, with destination options in the part that is fragmented.
fn with_options(s: &Scene, port: u16) -> [Step; 2] {
    let options = super::headers::extension(60, UDP);
    [
        s.send(&piece(s, 60, 0, true).payload(&options).udp(s.sport(), port).payload(&[0; 16])),
        s.send(&piece(s, 60, 4, false).payload(PAYLOAD)),
    ]
}
