//! Objects of the scenarios. All networks have the same addresses, on purpose.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use contiv_model::{
    global::ArpMode,
    mac::Mac,
    name::{EndpointId, NetworkId},
    route::NextHop,
    tag::{Encap, Vlan, Vni},
};
use netplugin::datapath::{
    Gateway, Local, Network, Object, ObjectId, Peer, Remote, Subnet,
    fake::{Delivery, Origin, Target},
};
use testkit::packet::Packet;

/// VTEP of the node under test.
pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(192, 168, 50, 1);
/// VTEPs of other nodes.
pub(crate) const VTEPS: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 168, 50, 2), Ipv4Addr::new(192, 168, 50, 3)];
/// Address on the same wire that is not a VTEP of a node.
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::new(192, 168, 50, 9);
pub(crate) const VXLAN_PORT: u16 = 4789;

#[derive(Clone, Debug)]
pub(crate) struct Net {
    id: NetworkId,
    pub(crate) encap: Encap,
}

impl Net {
    /// VNI 10000 + `number`.
    pub(crate) fn vxlan(number: u16) -> Result<Net> {
        let (vni, local) = (Vni::try_from(10_000 + u32::from(number))?, Vlan::try_from(number)?);
        Ok(Net { id: format!("vxlan{number}.t").into(), encap: Encap::Vxlan { vni, local } })
    }

    pub(crate) fn vlan(tag: u16) -> Result<Net> {
        Ok(Net { id: format!("vlan{tag}.t").into(), encap: Encap::Vlan(tag.try_into()?) })
    }

    /// Returns a VXLAN and a VLAN network.
    pub(crate) fn kinds() -> Result<[Net; 2]> {
        Ok([Net::vxlan(1)?, Net::vlan(100)?])
    }

    pub(crate) fn network(&self) -> Object {
        self.network_with(ArpMode::Proxy)
    }

    pub(crate) fn network_with(&self, arp: ArpMode) -> Object {
        Object::Network(Network { arp, ..self.plain() })
    }

    /// The network with ARP proxy.
    pub(crate) fn plain(&self) -> Network {
        Network::new(self.id.clone(), self.encap)
    }

    /// The subnets of the network, with 10.7.0.254 and 2001:db8:7::fe as gateways.
    pub(crate) fn subnets(&self) -> Result<[Object; 2]> {
        let Network { id: network, vrf, encap, .. } = self.plain();
        let subnet = |prefix: &str, gateway: IpAddr| -> Result<Object> {
            let gateway = Some(Gateway { ip: gateway, mac: None });
            let (network, vrf) = (network.clone(), vrf.clone());
            Ok(Object::Subnet(Subnet { network, vrf, encap, prefix: prefix.parse()?, gateway }))
        };
        Ok([subnet("10.7.0.0/24", ip(254).into())?, subnet("2001:db8:7::/64", ip6(254).into())?])
    }

    pub(crate) fn local(&self, port: &str, last: u8) -> Object {
        let id = EndpointId::new(&self.id, port);
        let addresses = (ip(last), Some(ip6(last)));
        Object::Local(Local::new(id, &self.plain(), port, Mac(mac(last)), addresses))
    }

    /// Remote endpoint on the node `VTEPS[node]`; behind the uplink on a VLAN network.
    pub(crate) fn remote(&self, node: usize, last: u8) -> Object {
        let vtep = IpAddr::V4(VTEPS[node]);
        let next_hop = match self.encap {
            Encap::Vxlan { vni, .. } => NextHop::Vtep { address: vtep, vni },
            Encap::Vlan(vlan) => NextHop::Uplink { vlan, link: None },
        };
        let id = EndpointId::new(&self.id, &format!("far{last}"));
        let addresses = (ip(last), Some(ip6(last)));
        Object::Remote(Remote::new(id, &self.plain(), next_hop, Mac(mac(last)), addresses))
    }

