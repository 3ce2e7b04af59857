//! ARP: false claims, and messages that do not parse.

use std::net::Ipv4Addr;

use testkit::packet::{BROADCAST, Mac, Packet};

use crate::{
    attack::{ANYWHERE, Attack, OUTSIDE, POD, Step, V4, VXLAN},
    rules::{FAR_FRIEND, FRIEND, GATEWAY, Rules, Station, UNUSED, WITNESS},
    scene::{Scene, frame},
};

pub(super) fn attacks() -> Vec<Attack> {
    let attacks = [claims_of_pods(), malformed(), from_outside()].into_iter().flatten();
    attacks.map(|attack| attack.by(V4).honest(honest).control(Rules::DenyAll)).collect()
}

/// What rules do not judge: announcements, probes and replies for the own address.
fn honest(s: &Scene) -> Vec<Step> {
    let (mac, address) = (s.attacker.mac(), s.attacker.ip());
    let frames = [
        Packet::arp_request(mac, address, address),
        Packet::arp_request(mac, Ipv4Addr::UNSPECIFIED, address),
        Packet::eth(BROADCAST, mac).arp(2, (mac, address), (BROADCAST, address)),
        Packet::arp_reply(mac, address, s.victim.mac(), s.victim.ip()),
    ];
    frames.iter().map(|frame| s.send(frame).arrives()).collect()
}

