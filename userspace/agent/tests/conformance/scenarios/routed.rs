//! Networks of tenants for which the nodes are the gateway, and packets that they route.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use contiv_model::{
    mac::Mac,
    name::{EndpointId, NetworkId},
    route::NextHop,
    tag::{Encap, Vlan, Vni},
    vrf::Vrf,
};
use netplugin::datapath::{
    Backend, Gateway, Local, Network, Object, Peer, Remote, Scope, Service, Subnet,
    fake::{Delivery, Origin, Target},
};
use testkit::packet::{Packet, nd_flags};

use crate::{
    harness::Harness,
    topology::{VTEPS, VXLAN_PORT, pod, to_pod},
    world::World,
};

pub(super) const ROUTER: [u8; 6] = Mac::ROUTER.0;
pub(super) const GATEWAY: u8 = 254;
/// TTL with which the packets of `Packet` begin.
pub(super) const TTL: u8 = 64;

/// A network with the subnets 10.`n`.0.0/24 and 2001:db8:`n`::/64.
#[derive(Clone)]
pub(super) struct Routed {
    pub(super) n: u8,
    pub(super) network: Network,
}

/// The address of an endpoint or gateway of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End(pub(super) u8, pub(super) u8);

impl End {
    pub(super) fn ip(self) -> Ipv4Addr {
        [10, self.0, 0, self.1].into()
    }

    pub(super) fn ip6(self) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, self.0.into(), 0, 0, 0, 0, self.1.into())
    }

    pub(super) fn mac(self) -> [u8; 6] {
        Mac::of_endpoint(self.ip()).0
    }
}

impl Routed {
    /// The network with the VNI 10000 + `tag` of a tenant, and the subnets `n`.
    pub(super) fn new(tenant: &str, tag: u16, n: u8) -> Result<Routed> {
        let (vni, local) = (Vni::try_from(10_000 + u32::from(tag))?, Vlan::try_from(tag)?);
        let id: NetworkId = format!("net{n}.{tenant}").as_str().into();
        let vrf = Vrf::Tenant(tenant.parse()?);
        Ok(Routed { n, network: Network { vrf, ..Network::new(id, Encap::Vxlan { vni, local }) } })
    }

    /// The VLAN network with the tag 100 + `tag`.
    pub(super) fn vlan(tenant: &str, tag: u16, n: u8) -> Result<Routed> {
        let Routed { network, .. } = Routed::new(tenant, tag, n)?;
        Ok(Routed { n, network: Network { encap: Encap::Vlan(Vlan::try_from(100 + tag)?), ..network } })
    }

    pub(super) fn subnets(&self) -> Result<[Object; 2]> {
        let end = End(self.n, GATEWAY);
        let subnet = |prefix: String, ip: IpAddr| -> Result<Object> {
            let Network { id: network, vrf, encap, .. } = self.network.clone();
            let gateway = Some(Gateway { ip, mac: Some(Mac::ROUTER) });
            Ok(Object::Subnet(Subnet { network, vrf, encap, prefix: prefix.parse()?, gateway }))
        };
        let n = self.n;
        Ok([
            subnet(format!("10.{n}.0.0/24"), end.ip().into())?,
            subnet(format!("2001:db8:{n:x}::/64"), end.ip6().into())?,
        ])
    }

    pub(super) fn objects(&self) -> Result<impl Iterator<Item = Object> + use<>> {
        Ok([Object::Network(self.network.clone())].into_iter().chain(self.subnets()?))
    }

    pub(super) fn local(&self, port: &str, last: u8) -> Object {
        let (end, id) = (End(self.n, last), EndpointId::new(&self.network.id, port));
        Object::Local(Local::new(id, &self.network, port, Mac(end.mac()), (end.ip(), Some(end.ip6()))))
    }

    pub(super) fn remote(&self, node: usize, last: u8) -> Object {
        let (end, id) = (End(self.n, last), EndpointId::new(&self.network.id, &format!("far{last}")));
        let next_hop = match self.network.encap {
            Encap::Vxlan { vni, .. } => NextHop::Vtep { address: VTEPS[node].into(), vni },
            Encap::Vlan(vlan) => NextHop::Uplink { vlan, link: None },
        };
        let addresses = (end.ip(), Some(end.ip6()));
        Object::Remote(Remote::new(id, &self.network, next_hop, Mac(end.mac()), addresses))
    }

