//! Traces: a packet to trace through the datapath, and the findings.

mod frame;

use std::net::{IpAddr, Ipv4Addr};

use contiv_model::{
    mac::Mac,
    name::{EndpointId, NetworkId, ServiceId},
    policy::{ICMP, ICMPV6},
    tag::{Encap, Vlan, Vni},
    trace::{self, Egress, Header, Output, Query, Step},
};

use super::object::{Desired, Local, Network, Object, ObjectId, Remote, Service};

/// Where a packet enters the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingress {
    /// An endpoint of the node, and its port.
    Pod {
        /// Endpoint.
        endpoint: EndpointId,
        /// Interface of the node.
        port: String,
    },
    /// A tunnel from another node.
    Tunnel {
        /// VTEP of the other node.
        vtep: IpAddr,
        /// VNI of the network.
        vni: Vni,
    },
    /// The VLAN uplinks.
    Uplink(Vlan),
}

/// A packet to trace on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Ingress of the packet.
    pub ingress: Ingress,
    /// Network of the packet.
    pub network: NetworkId,
    /// Tag of the network.
    pub encap: Encap,
    /// Headers of the packet, without a tag.
    pub header: Header,
    /// Service with the destination address, if the packet is from a pod.
    pub service: Option<ServiceId>,
}

/// Result of a trace: what the datapath did with a [`Probe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Findings {
    /// Method of the trace.
    pub method: &'static str,
    /// Stages up to the one that dropped the packet.
    pub steps: Vec<Step>,
    /// Copies that leave the node.
    pub outputs: Vec<Output>,
    /// Number of further copies that leave the node.
    pub omitted_copies: u32,
}

/// The packet cannot be traced on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// The endpoint is not on this node.
    #[error(
        "trace: endpoint {0} is not on this node; use the id of an endpoint of the node, <network>.<tenant>-<endpoint>"
    )]
    Endpoint(String),
    /// No network has the tag.
    #[error("trace: {0} is not the tag of a network with endpoints on this node")]
    Tag(String),
    /// The query has no source.
    #[error(
        "trace: source is missing; it is required unless an endpoint with an {0} address sends the packet"
    )]
    Source(&'static str),
    /// Source and destination are of different families.
    #[error("trace: source {source_ip} and destination {destination} are of different families")]
    Families {
        /// Source.
        source_ip: IpAddr,
        /// Destination.
        destination: IpAddr,
    },
    /// The protocol is ICMP for IPv6, or ICMPv6 for IPv4.
    #[error("trace: protocol {protocol} does not go with destination {destination}; use {accepted}")]
    Icmp {
        /// Protocol of the query.
        protocol: u8,
        /// Destination.
        destination: IpAddr,
        /// Protocol of the family.
        accepted: u8,
    },
}

/// Ethernet address of a router that the cluster does not know.
const UNKNOWN_ROUTER: Mac = Mac([0x02, 0, 0, 0, 0, 0xfe]);

impl Probe {
    /// Resolves the names in a query to objects of the node, and completes it.
    pub fn resolve(objects: &Desired, query: &Query) -> Result<Probe, Unresolved> {
        let (ingress, sender, encap) = enter(objects, &query.ingress)?;
        let segment = Segment { objects, encap };
        let network = segment.network().ok_or_else(|| Unresolved::Tag(encap.to_string()))?;
        let v4 = query.destination.is_ipv4();
        let own = sender.and_then(|local| local.addresses.iter().find(|address| address.is_ipv4() == v4));
        let family = if v4 { "IPv4" } else { "IPv6" };
        let source = query.source.or(own).ok_or(Unresolved::Source(family))?;
        if source.is_ipv4() != v4 {
            return Err(Unresolved::Families { source_ip: source, destination: query.destination });
        }
        let (other, accepted) = if v4 { (ICMPV6, ICMP) } else { (ICMP, ICMPV6) };
        if query.protocol == other {
            let (protocol, destination) = (query.protocol, query.destination);
            return Err(Unresolved::Icmp { protocol, destination, accepted });
        }
        let service = segment.service(query.destination).filter(|_| sender.is_some());
        let source_mac = query.source_mac.or(sender.map(|local| local.mac));
        let header = Header {
            source_mac: source_mac.unwrap_or_else(|| segment.mac(source)),
            destination_mac: query.destination_mac.unwrap_or_else(|| segment.mac(query.destination)),
            source,
            destination: query.destination,
            protocol: query.protocol,
            source_port: query.source_port,
            destination_port: query.destination_port,
            tcp_flags: query.tcp_flags,
            dscp: query.dscp & 0x3f,
        };
        let service = service.map(|service| service.id.clone());
        Ok(Probe { ingress, network: network.id.clone(), encap, header, service })
    }

    /// The frame, without a tag. The checksums are valid.
    pub fn frame(&self) -> Vec<u8> {
        frame::build(&self.header)
    }
}

/// Reads the headers of a frame without a tag; `None` if it is not IP, or has IP options or extension headers.
pub fn read_header(frame: &[u8]) -> Option<Header> {
    frame::read(frame)
}

/// Returns the egress of a frame that a datapath sends to this interface.
pub fn to_port(objects: &Desired, port: &str) -> Egress {
    let local = locals(objects).find(|local| local.port == port);
    match local {
        Some(local) => Egress::Endpoint { endpoint: local.id.to_string(), port: port.to_owned() },
        None => Egress::Interface(port.to_owned()),
    }
}

