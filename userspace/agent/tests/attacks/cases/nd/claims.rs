//! Claims of addresses, and of being a router.

use std::net::Ipv6Addr;

use testkit::packet::{Mac, Packet, solicited_node, solicited_node_mac};

use super::{ALL_NODES, ALL_NODES_MAC, Message, destinations};
use crate::{
    attack::{ANYWHERE, Attack, OUTSIDE, POD, Step, VXLAN},
    rules::{FAR_FRIEND, FRIEND, GATEWAY, Rules, Station, UNUSED, WITNESS},
    scene::Scene,
};

pub(super) fn attacks() -> Vec<Attack> {
    let attacks = [advertisements(), behind_headers(), read_differently(), solicitations(), routers()];
    let attacks = attacks.into_iter().flatten();
    attacks.map(|attack| attack.honest(honest).control(Rules::DenyAll)).collect()
}

/// What rules do not judge: announcements, duplicate address detection, resolution and its replies, for the own addresses.
fn honest(s: &Scene) -> Vec<Step> {
    let (mac, global, link_local) = (s.attacker.mac(), s.attacker.ip6(), s.attacker.link_local());
    let advertisement =
        |target, flags| Message { rest: [flags, 0, 0, 0], ..Message::advertisement(target, mac) };
    let to_all = || Packet::eth(ALL_NODES_MAC, mac);
    let frames = [
        // Unsolicited: RFC 4861, 7.2.6.
        advertisement(global, 0x20).packet(to_all(), global, ALL_NODES),
        advertisement(link_local, 0x20).packet(to_all(), link_local, ALL_NODES),
        advertisement(global, 0x60).packet(s.eth(), global, s.victim.ip6()),
        advertisement(global, 0x60).packet(s.eth(), link_local, s.victim.link_local()),
        Packet::neighbour_solicitation(mac, Ipv6Addr::UNSPECIFIED, global),
        Packet::neighbour_solicitation(mac, Ipv6Addr::UNSPECIFIED, link_local),
    ];
    frames.iter().map(|frame| s.send(frame).arrives()).collect()
}

/// A claim to all places that a kernel takes it from, from the attacker's addresses of both scopes.
fn everywhere(s: &Scene, message: &Message) -> Vec<Step> {
    let mut steps = vec![];
    for from in [s.attacker.ip6(), s.attacker.link_local()] {
        for (eth, to) in destinations(s) {
            steps.push(s.send(&message.packet(eth, from, to)).nowhere());
        }
    }
    steps
}

/// The address that is claimed: of whom, and of which scope.
fn advertisements() -> Vec<Attack> {
    let of = |defect, name: &str, target: fn(&Scene) -> Ipv6Addr| {
        Attack::new(defect, format!("NA: own MAC for {name}"), move |s| {
            everywhere(s, &Message::advertisement(target(s), s.attacker.mac()))
        })
        .from(POD)
        .against(Rules::ANY)
    };
    let from_outside = |defect, name: &str, target: fn(&Scene) -> Ipv6Addr| {
        Attack::new(defect, format!("NA from outside: attacker's MAC for {name}"), move |s| {
            everywhere(s, &Message::advertisement(target(s), s.attacker.mac()))
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
    };
    let with_mac = |name: &str, mac: Mac| {
        Attack::new("E25", format!("NA: {name} for the own address"), move |s| {
            everywhere(s, &Message::advertisement(s.attacker.ip6(), mac))
        })
        .against(Rules::ANY)
    };
    vec![
        of("held", "a pod's address", |_| FRIEND.ip6()),
        of("held", "the address of an endpoint on another node", |_| FAR_FRIEND.ip6()),
        of("held", "the gateway's address", |_| GATEWAY.ip6()),
        of("held", "the victim's address", |s| s.victim.ip6()),
        of("held", "an address outside", |_| Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1)),
        of("E25", "a pod's link-local address", |_| FRIEND.link_local()),
        of("E25", "the victim's link-local address", |s| s.victim.link_local()),
        of("E25", "the link-local address of an endpoint on another node", |_| FAR_FRIEND.link_local()),
        of("E25", "a router's link-local address", |_| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)),
        from_outside("E24", "a local pod's address", |_| FRIEND.ip6()),
        from_outside("E24", "a local pod's link-local address", |_| FRIEND.link_local()),
        from_outside("E24", "the victim's address", |s| s.victim.ip6()),
        from_outside("E10", "the address of an endpoint on another node", |_| FAR_FRIEND.ip6()).on(VXLAN),
        from_outside("E10", "the link-local address of an endpoint on another node", |_| {
            FAR_FRIEND.link_local()
        })
        .on(VXLAN),
        // A false MAC directs the victim's packets to somebody who did not ask for them.
        with_mac("another pod's MAC", WITNESS.mac()),
        with_mac("a group's MAC", ALL_NODES_MAC),
        Attack::new("E25", "NA: two link-layer options, the second one another's", |s| {
            let message = Message::advertisement(s.attacker.ip6(), s.attacker.mac()).option(2, WITNESS.mac());
            everywhere(s, &message)
        })
        .against(Rules::ANY),
        Attack::new("held", "NA: a pod's address and MAC as Ethernet source", |s| {
            let message = Message::advertisement(FRIEND.ip6(), FRIEND.mac());
            let eth = Packet::eth(s.victim.mac(), FRIEND.mac());
            vec![s.send(&message.packet(eth, FRIEND.ip6(), s.victim.ip6())).nowhere()]
        })
        .from(POD)
        .against(Rules::ANY),
    ]
}

