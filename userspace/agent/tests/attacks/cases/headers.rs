//! IP headers: options, lengths, extension headers, protocols.

use std::net::{IpAddr, Ipv6Addr};

use testkit::packet::{Packet, protocol};

use crate::{
    attack::{Attack, Family, V4, V6},
    rules::Rules,
    scene::{PAYLOAD, Scene, ip},
};

pub(super) fn attacks() -> Vec<Attack> {
    [options(), lengths_of_ipv4(), lengths_of_ipv6(), chains(), protocols(), tunnels()]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns an IPv6 extension header, filled so that a kernel skips it.
pub(super) fn extension(kind: u8, next: u8) -> Vec<u8> {
    match kind {
        // No segments left.
        43 => vec![next, 0, 253, 0, 0, 0, 0, 0],
        // Atomic.
        protocol::FRAGMENT => vec![next, 0, 0, 0, 0, 0, 0, 1],
        // Length in units of 4 bytes, less 2.
        51 => [&[next, 4, 0, 0][..], &[0; 20]].concat(),
        0 | 60 => vec![next, 0, 1, 4, 0, 0, 0, 0],
        _ => vec![next, 0, 0, 0, 0, 0, 0, 0],
    }
}

/// Headers of IPv6 with extension headers, from the attacker to the victim.
pub(super) fn chained(s: &Scene, chain: &[u8], last: u8) -> Packet {
    let mut headers = s.ip().protocol(chain.first().copied().unwrap_or(last));
    for (at, kind) in chain.iter().enumerate() {
        let next = chain.get(at + 1).copied().unwrap_or(last);
        headers = headers.payload(&extension(*kind, next));
    }
    headers
}

fn options() -> Vec<Attack> {
    let with = |name: &str, options: &'static [u8]| {
        Attack::new("held", format!("IPv4 option {name}"), move |s| {
            vec![s.send(&s.udp(s.ip().ip_options(options))), s.send(&s.syn(s.ip().ip_options(options)))]
        })
        .by(V4)
    };
    vec![
        with("loose source route", &[131, 7, 4, 10, 7, 0, 4, 0]),
        with("strict source route", &[137, 7, 4, 10, 7, 0, 4, 0]),
        with("record route", &[7, 7, 4, 0, 0, 0, 0, 0]),
        with("timestamp", &[68, 8, 5, 0, 0, 0, 0, 0]),
        with("router alert", &[148, 4, 0, 0]),
        with("no operation", &[1; 40]),
        with("end of options first", &[0, 131, 7, 4]),
        with("unknown", &[222, 4, 1, 2]),
        with("of length 0", &[148, 0, 0, 0]),
        with("beyond the header", &[148, 40, 0, 0]),
    ]
}

fn patched(name: &str, family: &'static [Family], change: fn(&mut Vec<u8>)) -> Attack {
    Attack::new("held", name, move |s| {
        [s.datagram(), s.syn(s.ip())]
            .map(|packet| {
                let mut bytes = packet.build();
                change(&mut bytes);
                s.send_bytes(bytes)
            })
            .to_vec()
    })
    .by(family)
}

