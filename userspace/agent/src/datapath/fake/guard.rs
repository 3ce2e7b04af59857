//! Admission of frames: the specification of the checks at a node's ports.
//!
//! * A pod sends from its own Ethernet, IPv4 and IPv6 addresses; the link-local address is the one that a kernel derives
//!   from the Ethernet address.
//! * From a tunnel or the wire, an endpoint's address is accepted only from the location in its record.
//! * ARP and neighbour discovery (RFC 4861) must be valid and bounded, and must not claim an address of another endpoint.
//!   Router advertisements and redirects are dropped, because gateways are configured.
//! * A frame to the Ethernet address of one endpoint must not have an IP address of another.
//! * A pod may send to the router, and a peer's router may send packets of the endpoints there.
//! * The following are dropped: tagged frames, frames to link-local groups, datagrams to DHCP clients, packets of pods to
//!   a tunnel port, packets to groups or to all hosts of a subnet in frames for one endpoint, packets from 0.0.0.0 other
//!   than DHCP requests and IGMP, and packets from `::` other than neighbour discovery and reports of multicast
//!   listeners.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_abi::dhcp_client;
use contiv_model::{addresses::Addresses, mac::Mac, policy::UDP, tag::Encap, vrf::Vrf};
use ipnet::IpNet;

use super::{
    forward::{Origin, locals, peers, remotes, services_on},
    route::{Router, on_kernel},
};
use crate::datapath::{
    Desired, Local, Object, Subnet,
    wire::{
        frame::{ARP, ETHERNET, Ethernet, ICMPV6, IPV4, IPV6, ND_HOP_LIMIT, bytes},
        packet::Packet,
    },
};

/// IP protocol number of IGMP.
const IGMP: u8 = 2;
/// ICMPv6 types with which a host without an address reports its group memberships (RFC 2710, RFC 3810).
const LISTENER_REPORTS: [u8; 3] = [131, 132, 143];

/// How policies apply to a frame that passes the checks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Class {
    /// ARP and neighbour discovery: policies do not apply.
    Neighbour,
    /// Duplicate address detection of a pod for an address that is not its own: it may be answered, but is not forwarded.
    Probe,
    /// The packet is evaluated.
    Ip(Packet),
    /// Endpoints with any rule neither send nor receive the frame.
    Other,
}

/// Checks a frame without its tag on the network `encap` in `vrf`; `None` if it is dropped.
pub(super) fn check(
    objects: &Desired,
    (encap, vrf): (Encap, &Vrf),
    frame: &[u8],
    from: &Origin,
) -> Option<Class> {
    let ethernet = Ethernet::read(frame)?;
    if ethernet.is_tagged() || ethernet.source.is_multicast() || ethernet.is_link_local() {
        return None;
    }
    let sender = Sender { objects, encap, vrf, from, mac: ethernet.source };
    sender.is_source_allowed(frame, &ethernet).then_some(())?;
    match ethernet.kind {
        ARP => sender.is_arp_allowed(frame)?.then_some(Class::Neighbour),
        IPV4 | IPV6 => {
            if let Some(valid) = sender.discovery(frame, &ethernet) {
                let class = if sender.is_foreign_probe(frame) { Class::Probe } else { Class::Neighbour };
                return valid.then_some(class);
            }
            let packet = Packet::read(frame)?;
            sender.is_packet_allowed(&packet, frame, &ethernet).then_some(Class::Ip(packet))
        }
        _ => Some(Class::Other),
    }
}

/// The sender of a frame.
struct Sender<'a> {
    objects: &'a Desired,
    encap: Encap,
    vrf: &'a Vrf,
    from: &'a Origin,
    /// Source address of the frame.
    mac: Mac,
}

/// The record of an address.
struct Owner {
    mac: Mac,
    /// Network of an endpoint.
    encap: Option<Encap>,
    /// VTEP of the endpoint's node; `None` for endpoints on this node and on VLANs.
    vtep: Option<IpAddr>,
    is_local: bool,
    is_service: bool,
}

