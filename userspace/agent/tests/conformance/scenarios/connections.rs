//! Connections: packets with the addresses of one that another endpoint has opened belong to none.

use anyhow::Result;
use contiv_model::policy::{Action, Direction};
use netplugin::datapath::{Object, ObjectId};
use testkit::packet::{Packet, tcp_flags};

use crate::{
    harness::Harness,
    scenarios::policy::{from_to, group, in_group, number, rule},
    topology::{Net, ip, ip6, mac, peers, pod, to_pod},
    world::World,
};

/// Group of the pod with address 1, which denies what comes in.
const SHUT: u32 = 1;
/// Last parts of the addresses of its peers: a pod, and an endpoint on another node.
const NEAR: u8 = 2;
const FAR: u8 = 11;
const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;

fn shut(net: &Net, port: &str) -> Result<Object> {
    in_group(net.local(port, 1), SHUT)
}

fn world<H: Harness>(net: &Net) -> Result<World<H>> {
    World::new(peers().into_iter().chain([
        net.network(),
        group(SHUT, [rule(Direction::In, Action::Deny, 1)?])?,
        shut(net, "pa")?,
        net.local("pb", NEAR),
        net.remote(0, FAR),
    ]))
}

impl<H: Harness> World<H> {
    /// The pod at the port asks both peers.
    fn opens_to_peers(&mut self, net: &Net, port: &str) -> Result<()> {
        // A learning bridge gets to know the port of the far one.
        for frame in from_to((FAR, 5001), (NEAR, 5001)) {
            let sent = net.on_wire(&frame.build());
            self.sends_bytes(&net.outside(0), &sent, [to_pod("pb", &frame)])?;
        }
        for frame in from_to((1, 4000), (NEAR, 5000)) {
            self.sends(&pod(port), &frame, [to_pod("pb", &frame)])?;
        }
        for frame in from_to((1, 4000), (FAR, 5000)) {
            self.sends(&pod(port), &frame, [net.to_node(0, &frame)])?;
        }
        Ok(())
    }

    /// Both peers answer, to the pod at the port or to none.
    fn peers_reply(&mut self, net: &Net, port: Option<&str>) -> Result<()> {
        for frame in from_to((NEAR, 5000), (1, 4000)) {
            self.sends(&pod("pb"), &frame, port.map(|port| to_pod(port, &frame)))?;
        }
        for frame in from_to((FAR, 5000), (1, 4000)) {
            let sent = net.on_wire(&frame.build());
            self.sends_bytes(&net.outside(0), &sent, port.map(|port| to_pod(port, &frame)))?;
        }
        Ok(())
    }

    /// Both peers send errors about what they were asked, to the pod at the port or to none.
    fn peers_send_errors(&mut self, net: &Net, port: Option<&str>) -> Result<()> {
        for frame in errors_about_opening(NEAR) {
            self.sends(&pod("pb"), &frame, port.map(|port| to_pod(port, &frame)))?;
        }
        for frame in errors_about_opening(FAR) {
            let sent = net.on_wire(&frame.build());
            self.sends_bytes(&net.outside(0), &sent, port.map(|port| to_pod(port, &frame)))?;
        }
        Ok(())
    }
}

/// ICMP errors of an endpoint about the packets by which the pod with address 1 has opened connections to it.
fn errors_about_opening(peer: u8) -> [Packet; 2] {
    let [v4, v6] = from_to((1, 4000), (peer, 5000)).map(|opening| opening.build()[14..].to_vec());
    let eth = || Packet::eth(mac(1), mac(peer));
    [
        eth().ipv4(ip(peer), ip(1)).icmp(3, 3, [0; 4]).payload(&v4),
        eth().ipv6(ip6(peer), ip6(1)).icmpv6(1, 4, [0; 4]).payload(&v6),
    ]
}

/// A pod gets the address of another one of its group: what the peers of that one go on sending is evaluated by its rules. It may use
/// the same ports.
pub(crate) fn replies_reach_no_successor<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.opens_to_peers(&net, "pa")?;
        world.peers_reply(&net, Some("pa"))?;
        world.peers_send_errors(&net, Some("pa"))?;
        world.delete(net.local_id("pa"))?;
        world.node.plug("pc")?;
        world.set(shut(&net, "pc")?)?;
        // Errors first: a datapath may forget the connection with the first reply.
        world.peers_send_errors(&net, None)?;
        for _ in 0..2 {
            world.peers_reply(&net, None)?;
        }
        world.opens_to_peers(&net, "pc")?;
        world.peers_reply(&net, Some("pc"))?;
        world.peers_send_errors(&net, Some("pc"))?;
        world.check_in_sync()?;
    }
    Ok(())
}

/// Segments from one endpoint and port to another, over IPv4 and IPv6.
fn segments(from: (u8, u16), to: (u8, u16), flags: u8, numbers: (u32, u32)) -> [Packet; 2] {
    let eth = || Packet::eth(mac(to.0), mac(from.0));
    [eth().ipv4(ip(from.0), ip(to.0)), eth().ipv6(ip6(from.0), ip6(to.0))]
        .map(|packet| packet.tcp(from.1, to.1, flags).sequence(numbers.0, numbers.1))
}

/// A SYN of the server is the first segment of another connection, whatever the state of the client's.
pub(crate) fn the_other_end_opens_a_connection_of_its_own<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let there = |port, flags, numbers| segments((1, port), (NEAR, 5000), flags, numbers);
        let back = |port, flags, numbers| segments((NEAR, 5000), (1, port), flags, numbers);
        // At once with the client's SYN.
        for (syn, other) in there(4000, SYN, (1000, 0)).iter().zip(&back(4000, SYN, (5000, 0))) {
            world.sends(&pod("pa"), syn, [to_pod("pb", syn)])?;
            world.sends(&pod("pb"), other, [])?;
        }
        for frame in there(4001, SYN, (1000, 0)) {
            world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        }
        for frame in back(4001, SYN | ACK, (5000, 1001)) {
            world.sends(&pod("pb"), &frame, [to_pod("pa", &frame)])?;
        }
        for frame in there(4001, ACK, (1001, 5001)) {
            world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        }
        for frame in back(4001, SYN, (90_000, 0)) {
            world.sends(&pod("pb"), &frame, [])?;
            world.sends(&pod("pb"), &frame, [])?;
        }
        // The client's goes on.
        for frame in back(4001, ACK, (5001, 1001)) {
            world.sends(&pod("pb"), &frame, [to_pod("pa", &frame)])?;
        }
        for frame in there(4001, ACK, (1001, 5001)) {
            world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        }
        world.delete(ObjectId::Group(number(SHUT)?))?;
        for frame in back(4001, SYN, (90_000, 0)) {
            world.sends(&pod("pb"), &frame, [to_pod("pa", &frame)])?;
        }
        for frame in there(4001, SYN | ACK, (70_000, 90_001)) {
            world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        }
    }
    Ok(())
}
