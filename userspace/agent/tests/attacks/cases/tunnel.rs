//! Tunnels: strangers, other networks, frames for other nodes, and pods that speak VXLAN themselves.

use std::net::{IpAddr, Ipv4Addr};

use contiv_model::tag::{Encap, Vni};
use netplugin::datapath::fake::Origin;
use testkit::packet::{BROADCAST, Packet};

use crate::{
    attack::{Attack, Expect, OUTSIDE, POD, STRANGER, Step, V4, VLAN, VXLAN},
    node::topology::{NODE, STRANGER as STRANGER_VTEP, VTEPS, VXLAN_PORT, tagged},
    rules::{FAR, FAR_FRIEND, FRIEND, GATEWAY, Rules, WITNESS},
    scene::{Scene, ip},
};

pub(super) fn attacks() -> Vec<Attack> {
    let attacks = [strangers(), networks(), transit(), from_pods()].into_iter().flatten();
    attacks.collect()
}

/// A frame by a tunnel of any kind.
fn by(vtep: Ipv4Addr, vni: Vni, frame: &Packet) -> Step {
    Step::Send {
        from: Origin::Tunnel { vtep: vtep.into(), vni },
        frame: frame.build(),
        expect: Expect::Nowhere,
    }
}

fn vni(s: &Scene) -> Option<Vni> {
    match s.net.encap {
        Encap::Vxlan { vni, .. } => Some(vni),
        Encap::Vlan(_) => None,
    }
}

fn strangers() -> Vec<Attack> {
    let frames = |name: &str, frame: fn(&Scene) -> Packet| {
        Attack::new("held", format!("stranger's VTEP: {name}"), move |s| vec![s.send(&frame(s)).nowhere()])
            .from(STRANGER)
            .against(Rules::ANY)
            .on(VXLAN)
            .by(V4)
    };
    let in_name_of = |name: &str, vtep: Ipv4Addr| {
        Attack::new("held", format!("VXLAN from {name}"), move |s| {
            vni(s).into_iter().map(|vni| by(vtep, vni, &s.datagram())).collect()
        })
        .from(STRANGER)
        .against(Rules::ANY)
        .on(VXLAN)
    };
    vec![
        frames("datagram", |s| s.datagram()),
        frames("datagram in a broadcast frame", |s| s.udp(s.ip_in(BROADCAST))),
        frames("ARP announcement", |s| {
            Packet::arp_request(s.attacker.mac(), s.attacker.ip(), s.attacker.ip())
        }),
        frames("ARP request", |s| Packet::arp_request(s.attacker.mac(), s.attacker.ip(), s.victim.ip())),
        frames("solicitation", |s| {
            Packet::neighbour_solicitation(s.attacker.mac(), s.attacker.ip6(), s.victim.ip6())
        }),
        frames("datagram in a friend's name", |s| {
            s.udp(ip(Packet::eth(s.victim.mac(), FRIEND.mac()), FRIEND.ip().into(), s.to()))
        }),
        in_name_of("the node itself", NODE),
        in_name_of("a group", Ipv4Addr::new(224, 0, 0, 1)),
        in_name_of("0.0.0.0", Ipv4Addr::UNSPECIFIED),
        in_name_of("127.0.0.1", Ipv4Addr::LOCALHOST),
        in_name_of("the broadcast address", Ipv4Addr::BROADCAST),
        in_name_of("a pod's address", FAR.ip()),
    ]
}

