//! Frames and packets to groups: unicast IP in frames to groups, broadcast and multicast IP, and addresses that do not match.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use testkit::packet::{BROADCAST, Mac, Packet, solicited_node, solicited_node_mac, tcp_flags};

use crate::{
    attack::{Attack, OUTSIDE, POD, Step, V4, V6, VXLAN},
    rules::{GATEWAY, PORT, Rules, UNUSED, WITNESS},
    scene::{PAYLOAD, Scene, Transport, ip},
};

pub(super) fn attacks() -> Vec<Attack> {
    [
        unicast_in_groups(),
        other_destinations(),
        to_groups().into_iter().map(Attack::for_groups).collect(),
        answers_to_groups(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The kernel of a pod takes a packet for its address from a frame to a group as well.
fn unicast_in_groups() -> Vec<Attack> {
    let groups: [(&str, Mac); 8] = [
        ("broadcast", BROADCAST),
        ("all hosts", [1, 0, 0x5e, 0, 0, 1]),
        ("mDNS", [1, 0, 0x5e, 0, 0, 0xfb]),
        ("all nodes", [0x33, 0x33, 0, 0, 0, 1]),
        ("a solicited node", [0x33, 0x33, 0xff, 0, 0, 21]),
        ("an unused group", [1, 0, 0x5e, 0x7f, 1, 2]),
        ("a local group", [3, 0, 0, 0, 0, 1]),
        ("a group of bridges that is forwarded", [1, 0x80, 0xc2, 0, 0, 0x20]),
    ];
    let mut attacks = vec![];
    for (name, group) in groups {
        attacks.push(Attack::new("E1", format!("unicast UDP and TCP in frames to {name}"), move |s| {
            Transport::WITH_PORTS.map(|transport| s.send(&transport.after(s, s.ip_in(group)))).to_vec()
        }));
    }
    attacks.push(
        Attack::new("E1", "unicast echo request in a broadcast frame", |s| {
            vec![s.send(&s.echo(s.ip_in(BROADCAST)))]
        })
        .against(Rules::DENIES_ANY),
    );
    attacks.push(Attack::new("E1", "unicast fragments in broadcast frames", |s| {
        let headers = || s.ip_in(BROADCAST).protocol(17);
        vec![
            s.send(&s.udp(headers().fragment(s.id(), 0, true))),
            s.send(&headers().fragment(s.id(), 4, false).payload(PAYLOAD)),
        ]
    }));
    attacks
}

/// Out rules know the peer by its IP address, delivery goes by the Ethernet address: the two have to belong together.
fn other_destinations() -> Vec<Attack> {
    let v4: [(&str, Ipv4Addr); 10] = [
        ("another pod's address", WITNESS.ip()),
        ("the gateway's address", GATEWAY.ip()),
        ("the limited broadcast", Ipv4Addr::BROADCAST),
        ("the subnet's broadcast", Ipv4Addr::new(10, 7, 0, 255)),
        ("all hosts", Ipv4Addr::new(224, 0, 0, 1)),
        ("0.0.0.0", Ipv4Addr::UNSPECIFIED),
        ("127.0.0.1", Ipv4Addr::LOCALHOST),
        ("a link-local address", Ipv4Addr::new(169, 254, 1, 1)),
        ("an unused address of the subnet", Ipv4Addr::new(10, 7, 0, 99)),
        ("an address outside", Ipv4Addr::new(192, 0, 2, 1)),
    ];
    let v6: [(&str, Ipv6Addr); 7] = [
        ("another pod's address, IPv6", WITNESS.ip6()),
        ("all nodes", Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)),
        ("::", Ipv6Addr::UNSPECIFIED),
        ("::1", Ipv6Addr::LOCALHOST),
        ("an unused link-local address", Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 99)),
        ("an unused address of the subnet, IPv6", Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 99)),
        ("an address outside, IPv6", Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1)),
    ];
    let to = |name: &str, address: IpAddr| {
        let families = if address.is_ipv4() { V4 } else { V6 };
        Attack::new("E14", format!("victim's MAC with {name}"), move |s| {
            Transport::WITH_PORTS
                .map(|transport| s.send(&transport.after(s, s.ip_to(s.victim.mac(), address))))
                .to_vec()
        })
        .by(families)
    };
    let mut attacks: Vec<Attack> = v4.into_iter().map(|(name, address)| to(name, address.into())).collect();
    attacks.extend(v6.into_iter().map(|(name, address)| to(name, address.into())));
    attacks.push(
        Attack::new("E14", "victim's MAC and link-local address", |s| {
            let link_local = s.victim.link_local().into();
            Transport::WITH_PORTS
                .map(|transport| s.send(&transport.after(s, s.ip_to(s.victim.mac(), link_local))))
                .to_vec()
        })
        .by(V6),
    );
    attacks.push(
        Attack::new("E14", "victim's MAC and mapped IPv4 address", |s| {
            let mapped = s.victim.ip().to_ipv6_mapped().into();
            vec![s.send(&s.udp(s.ip_to(s.victim.mac(), mapped)))]
        })
        .by(V6),
    );
    // An address without a record may be at any Ethernet address. The victim has not opened the connection.
    attacks.push(
        Attack::new("new", "victim's MAC with the address that opened a connection outside", |s| {
            let [opener, other] = s.strangers();
            let between = |mac, from, to| ip(Packet::eth(mac, s.attacker.mac()), from, to);
            vec![
                s.send(&between(WITNESS.mac(), opener, other).udp(PORT, s.sport()).payload(b"question")),
                s.send(&between(s.victim.mac(), other, opener).udp(s.sport(), PORT).payload(PAYLOAD)),
            ]
        })
        .from(OUTSIDE)
        .against(&[Rules::DenyAll, Rules::DenyPort, Rules::FriendsOnly]),
    );
    // Unknown unicast is flooded on VXLAN, to receivers that are judged each.
    attacks.push(
        Attack::new("E2", "victim's address in frames to an unknown MAC", |s| {
            let mac = [2, 2, 10, 7, 0, 99];
            vec![s.send(&s.udp(s.ip_in(mac))), s.send(&s.syn(s.ip_in(mac)))]
        })
        .on(VXLAN),
    );
    attacks.push(
        Attack::new("E2", "unknown address in frames to an unknown MAC", |s| {
            let headers = || s.ip_to(UNUSED.mac(), UNUSED.address(s.family));
            vec![s.send(&s.udp(headers())), s.send(&s.syn(headers()))]
        })
        .on(VXLAN)
        .for_groups(),
    );
    attacks.push(Attack::new("E14", "victim's address in frames to another pod", |s| {
        vec![s.send(&s.udp(s.ip_in(WITNESS.mac()))), s.send(&s.syn(s.ip_in(WITNESS.mac())))]
    }));
    attacks
}

