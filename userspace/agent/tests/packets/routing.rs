//! Routing between networks of a VRF, with what the conformance scenarios do not send: connections, fragments, options, reasons of
//! drops, and checksums that a device has computed.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::Command,
    time::Duration,
};

use anyhow::Result;
use contiv_abi::{DropReason, Flow, maps::FROM_POD};
use contiv_model::{mac::Mac, vrf::Vrf};
use netplugin::datapath::{Backend, Gateway, Network, Object, Scope, Service, Subnet, ebpf::Options};
use nix::errno::Errno;
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use crate::{
    flow_table::flows,
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    run::{Code, Outcome, Target, run},
    services::service,
    traffic::assert_all_ways,
};

/// On the networks `n1` (10.1.1.0/25) and `n2` (10.1.1.128/25).
pub(crate) const HERE: Endpoint = Endpoint(1);
pub(crate) const OTHER: Endpoint = Endpoint(129);
const FAR: Endpoint = Endpoint(130);
pub(crate) const UNUSED: Endpoint = Endpoint(131);
const GATEWAYS: [Endpoint; 2] = [Endpoint(126), Endpoint(254)];
pub(crate) const ROUTER: [u8; 6] = Mac::ROUTER.0;
pub(crate) const TTL: u8 = 64;

pub(crate) struct Rig {
    pub(crate) node: Node,
    pub(crate) here: Pod,
    other: Pod,
    pub(crate) networks: [Network; 2],
}

fn routed(n: u8) -> Network {
    let vrf = Vrf::Tenant("t".parse().unwrap());
    Network { vrf, ..network(&format!("n{n}.t"), vxlan(10_000 + u32::from(n))) }
}

/// The networks with their subnets.
fn want_networks(node: &mut Node, networks: &[Network; 2]) -> Result<()> {
    let prefixes = [("10.1.1.0/25", "fd00::/121"), ("10.1.1.128/25", "fd00::80/121")];
    for ((network, prefixes), gateway) in networks.iter().zip(prefixes).zip(GATEWAYS) {
        node.want_network(network);
        let both: [(&str, IpAddr); 2] =
            [(prefixes.0, gateway.ip().into()), (prefixes.1, gateway.ip6().into())];
        for (prefix, ip) in both {
            node.want(Object::Subnet(Subnet {
                network: network.id.clone(),
                vrf: network.vrf.clone(),
                encap: network.encap,
                prefix: prefix.parse()?,
                gateway: Some(Gateway { ip, mac: Some(Mac::ROUTER) }),
            }));
        }
    }
    Ok(())
}

impl Rig {
    pub(crate) fn new(label: &str) -> Result<Rig> {
        Rig::with(label, |_| {})
    }

    pub(crate) fn with(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<Rig> {
        let mut node = Node::with(label, adjust)?;
        let networks = [1, 2].map(routed);
        want_networks(&mut node, &networks)?;
        node.want_peer(2);
        node.want(Object::Remote(FAR.remote(&networks[1], Some(vtep(2)))));
        let (here, other) = (node.pod(&networks[0], HERE)?, node.pod(&networks[1], OTHER)?);
        node.converge()?;
        Ok(Rig { node, here, other, networks })
    }

    pub(crate) fn by_here(&self, frame: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_POD, &self.here.local.port, &frame.build())
    }

    fn by_other(&self, frame: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_POD, &self.other.local.port, &frame.build())
    }
}

/// As the pod of `from` sends it to its gateway.
pub(crate) fn sent(from: Endpoint, to: Ipv4Addr) -> Packet {
    Packet::eth(ROUTER, from.mac()).ipv4(from.ip(), to)
}

/// As it arrives.
fn arrives(from: Ipv4Addr, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), ROUTER).ipv4(from, to.ip()).ttl(TTL - 1)
}

#[track_caller]
fn assert_becomes(outcome: Outcome, frame: &Packet) {
    assert_eq!((outcome.code, outcome.bytes), (Code::Redirect, frame.build()));
    assert_eq!(outcome.dropped, []);
}

