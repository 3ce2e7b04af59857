//! Routing between networks of a tenant, with the kernels of pods as peers.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Result, ensure};
use contiv_model::{
    global::ArpMode,
    mac::Mac,
    name::EndpointId,
    policy::ICMP,
    route::NextHop,
    tag::Encap,
    trace::{self, Egress, Query, TcpFlags},
    vrf::Vrf,
};
use netplugin::datapath::{Datapath as _, Gateway, Local, Network, Object, Remote, Subnet, trace::Probe};
use testkit::{Netns, needs, wait_until};

use crate::node::{Node, SOON, network, vtep, vxlan};

/// A network with the subnets 10.`n`.0.0/24 and fd00:`n`::/64.
struct Routed {
    network: Network,
    n: u8,
}

struct Pod {
    namespace: Netns,
    object: Object,
    addresses: (Ipv4Addr, Ipv6Addr),
}

const GATEWAY: u8 = 254;

impl Routed {
    fn new(name: &str, n: u8) -> Result<Routed> {
        let vrf = Vrf::Tenant("net".parse()?);
        Ok(Routed {
            network: Network { vrf, ..network(name, vxlan(5000 + u32::from(n)), ArpMode::Proxy) },
            n,
        })
    }

    fn addresses(&self, last: u8) -> (Ipv4Addr, Ipv6Addr) {
        ([10, self.n, 0, last].into(), Ipv6Addr::new(0xfd00, self.n.into(), 0, 0, 0, 0, 0, last.into()))
    }

    fn objects(&self) -> Result<[Object; 3]> {
        let (v4, v6) = self.addresses(GATEWAY);
        let subnet = |prefix: String, ip: IpAddr| -> Result<Object> {
            let Network { id: network, vrf, encap, .. } = self.network.clone();
            let gateway = Some(Gateway { ip, mac: Some(Mac::ROUTER) });
            Ok(Object::Subnet(Subnet { network, vrf, encap, prefix: prefix.parse()?, gateway }))
        };
        let n = self.n;
        Ok([
            Object::Network(self.network.clone()),
            subnet(format!("10.{n}.0.0/24"), v4.into())?,
            subnet(format!("fd00:{n:x}::/64"), v6.into())?,
        ])
    }

    /// Creates pod `last` on node `on`, and its remote endpoint on the other node.
    fn pod(&self, nodes: &[Node; 2], on: usize, last: u8) -> Result<Pod> {
        let namespace = Netns::new(&format!("rt{}{last}", self.n))?;
        let port = format!("vvport{}{last}", self.n);
        let (v4, v6) = self.addresses(last);
        let (mac, host) = (Mac::of_endpoint(v4), &nodes[on].namespace);
        host.veth(&port, &namespace, "eth0")?;
        namespace.mac("eth0", &mac.to_string())?;
        namespace.tx_checksum_off("eth0")?;
        namespace.address("eth0", &format!("{v4}/24"))?;
        namespace.address("eth0", &format!("{v6}/64"))?;
        namespace.up("eth0")?;
        let (gateway, gateway6) = self.addresses(GATEWAY);
        namespace.ip(&format!("route add default via {gateway}"))?;
        namespace.ip(&format!("-6 route add default via {gateway6} dev eth0"))?;
        host.up(&port)?;
        let id = EndpointId::new(&self.network.id, &format!("pod{last}"));
        let addresses = (v4, Some(v6));
        let object = Object::Local(Local::new(id.clone(), &self.network, port, mac, addresses));
        nodes[on].add([object.clone()])?;
        let next_hop = NextHop::on(self.network.encap, Some(vtep(on))).unwrap();
        nodes[1 - on].add([Object::Remote(Remote::new(id, &self.network, next_hop, mac, addresses))])?;
        Ok(Pod { namespace, object, addresses: (v4, v6) })
    }
}

impl Pod {
    fn replies(&self, target: IpAddr) -> Result<bool> {
        Ok(self.namespace.ping(target, 1, Duration::from_millis(300))?.lost() == 0)
    }

    /// Waits until the addresses reply.
    fn reaches(&self, (v4, v6): (Ipv4Addr, Ipv6Addr)) -> Result<()> {
        for target in [IpAddr::V4(v4), v6.into()] {
            wait_until(SOON, &format!("echo reply of {target}"), || Ok(self.replies(target)?.then_some(())))?;
        }
        Ok(())
    }
}

fn routing_pair(label: &str, nets: &[&Routed]) -> Result<[Node; 2]> {
    let nodes = Node::pair(label)?;
    for node in &nodes {
        node.converge()?;
        for net in nets {
            node.add(net.objects()?)?;
        }
    }
    Ok(nodes)
}

