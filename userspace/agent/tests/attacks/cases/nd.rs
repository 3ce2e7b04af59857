//! IPv6 neighbour discovery: false claims, routers, messages that are not valid ND, and ICMPv6 of the link past rules.

mod claims;
mod link;

use std::net::Ipv6Addr;

use testkit::packet::{Mac, Packet, nd_flags, solicited_node, solicited_node_mac};

use crate::{
    attack::{Attack, V6},
    scene::Scene,
};

const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

pub(super) fn attacks() -> Vec<Attack> {
    let attacks = [claims::attacks(), link::attacks()].into_iter().flatten();
    attacks.map(|attack| attack.by(V6)).collect()
}

/// A message of ND: what follows the type and code, without the checksum.
#[derive(Clone)]
struct Message {
    kind: u8,
    code: u8,
    rest: [u8; 4],
    body: Vec<u8>,
}

impl Message {
    fn advertisement(target: Ipv6Addr, mac: Mac) -> Message {
        let flags = nd_flags::SOLICITED | nd_flags::OVERRIDE;
        Message { kind: 136, code: 0, rest: [flags, 0, 0, 0], body: target.octets().to_vec() }
            .option(TARGET_LINK_ADDRESS, mac)
    }

    fn solicitation(target: Ipv6Addr, mac: Mac) -> Message {
        Message { kind: 135, code: 0, rest: [0; 4], body: target.octets().to_vec() }
            .option(SOURCE_LINK_ADDRESS, mac)
    }

    /// A router with a lifetime, a prefix for addresses, and an MTU.
    fn router(mac: Mac) -> Message {
        let mut body = vec![0; 8];
        body.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
        body.extend(Ipv6Addr::new(0x2001, 0xdb8, 0xbad, 0, 0, 0, 0, 0).octets());
        body.extend([5, 1, 0, 0, 0, 0, 5, 0]);
        Message { kind: 134, code: 0, rest: [64, 0, 7, 8], body }.option(SOURCE_LINK_ADDRESS, mac)
    }

    fn redirect(target: Ipv6Addr, destination: Ipv6Addr, mac: Mac) -> Message {
        let body = [target.octets(), destination.octets()].concat();
        Message { kind: 137, code: 0, rest: [0; 4], body }.option(TARGET_LINK_ADDRESS, mac)
    }

    fn option(mut self, kind: u8, mac: Mac) -> Message {
        self.body.extend([kind, 1]);
        self.body.extend(mac);
        self
    }

    fn after(&self, headers: Packet) -> Packet {
        headers.icmpv6(self.kind, self.code, self.rest).payload(&self.body)
    }

    /// The message with hop limit 255.
    fn packet(&self, eth: Packet, from: Ipv6Addr, to: Ipv6Addr) -> Packet {
        self.after(eth.ipv6(from, to).ttl(255))
    }

    /// The message behind extension headers.
    fn behind(&self, chain: &[u8], eth: Packet, from: Ipv6Addr, to: Ipv6Addr) -> Packet {
        let first = chain.first().copied().unwrap_or(58);
        let mut headers = eth.ipv6(from, to).ttl(255).protocol(first);
        for (at, kind) in chain.iter().enumerate() {
            let next = chain.get(at + 1).copied().unwrap_or(58);
            headers = headers.payload(&super::headers::extension(*kind, next));
        }
        self.after(headers)
    }
}

/// Where a kernel takes a message from: a frame for it, to all nodes, and to its solicited-node group.
fn destinations(s: &Scene) -> [(Packet, Ipv6Addr); 4] {
    let eth = |to| Packet::eth(to, s.attacker.mac());
    let (global, link_local) = (s.victim.ip6(), s.victim.link_local());
    [
        (eth(s.victim.mac()), global),
        (eth(s.victim.mac()), link_local),
        (eth(ALL_NODES_MAC), ALL_NODES),
        (eth(solicited_node_mac(global)), solicited_node(global)),
    ]
}