    pub(super) fn vni(&self) -> Vni {
        match self.network.encap {
            Encap::Vxlan { vni, .. } => vni,
            Encap::Vlan(_) => unreachable!("the packets of VLAN networks leave by the kernel"),
        }
    }

    pub(super) fn outside(&self, node: usize) -> Origin {
        Origin::Tunnel { vtep: VTEPS[node].into(), vni: self.vni() }
    }

    pub(super) fn to_node(&self, node: usize, packet: &Packet, dscp: u8) -> Delivery {
        let to = Target::Tunnel { vtep: VTEPS[node].into(), port: VXLAN_PORT, vni: self.vni(), dscp };
        Delivery { to, frame: packet.build() }
    }
}

/// Networks 1 and 2 of one tenant, with two local pods and a remote one each.
pub(super) struct Pair {
    pub(super) one: Routed,
    pub(super) two: Routed,
}

pub(super) const A: End = End(1, 1);
pub(super) const A2: End = End(1, 2);
pub(super) const B: End = End(2, 1);
pub(super) const FAR_A: End = End(1, 11);
pub(super) const FAR_B: End = End(2, 11);

impl Pair {
    pub(super) fn new() -> Result<Pair> {
        Ok(Pair { one: Routed::new("t", 1, 1)?, two: Routed::new("t", 2, 2)? })
    }

    /// As [`Pair::new`], on VLANs.
    pub(super) fn vlans() -> Result<Pair> {
        Ok(Pair { one: Routed::vlan("t", 1, 1)?, two: Routed::vlan("t", 2, 2)? })
    }

    pub(super) fn objects(&self) -> Result<Vec<Object>> {
        let endpoints = [
            self.one.local("pa", A.1),
            self.one.local("pa2", A2.1),
            self.two.local("pb", B.1),
            self.one.remote(0, FAR_A.1),
            self.two.remote(0, FAR_B.1),
        ];
        Ok(self.one.objects()?.chain(self.two.objects()?).chain(endpoints).chain(self.peers()).collect())
    }

    /// The objects in forward mode `bridge`: each network is a VRF of its own, and its gateway a router on it.
    pub(super) fn bridged(&self) -> Result<Vec<Object>> {
        let own = |network: &NetworkId| Vrf::from(network.clone());
        let bridged = |object| match object {
            Object::Network(it) => Object::Network(Network { vrf: own(&it.id), ..it }),
            Object::Subnet(it) => {
                let gateway = it.gateway.map(|gateway| Gateway { mac: None, ..gateway });
                Object::Subnet(Subnet { vrf: own(&it.network), gateway, ..it })
            }
            Object::Local(it) => Object::Local(Local { vrf: own(&it.network), ..it }),
            Object::Remote(it) => Object::Remote(Remote { vrf: own(&it.network), ..it }),
            other => other,
        };
        Ok(self.objects()?.into_iter().map(bridged).collect())
    }

    /// A service of the tenant, UDP port 53, with this backend.
    pub(super) fn service(&self, vip: End, backend: End) -> Result<Object> {
        self.service_at(vip.ip().into(), backend.0, backend.ip().into())
    }

    /// As [`Pair::service`], of IPv6.
    pub(super) fn service6(&self, vip: End, backend: End) -> Result<Object> {
        self.service_at(vip.ip6().into(), backend.0, backend.ip6().into())
    }

    fn service_at(&self, vip: IpAddr, network: u8, backend: IpAddr) -> Result<Object> {
        let net = if network == 1 { &self.one } else { &self.two };
        Ok(Object::Service(Service {
            ports: vec!["53:5353:UDP".parse()?],
            backends: vec![Backend::on(net.network.encap, backend)],
            ..Service::new("dns:t", Scope::vrf(self.one.network.vrf.clone()), vip)
        }))
    }

