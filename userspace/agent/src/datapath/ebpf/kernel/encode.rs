//! Encodes objects as kernel entries. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_abi::{
    Address, Backend, Be16, Domain, FdbEntry, FdbKey, NeighEntry, NeighKey, Port, RouteEntry, Segment,
    SegmentEntry, ServiceKey, Vip, VipKey, Vtep,
    policy::{self, GROUP_NUMBERS},
    service_mac,
};
use contiv_model::{
    addresses::Addresses,
    global::ArpMode,
    name::RuleId,
    policy::Identity,
    service::{Port as ServicePort, Readiness},
    tag::Encap,
    vrf::Vrf,
};

use ipnet::{IpNet, Ipv4Net};

use super::entry::Entry;
use crate::datapath::{
    self, Group, Local, Network, Object, Owner, Peer, Remote, RouteId, Scope, Service, Subnet, Unsupported,
    ebpf::{
        forward::prefixes::DomainPrefix,
        policy::{DesiredGroup, OverlappingPorts, check_ports},
        programs::interfaces::Devices,
        service::ports::Target,
    },
    host_access::{HOST_PORT, NO_HOST, endpoint_number, kernel_address},
};

/// An object that this datapath does not support.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error("the node uses VXLAN port {theirs}, this node {ours}; configure the same port on all nodes")]
    OtherPort { theirs: u16, ours: u16 },
    #[error("no interface {0}")]
    NoInterface(String),
    #[error("rule {rule}: group {identity} exceeds the maximum group number ({GROUP_NUMBERS})")]
    PeerIdentity { rule: RuleId, identity: Identity },
    #[error("the group number must be below {GROUP_NUMBERS}")]
    Identity,
    #[error(transparent)]
    Ports(#[from] OverlappingPorts),
    #[error("the routing domain of the {0} has no number; the network must be set first")]
    NoDomain(Vrf),
    #[error(
        "the service has no network, and no network that is routed in the {0} is on this node; give the service a network"
    )]
    WholeVrf(Vrf),
    #[error("the backend {0} is not on the network of the service")]
    BackendElsewhere(IpAddr),
    #[error("the backend {0} is on no network of the {1}")]
    BackendOutside(IpAddr, Vrf),
    #[error("the backend {0} and the service have different address families")]
    OtherFamily(IpAddr),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// Encodes an object. The entries are in the order in which they must be written: an entry precedes those that refer to it.
/// `domain` returns the domain of a network in a VRF, or, without a network, that of the whole VRF. `ifindex` returns the index of
/// an interface.
pub(crate) fn encode(
    object: &Object,
    devices: &Devices,
    domain: impl Fn(&Vrf, Option<Segment>) -> Option<Domain>,
    ifindex: impl FnOnce(&str) -> Option<u32>,
) -> Result<Vec<Entry>, EncodeError> {
    let of_network = |vrf: &Vrf, encap| {
        domain(vrf, Some(segment_of(encap))).ok_or_else(|| EncodeError::NoDomain(vrf.clone()))
    };
    match object {
        Object::Peer(peer) => encode_peer(peer, devices),
        Object::Network(network) => {
            Ok(encode_network(network, of_network(&network.vrf, network.encap)?, devices))
        }
        Object::Subnet(subnet) if subnet.is_routed() && !subnet.has_node_router() => {
            Err(Unsupported::ROUTER.into())
        }
        Object::Subnet(subnet) => Ok(encode_subnet(subnet, of_network(&subnet.vrf, subnet.encap)?)),
        Object::Route(route) => {
            let RouteId { vrf, prefix } = &route.id;
            let private = route.private_subnet().filter(|_| prefix.addr().is_ipv4());
            let private = private.ok_or(Unsupported::Object)?;
            let domain = domain(vrf, None).ok_or_else(|| EncodeError::NoDomain(vrf.clone()))?;
            encode_host_route(*prefix, private, domain, devices)
        }
        // Groups have no entries: see [`group`].
        Object::Group(_) => Err(Unsupported::Object.into()),
        Object::Service(service) => {
            let Scope { vrf, network } = &service.scope;
            let domain = match network {
                Some(network) => of_network(vrf, network.encap)?,
                None => domain(vrf, None).ok_or_else(|| EncodeError::WholeVrf(vrf.clone()))?,
            };
            encode_service(service, domain)
        }
        Object::Remote(remote) => encode_remote(remote, of_network(&remote.vrf, remote.encap)?),
        Object::Local(local) => {
            let index = ifindex(&local.port).ok_or_else(|| EncodeError::NoInterface(local.port.clone()))?;
            encode_local(local, of_network(&local.vrf, local.encap)?, index)
        }
    }
}