#[test]
fn pods_reach_other_networks_and_their_gateways() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (blue, green) = (Routed::new("blue", 1)?, Routed::new("green", 2)?);
    let nodes = routing_pair("rta", &[&blue, &green])?;
    let (a, b) = (blue.pod(&nodes, 0, 1)?, green.pod(&nodes, 0, 2)?);
    let c = green.pod(&nodes, 1, 3)?;
    a.reaches(b.addresses)?;
    a.reaches(c.addresses)?;
    c.reaches(a.addresses)?;
    for gateway in [blue.addresses(GATEWAY), green.addresses(GATEWAY)] {
        a.reaches(gateway)?;
        c.reaches(gateway)?;
    }
    let neighbours = a.namespace.ip("neigh show dev eth0")?;
    ensure!(neighbours.contains(&format!("10.1.0.254 lladdr {}", Mac::ROUTER)), "{neighbours}");

    // An address that no pod has.
    ensure!(!a.replies([10, 2, 0, 77].into())?, "an unknown address replied");
    let counters = {
        let telemetry = nodes[0].datapath.borrow().telemetry().unwrap();
        wait_until(SOON, "the counter of dropped packets", || {
            let telemetry = telemetry.clone();
            let read = async { tokio::task::spawn_blocking(move || telemetry.counters()).await };
            let counters = nodes[0].runtime.block_on(read)??;
            Ok((!counters.drops.is_empty()).then_some(counters))
        })?
    };
    assert!(counters.drops.iter().any(|(reason, count)| *reason == "no-route" && *count > 0), "{counters:?}");
    Ok(())
}

/// A new agent adopts the flows of several VRFs; another mode and back leads to the same flows.
#[test]
fn a_restart_changes_no_flow_and_the_mode_changes() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (blue, green) = (Routed::new("blue", 1)?, Routed::new("green", 2)?);
    let red = Routed::new("red", 3)?;
    let red = Routed { network: Network { vrf: Vrf::Tenant("other".parse()?), ..red.network }, n: 3 };
    let nodes = routing_pair("rtb", &[&red, &blue, &green])?;
    let (a, c) = (blue.pod(&nodes, 0, 1)?, green.pod(&nodes, 1, 3)?);
    a.reaches(c.addresses)?;
    let before = nodes[0].tables()?;
    nodes[0].restart_agent();
    assert_eq!(nodes[0].converge()?, []);
    assert_eq!((nodes[0].tables()?, nodes[0].writes()), (before.clone(), 0));
    a.reaches(c.addresses)?;

    let routed: Vec<Object> = nodes[0].desired.borrow().iter().map(|(_, object)| object.clone()).collect();
    let bridged = |object: &Object| match object.clone() {
        Object::Network(it) => Object::Network(Network { vrf: it.id.clone().into(), ..it }),
        Object::Subnet(it) => {
            let gateway = it.gateway.map(|gateway| Gateway { mac: None, ..gateway });
            Object::Subnet(Subnet { vrf: it.network.clone().into(), gateway, ..it })
        }
        Object::Local(it) => Object::Local(Local { vrf: it.network.clone().into(), ..it }),
        Object::Remote(it) => Object::Remote(Remote { vrf: it.network.clone().into(), ..it }),
        other => other,
    };
    nodes[0].add(routed.iter().map(bridged))?;
    let flows = nodes[0].tables()?;
    let has_vrf = |flows: &[String]| flows.iter().any(|flow| flow.contains("/0x7ffc0000"));
    assert!(has_vrf(&before["contivVxlanBridge"]) && !has_vrf(&flows["contivVxlanBridge"]), "{flows:#?}");
    ensure!(!a.replies(IpAddr::V4(c.addresses.0))?, "routed in forward mode bridge");
    nodes[0].add(routed)?;
    a.reaches(c.addresses)?;
    assert_eq!(nodes[0].converge()?, []);
    Ok(())
}

/// The trace of a routed packet ends in the tunnel with the VNI of the other network.
#[test]
fn routed_packets_are_traced() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (blue, green) = (Routed::new("blue", 1)?, Routed::new("green", 2)?);
    let nodes = routing_pair("rtc", &[&blue, &green])?;
    let (a, b) = (blue.pod(&nodes, 0, 1)?, green.pod(&nodes, 0, 2)?);
    let c = green.pod(&nodes, 1, 3)?;
    a.reaches(c.addresses)?;
    let Encap::Vxlan { vni, .. } = green.network.encap else { unreachable!() };
    let Object::Local(sender) = &a.object else { unreachable!() };
    let follow = |destination: Ipv4Addr| {
        let query = Query {
            ingress: trace::Ingress::Endpoint(sender.id.to_string()),
            source: None,
            destination: destination.into(),
            protocol: ICMP,
            source_port: 0,
            destination_port: 0,
            tcp_flags: TcpFlags::default(),
            dscp: 0,
            source_mac: None,
            destination_mac: None,
        };
        let probe = Probe::resolve(&nodes[0].desired.borrow(), &query)?;
        let trace = nodes[0].datapath.borrow().trace(probe);
        Ok::<_, anyhow::Error>(nodes[0].runtime.block_on(trace)?)
    };
    let findings = follow(c.addresses.0)?;
    let [output] = &findings.outputs[..] else { panic!("{findings:#?}") };
    assert_eq!(output.to, Egress::Tunnel { vtep: vtep(1), vni }, "{findings:#?}");
    let packet = output.packet.clone().unwrap();
    let Object::Local(target) = &c.object else { unreachable!() };
    assert_eq!((packet.source_mac, packet.destination_mac), (Mac::ROUTER, target.mac));
    let findings = follow(b.addresses.0)?;
    assert!(
        matches!(&findings.outputs[..], [one] if matches!(one.to, Egress::Endpoint { .. })),
        "{findings:#?}"
    );
    let findings = follow(blue.addresses(GATEWAY).0)?;
    assert!(matches!(&findings.outputs[..], [one] if one.to == Egress::Answer), "{findings:#?}");
    let findings = follow([10, 2, 0, 77].into())?;
    assert!(findings.outputs.is_empty(), "{findings:#?}");
    Ok(())
}
