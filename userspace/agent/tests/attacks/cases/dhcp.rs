//! DHCP: endpoints get their addresses from the agent, so no endpoint is a server, and clients ask in vain.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use testkit::packet::{BROADCAST, Mac, Packet};

use crate::{
    attack::{Attack, Family, V4, V6},
    rules::Rules,
    scene::{Scene, ip},
};

const ALL_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
const ALL_SERVERS_MAC: Mac = [0x33, 0x33, 0, 1, 0, 2];

pub(super) fn attacks() -> Vec<Attack> {
    let server = |name: &str, packet: fn(&Scene) -> Packet| {
        Attack::new("E2", format!("DHCP server: {name}"), move |s| vec![s.send(&packet(s)).nowhere()])
            // Rules deny it as any datagram; between endpoints without rules it is the anti-spoofing that does.
            .against(Rules::ANY)
            .from(crate::attack::POD)
    };
    vec![
        server("offer to all", |s| offer(s, BROADCAST, [255; 4].into())).by(V4),
        server("offer to the victim", |s| offer(s, s.victim.mac(), s.victim.ip().into())).by(V4),
        server("offer to the victim in a broadcast frame", |s| offer(s, BROADCAST, s.victim.ip().into()))
            .by(V4),
        server("DHCPv6 advertisement", |s| {
            let headers = s.eth().ipv6(s.attacker.link_local(), s.victim.link_local());
            headers.udp(547, 546).payload(&[2, 1, 2, 3])
        })
        .by(V6),
        server("DHCPv6 advertisement from the global address", |s| {
            s.ip().udp(547, 546).payload(&[2, 1, 2, 3])
        })
        .by(V6),
        Attack::new("E2", "DHCP client past the rules", |s| vec![s.send(&discover(s))])
            .against(Rules::DENIES_ANY)
            .for_groups()
            .honest(|s| vec![s.send(&discover(s)).arrives()])
            .control(Rules::Unprotected),
    ]
}

fn offer(s: &Scene, mac: Mac, to: IpAddr) -> Packet {
    ip(Packet::eth(mac, s.attacker.mac()), s.attacker.ip().into(), to).udp(67, 68).payload(&[2, 1, 6, 0])
}

fn discover(s: &Scene) -> Packet {
    match s.family {
        Family::V4 => Packet::eth(BROADCAST, s.attacker.mac())
            .ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST)
            .udp(68, 67)
            .payload(&[1, 1, 6, 0]),
        Family::V6 => Packet::eth(ALL_SERVERS_MAC, s.attacker.mac())
            .ipv6(s.attacker.link_local(), ALL_SERVERS)
            .udp(546, 547)
            .payload(&[1, 1, 2, 3]),
    }
}