/// The number of an identity in the kernel; `None` if it exceeds the table.
pub(crate) fn identity_number(identity: Identity) -> Option<u16> {
    u16::try_from(identity.get()).ok().filter(|number| usize::from(*number) < GROUP_NUMBERS)
}

/// Returns the number of an endpoint's identity; zero if it exceeds the table. Rules cannot refer to such an identity
/// ([`group`]).
fn endpoint_identity(identity: Option<Identity>) -> u32 {
    identity.and_then(identity_number).map_or(0, u32::from)
}

/// Encodes a group. A burst above 4 GiB - 1 is limited to that value.
pub(crate) fn group(object: &Group) -> Result<DesiredGroup<'_>, EncodeError> {
    let number = identity_number(object.identity).ok_or(EncodeError::Identity)?;
    for rule in object.rules.iter() {
        let mut identities = rule.peer.identities.iter().flat_map(|set| set.iter());
        if let Some(identity) = identities.find(|identity| identity_number(*identity).is_none()) {
            return Err(EncodeError::PeerIdentity { rule: rule.id.clone(), identity });
        }
    }
    check_ports(&object.rules)?;
    let rate = object.rate;
    let group = policy::Group {
        sets: [0; 2],
        rate: rate.map_or(0, |rate| rate.bits_per_second),
        burst: rate.map_or(0, |rate| u32::try_from(rate.burst_bytes).unwrap_or(u32::MAX)),
        dscp: object.dscp.map_or(0, |dscp| dscp.get().into()),
    };
    Ok(DesiredGroup { number, group, rules: &object.rules })
}

pub(crate) fn segment_of(encap: Encap) -> Segment {
    match encap {
        Encap::Vlan(vlan) => Segment::vlan(vlan.get()),
        Encap::Vxlan { vni, .. } => Segment::vxlan(vni.get()),
    }
}

fn encode_peer(peer: &Peer, devices: &Devices) -> Result<Vec<Entry>, EncodeError> {
    if peer.port != devices.overlay_port {
        return Err(EncodeError::OtherPort { theirs: peer.port, ours: devices.overlay_port });
    }
    let vtep = Address::from(peer.vtep);
    // On a VLAN, the physical network delivers the frames.
    let segments =
        peer.networks.values().map(|encap| segment_of(*encap)).filter(|segment| segment.vni().is_some());
    Ok([Entry::Peer(vtep)].into_iter().chain(segments.map(|segment| Entry::Member(segment, vtep))).collect())
}

fn encode_network(network: &Network, domain: Domain, devices: &Devices) -> Vec<Entry> {
    let out = match network.encap {
        // The active uplink carries the frames; it may change.
        Encap::Vlan(_) => 0,
        Encap::Vxlan { .. } => devices.overlay,
    };
    let flags = match network.arp {
        ArpMode::Proxy => SegmentEntry::PROXY,
        ArpMode::Flood => 0,
    };
    vec![Entry::Segment { segment: segment_of(network.encap), out, flags, domain }]
}

/// Encodes a subnet. Subnets of VLAN networks that the node routes also have an entry in no domain: the destination
/// determines the network of packets from the kernel.
fn encode_subnet(subnet: &Subnet, domain: Domain) -> Vec<Entry> {
    let (prefix, mask) = (Address::from(subnet.prefix.network()), Address::from(subnet.prefix.netmask()));
    // The mask of a mapped address also covers the mapping.
    let mask = match subnet.prefix {
        IpNet::V4(_) => Address([&[0xff; 12][..], &mask.low()].concat().try_into().unwrap_or([0xff; 16])),
        IpNet::V6(_) => mask,
    };
    let gateway = subnet.gateway.map_or(Address::default(), |gateway| Address::from(gateway.ip));
    let routed = if subnet.is_routed() { segment_of(subnet.encap) } else { Segment::vxlan(0) };
    let value = contiv_abi::Subnet { prefix, mask, gateway, routed };
    let domains = [subnet.is_routed_vlan().then_some(Domain::NONE), Some(domain)].into_iter().flatten();
    domains.map(|domain| Entry::Subnet(DomainPrefix::new(domain, subnet.prefix), value)).collect()
}