/// Sets the total length of IPv4, or the payload length of IPv6.
fn set_length(bytes: &mut [u8], at: usize, length: u16) {
    bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
    if at == 16 {
        bytes[24..26].fill(0);
        let sum = testkit::packet::internet_checksum(&[&bytes[14..34]]);
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}

fn lengths_of_ipv4() -> Vec<Attack> {
    let lengths = |name: &str, length: u16| {
        Attack::new("E18", format!("IPv4 total length {name}"), move |s| {
            [s.datagram(), s.syn(s.ip())]
                .map(|packet| {
                    let mut bytes = packet.build();
                    set_length(&mut bytes, 16, length);
                    s.send_bytes(bytes)
                })
                .to_vec()
        })
        .by(V4)
    };
    vec![
        lengths("0", 0),
        lengths("19", 19),
        // Ports that are behind the packet's end.
        lengths("20, without ports", 20),
        lengths("22, with half the ports", 22),
        lengths("24, with the ports alone", 24),
        lengths("longer than the frame", 400),
        lengths("65535", 65_535),
        patched("IPv4 header of 16 bytes", V4, |bytes| bytes[14] = 0x44),
        patched("IPv4 header of 0 bytes", V4, |bytes| bytes[14] = 0x40),
        patched("IPv4 header of 60 bytes", V4, |bytes| bytes[14] = 0x4f),
        patched("IPv4 header with version 5", V4, |bytes| bytes[14] = 0x55),
        patched("IPv4 header with version 6", V4, |bytes| bytes[14] = 0x65),
        patched("IPv4 header with a false checksum", V4, |bytes| bytes[25] ^= 0x55),
        patched("IPv4 header with the reserved flag", V4, |bytes| {
            bytes[20] |= 0x80;
            let length = (bytes.len() - 14) as u16;
            set_length(bytes, 16, length);
        }),
    ]
}

fn lengths_of_ipv6() -> Vec<Attack> {
    let lengths = |name: &str, length: u16| {
        Attack::new("E18", format!("IPv6 payload length {name}"), move |s| {
            [s.datagram(), s.syn(s.ip())]
                .map(|packet| {
                    let mut bytes = packet.build();
                    set_length(&mut bytes, 18, length);
                    s.send_bytes(bytes)
                })
                .to_vec()
        })
        .by(V6)
    };
    vec![
        lengths("0", 0),
        lengths("2, with half the ports", 2),
        lengths("4, with the ports alone", 4),
        lengths("longer than the frame", 400),
        lengths("65535", 65_535),
        patched("IPv6 header with version 4", V6, |bytes| bytes[14] = 0x45),
        patched("IPv6 header with version 7", V6, |bytes| bytes[14] = 0x70),
        Attack::new("E18", "jumbo payload option", |s| {
            let jumbo = [17, 0, 194, 4, 0, 1, 0, 0];
            let mut bytes = s.udp(s.ip().protocol(0).payload(&jumbo)).build();
            set_length(&mut bytes, 18, 0);
            vec![s.send_bytes(bytes)]
        })
        .by(V6),
        Attack::new("held", "hop limit 0", |s| {
            vec![s.send(&s.udp(s.ip().ttl(0))), s.send(&s.syn(s.ip().ttl(0)))]
        }),
    ]
}

/// Chains that a kernel follows to UDP and TCP, also past rules about ports.
fn chains() -> Vec<Attack> {
    let known: [(&str, &'static [u8]); 11] = [
        ("destination options", &[60]),
        ("hop-by-hop options", &[0]),
        ("a routing header", &[43]),
        ("an authentication header", &[51]),
        ("hop-by-hop options behind destination options", &[60, 0]),
        ("two hop-by-hop headers", &[0, 0]),
        ("three headers", &[0, 60, 43]),
        ("four headers", &[0, 60, 43, 60]),
        ("five headers", &[60; 5]),
        ("eight headers", &[60; 8]),
        ("twenty headers", &[60; 20]),
    ];
    let unknown: [(&str, u8); 7] = [
        ("ESP", 50),
        ("mobility", 135),
        ("HIP", 139),
        ("Shim6", 140),
        ("an experimental header", 253),
        ("another experimental header", 254),
        ("no next header", NO_NEXT_HEADER),
    ];
    let mut attacks: Vec<Attack> = known
        .into_iter()
        .map(|(name, chain)| {
            Attack::new("held", format!("UDP and TCP behind {name}"), move |s| {
                vec![
                    s.send(&s.udp(chained(s, chain, protocol::UDP))),
                    s.send(&s.syn(chained(s, chain, protocol::TCP))),
                ]
            })
        })
        .collect();
    attacks.extend(unknown.into_iter().map(|(name, kind)| {
        Attack::new("held", format!("UDP behind {name}"), move |s| {
            vec![s.send(&s.udp(chained(s, &[kind], 17)))]
        })
        .against(Rules::DENIES_ANY)
    }));
    attacks.extend([
        Attack::new("held", "a chain that ends with the frame", |s| {
            vec![
                s.send(&s.ip().protocol(60).payload(&[17])),
                s.send(&s.ip().protocol(60).payload(&[17, 9, 0, 0])),
            ]
        }),
        Attack::new("held", "a chain that points behind the frame", |s| {
            vec![s.send(&s.udp(s.ip().protocol(60).payload(&[17, 255, 1, 4, 0, 0, 0, 0])))]
        }),
        Attack::new("E14", "a routing header that leads to the victim by another pod", |s| {
            let mut header = vec![17, 2, 0, 1, 0, 0, 0, 0];
            header.extend(s.victim.ip6().octets());
            let first: Ipv6Addr = crate::rules::WITNESS.ip6();
            vec![s.send(&s.udp(s.ip_to(s.victim.mac(), first.into()).protocol(43).payload(&header)))]
        }),
    ]);
    attacks.into_iter().map(|attack| attack.by(V6)).collect()
}

/// IPv6 only; for IPv4 it is a number like others.
const NO_NEXT_HEADER: u8 = 59;

/// Protocols that have no ports, past rules about peers.
fn protocols() -> Vec<Attack> {
    let numbers = [
        0,
        2,
        3,
        4,
        5,
        8,
        9,
        27,
        33,
        41,
        46,
        47,
        50,
        51,
        55,
        NO_NEXT_HEADER,
        88,
        89,
        94,
        97,
        98,
        103,
        108,
        112,
        115,
        118,
        132,
        136,
        137,
        139,
        142,
        143,
        253,
        254,
        255,
    ];
    let of = |name: String, number: u8| {
        Attack::new("held", name, move |s| {
            // Ports, for the protocols that have any; a checksum coverage or length.
            let body = [&s.sport().to_be_bytes()[..], &5000_u16.to_be_bytes(), &[0; 4], PAYLOAD].concat();
            vec![s.send(&s.ip().protocol(number).payload(&body))]
        })
        .against(Rules::DENIES_ANY)
    };
    let mut attacks: Vec<Attack> = numbers
        .into_iter()
        .map(|number| match number {
            NO_NEXT_HEADER => of(format!("IP protocol {number}"), number).by(V4),
            number => of(format!("IP protocol {number}"), number),
        })
        .collect();
    attacks.push(of("IPv6 with no next header".to_owned(), NO_NEXT_HEADER).by(V6));
    attacks.push(
        Attack::new("held", "ICMP over IPv6", |s| {
            vec![s.send(&s.ip().protocol(1).icmp_echo_request(s.id(), 1))]
        })
        .by(V6)
        .against(Rules::DENIES_ANY),
    );
    attacks.extend([13_u8, 15, 17, 10, 9, 0, 14, 37, 42, 43, 200].map(|kind| {
        Attack::new("held", format!("ICMP type {kind}"), move |s| {
            vec![s.send(&s.ip().icmp(kind, 0, [0, 0, (s.id() >> 8) as u8, s.id() as u8]).payload(&[0; 12]))]
        })
        .by(V4)
        .against(Rules::DENIES_ANY)
    }));
    attacks
}

/// A packet that the rules deny inside one for the victim.
fn tunnels() -> Vec<Attack> {
    let inside = |name: &str, header: fn(&Scene, Packet) -> (Packet, Vec<u8>)| {
        Attack::new("held", format!("{name} with a packet inside"), move |s| {
            let inner = s.udp(ip(Packet::bare(), s.from(), s.to())).build();
            let (headers, before) = header(s, s.ip());
            vec![s.send(&headers.payload(&[before, inner].concat()))]
        })
        .against(Rules::DENIES_ANY)
    };
    vec![
        inside("IP in IP", |s, headers| {
            let number = if matches!(s.to(), IpAddr::V4(_)) { 4 } else { 41 };
            (headers.protocol(number), vec![])
        }),
        inside("GRE", |s, headers| {
            let kind: u16 = if matches!(s.to(), IpAddr::V4(_)) { 0x0800 } else { 0x86dd };
            (headers.protocol(47), [&[0, 0][..], &kind.to_be_bytes()].concat())
        }),
        inside("UDP", |s, headers| (headers.udp(s.sport(), 5000), vec![])),
    ]
}