impl Ingress {
    /// Returns the ingress as it is reported.
    pub fn name(&self) -> trace::Ingress {
        match self {
            Ingress::Pod { endpoint, .. } => trace::Ingress::Endpoint(endpoint.to_string()),
            Ingress::Tunnel { vtep, vni } => trace::Ingress::Tunnel { vtep: *vtep, vni: *vni },
            Ingress::Uplink(vlan) => trace::Ingress::Uplink { vlan: *vlan },
        }
    }
}

/// Resolves the ingress, the sender if it is a pod of the node, and the network's tag.
fn enter<'a>(
    objects: &'a Desired,
    ingress: &trace::Ingress,
) -> Result<(Ingress, Option<&'a Local>, Encap), Unresolved> {
    match ingress {
        trace::Ingress::Endpoint(id) => match objects.get(&ObjectId::Local(id.as_str().into())) {
            Some(Object::Local(local)) => {
                let port = Ingress::Pod { endpoint: local.id.clone(), port: local.port.clone() };
                Ok((port, Some(local), local.encap))
            }
            _ => Err(Unresolved::Endpoint(id.clone())),
        },
        trace::Ingress::Tunnel { vtep, vni } => {
            let is_it = |encap: Encap| matches!(encap, Encap::Vxlan { vni: known, .. } if known == *vni);
            let network = networks(objects).find(|network| is_it(network.encap));
            let network = network.ok_or_else(|| Unresolved::Tag(format!("vni {vni}")))?;
            Ok((Ingress::Tunnel { vtep: *vtep, vni: *vni }, None, network.encap))
        }
        trace::Ingress::Uplink { vlan } => Ok((Ingress::Uplink(*vlan), None, Encap::Vlan(*vlan))),
    }
}

/// Objects of one network.
struct Segment<'a> {
    objects: &'a Desired,
    encap: Encap,
}

impl<'a> Segment<'a> {
    fn network(&self) -> Option<&'a Network> {
        networks(self.objects).find(|network| network.encap == self.encap)
    }

    /// Returns the Ethernet address that ARP or ND resolves, or that of the gateway.
    fn mac(&self, address: IpAddr) -> Mac {
        let encap = self.encap;
        if let Some(mac) = self.group_mac(address) {
            return mac;
        }
        let mut here = locals(self.objects).filter(|local| local.encap == encap);
        let mut there = remotes(self.objects).filter(|remote| remote.encap == encap);
        let here = here.find(|local| local.addresses.contains(address)).map(|local| local.mac);
        let there = || there.find(|remote| remote.addresses.contains(address)).map(|remote| remote.mac);
        let service = || Some(Mac::of_service(self.service(address)?.vip));
        here.or_else(there).or_else(service).or_else(|| self.gateway(address)).unwrap_or(UNKNOWN_ROUTER)
    }

    /// Ethernet address of a multicast or broadcast address.
    fn group_mac(&self, address: IpAddr) -> Option<Mac> {
        let is_broadcast = |ip: Ipv4Addr| {
            let mut subnets = self.objects.iter().filter_map(|(_, object)| match object {
                Object::Subnet(subnet) if subnet.encap == self.encap => Some(subnet),
                _ => None,
            });
            ip.is_broadcast() || subnets.any(|subnet| subnet.prefix.broadcast() == IpAddr::V4(ip))
        };
        match address {
            IpAddr::V4(ip) if is_broadcast(ip) => Some(Mac([0xff; 6])),
            IpAddr::V4(ip) if ip.is_multicast() => {
                let [_, b, c, d] = ip.octets();
                Some(Mac([0x01, 0, 0x5e, b & 0x7f, c, d]))
            }
            IpAddr::V6(ip) if ip.is_multicast() => {
                let [.., a, b, c, d] = ip.octets();
                Some(Mac([0x33, 0x33, a, b, c, d]))
            }
            _ => None,
        }
    }

    /// Ethernet address of the gateway if the nodes are the gateway.
    fn gateway(&self, address: IpAddr) -> Option<Mac> {
        self.objects.iter().find_map(|(_, object)| match object {
            Object::Subnet(subnet)
                if subnet.encap == self.encap && subnet.prefix.addr().is_ipv4() == address.is_ipv4() =>
            {
                subnet.gateway?.mac
            }
            _ => None,
        })
    }

    /// The service with the address.
    fn service(&self, address: IpAddr) -> Option<&'a Service> {
        let vrf = self.network().map(|network| &network.vrf);
        self.objects.iter().find_map(|(_, object)| match object {
            Object::Service(service) if service.vip == address => {
                (vrf == Some(&service.scope.vrf)).then_some(service)
            }
            _ => None,
        })
    }
}

fn networks(objects: &Desired) -> impl Iterator<Item = &Network> {
    objects.iter().filter_map(|(_, object)| match object {
        Object::Network(network) => Some(network),
        _ => None,
    })
}

fn locals(objects: &Desired) -> impl Iterator<Item = &Local> {
    objects.iter().filter_map(|(_, object)| match object {
        Object::Local(local) => Some(local),
        _ => None,
    })
}

fn remotes(objects: &Desired) -> impl Iterator<Item = &Remote> {
    objects.iter().filter_map(|(_, object)| match object {
        Object::Remote(remote) => Some(remote),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