/// Encodes a route through the node's kernel. Excluded prefixes are routes, too.
fn encode_host_route(
    prefix: IpNet,
    private: Ipv4Net,
    domain: Domain,
    devices: &Devices,
) -> Result<Vec<Entry>, EncodeError> {
    if devices.host == 0 {
        return Err(EncodeError::NoInterface(HOST_PORT.to_owned()));
    }
    let route = |prefix: IpNet, out| {
        let value = RouteEntry { out, private: private.network().octets() };
        Entry::Route(DomainPrefix::new(domain, prefix), value)
    };
    let nowhere = NO_HOST.into_iter().chain([private]).map(|prefix| route(prefix.into(), 0));
    let kernel = route(IpAddr::V4(kernel_address(private)).into(), devices.host);
    Ok(nowhere.chain([kernel, route(prefix, devices.host)]).collect())
}

fn encode_remote(remote: &Remote, domain: Domain) -> Result<Vec<Entry>, EncodeError> {
    if !remote.next_hop.is_on(remote.encap) {
        return Err(Unsupported::NEXT_HOP.into());
    }
    let segment = segment_of(remote.encap);
    let identity = endpoint_identity(remote.identity);
    // On a VLAN, the physical network delivers the frames. The entry maps the endpoint's Ethernet address to its group.
    let vtep = remote.vtep().map_or(Vtep::default(), Address::from);
    let place = FdbEntry { ifindex: 0, vtep, group: identity };
    let mut entries = vec![Entry::Fdb(FdbKey::new(segment, remote.mac.0), place)];
    let owner = NeighEntry { mac: remote.mac.0, flags: 0, ifindex: 0, group: identity };
    let (ip, ip6) = dual_stack(&remote.addresses)?;
    entries.extend(neighbours(domain, owner, ip, ip6));
    Ok(entries)
}

fn encode_local(local: &Local, domain: Domain, ifindex: u32) -> Result<Vec<Entry>, EncodeError> {
    let segment = segment_of(local.encap);
    let mac = local.mac.0;
    let group = endpoint_identity(local.identity);
    let (ip, ip6) = dual_stack(&local.addresses)?;
    // Bandwidth limits do not apply to the node itself.
    let receiver = match local.owner {
        Owner::Pod => group,
        Owner::Node => FdbEntry::NODE | group,
    };
    // The node reaches itself without a port number.
    let number = endpoint_number(&local.port).filter(|_| local.owner == Owner::Pod);
    let port = Port {
        segment,
        mac,
        class: 0,
        slot: 0,
        group,
        ip: ip.octets(),
        queue: 0,
        ip6: ip6.map_or(Address::default(), |ip| Address(ip.octets())),
        domain,
        number: number.unwrap_or(0),
    };
    let mut entries = vec![
        Entry::Port { ifindex, port },
        Entry::Fdb(FdbKey::new(segment, mac), FdbEntry { ifindex, vtep: Vtep::default(), group: receiver }),
    ];
    let owner = NeighEntry { mac, flags: 0, ifindex, group };
    entries.extend(neighbours(domain, owner, ip, ip6));
    entries.extend(number.map(|number| Entry::Number { number, ifindex }));
    entries.push(Entry::Hook { ifindex, interface: local.port.clone() });
    Ok(entries)
}