    pub(crate) fn remote_id(&self, last: u8) -> ObjectId {
        ObjectId::Remote(EndpointId::new(&self.id, &format!("far{last}")))
    }

    pub(crate) fn local_id(&self, port: &str) -> ObjectId {
        ObjectId::Local(EndpointId::new(&self.id, port))
    }

    pub(crate) fn network_id(&self) -> ObjectId {
        ObjectId::Network(self.id.clone())
    }

    /// Origin of frames from the node `VTEPS[node]`, or from the uplink.
    pub(crate) fn outside(&self, node: usize) -> Origin {
        match self.encap {
            Encap::Vxlan { vni, .. } => Origin::Tunnel { vtep: VTEPS[node].into(), vni },
            Encap::Vlan(_) => Origin::Uplink,
        }
    }

    /// Frame as the outside sends it: tagged on a VLAN, untagged in a tunnel.
    pub(crate) fn on_wire(&self, frame: &[u8]) -> Vec<u8> {
        match self.encap {
            Encap::Vxlan { .. } => frame.to_vec(),
            Encap::Vlan(vlan) => tagged(frame, vlan.get()),
        }
    }

    /// Delivery to the node `VTEPS[node]`, or tagged to the uplink.
    pub(crate) fn to_node(&self, node: usize, packet: &Packet) -> Delivery {
        self.to_node_with(node, packet, 0)
    }

    pub(crate) fn to_node_with(&self, node: usize, packet: &Packet, dscp: u8) -> Delivery {
        let to = match self.encap {
            Encap::Vxlan { vni, .. } => {
                Target::Tunnel { vtep: VTEPS[node].into(), port: VXLAN_PORT, vni, dscp }
            }
            Encap::Vlan(_) => Target::Uplink,
        };
        Delivery { to, frame: self.on_wire(&packet.build()) }
    }

    /// Deliveries of a flooded frame to other nodes: one for each, or one to the uplink.
    pub(crate) fn to_other_nodes(&self, packet: &Packet) -> Vec<Delivery> {
        let count = if matches!(self.encap, Encap::Vxlan { .. }) { VTEPS.len() } else { 1 };
        (0..count).map(|node| self.to_node(node, packet)).collect()
    }
}

/// Peers for the other nodes, with the networks that the scenarios use.
pub(crate) fn peers() -> [Object; 2] {
    let networks: Vec<Network> =
        (1..=9).filter_map(|number| Some(Net::vxlan(number).ok()?.plain())).collect();
    VTEPS.map(|vtep| Object::Peer(Peer::new(vtep, VXLAN_PORT).with_networks(&networks)))
}

pub(crate) fn peer_id(node: usize) -> ObjectId {
    ObjectId::Peer(VTEPS[node].into())
}

pub(crate) fn pod(port: &str) -> Origin {
    Origin::Pod(port.to_owned())
}

pub(crate) fn to_pod(port: &str, packet: &Packet) -> Delivery {
    Delivery { to: Target::Pod(port.to_owned()), frame: packet.build() }
}

pub(crate) fn ip(last: u8) -> Ipv4Addr {
    [10, 7, 0, last].into()
}

pub(crate) fn ip6(last: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, last.into())
}

pub(crate) fn mac(last: u8) -> [u8; 6] {
    Mac::of_endpoint(ip(last)).0
}

/// Datagram from one endpoint to another, identified by its text.
pub(crate) fn udp(from: u8, to: u8, text: &str) -> Packet {
    Packet::eth(mac(to), mac(from)).ipv4(ip(from), ip(to)).udp(4000, 5000).payload(text.as_bytes())
}

pub(crate) fn udp6(from: u8, to: u8, text: &str) -> Packet {
    Packet::eth(mac(to), mac(from)).ipv6(ip6(from), ip6(to)).udp(4000, 5000).payload(text.as_bytes())
}

pub(crate) fn tagged(frame: &[u8], tag: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &tag.to_be_bytes(), &frame[12..]].concat()
}