impl<'a> Sender<'a> {
    fn local(&self) -> Option<&'a Local> {
        match self.from {
            Origin::Pod(port) => locals(self.objects).find(|local| local.port == *port),
            Origin::Tunnel { .. } | Origin::Uplink | Origin::Kernel => None,
        }
    }

    /// Endpoints and services of the VRF.
    fn records(&self) -> impl Iterator<Item = (Owner, Vec<IpAddr>)> + use<'a> {
        let (encap, vrf) = (self.encap, self.vrf);
        let here = locals(self.objects).filter(move |local| local.vrf == *vrf).map(|local| {
            let encap = Some(local.encap);
            let owner = Owner { mac: local.mac, encap, vtep: None, is_local: true, is_service: false };
            (owner, addresses(local.mac, &local.addresses))
        });
        let there = remotes(self.objects).filter(move |remote| remote.vrf == *vrf).map(|remote| {
            let (encap, vtep) = (Some(remote.encap), remote.vtep());
            let owner = Owner { mac: remote.mac, encap, vtep, is_local: false, is_service: false };
            (owner, addresses(remote.mac, &remote.addresses))
        });
        let services = services_on(self.objects, encap).map(|service| {
            let mac = Mac::of_service(service.vip);
            let owner = Owner { mac, encap: None, vtep: None, is_local: false, is_service: true };
            (owner, vec![service.vip])
        });
        here.chain(there).chain(services)
    }

    fn owner(&self, ip: IpAddr) -> Option<Owner> {
        self.records().find(|(_, addresses)| addresses.contains(&ip)).map(|(owner, _)| owner)
    }

    fn endpoint(&self, mac: Mac) -> Option<Owner> {
        let mut owners = self.records().map(|(owner, _)| owner);
        owners.find(|owner| owner.mac == mac && owner.encap == Some(self.encap))
    }

    fn is_source_allowed(&self, frame: &[u8], ethernet: &Ethernet) -> bool {
        let ip = source_address(frame, ethernet);
        let to_reserved = bytes::<16>(frame, ETHERNET + 24)
            .is_some_and(|to| ethernet.kind == IPV6 && is_reserved(Ipv6Addr::from(to)));
        if let Some(local) = self.local() {
            let own = addresses(local.mac, &local.addresses);
            let unassigned = ip.is_some_and(|ip| ip.is_unspecified()) && ethernet.destination.is_multicast();
            let asks = unassigned && (ethernet.kind == IPV4 || is_icmpv6_or_options(frame));
            return local.mac == self.mac && !to_reserved && ip.is_none_or(|ip| own.contains(&ip) || asks);
        }
        let elsewhere = |owner: &Owner| match self.from {
            Origin::Tunnel { vtep, .. } => owner.is_local || owner.vtep != Some(*vtep),
            Origin::Pod(_) | Origin::Uplink | Origin::Kernel => owner.is_local,
        };
        if self.endpoint(self.mac).is_some_and(|owner| elsewhere(&owner)) {
            return false;
        }
        let asks = ethernet.destination.is_multicast();
        let reserved = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => {
                let [first, ..] = ip.octets();
                ip.is_loopback() || first >= 224 || first == 0 && !(asks && ip.is_unspecified())
            }
            IpAddr::V6(ip) => ip.is_multicast() || is_reserved(ip) || ip.is_unspecified() && !asks,
        };
        let discovery = self.discovery(frame, ethernet).is_some();
        if self.mac == Mac::ROUTER
            && let Some(ip) = ip
            && self.router().subnet(ip).is_some()
        {
            return !asks && !discovery && !to_reserved && self.is_routed_from(ip);
        }
        let of_other_vrf = |ip| {
            let subnet = on_kernel(self.objects, ip).filter(|_| *self.from == Origin::Kernel);
            subnet.is_some_and(|subnet| subnet.vrf != *self.vrf)
        };
        if ip.is_some_and(of_other_vrf) {
            return false;
        }
        ip.is_none_or(|ip| !reserved(ip) && !to_reserved && self.may_claim(ip, self.mac, discovery))
    }

    fn router(&self) -> Router<'a> {
        Router::new(self.objects, self.vrf)
    }

    /// Reports whether the router of a peer may send packets from an address of a routed subnet. It may unless the
    /// address is on this node or behind another VTEP. VLAN and VXLAN networks are not routed to each other.
    fn is_routed_from(&self, ip: IpAddr) -> bool {
        let is_vlan = matches!(self.encap, Encap::Vlan(_));
        if self.router().subnet(ip).is_some_and(|subnet| subnet.is_routed_vlan() != is_vlan) {
            return false;
        }
        let vtep = match self.from {
            Origin::Tunnel { vtep, .. } => Some(*vtep),
            Origin::Kernel => None,
            Origin::Pod(_) | Origin::Uplink => return false,
        };
        match self.owner(ip) {
            Some(owner) => !owner.is_local && !owner.is_service && owner.vtep == vtep,
            None => !self.is_broadcast(ip) && self.router().gateway(ip).is_none(),
        }
    }

    /// Reports whether a frame from outside may use the address. The address of a service may be announced, but must not
    /// be a source.
    fn may_claim(&self, ip: IpAddr, mac: Mac, announces: bool) -> bool {
        match (self.local(), self.owner(ip)) {
            (Some(local), _) => addresses(local.mac, &local.addresses).contains(&ip),
            (None, Some(owner)) => !owner.is_local && owner.mac == mac && (announces || !owner.is_service),
            (None, None) => !self.is_broadcast(ip) && self.router().gateway(ip).is_none(),
        }
    }

    /// Whether this is the broadcast address of the network.
    fn is_broadcast(&self, ip: IpAddr) -> bool {
        self.objects.iter().any(|(_, object)| match object {
            Object::Subnet(subnet) => {
                subnet.vrf == *self.vrf && ip.is_ipv4() && subnet.prefix.broadcast() == ip
            }
            _ => false,
        })
    }

    /// Reports whether a kernel treats the address as that of all hosts of a subnet. Kernels before Linux 5.14 do so with
    /// the first address, too.
    fn is_of_all(&self, ip: IpAddr) -> bool {
        self.objects.iter().any(|(_, object)| match object {
            Object::Subnet(Subnet { vrf, prefix: IpNet::V4(prefix), .. }) => {
                *vrf == *self.vrf
                    && prefix.prefix_len() < 31
                    && [prefix.network(), prefix.broadcast()].iter().any(|all| ip == *all)
            }
            _ => false,
        })
    }

    /// Reports whether ARP or neighbour discovery may contain this Ethernet address: on the wire, routers have virtual
    /// addresses.
    fn may_name(&self, mac: Mac) -> bool {
        let unknown = || !mac.is_multicast() && self.endpoint(mac).is_none();
        mac == self.mac || *self.from == Origin::Uplink && unknown()
    }

    fn is_arp_allowed(&self, frame: &[u8]) -> Option<bool> {
        const LONGEST: usize = 64;
        let form: [u8; 8] = bytes(frame, ETHERNET)?;
        let (mac, ip) = (Mac(bytes(frame, ETHERNET + 8)?), Ipv4Addr::from(bytes::<4>(frame, ETHERNET + 14)?));
        bytes::<10>(frame, ETHERNET + 18)?;
        let valid = matches!(form, [0, 1, 8, 0, 6, 4, 0, 1 | 2]) && frame.len() <= LONGEST;
        let claims = match self.local() {
            Some(local) => mac == local.mac && (ip.is_unspecified() || local.addresses.contains(ip.into())),
            None => self.may_name(mac) && self.may_claim(ip.into(), mac, true),
        };
        Some(valid && claims)
    }

    /// Reports whether the frame is valid neighbour discovery. Returns `None` for another packet, and if the kernel of a
    /// pod would ignore it.
    fn discovery(&self, frame: &[u8], ethernet: &Ethernet) -> Option<bool> {
        let next_and_hops = bytes::<2>(frame, ETHERNET + 6)?;
        if ethernet.kind != IPV6 || next_and_hops[1] != ND_HOP_LIMIT {
            return None;
        }
        let [kind, code] = match next_and_hops[0] {
            ICMPV6 => bytes::<2>(frame, ETHERNET + 40)?,
            // The kernel also accepts discovery after extension headers, and policies cannot check the addresses that it
            // claims.
            _ => return Packet::discovery_behind_headers(frame).then_some(false),
        };
        match kind {
            133 | 135 | 136 => Some(code == 0 && self.is_discovery_valid(frame, kind) == Some(true)),
            134 | 137 => Some(false),
            _ => None,
        }
    }

    fn is_discovery_valid(&self, frame: &[u8], kind: u8) -> Option<bool> {
        const L4: usize = ETHERNET + 40;
        let address = |at| bytes::<16>(frame, at).map(Ipv6Addr::from);
        let (from, to) = (address(ETHERNET + 8)?, address(ETHERNET + 24)?);
        let fixed = if kind == 133 { 8 } else { 24 };
        let payload = usize::from(u16::from_be_bytes(bytes(frame, ETHERNET + 4)?));
        let options = frame.get(L4 + fixed..)?;
        if frame.len() != L4 + payload || options.len() > 16 || options.len() % 8 != 0 {
            return Some(false);
        }
        let named = options.chunks(8).all(|option| match (kind, option) {
            (133 | 135, [1, 1, mac @ ..]) | (136, [2, 1, mac @ ..]) => {
                mac.try_into().is_ok_and(|mac| self.may_name(Mac(mac)))
            }
            (135, [14, 1, ..]) => true,
            _ => false,
        });
        let claims = |ip: Ipv6Addr| self.may_claim(ip.into(), self.mac, true);
        if kind == 133 {
            let all_routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
            return Some(named && to == all_routers && (from.is_unspecified() || claims(from)));
        }
        let target = address(L4 + 8)?;
        let unicast = !to.is_multicast() && !target.is_multicast();
        let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        let form = match kind {
            135 => to == solicited_node(target) || unicast && to == target && !from.is_unspecified(),
            _ => (unicast || to == all_nodes) && !from.is_unspecified(),
        };
        let claims = match kind {
            // Duplicate address detection, with at most a nonce option.
            135 if from.is_unspecified() => options.len() <= 8,
            135 => claims(from),
            _ => claims(target) && claims(from),
        };
        Some(named && form && claims && !is_reserved(from) && !is_reserved(target))
    }

    /// Reports whether valid discovery is a pod's duplicate address detection for an address that is not its own.
    fn is_foreign_probe(&self, frame: &[u8]) -> bool {
        let address = |at| bytes::<16>(frame, at).map(Ipv6Addr::from);
        let unspecified = address(ETHERNET + 8).is_some_and(|from| from.is_unspecified());
        let target = address(ETHERNET + 48).filter(|_| frame.get(ETHERNET + 40) == Some(&135));
        self.local().is_some()
            && unspecified
            && target.is_some_and(|target| !self.may_claim(target.into(), self.mac, true))
    }

    fn is_packet_allowed(&self, packet: &Packet, frame: &[u8], ethernet: &Ethernet) -> bool {
        let (source, destination) = (packet.tuple.source, packet.tuple.destination);
        let is_udp = packet.tuple.protocol == UDP;
        // Rules do not apply to such packets.
        let requests = is_udp && (source.1, destination.1) == (68, 67) && !is_fragment(frame);
        let reports = || packet.icmpv6_type(frame).is_some_and(|kind| LISTENER_REPORTS.contains(&kind));
        if source.0 == Ipv4Addr::UNSPECIFIED && packet.tuple.protocol != IGMP && !requests
            || source.0 == Ipv6Addr::UNSPECIFIED && !reports()
            || is_of_group(destination.0) && !ethernet.destination.is_multicast()
        {
            return false;
        }
        if is_udp && destination.1 == dhcp_client(destination.0.is_ipv6()) {
            return false;
        }
        let to_node =
            peers(self.objects).any(|peer| peer.vtep == destination.0 && peer.port == destination.1);
        if is_udp && to_node && self.local().is_some() {
            return false;
        }
        let ends = [source.0, destination.0];
        let is_routed = || self.local().is_some() && self.router().receives(ethernet.destination, ends);
        match self.owner(destination.0) {
            // The kernel of a pod also accepts a packet for its address from such a frame (RFC 1122 3.3.6).
            Some(_) if ethernet.destination.is_multicast() => false,
            Some(owner) if owner.is_service && *self.from == Origin::Uplink => true,
            // The kernel addresses its frames to the router.
            Some(_) if *self.from == Origin::Kernel => true,
            Some(owner) => owner.mac == ethernet.destination || is_routed(),
            None => ethernet.destination.is_multicast() || is_routed() || !self.is_of_all(destination.0),
        }
    }
}