#[test]
fn a_connection_between_networks_is_one_flow() -> Result<()> {
    needs!(root());
    let rig = Rig::new("rt-flow")?;
    const SYN: u8 = tcp_flags::SYN;
    const ACK: u8 = tcp_flags::ACK;
    for (from_here, flags) in [(true, SYN), (false, SYN | ACK), (true, ACK), (false, ACK), (true, ACK)] {
        if from_here {
            let outcome = rig.by_here(&sent(HERE, OTHER.ip()).tcp(4000, 80, flags))?;
            assert_becomes(outcome, &arrives(HERE.ip(), OTHER).tcp(4000, 80, flags));
        } else {
            let outcome = rig.by_other(&sent(OTHER, HERE.ip()).tcp(80, 4000, flags))?;
            assert_becomes(outcome, &arrives(OTHER.ip(), HERE).tcp(80, 4000, flags));
        }
    }
    let flows = flows(&rig.node)?;
    assert!(flows.len() == 1 && flows.iter().all(Flow::is_replied), "{flows:?}");
    // What the gateway answers, and what it drops, leaves no flow.
    for gateway in GATEWAYS {
        rig.by_here(&sent(HERE, gateway.ip()).icmp_echo_request(1, 1))?;
    }
    rig.by_here(&sent(HERE, OTHER.ip()).ttl(1).udp(4000, 5000))?;
    rig.by_here(&sent(HERE, UNUSED.ip()).udp(4000, 5000))?;
    assert_eq!(crate::flow_table::flows(&rig.node)?.len(), 1);
    Ok(())
}

#[test]
fn dropped_packets_have_a_reason() -> Result<()> {
    needs!(root());
    let rig = Rig::new("rt-drops")?;
    for to in [UNUSED, GATEWAYS[0], GATEWAYS[1]] {
        rig.by_here(&sent(HERE, to.ip()).udp(4000, 5000))?.assert_dropped(DropReason::NoRoute);
    }
    let fragment =
        sent(HERE, GATEWAYS[0].ip()).icmp_echo_request(1, 1).payload(&[0; 64]).fragment(7, 0, true);
    rig.by_here(&fragment)?.assert_dropped(DropReason::NoRoute);
    // Packets with options would have to be quoted whole.
    let options = sent(HERE, OTHER.ip()).ip_options(&[1, 1, 1, 1]);
    rig.by_here(&options.clone().ttl(1).udp(4000, 5000))?.assert_dropped(DropReason::TtlExceeded);
    let outcome = rig.by_here(&options.udp(4000, 5000))?;
    let there = arrives(HERE.ip(), OTHER).ip_options(&[1, 1, 1, 1]).udp(4000, 5000);
    assert_becomes(outcome, &there);
    // An error is not answered by an error.
    let inside = Packet::bare().ipv4(OTHER.ip(), HERE.ip()).udp(5000, 4000).build();
    let error = sent(HERE, OTHER.ip()).ttl(1).icmp(3, 3, [0; 4]).payload(&inside);
    rig.by_here(&error)?.assert_dropped(DropReason::TtlExceeded);
    // The sender is told of others.
    let outcome = rig.by_here(&sent(HERE, OTHER.ip()).ttl(1).udp(4000, 5000))?;
    assert_eq!((outcome.code, outcome.dropped), (Code::Redirect, vec![DropReason::TtlExceeded]));
    Ok(())
}

#[test]
fn fragments_are_routed() -> Result<()> {
    needs!(root());
    let rig = Rig::new("rt-frags")?;
    let pieces = |packet: Packet| {
        let first = packet.clone().udp(4000, 53).payload(&[1; 64]).fragment(7, 0, true);
        [first, packet.protocol(17).payload(&[2; 64]).fragment(7, 72, false)]
    };
    for (there, expected) in pieces(sent(HERE, OTHER.ip())).iter().zip(&pieces(arrives(HERE.ip(), OTHER))) {
        assert_becomes(rig.by_here(there)?, expected);
    }
    Ok(())
}