/// Linux takes ND behind extension headers; RFC 6980 forbids fragments, and guards may refuse the rest (RFC 7113).
const CHAINS: [(&str, &[u8]); 9] = [
    ("destination options", &[60]),
    ("hop-by-hop options", &[0]),
    ("a routing header", &[43]),
    ("an atomic fragment header", &[44]),
    ("hop-by-hop and destination options", &[0, 60]),
    ("two headers of destination options", &[60, 60]),
    ("a fragment header and destination options", &[44, 60]),
    ("an authentication header", &[51]),
    ("four headers of destination options", &[60, 60, 60, 60]),
];

fn behind_headers() -> Vec<Attack> {
    let mut attacks = vec![];
    for (name, chain) in CHAINS {
        let attack = |what: &str, message: fn(&Scene) -> Message| {
            Attack::new("E3", format!("{what} behind {name}"), move |s| {
                let message = message(s);
                let own = [s.attacker.ip6(), s.attacker.link_local()];
                let packet = |from| {
                    let step = |(eth, to)| s.send(&message.behind(chain, eth, from, to)).nowhere();
                    destinations(s).map(step)
                };
                own.into_iter().flat_map(packet).collect()
            })
            .against(Rules::ANY)
        };
        attacks.push(attack("NA for a pod's address", |s| {
            Message::advertisement(FRIEND.ip6(), s.attacker.mac())
        }));
        attacks.push(attack("RA", |s| Message::router(s.attacker.mac())));
        attacks.push(
            attack("Redirect", |s| {
                Message::redirect(s.attacker.link_local(), FRIEND.ip6(), s.attacker.mac())
            })
            .from(POD),
        );
        attacks.push(
            attack("NS with another's link-layer address", |s| {
                Message::solicitation(s.victim.link_local(), s.attacker.mac()).option(1, WITNESS.mac())
            })
            .from(POD),
        );
    }
    attacks.push(
        Attack::new("E3", "NA in two fragments", |s| {
            let whole = Message::advertisement(FRIEND.ip6(), s.attacker.mac()).packet(
                s.eth(),
                s.attacker.ip6(),
                s.victim.ip6(),
            );
            let message = whole.build()[54..].to_vec();
            let piece = |offset: usize, more, bytes: &[u8]| {
                let headers = s.eth().ipv6(s.attacker.ip6(), s.victim.ip6()).ttl(255).protocol(58);
                s.send(&headers.fragment(s.id(), (offset / 8) as u16, more).payload(bytes)).nowhere()
            };
            vec![piece(0, true, &message[..16]), piece(16, false, &message[16..])]
        })
        .against(Rules::ANY),
    );
    attacks
}

/// Advertisements that one part of a switch takes for the same as the harmless ones before them.
fn read_differently() -> Vec<Attack> {
    // A kernel reads options behind the packet in its frame, too, and takes all messages with an option twice for one.
    let repeated = |name: &str, first: fn(&Scene) -> Message| {
        Attack::new("new", format!("NA for a pod's address with an option twice, after {name}"), move |s| {
            let [from, to] = [s.attacker.ip6(), s.victim.ip6()];
            let mut before = first(s).packet(s.eth(), from, to).build();
            before.extend([&[2, 1][..], &WITNESS.mac()].concat());
            let forged = Message::advertisement(FRIEND.ip6(), s.attacker.mac()).option(2, s.attacker.mac());
            vec![s.send_bytes(before).anything(), s.send(&forged.packet(s.eth(), from, to)).nowhere()]
        })
        .against(Rules::ANY)
    };
    let in_fragments = Attack::new("new", "NA in fragments that hide its protocol", |s| {
        let options = |next| super::super::headers::extension(60, next);
        let message = Message::advertisement(FRIEND.ip6(), s.attacker.mac());
        let headers = |offset, more| {
            let headers = s.eth().ipv6(s.attacker.ip6(), s.victim.ip6()).ttl(255).protocol(60);
            headers.fragment(s.id(), offset, more)
        };
        let last = message.after(headers(1, false).payload(&options(58)));
        vec![s.send(&last).nowhere(), s.send(&headers(0, true).payload(&options(60))).nowhere()]
    })
    .against(Rules::ANY);
    vec![
        repeated("one for the own address", |s| Message::advertisement(s.attacker.ip6(), s.attacker.mac())),
        repeated("one for an unused address", |s| Message::advertisement(UNUSED.ip6(), s.attacker.mac()))
            .from(OUTSIDE),
        in_fragments,
    ]
}