    /// The pods of the node reach each other over networks, and within a network by way of the gateway.
    pub(super) fn local_pods_talk<H: Harness>(&self) -> Result<()> {
        let mut world = self.world::<H>()?;
        for ((from, to), (port, other)) in
            [((A, B), ("pa", "pb")), ((B, A), ("pb", "pa")), ((A, A2), ("pa", "pa2"))]
        {
            for _ in 0..2 {
                for (there, arrives) in sent(from, to).iter().zip(&routed(from, to)) {
                    world.sends(&pod(port), there, [to_pod(other, arrives)])?;
                }
                for (back, arrives) in answers(to, from).iter().zip(&answers_routed(to, from)) {
                    world.sends(&pod(other), back, [to_pod(port, arrives)])?;
                }
            }
        }
        // Within a network nothing has changed.
        for packet in datagrams((A2.mac(), A.mac()), (A, 4000), (A2, 5001), 1) {
            world.sends(&pod("pa"), &packet, [to_pod("pa2", &packet)])?;
        }
        Ok(())
    }

    pub(super) fn peers(&self) -> [Object; 2] {
        let networks = [&self.one.network, &self.two.network];
        VTEPS.map(|vtep| Object::Peer(Peer::new(vtep, VXLAN_PORT).with_networks(networks)))
    }

    pub(super) fn world<H: Harness>(&self) -> Result<World<H>> {
        World::new(self.objects()?)
    }
}

/// Datagrams between two ends, of both families, with these Ethernet addresses (destination, source) and TTL.
pub(super) fn datagrams(macs: ([u8; 6], [u8; 6]), from: (End, u16), to: (End, u16), ttl: u8) -> [Packet; 2] {
    let eth = || Packet::eth(macs.0, macs.1);
    [eth().ipv4(from.0.ip(), to.0.ip()), eth().ipv6(from.0.ip6(), to.0.ip6())]
        .map(|packet| packet.ttl(ttl).udp(from.1, to.1).payload(b"routing"))
}

/// As a pod sends them to its gateway.
pub(super) fn sent(from: End, to: End) -> [Packet; 2] {
    datagrams((ROUTER, from.mac()), (from, 4000), (to, 5000), TTL)
}

/// As they arrive from the gateway.
pub(super) fn routed(from: End, to: End) -> [Packet; 2] {
    datagrams((to.mac(), ROUTER), (from, 4000), (to, 5000), TTL - 1)
}

pub(super) fn answers(from: End, to: End) -> [Packet; 2] {
    datagrams((ROUTER, from.mac()), (from, 5000), (to, 4000), TTL)
}

pub(super) fn answers_routed(from: End, to: End) -> [Packet; 2] {
    datagrams((to.mac(), ROUTER), (from, 5000), (to, 4000), TTL - 1)
}

pub(super) fn solicitation(from: End, target: Ipv6Addr) -> Packet {
    Packet::neighbour_solicitation(from.mac(), from.ip6(), target)
}

pub(super) fn advertisement(to: End, target: Ipv6Addr) -> Packet {
    let flags = nd_flags::SOLICITED | nd_flags::OVERRIDE;
    Packet::neighbour_advertisement((to.mac(), to.ip6()), (ROUTER, target), ROUTER, flags)
}

pub(super) fn ping(from: End, to: End, ttl: u8) -> [Packet; 2] {
    let eth = || Packet::eth(ROUTER, from.mac());
    [
        eth().ipv4(from.ip(), to.ip()).ttl(ttl).icmp_echo_request(7, 1).payload(b"ping"),
        eth().ipv6(from.ip6(), to.ip6()).ttl(ttl).icmpv6_echo_request(7, 1).payload(b"ping"),
    ]
}

pub(super) fn pong(from: End, to: End) -> [Packet; 2] {
    let eth = || Packet::eth(to.mac(), ROUTER);
    [
        eth().ipv4(from.ip(), to.ip()).ttl(64).icmp_echo_reply(7, 1).payload(b"ping"),
        eth().ipv6(from.ip6(), to.ip6()).ttl(64).icmpv6_echo_reply(7, 1).payload(b"ping"),
    ]
}

/// Address of a service.
pub(super) const VIP: End = End(5, 200);
