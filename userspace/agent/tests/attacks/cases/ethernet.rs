//! Ethernet: addresses, tags, groups of the link, EtherTypes.

use contiv_model::tag::Encap;
use testkit::packet::{BROADCAST, Mac, Packet};

use crate::{
    attack::{ANYWHERE, Attack, OUTSIDE, POD, Step, V4, V6, VLAN, VXLAN},
    rules::{FAR, FRIEND, Rules, WITNESS},
    scene::{Scene, frame},
};

pub(super) fn attacks() -> Vec<Attack> {
    [
        addresses(),
        tags_from_pods(),
        tags_from_the_wire(),
        tags_in_tunnels(),
        groups_of_the_link(),
        ethertypes(),
        versions(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A frame with an EtherType of its own instead of the IP header, from the attacker to the victim.
fn with_type(s: &Scene, kind: u16, body: &[u8]) -> Vec<u8> {
    frame(s.victim.mac(), s.attacker.mac(), kind, body)
}

fn addresses() -> Vec<Attack> {
    let false_source = |name, mac: Mac| {
        Attack::new("held", format!("source MAC {name}"), move |s| {
            let mut bytes = s.datagram().build();
            bytes[6..12].copy_from_slice(&mac);
            vec![s.send_bytes(bytes).nowhere()]
        })
        .against(Rules::ANY)
        .by(V4)
    };
    vec![
        false_source("of another pod", WITNESS.mac()).from(POD),
        false_source("of a pod on another node", FAR.mac()).from(POD),
        false_source("of no endpoint", [2, 2, 9, 9, 9, 9]).from(POD),
        false_source("zero", [0; 6]).from(POD),
        false_source("broadcast", BROADCAST).from(ANYWHERE),
        false_source("multicast", [1, 0, 0x5e, 0, 0, 1]).from(ANYWHERE),
        false_source("of a local group", [3, 2, 10, 7, 0, 1]).from(ANYWHERE),
        Attack::new("held", "source MAC of the victim", |s| {
            let headers = Packet::eth(s.victim.mac(), s.victim.mac()).ipv4(s.attacker.ip(), s.victim.ip());
            vec![s.send(&s.udp(headers)).nowhere()]
        })
        .from(POD)
        .against(Rules::ANY)
        .by(V4),
    ]
}

/// Identifiers of the network under attack, and of the other one of its kind.
fn identifiers(s: &Scene) -> (u16, u16) {
    match s.net.encap {
        Encap::Vlan(vlan) => (vlan.get(), 200),
        Encap::Vxlan { local, .. } => (local.get(), 2),
    }
}

/// Puts tags between the addresses and the EtherType of a frame.
fn tag(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let tags: Vec<u8> = tags
        .iter()
        .flat_map(|(protocol, tag)| [protocol.to_be_bytes(), tag.to_be_bytes()].concat())
        .collect();
    [&frame[..12], &tags, &frame[12..]].concat()
}

/// Pods cannot choose their network by a tag of any kind, also between endpoints without rules.
fn tags_from_pods() -> Vec<Attack> {
    let mut attacks = vec![];
    for (protocol, defect) in [(0x8100, "held"), (0x88a8, "held"), (0x9100, "E27"), (0x9200, "E27")] {
        for vid in ["0", "1", "own", "other", "4095"] {
            attacks.push(
                Attack::new(defect, format!("tag {protocol:#06x} with VID {vid} from a pod"), move |s| {
                    let (own, other) = identifiers(s);
                    let vid = match vid {
                        "own" => own,
                        "other" => other,
                        number => number.parse().unwrap_or_default(),
                    };
                    vec![s.send_bytes(tag(&s.datagram().build(), &[(protocol, vid)])).nowhere()]
                })
                .from(POD)
                .against(Rules::ANY)
                .by(V4),
            );
        }
    }
    for (name, tags) in [("0x8100 0x8100", [0x8100, 0x8100]), ("0x88a8 0x8100", [0x88a8, 0x8100])] {
        attacks.push(
            Attack::new("held", format!("two tags {name} from a pod"), move |s| {
                let (own, other) = identifiers(s);
                let step = |outer, inner| {
                    let frame = tag(&s.datagram().build(), &[(tags[0], outer), (tags[1], inner)]);
                    s.send_bytes(frame).nowhere()
                };
                vec![step(own, other), step(0, own), step(other, own), step(own, 0)]
            })
            .from(POD)
            .against(Rules::ANY)
            .by(V4),
        );
    }
    attacks
}

fn tags_from_the_wire() -> Vec<Attack> {
    let tags = |defect, name: &str, tags: fn(u16, u16) -> Vec<(u16, u16)>| {
        Attack::new(defect, format!("{name} from the wire"), move |s| {
            let (own, other) = identifiers(s);
            vec![s.send_raw(tag(&s.datagram().build(), &tags(own, other))).nowhere()]
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
        .by(V4)
        .on(VLAN)
    };
    vec![
        tags("held", "no tag", |_, _| vec![]),
        tags("held", "VID 0", |_, _| vec![(0x8100, 0)]),
        tags("held", "VID 4095", |_, _| vec![(0x8100, 4095)]),
        tags("held", "another tag protocol", |own, _| vec![(0x88a8, own)]),
        tags("held", "an old tag protocol", |own, _| vec![(0x9100, own)]),
        tags("E27", "two tags", |own, other| vec![(0x8100, own), (0x8100, other)]),
        tags("E27", "two tags of the network", |own, _| vec![(0x8100, own), (0x8100, own)]),
        tags("E27", "a priority tag inside", |own, _| vec![(0x8100, own), (0x8100, 0)]),
        tags("held", "a priority tag outside", |own, _| vec![(0x8100, 0), (0x8100, own)]),
        tags("held", "a service tag outside", |own, other| vec![(0x88a8, other), (0x8100, own)]),
        tags("E27", "a service tag inside", |own, _| vec![(0x8100, own), (0x88a8, own)]),
        tags("E27", "an old tag inside", |own, _| vec![(0x8100, own), (0x9100, 0)]),
        tags("E27", "a very old tag inside", |own, _| vec![(0x8100, own), (0x9200, 0)]),
        tags("held", "three tags", |own, other| vec![(0x8100, own), (0x8100, other), (0x8100, own)]),
        // The victim's address exists in the other network, too: that pod may get it.
        Attack::new("held", "the other network's tag from the wire", |s| {
            let (_, other) = identifiers(s);
            vec![s.send_raw(tag(&s.datagram().build(), &[(0x8100, other)]))]
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
        .by(V4)
        .on(VLAN),
    ]
}

fn tags_in_tunnels() -> Vec<Attack> {
    let mut attacks = vec![];
    for protocol in [0x8100, 0x88a8, 0x9100, 0x9200] {
        attacks.push(
            Attack::new("E27", format!("tag {protocol:#06x} inside a tunnel"), move |s| {
                let (own, other) = identifiers(s);
                let step = |vid| s.send_bytes(tag(&s.datagram().build(), &[(protocol, vid)])).nowhere();
                vec![step(0), step(1), step(own), step(other)]
            })
            .from(OUTSIDE)
            .against(Rules::ANY)
            .by(V4)
            .on(VXLAN),
        );
    }
    attacks
}

/// 01:80:c2:00:00:00 to 0f, which no bridge forwards (IEEE 802.1Q, table 8-1): spanning tree, LACP, LLDP, EAPOL.
fn groups_of_the_link() -> Vec<Attack> {
    let one = |last: u8| {
        Attack::new("E23", format!("frame to 01:80:c2:00:00:{last:02x}"), move |s| {
            let (kind, body): (u16, &[u8]) = match last {
                // A length and LLC: spanning tree.
                0 => (38, &[0x42, 0x42, 3, 0, 0, 0, 0, 0]),
                2 => (0x8809, &[1, 1]),
                3 => (0x888e, &[1, 1, 0, 0]),
                0x0e => (0x88cc, &[2, 7, 4]),
                _ => (0x88b5, b"any"),
            };
            let bytes =
                frame([1, 0x80, 0xc2, 0, 0, last], s.attacker.mac(), kind, &[body, &[0; 40]].concat());
            vec![s.send_bytes(bytes).nowhere()]
        })
        .against(Rules::NONE)
        .by(V4)
    };
    (0..16).map(one).collect()
}

/// EtherTypes that no rule can judge are dropped where there is any rule: at the victim's group, or at the attacker's.
fn ethertypes() -> Vec<Attack> {
    let types: [(&str, u16); 21] = [
        ("MPLS unicast", 0x8847),
        ("MPLS multicast", 0x8848),
        ("PPPoE discovery", 0x8863),
        ("PPPoE session", 0x8864),
        ("RARP", 0x8035),
        ("loopback", 0x9000),
        ("LLDP", 0x88cc),
        ("EAPOL", 0x888e),
        ("MACsec", 0x88e5),
        ("PTP", 0x88f7),
        ("CFM", 0x8902),
        ("FCoE", 0x8906),
        ("RoCE", 0x8915),
        ("NSH", 0x894f),
        ("transparent Ethernet", 0x6558),
        ("AppleTalk", 0x809b),
        ("IPX", 0x8137),
        ("wake on LAN", 0x0842),
        ("TRILL", 0x22f3),
        ("experimental", 0x88b5),
        ("reserved", 0xffff),
    ];
    let of_type = |name: String, body: fn(&Scene) -> (u16, Vec<u8>)| {
        Attack::new("E19/E27", name, move |s| both(s, body(s)))
    };
    let mut attacks: Vec<Attack> = types
        .into_iter()
        .map(|(name, kind)| {
            // Behind the EtherType: a label or session, and a packet that a kernel with the protocol would take.
            Attack::new("E19/E27", format!("EtherType {name}"), move |s| {
                let ip = s.datagram().build()[14..].to_vec();
                both(s, (kind, [&[0, 0, 1, 64][..], &ip].concat()))
            })
            // Endpoints without rules may speak what they like.
            .honest(move |s| vec![s.send_bytes(with_type(s, kind, &honest_body(kind))).arrives()])
            .control(Rules::Unprotected)
        })
        .collect();
    attacks.extend([
        of_type("LLC frame".to_owned(), |_| (40, [&[0x42, 0x42, 3][..], &[0; 37]].concat())),
        of_type("IP in SNAP".to_owned(), |s| {
            let ip = s.datagram().build()[14..].to_vec();
            let body = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0][..], &ip].concat();
            (body.len() as u16, body)
        }),
        of_type("ARP in SNAP".to_owned(), |s| {
            let arp = Packet::arp_reply(s.attacker.mac(), FRIEND.ip(), s.victim.mac(), s.victim.ip()).build()
                [14..]
                .to_vec();
            let body = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6][..], &arp].concat();
            (body.len() as u16, body)
        }),
        behind_llc("IPv4 from a false source", 0x0800, |s| s.udp(s.ip_from(FRIEND.ip().into()))),
        behind_llc("ARP reply for another pod", 0x0806, |s| {
            Packet::arp_reply(s.attacker.mac(), FRIEND.ip(), s.victim.mac(), s.victim.ip())
        }),
        of_type("IPX raw frame".to_owned(), |_| (40, [0xff; 40].to_vec())),
    ]);
    attacks.into_iter().map(|attack| attack.by(V4)).collect()
}

/// A frame that its control field tells from SNAP, which not every reader looks at, and then what it must not be taken for.
fn behind_llc(name: &str, kind: u16, forged: fn(&Scene) -> Packet) -> Attack {
    Attack::new("new", format!("{name}, behind LLC like SNAP"), move |s| {
        let forged = forged(s).build();
        let body = [&[0xaa, 0xaa, 0, 0, 0, 0][..], &kind.to_be_bytes(), &forged[14..]].concat();
        let before = frame(s.victim.mac(), s.attacker.mac(), body.len() as u16, &body);
        vec![s.send_bytes(before).anything(), s.send_bytes(forged).nowhere()]
    })
    .from(POD)
    .against(Rules::ANY)
}

/// A sound packet of the protocols whose headers the kernel's switch reads, which drops others.
fn honest_body(kind: u16) -> Vec<u8> {
    let header: &[u8] = match kind {
        // The last label (RFC 3032).
        0x8847 | 0x8848 => &[0, 0, 1, 64],
        // A header of 24 bytes of type 1, with an Ethernet frame (RFC 8300).
        0x894f => &[0x0f, 0xc6, 1, 3],
        _ => &[],
    };
    let mut body = [0; 46];
    body[..header.len()].copy_from_slice(header);
    body.to_vec()
}

/// Sends a frame of this type to the victim and to all.
fn both(s: &Scene, (kind, body): (u16, Vec<u8>)) -> Vec<Step> {
    [s.victim.mac(), BROADCAST, [1, 0, 0x5e, 0, 0, 1]]
        .map(|to| s.send_bytes(frame(to, s.attacker.mac(), kind, &body)))
        .to_vec()
}

/// EtherTypes that the packet does not match, and packets that end early.
fn versions() -> Vec<Attack> {
    let body = |s: &Scene| s.datagram().build()[14..].to_vec();
    vec![
        Attack::new("held", "IPv4 as IPv6", move |s| vec![s.send_bytes(with_type(s, 0x86dd, &body(s)))])
            .by(V4),
        Attack::new("held", "IPv6 as IPv4", move |s| vec![s.send_bytes(with_type(s, 0x0800, &body(s)))])
            .by(V6),
        Attack::new("E27", "IPv4 as ARP", move |s| vec![s.send_bytes(with_type(s, 0x0806, &body(s)))]).by(V4),
        Attack::new("E27", "IPv6 as ARP", move |s| vec![s.send_bytes(with_type(s, 0x0806, &body(s)))]).by(V6),
        Attack::new("held", "packets that end in the IP header", move |s| {
            let whole = s.datagram().build();
            [15, 20, 24, 33, 40, 53].map(|length| s.send_bytes(whole[..length].to_vec())).to_vec()
        })
        .by(V6),
        Attack::new("held", "packets that end in the header of IPv4", move |s| {
            let whole = s.datagram().build();
            [15, 20, 24, 33].map(|length| s.send_bytes(whole[..length].to_vec())).to_vec()
        })
        .by(V4),
        Attack::new("held", "packets that end in the header of UDP", move |s| {
            let whole = s.datagram().build();
            let ip = whole.len() - 8 - crate::scene::PAYLOAD.len();
            [1, 3, 4, 7].map(|length| s.send_bytes(whole[..ip + length].to_vec())).to_vec()
        }),
    ]
}