fn solicitations() -> Vec<Attack> {
    /// A solicitation of the victim from this address, with this link-layer address.
    fn asks(s: &Scene, from: Ipv6Addr, mac: Mac) -> Vec<Step> {
        let mut steps = vec![];
        for target in [s.victim.ip6(), s.victim.link_local()] {
            let message = Message::solicitation(target, mac);
            let group = (solicited_node_mac(target), solicited_node(target));
            for (to, address) in [group, (s.victim.mac(), target)] {
                steps.push(
                    s.send(&message.packet(Packet::eth(to, s.attacker.mac()), from, address)).nowhere(),
                );
            }
        }
        steps
    }
    let of = |defect, name: &str, station: Station| {
        Attack::new(defect, format!("NS from the address of {name}"), move |s| {
            asks(s, station.ip6(), s.attacker.mac())
        })
        .against(Rules::ANY)
    };
    let of_link_local = |defect, name: &str, station: Station| {
        Attack::new(defect, format!("NS from the link-local address of {name}"), move |s| {
            asks(s, station.link_local(), s.attacker.mac())
        })
        .against(Rules::ANY)
    };
    vec![
        of("held", "a pod", FRIEND).from(POD),
        of("held", "an endpoint on another node", FAR_FRIEND).from(POD),
        of_link_local("E25", "a pod", FRIEND).from(POD),
        of_link_local("E25", "an endpoint on another node", FAR_FRIEND).from(POD),
        of_link_local("E24", "a pod on the node", FRIEND).from(OUTSIDE),
        of("E24", "a pod on the node", FRIEND).from(OUTSIDE),
        of("E10", "an endpoint on another node", FAR_FRIEND).from(OUTSIDE).on(VXLAN),
        of_link_local("E10", "an endpoint on another node", FAR_FRIEND).from(OUTSIDE).on(VXLAN),
        Attack::new("E25", "NS from the own address with another's MAC as option", |s| {
            asks(s, s.attacker.link_local(), WITNESS.mac())
        })
        .against(Rules::ANY),
        Attack::new("E25", "NS from :: with a link-layer option", |s| {
            asks(s, Ipv6Addr::UNSPECIFIED, s.attacker.mac())
        })
        .against(Rules::ANY),
        Attack::new("E25", "RS from a pod's link-local address with the own MAC", |s| {
            let message =
                Message { kind: 133, code: 0, rest: [0; 4], body: vec![] }.option(1, s.attacker.mac());
            let steps = destinations(s)
                .map(|(eth, to)| s.send(&message.packet(eth, FRIEND.link_local(), to)).nowhere());
            steps.to_vec()
        })
        .against(Rules::ANY),
    ]
}

/// Pods get their routes from the agent, so nothing needs router advertisements: they and redirects reach no pod, also from
/// the wire of a VLAN, where a physical router sends them.
fn routers() -> Vec<Attack> {
    let claims = |name: &str, message: fn(&Scene) -> Message| {
        Attack::new("E3/E25", name.to_owned(), move |s| everywhere(s, &message(s)))
            .from(ANYWHERE)
            .against(Rules::ANY)
    };
    vec![
        claims("router advertisement", |s| Message::router(s.attacker.mac())),
        claims("router advertisement without options", |s| {
            let mut message = Message::router(s.attacker.mac());
            message.body.truncate(8);
            message
        }),
        claims("redirect to the attacker", |s| {
            Message::redirect(s.attacker.link_local(), FRIEND.ip6(), s.attacker.mac())
        }),
        claims("redirect: an address on the link", |s| {
            Message::redirect(FRIEND.ip6(), FRIEND.ip6(), s.attacker.mac())
        }),
        claims("NA with the router flag for a pod's address", |s| {
            let message = Message::advertisement(FRIEND.ip6(), s.attacker.mac());
            Message { rest: [0xe0, 0, 0, 0], ..message }
        })
        .from(POD),
        Attack::new("E3/E25", "router advertisement from the gateway's link-local address", |s| {
            let message = Message::router(s.attacker.mac());
            let from = GATEWAY.link_local();
            destinations(s).map(|(eth, to)| s.send(&message.packet(eth, from, to)).nowhere()).to_vec()
        })
        .against(Rules::ANY),
        Attack::new("E3/E25", "router advertisement in a unicast frame to all nodes", |s| {
            let message = Message::router(s.attacker.mac());
            vec![s.send(&message.packet(s.eth(), s.attacker.link_local(), ALL_NODES)).nowhere()]
        })
        .against(Rules::ANY),
    ]
}