fn networks() -> Vec<Attack> {
    let by_vni = |name: &str, number: fn(&Scene) -> u32| {
        Attack::new("held", format!("VXLAN with {name} as VNI"), move |s| {
            let vni = Vni::try_from(number(s));
            let frames = [s.datagram(), s.udp(s.ip_in(BROADCAST))];
            vni.into_iter()
                .flat_map(|vni| {
                    frames.clone().map(|frame| by(VTEPS[0], vni, &frame).expecting(Expect::NotAtVictim))
                })
                .collect()
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
        .by(V4)
    };
    vec![
        by_vni("an unknown number", |_| 77_777),
        // The other network has pods of the same addresses, without rules.
        by_vni("the other network's number", |_| 10_002),
        by_vni("the highest number", |_| 0x00ff_ffff),
        by_vni("the network's local number", |s| match s.net.encap {
            Encap::Vxlan { local, .. } => local.get().into(),
            Encap::Vlan(vlan) => vlan.get().into(),
        }),
        Attack::new("held", "the VLAN that a VXLAN network has inside of a node", |s| {
            let Encap::Vxlan { local, .. } = s.net.encap else { return vec![] };
            let frames = [s.datagram(), s.udp(s.ip_in(BROADCAST))];
            frames
                .map(|frame| Step::Send {
                    from: Origin::Uplink,
                    frame: tagged(&frame.build(), local.get()),
                    expect: Expect::Nowhere,
                })
                .to_vec()
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
        .by(V4)
        .on(VXLAN),
        Attack::new("held", "the priority bits and the VLAN of another network", |s| {
            let frame = |tag| Step::Send {
                from: Origin::Uplink,
                frame: tagged(&s.datagram().build(), tag),
                expect: Expect::NotAtVictim,
            };
            vec![frame(0xe000 | 200), frame(0x1000 | 200), frame(0xffff)]
        })
        .from(OUTSIDE)
        .against(Rules::ANY)
        .by(V4)
        .on(VLAN),
    ]
}

/// The sending node replicates; what comes in by a tunnel does not go out by another one.
fn transit() -> Vec<Attack> {
    let goes_on = |name: &str, frame: fn(&Scene) -> Packet| {
        Attack::new("held", format!("transit: {name}"), move |s| {
            let Step::Send { from, frame, .. } = s.send(&frame(s)) else { return vec![] };
            vec![Step::Send { from, frame, expect: Expect::NotOnWire }]
        })
        .from(OUTSIDE)
        .against(Rules::NONE)
        .by(V4)
    };
    vec![
        goes_on("frame to an endpoint on another node", |s| {
            s.udp(s.ip_to(FAR_FRIEND.mac(), FAR_FRIEND.ip().into()))
        }),
        goes_on("frame to an unknown address", |s| {
            s.udp(s.ip_to([2, 2, 10, 7, 0, 99], Ipv4Addr::new(10, 7, 0, 99).into()))
        }),
        goes_on("broadcast", |s| s.udp(s.ip_to(BROADCAST, Ipv4Addr::BROADCAST.into()))),
        goes_on("frame to the sender", |s| s.udp(s.ip_to(s.attacker.mac(), s.attacker.ip().into()))),
        goes_on("ARP request for an endpoint on another node", |s| {
            Packet::arp_request(s.attacker.mac(), s.attacker.ip(), FAR_FRIEND.ip())
        }),
    ]
}

/// Behind the node's address, what a pod sends to a VTEP would look like the node's own tunnel.
fn from_pods() -> Vec<Attack> {
    let to_vtep = |name: &str, vtep: Ipv4Addr| {
        Attack::new("E20", format!("pod speaks VXLAN to {name}"), move |s| {
            let inner =
                s.udp(ip(Packet::eth(WITNESS.mac(), s.victim.mac()), s.to(), WITNESS.address(s.family)));
            let outer = |mac| {
                Packet::eth(mac, s.attacker.mac())
                    .ipv4(s.attacker.ip(), vtep)
                    .udp_unchecked(s.sport(), VXLAN_PORT)
                    .vxlan(10_001, inner.clone())
            };
            let macs = [GATEWAY.mac(), BROADCAST, s.victim.mac()];
            macs.map(|mac| s.send(&outer(mac)).nowhere()).to_vec()
        })
        .from(POD)
        .against(Rules::ANY)
        .by(V4)
    };
    vec![
        to_vtep("the node", NODE),
        to_vtep("another node", VTEPS[0]),
        to_vtep("a third node", VTEPS[1]),
        Attack::new("held", "VXLAN to the victim", |s| {
            let inner = s.datagram();
            vec![s.send(&s.ip().udp(s.sport(), VXLAN_PORT).vxlan(10_001, inner))]
        })
        .against(Rules::DENIES_ANY),
        Attack::new("held", "VXLAN in a stranger's name inside a tunnel", |s| {
            let outer = ip(s.eth(), IpAddr::V4(STRANGER_VTEP), s.victim.ip().into());
            vec![s.send(&outer.udp_unchecked(s.sport(), VXLAN_PORT).vxlan(10_001, s.datagram()))]
        })
        .against(&[Rules::DenyAll, Rules::FriendsOnly])
        .by(V4),
    ]
}