fn arp(s: &Scene, to: Mac, operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Step {
    s.send(&Packet::eth(to, s.attacker.mac()).arp(operation, sender, target)).nowhere()
}

/// Claims of an address in each form that a kernel learns from: reply, request, and announcements by either.
fn claims(s: &Scene, sender: (Mac, Ipv4Addr)) -> Vec<Step> {
    let (victim, unspecified) = ((s.victim.mac(), s.victim.ip()), [0; 6]);
    let unknown = Ipv4Addr::new(10, 7, 0, 99);
    vec![
        arp(s, victim.0, 2, sender, victim),
        arp(s, victim.0, 1, sender, (unspecified, victim.1)),
        arp(s, BROADCAST, 1, sender, (unspecified, unknown)),
        arp(s, BROADCAST, 1, sender, (unspecified, sender.1)),
        arp(s, BROADCAST, 2, sender, (BROADCAST, sender.1)),
        arp(s, victim.0, 2, sender, (victim.0, sender.1)),
    ]
}

fn claims_of_pods() -> Vec<Attack> {
    let of = |name: &str, station: Station| {
        Attack::new("held", format!("ARP: own MAC for the address of {name}"), move |s| {
            claims(s, (s.attacker.mac(), station.ip()))
        })
        .from(POD)
        .against(Rules::ANY)
    };
    let with_mac = |name: &str, mac: Mac| {
        Attack::new("held", format!("ARP: {name} for the own address"), move |s| {
            claims(s, (mac, s.attacker.ip()))
        })
        .from(POD)
        .against(Rules::ANY)
    };
    vec![
        of("a pod", FRIEND),
        of("an endpoint on another node", FAR_FRIEND),
        of("the gateway", GATEWAY),
        of("no endpoint", UNUSED),
        Attack::new("held", "ARP: own MAC for the victim's address", |s| {
            claims(s, (s.attacker.mac(), s.victim.ip()))
        })
        .from(POD)
        .against(Rules::ANY),
        with_mac("another pod's MAC", WITNESS.mac()),
        with_mac("broadcast MAC", BROADCAST),
        with_mac("a MAC of no endpoint", [2, 2, 9, 9, 9, 9]),
        with_mac("MAC zero", [0; 6]),
        Attack::new("held", "ARP: another pod's MAC and address", |s| claims(s, (FRIEND.mac(), FRIEND.ip())))
            .from(POD)
            .against(Rules::ANY),
        Attack::new("held", "ARP: another pod's MAC, address and Ethernet source", |s| {
            let claim = (FRIEND.mac(), FRIEND.ip());
            let victim = (s.victim.mac(), s.victim.ip());
            vec![s.send(&Packet::eth(s.victim.mac(), FRIEND.mac()).arp(2, claim, victim)).nowhere()]
        })
        .from(POD)
        .against(Rules::ANY),
        Attack::new("held", "inverse and reverse ARP for another pod's address", |s| {
            let claim = (s.attacker.mac(), FRIEND.ip());
            let victim = (s.victim.mac(), s.victim.ip());
            [3, 4, 8, 9, 25].map(|operation| arp(s, s.victim.mac(), operation, claim, victim)).to_vec()
        })
        .from(POD)
        .against(Rules::ANY),
        // Announcing 0.0.0.0 tells nothing, but a probe for another's address makes it believe in a conflict (RFC 5227): the
        // node answers it.
        Attack::new("held", "ARP: probe for the victim's address", |s| {
            let unspecified = (s.attacker.mac(), Ipv4Addr::UNSPECIFIED);
            vec![arp(s, BROADCAST, 1, unspecified, ([0; 6], s.victim.ip()))]
        })
        .from(POD)
        .against(Rules::ANY),
    ]
}

/// What is not ARP for IPv4 over Ethernet is no ARP that passes the anti-spoofing checks, and nothing that a rule could judge.
fn malformed() -> Vec<Attack> {
    let with = |defect, name: &str, change: fn(&mut Vec<u8>)| {
        Attack::new(defect, format!("ARP: {name}"), move |s| {
            let whole = Packet::arp_reply(s.attacker.mac(), s.attacker.ip(), s.victim.mac(), s.victim.ip());
            let mut body = whole.build()[14..].to_vec();
            change(&mut body);
            [s.victim.mac(), BROADCAST]
                .map(|to| s.send_bytes(frame(to, s.attacker.mac(), 0x0806, &body)))
                .to_vec()
        })
        .from(ANYWHERE)
    };
    vec![
        with("E27", "hardware type 6", |body| body[1] = 6),
        with("E27", "hardware type 32, InfiniBand", |body| body[1] = 32),
        with("E27", "protocol IPv6", |body| body[2..4].copy_from_slice(&[0x86, 0xdd])),
        with("E27", "hardware address length 8", |body| body[4] = 8),
        with("E27", "protocol address length 16", |body| body[5] = 16),
        with("E27", "address lengths 0", |body| body[4..6].fill(0)),
        with("E27", "operation 0", |body| body[7] = 0),
        with("E27", "operation 99", |body| body[7] = 99),
        with("held", "27 bytes", |body| body.truncate(27)),
        with("held", "8 bytes", |body| body.truncate(8)),
        // Ethernet pads to 46 bytes (IEEE 802.3, 3.2.8); more is a channel past the rules.
        with("E22", "400 bytes of data", |body| body.resize(428, b'x')),
    ]
}

fn from_outside() -> Vec<Attack> {
    let of = |defect, name: &str, station: Station| {
        Attack::new(defect, format!("ARP from outside: attacker's MAC for the address of {name}"), move |s| {
            claims(s, (s.attacker.mac(), station.ip()))
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
    };
    vec![
        of("E24", "a pod on the node", FRIEND),
        of("E10", "an endpoint on another node", FAR_FRIEND).on(VXLAN),
        Attack::new("E24", "ARP from outside: attacker's MAC for the victim's address", |s| {
            claims(s, (s.attacker.mac(), s.victim.ip()))
        })
        .from(OUTSIDE)
        .against(Rules::ANY),
        Attack::new("E24", "ARP from outside: a local pod's MAC for the attacker's address", |s| {
            claims(s, (WITNESS.mac(), s.attacker.ip()))
        })
        .from(OUTSIDE)
        .against(Rules::ANY),
        Attack::new("E24", "ARP from outside: a local pod's MAC and address", |s| {
            claims(s, (WITNESS.mac(), WITNESS.ip()))
        })
        .from(OUTSIDE)
        .against(Rules::ANY),
        Attack::new("E10", "ARP from outside: broadcast MAC for the attacker's address", |s| {
            claims(s, (BROADCAST, s.attacker.ip()))
        })
        .from(OUTSIDE)
        .against(Rules::ANY),
    ]
}
