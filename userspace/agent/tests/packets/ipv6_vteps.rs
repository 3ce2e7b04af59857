//! Tunnels between IPv6 addresses.

use std::{
    net::{IpAddr, Ipv6Addr, UdpSocket},
    time::Duration,
};

use anyhow::Result;
use contiv_abi::{DropReason, maps::FROM_POD};
use contiv_model::route::NextHop;
use netplugin::datapath::{Object, Peer, Remote, ebpf::Options};
use testkit::{Netns, capture::Tap, needs, packet::Packet, patience, wait_until};

use crate::{
    from_overlay::VNI,
    node::{Endpoint, Node, Pod, network, vxlan},
    run::run,
};

const HERE: Endpoint = Endpoint(1);
const THERE: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the VXLAN header.
const HEADER: usize = 8;

fn vtep(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n)
}

/// A node with a pod, and two peers behind its underlay interface.
struct Rig {
    node: Node,
    pod: Pod,
    outside: Netns,
}

impl Rig {
    fn new(label: &str) -> Result<Rig> {
        let mut node = Node::with(label, |options| options.vtep = Some(vtep(1).into()))?;
        let outside = Netns::new(&format!("{label}-out"))?;
        node.ns.veth("under", &outside, "wire")?;
        node.ns.address("under", &format!("{}/64", vtep(1)))?;
        for n in [2, 3, 9] {
            outside.address("wire", &format!("{}/64", vtep(n)))?;
        }
        node.ns.up("under")?;
        outside.up("wire")?;
        let n1 = network("n1.t", vxlan(VNI));
        node.want_network(&n1);
        for (endpoint, n) in [(THERE, 2), (FAR, 3)] {
            let address: IpAddr = vtep(n).into();
            let next_hop = NextHop::on(n1.encap, Some(address)).unwrap();
            node.want(Object::Peer(Peer::new(address, Options::VXLAN_PORT).with_networks([&n1])));
            node.want(Object::Remote(Remote {
                next_hop,
                ..endpoint.remote(&n1, Some([192, 0, 2, 2].into()))
            }));
        }
        let pod = node.pod(&n1, HERE)?;
        node.converge()?;
        Ok(Rig { node, pod, outside })
    }

    /// A socket that speaks VXLAN.
    fn peer(&self, n: u16) -> Result<UdpSocket> {
        let socket = self.outside.run(|| Ok(UdpSocket::bind((vtep(n), Options::VXLAN_PORT))?))?;
        socket.set_read_timeout(Some(TIMEOUT * patience()))?;
        Ok(socket)
    }

    fn send(&self, peer: &UdpSocket, inner: &Packet) -> Result<()> {
        let message = [&[8, 0, 0, 0], &(VNI << 8).to_be_bytes()[..], &inner.build()].concat();
        peer.send_to(&message, (vtep(1), Options::VXLAN_PORT))?;
        Ok(())
    }

    fn expect_drop(&self, reason: DropReason) -> Result<()> {
        wait_until(TIMEOUT, reason.as_str(), || {
            Ok((self.node.drops()?.get(&reason) == Some(&1)).then_some(()))
        })
    }
}

fn into(from: Endpoint) -> Packet {
    Packet::eth(HERE.mac(), from.mac()).ipv4(from.ip(), HERE.ip()).udp(4000, 53).payload(b"query")
}

#[test]
fn frames_go_through_tunnels_both_ways() -> Result<()> {
    needs!(root());
    let rig = Rig::new("six-both")?;
    let (peer, pod) = (rig.peer(2)?, Tap::open(&rig.pod.ns, "eth0")?);
    rig.send(&peer, &into(THERE))?;
    let frame = into(THERE).build();
    pod.expect(TIMEOUT, "the frame from the tunnel", |bytes| (bytes == frame).then_some(()))?;
    let out =
        Packet::eth(THERE.mac(), HERE.mac()).ipv4(HERE.ip(), THERE.ip()).udp(4000, 53).payload(b"answer");
    pod.send(&out.build())?;
    // The socket takes no datagram with a wrong checksum, and over IPv6 none without one.
    let mut message = [0; 2048];
    loop {
        let (len, from) = peer.recv_from(&mut message)?;
        assert_eq!(from.ip(), IpAddr::from(vtep(1)));
        assert_eq!(message[4..7], VNI.to_be_bytes()[1..]);
        // The pod's own error about the query comes first.
        if message[HEADER..len] == out.build() {
            break;
        }
    }
    assert!(rig.node.drops()?.is_empty());
    Ok(())
}

/// What is for all goes to each peer.
#[test]
fn broadcasts_are_replicated_to_the_peers() -> Result<()> {
    needs!(root());
    let rig = Rig::new("six-bum")?;
    let (peers, pod) = ([rig.peer(2)?, rig.peer(3)?], Tap::open(&rig.pod.ns, "eth0")?);
    let asked = Endpoint(99).ip();
    let request = Packet::eth([0xff; 6], HERE.mac()).arp(1, (HERE.mac(), HERE.ip()), ([0; 6], asked)).build();
    pod.send(&request)?;
    for peer in peers {
        let mut message = [0; 2048];
        // The pod's kernel multicasts as well. Without the request, the socket's time limit is an error.
        loop {
            let (len, _) = peer.recv_from(&mut message)?;
            if message[HEADER..len] == request {
                break;
            }
        }
    }
    Ok(())
}

#[test]
fn strangers_and_sources_of_other_vteps_are_refused() -> Result<()> {
    needs!(root());
    let rig = Rig::new("six-guard")?;
    rig.send(&rig.peer(9)?, &into(THERE))?;
    rig.expect_drop(DropReason::UnknownPeer)?;
    rig.send(&rig.peer(3)?, &into(THERE))?;
    rig.expect_drop(DropReason::ForeignSource)
}

#[test]
fn pods_do_not_reach_the_tunnel_port_of_a_node() -> Result<()> {
    needs!(root());
    let rig = Rig::new("six-inject")?;
    for n in [1, 2] {
        let packet = Packet::eth([2, 0, 0, 0, 0, 9], HERE.mac())
            .ipv6(HERE.ip6(), vtep(n))
            .udp(4000, Options::VXLAN_PORT)
            .payload(&[8, 0, 0, 0, 0, 0, 1, 0]);
        run(&rig.node, FROM_POD, &rig.pod.local.port, &packet.build())?
            .assert_dropped(DropReason::TunnelFromPod);
    }
    Ok(())
}