/// Reports whether an IPv4 packet is a fragment.
fn is_fragment(frame: &[u8]) -> bool {
    bytes(frame, ETHERNET + 6).is_some_and(|field| u16::from_be_bytes(field) & 0x3fff != 0)
}

/// Addresses of several hosts, and reserved ones.
fn is_of_group(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.octets()[0] >= 224,
        IpAddr::V6(ip) => ip.is_multicast(),
    }
}

/// Addresses of an endpoint.
fn addresses(mac: Mac, assigned: &Addresses) -> Vec<IpAddr> {
    assigned.iter().chain([mac.link_local().into()]).collect()
}

fn source_address(frame: &[u8], ethernet: &Ethernet) -> Option<IpAddr> {
    match ethernet.kind {
        IPV4 => bytes::<4>(frame, ETHERNET + 12).map(|ip| Ipv4Addr::from(ip).into()),
        IPV6 => bytes::<16>(frame, ETHERNET + 8).map(|ip| Ipv6Addr::from(ip).into()),
        _ => None,
    }
}

/// Reports whether this may be a packet of a pod from the unspecified IPv6 address: duplicate address detection, or a
/// report of a multicast listener.
fn is_icmpv6_or_options(frame: &[u8]) -> bool {
    matches!(frame.get(ETHERNET + 6), Some(&ICMPV6 | 0))
}

/// Reports whether the address must not be on a link: loopback and IPv4-mapped addresses.
fn is_reserved(ip: Ipv6Addr) -> bool {
    ip.is_loopback() || ip.to_ipv4_mapped().is_some()
}

fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(a), u16::from_be_bytes([b, c]))
}