fn multicast_mac(group: IpAddr) -> Mac {
    match group {
        IpAddr::V4(group) if group.is_multicast() => {
            let [_, b, c, d] = group.octets();
            [1, 0, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V4(_) => BROADCAST,
        IpAddr::V6(group) => {
            let [.., a, b, c, d] = group.octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

fn to_groups() -> Vec<Attack> {
    let v4 = [
        Ipv4Addr::BROADCAST,
        Ipv4Addr::new(10, 7, 0, 255),
        Ipv4Addr::new(10, 255, 255, 255),
        Ipv4Addr::new(224, 0, 0, 1),
        Ipv4Addr::new(224, 0, 0, 251),
        Ipv4Addr::new(239, 255, 255, 250),
    ];
    let v6 = [
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2),
        Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb),
        Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 3),
        Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1),
    ];
    let groups = v4.map(IpAddr::from).into_iter().chain(v6.map(IpAddr::from));
    let mut attacks: Vec<Attack> = groups
        .clone()
        .flat_map(|group| {
            let families = if group.is_ipv4() { V4 } else { V6 };
            let headers = move |s: &Scene| s.ip_to(multicast_mac(group), group);
            let one = move |transport: Transport| {
                let rules =
                    if matches!(transport, Transport::Echo) { Rules::DENIES_ANY } else { Rules::DENIES };
                Attack::new("E2", format!("{transport:?} to {group}"), move |s| {
                    vec![s.send(&transport.after(s, headers(s)))]
                })
                .by(families)
                .against(rules)
                // Endpoints without rules hear each other.
                .honest(move |s| vec![s.send(&transport.after(s, headers(s))).arrives()])
                .control(Rules::Unprotected)
            };
            Transport::ALL.map(one)
        })
        .collect();
    attacks.extend(groups.map(|group| {
        let families = if group.is_ipv4() { V4 } else { V6 };
        Attack::new("E2", format!("answer to {group} opens the way back"), move |s| opened_by(s, group))
            .by(families)
    }));
    attacks.push(
        Attack::new("E2", "UDP to the victim's solicited-node group", |s| {
            let target = s.victim.ip6();
            vec![s.send(&s.udp(s.ip_to(solicited_node_mac(target), solicited_node(target).into())))]
        })
        .by(V6),
    );
    attacks.push(
        Attack::new("E2", "UDP to all nodes from the attacker's link-local address", |s| {
            let all: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let eth = Packet::eth(multicast_mac(all.into()), s.attacker.mac());
            vec![s.send(&s.udp(eth.ipv6(s.attacker.link_local(), all)))]
        })
        .by(V6),
    );
    attacks.push(
        Attack::new("E2", "fragments to all hosts", |s| {
            let all = IpAddr::from([224, 0, 0, 1]);
            let headers = || s.ip_to(multicast_mac(all), all).protocol(17);
            vec![
                s.send(&s.udp(headers().fragment(s.id(), 0, true))),
                s.send(&headers().fragment(s.id(), 4, false).payload(PAYLOAD)),
            ]
        })
        .by(V4),
    );
    attacks.push(
        Attack::new("E2", "IGMP query and report", |s| {
            let all = IpAddr::from([224, 0, 0, 1]);
            [0x11, 0x16, 0x22]
                .map(|kind| {
                    s.send(
                        &s.ip_to(multicast_mac(all), all)
                            .ttl(1)
                            .protocol(2)
                            .payload(&[kind, 0, 0, 0, 224, 0, 0, 1]),
                    )
                })
                .to_vec()
        })
        .by(V4)
        .against(Rules::DENIES_ANY),
    );
    attacks
}

/// The victim answers what it has got, which begins a connection of its own; the attacker then uses its ports.
fn opened_by(s: &Scene, group: IpAddr) -> Vec<Step> {
    let answer = s.ip_of_victim(s.attacker).udp(PORT, s.sport()).payload(b"answer");
    vec![
        s.send(&s.udp(s.ip_to(multicast_mac(group), group))).anything(),
        s.answer(&answer),
        s.send(&s.datagram()),
    ]
}

/// What an endpoint sends to a group is no connection, so that an answer is a new one, which its rules judge.
fn answers_to_groups() -> Vec<Attack> {
    let asks = |s: &Scene, group: IpAddr| {
        let question =
            ip(Packet::eth(multicast_mac(group), s.victim.mac()), s.to(), group).udp(PORT, s.sport());
        s.send_by(s.victim, &question.payload(b"question"))
    };
    let mut attacks = vec![];
    for group in [IpAddr::from([255; 4]), IpAddr::from([10, 7, 0, 255]), IpAddr::from([224, 0, 0, 251])] {
        attacks.push(
            Attack::new("E2", format!("unicast answer to a question to {group}"), move |s| {
                vec![asks(s, group), s.send(&s.datagram())]
            })
            .by(V4),
        );
    }
    let group = IpAddr::from(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb));
    attacks.push(
        Attack::new("E2", "unicast answer to a question to ff02::fb", move |s| {
            vec![asks(s, group), s.send(&s.datagram())]
        })
        .by(V6),
    );
    attacks.push(
        Attack::new("E2", "segment that answers a broadcast", move |s| {
            let group = IpAddr::from([255; 4]);
            let flags = tcp_flags::SYN | tcp_flags::ACK;
            vec![asks(s, group), s.send(&s.ip().tcp(s.sport(), PORT, flags))]
        })
        .by(V4)
        .from(POD),
    );
    attacks
}