/// A pod that is the only backend of a service reaches itself by way of the gateway.
#[test]
fn a_pod_reaches_itself_by_a_service() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("rt-hairpin")?;
    let vip = Ipv4Addr::new(10, 9, 9, 9);
    let net = &rig.networks[0];
    let backends = vec![Backend::on(net.encap, HERE.ip())];
    let scope = Scope::vrf(net.vrf.clone());
    rig.node.want(Object::Service(Service { backends, scope, ..service(vip.into(), &[]) }));
    rig.node.converge()?;
    for flags in [tcp_flags::SYN, tcp_flags::SYN] {
        let outcome = rig.by_here(&sent(HERE, vip).tcp(4000, 80, flags))?;
        let back = Packet::eth(HERE.mac(), Mac::of_endpoint(vip).0).ipv4(vip, HERE.ip());
        assert_becomes(outcome, &back.tcp(4000, 8080, flags));
    }
    Ok(())
}

/// Checksums stay right where a device has computed the sum over the packet.
#[test]
fn sums_over_routed_packets_stay_right() -> Result<()> {
    needs!(root());
    let rig = Rig::new("rt-sums")?;
    let target = Target::new(&rig.node, FROM_POD, &rig.here.local.port)?;
    let eth = || Packet::eth(ROUTER, HERE.mac());
    let six = |to: Ipv6Addr| eth().ipv6(HERE.ip6(), to);
    let frames = [
        sent(HERE, OTHER.ip()).udp(4000, 53).payload(b"odd"),
        sent(HERE, FAR.ip()).tcp(4000, 80, tcp_flags::SYN),
        sent(HERE, GATEWAYS[0].ip()).icmp_echo_request(1, 1).payload(b"ping"),
        six(OTHER.ip6()).udp(4000, 53).payload(b"odd"),
        six(FAR.ip6()).tcp(4000, 80, tcp_flags::SYN),
        six(GATEWAYS[1].ip6()).icmpv6_echo_request(1, 1).payload(b"ping"),
    ];
    for frame in frames {
        match rig.node.ns.run(|| Ok(target.give_checksum_complete(&frame.build())))? {
            // This kernel cannot compute the sum in a test run.
            Err(Errno::EINVAL) => return Ok(()),
            result => assert_eq!(result, Ok(()), "{frame:?}"),
        }
    }
    Ok(())
}

/// The kernels of the pods take each other for neighbours, and get the router's address by ARP and ND.
#[test]
fn kernels_of_two_networks_communicate() -> Result<()> {
    needs!(root(), binary("ping"));
    let rig = Rig::new("rt-local")?;
    assert_all_ways(&rig.here, &rig.other)?;
    for ip in [IpAddr::from(GATEWAYS[0].ip()), GATEWAYS[0].ip6().into()] {
        let ping = rig.here.ns.ping(ip, 3, Duration::from_millis(10))?;
        assert_eq!(ping.received, 3, "{ip}");
    }
    for (to, gateway) in
        [(rig.other.ip(), GATEWAYS[0].ip().to_string()), (rig.other.ip6(), GATEWAYS[0].ip6().to_string())]
    {
        let ping = || {
            let words = ["-n", "-c", "1", "-W", "5", "-t", "1"];
            Ok(Command::new("ping").args(words).arg(to.to_string()).output()?)
        };
        let output = rig.here.ns.run(ping)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&gateway) && text.contains("exceeded"), "{text}");
    }
    Ok(())
}

#[test]
fn kernels_on_two_nodes_communicate_over_networks() -> Result<()> {
    needs!(root(), binary("ping"));
    let (mut a, mut b) = Node::pair("rt-vx")?;
    let networks = [1, 2].map(routed);
    let (pod_a, pod_b) = (a.pod(&networks[0], HERE)?, b.pod(&networks[1], OTHER)?);
    for (node, remote, n) in [
        (&mut a, OTHER.remote(&networks[1], Some(vtep(2))), 2),
        (&mut b, HERE.remote(&networks[0], Some(vtep(1))), 1),
    ] {
        want_networks(node, &networks)?;
        node.want_peer(n).want(Object::Remote(remote));
        node.converge()?;
    }
    assert_all_ways(&pod_a, &pod_b)
}