fn encode_service(service: &Service, domain: Domain) -> Result<Vec<Entry>, EncodeError> {
    let network = service.scope.network.as_ref();
    let is_elsewhere = |backend: &&datapath::Backend| match domain.vrf() {
        // Backends may be on any of the networks that are routed to each other.
        Some(_) => backend.encap.is_none(),
        None => backend.encap != network.map(|network| network.encap),
    };
    if let Some(elsewhere) = service.backends.iter().find(is_elsewhere) {
        return Err(match domain.vrf() {
            Some(_) => EncodeError::BackendOutside(elsewhere.ip, service.scope.vrf.clone()),
            None => EncodeError::BackendElsewhere(elsewhere.ip),
        });
    }
    let of_other_family = |backend: &&datapath::Backend| backend.ip.is_ipv4() != service.vip.is_ipv4();
    if let Some(other) = service.backends.iter().find(of_other_family) {
        return Err(EncodeError::OtherFamily(other.ip));
    }
    let ip = Address::from(service.vip);
    // At least one second: the programs treat zero as no expiry.
    let affinity = service.affinity.map_or(0, |time| time.as_secs().clamp(1, u32::MAX.into()) as u32);
    let entry = |port: &ServicePort| {
        let (key, backends) = port_backends(service, port, domain, Readiness::Ready);
        Entry::Service(key, Target { backends, affinity })
    };
    let mut entries: Vec<Entry> = service.ports.iter().map(entry).collect();
    // Hosts that are not nodes of the cluster reach services on VLANs only.
    let wire = network.map(|network| segment_of(network.encap)).filter(|segment| segment.vni().is_none());
    if wire.is_some() {
        // These follow the ready backends: they share the numbers of those entries, and must not displace them in a full
        // table.
        entries.extend(terminating(service, domain));
    }
    // The programs answer ARP and ND for the service address.
    let owner = NeighEntry { mac: service_mac(&ip), flags: NeighEntry::SERVICE, ifindex: 0, group: 0 };
    entries.push(Entry::Neigh(NeighKey::new(domain, ip), owner));
    if let Some(segment) = wire
        && let Some(speaker) = service.speaker()
    {
        entries.push(Entry::Vip(VipKey { segment, ip }, Vip { speaker: speaker.into(), domain, zero: 0 }));
    }
    Ok(entries)
}

/// The terminating backends of each port: another node may have chosen one before it learned the state.
fn terminating(service: &Service, domain: Domain) -> impl Iterator<Item = Entry> {
    service.ports.iter().filter_map(move |port| {
        let (key, backends) = port_backends(service, port, domain, Readiness::Terminating);
        let target = Target { backends, affinity: 0 };
        (!target.backends.is_empty()).then(|| Entry::Service(key.of_terminating(), target))
    })
}

/// Reports whether clients of the service can reach the backend: nodes route VLAN networks to each other, and VXLAN
/// networks to each other. A service without a network has clients on both kinds.
fn is_reached(service: &Service, backend: &datapath::Backend) -> bool {
    let is_vlan = |encap: Encap| matches!(encap, Encap::Vlan(_));
    match (&service.scope.network, backend.encap) {
        (Some(network), Some(encap)) => is_vlan(network.encap) == is_vlan(encap),
        _ => true,
    }
}

/// The key of a port, and the backends in a state.
fn port_backends(
    service: &Service,
    port: &ServicePort,
    domain: Domain,
    readiness: Readiness,
) -> (ServiceKey, Vec<Backend>) {
    let is_of_set =
        |backend: &&datapath::Backend| backend.readiness == readiness && is_reached(service, backend);
    let those = service.backends.iter().filter(is_of_set);
    let mut backends: Vec<Backend> =
        those.map(|backend| Backend::new(Address::from(backend.ip), port.target)).collect();
    backends.sort_unstable();
    backends.dedup();
    let ip = Address::from(service.vip);
    (ServiceKey::new(domain, ip, Be16::new(port.port), port.protocol.number()), backends)
}

fn dual_stack(addresses: &Addresses) -> Result<(Ipv4Addr, Option<Ipv6Addr>), Unsupported> {
    addresses.dual_stack().ok_or(Unsupported::ADDRESSES)
}

/// Returns the addresses of an endpoint, including the link-local one that its kernel derives: packets from it have the
/// endpoint's group, and no other endpoint can claim it.
fn neighbours(
    domain: Domain,
    owner: NeighEntry,
    ip: Ipv4Addr,
    ip6: Option<Ipv6Addr>,
) -> impl Iterator<Item = Entry> {
    let assigned = [Some(IpAddr::V4(ip)), ip6.map(IpAddr::V6)].into_iter().flatten().map(Address::from);
    let addresses = assigned.chain([Address::link_local(&owner.mac)]);
    addresses.map(move |ip| Entry::Neigh(NeighKey::new(domain, ip), owner))
}

#[cfg(test)]
mod tests;
