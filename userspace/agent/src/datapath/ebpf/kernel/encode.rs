//! Encodes objects as kernel entries. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_abi::{
    Address, Backend, Be16, FdbEntry, FdbKey, NeighEntry, NeighKey, Port, Segment, SegmentEntry, ServiceKey,
    SubnetKey, Vip, Vtep, mix,
    policy::{self, GROUP_NUMBERS},
    service_mac,
};
use contiv_model::{
    addresses::Addresses, global::ArpMode, name::RuleId, policy::Identity, service::Readiness, tag::Encap,
};

use ipnet::IpNet;

use super::entry::Entry;
use crate::datapath::{
    self, Group, Local, Network, Object, Owner, Peer, Remote, Service, Subnet, Unsupported,
    ebpf::{
        policy::{DesiredGroup, OverlappingPorts, check_ports},
        programs::interfaces::Devices,
        service::ports::Target,
    },
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
    #[error("services without a network are not supported yet; give the service a network")]
    WholeVrf,
    #[error("the backend {0} is not on the network of the service")]
    BackendElsewhere(IpAddr),
    #[error("the backend {0} and the service have different address families")]
    OtherFamily(IpAddr),
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

/// Encodes an object. The entries are in the order in which they must be written: an entry precedes those that refer to it.
/// `ifindex` returns the index of an interface.
pub(crate) fn encode(
    object: &Object,
    devices: &Devices,
    ifindex: impl FnOnce(&str) -> Option<u32>,
) -> Result<Vec<Entry>, EncodeError> {
    match object {
        Object::Peer(peer) => encode_peer(peer, devices),
        Object::Network(network) => Ok(encode_network(network, devices)),
        // Bridging needs no entries for a subnet.
        Object::Subnet(subnet) if subnet.is_routed() => Err(Unsupported::GATEWAY.into()),
        Object::Subnet(subnet) => Ok(vec![encode_subnet(subnet)]),
        // Groups have no entries: see [`group`].
        Object::Route(_) | Object::Group(_) => Err(Unsupported::Object.into()),
        Object::Service(service) => encode_service(service),
        Object::Remote(remote) => encode_remote(remote),
        Object::Local(local) => {
            let index = ifindex(&local.port).ok_or_else(|| EncodeError::NoInterface(local.port.clone()))?;
            encode_local(local, index)
        }
    }
}

/// The number of an identity in the kernel; `None` if it exceeds the table.
pub(crate) fn identity_number(identity: Identity) -> Option<u16> {
    u16::try_from(identity.get()).ok().filter(|number| usize::from(*number) < GROUP_NUMBERS)
}

/// The number of an endpoint's identity; zero if it exceeds the table. Rules cannot refer to such an identity ([`group`]).
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
    // On a VLAN the wire delivers.
    let segments =
        peer.networks.values().map(|encap| segment_of(*encap)).filter(|segment| segment.vni().is_some());
    Ok([Entry::Peer(vtep)].into_iter().chain(segments.map(|segment| Entry::Member(segment, vtep))).collect())
}

fn encode_network(network: &Network, devices: &Devices) -> Vec<Entry> {
    let out = match network.encap {
        // By the active uplink, which may change.
        Encap::Vlan(_) => 0,
        Encap::Vxlan { .. } => devices.overlay,
    };
    let flags = match network.arp {
        ArpMode::Proxy => SegmentEntry::PROXY,
        ArpMode::Flood => 0,
    };
    vec![Entry::Segment { segment: segment_of(network.encap), out, flags }]
}

fn encode_subnet(subnet: &Subnet) -> Entry {
    let (prefix, mask) = (Address::from(subnet.prefix.network()), Address::from(subnet.prefix.netmask()));
    // The mask of a mapped address also covers the mapping.
    let mask = match subnet.prefix {
        IpNet::V4(_) => Address([&[0xff; 12][..], &mask.low()].concat().try_into().unwrap_or([0xff; 16])),
        IpNet::V6(_) => mask,
    };
    let gateway = subnet.gateway.map_or(Address::default(), |gateway| Address::from(gateway.ip));
    let ip6 = u32::from(subnet.prefix.addr().is_ipv6());
    let key = SubnetKey { segment: segment_of(subnet.encap), ip6 };
    Entry::Subnet(key, contiv_abi::Subnet { prefix, mask, gateway })
}

fn encode_remote(remote: &Remote) -> Result<Vec<Entry>, EncodeError> {
    if !remote.next_hop.is_on(remote.encap) {
        return Err(Unsupported::NEXT_HOP.into());
    }
    let segment = segment_of(remote.encap);
    let identity = endpoint_identity(remote.identity);
    // On a VLAN the wire delivers; the entry tells the endpoint's group by its Ethernet address.
    let vtep = remote.vtep().map_or(Vtep::default(), Address::from);
    let place = FdbEntry { ifindex: 0, vtep, group: identity };
    let mut entries = vec![Entry::Fdb(FdbKey::new(segment, remote.mac.0), place)];
    let owner = NeighEntry { mac: remote.mac.0, flags: 0, ifindex: 0, group: identity };
    let (ip, ip6) = dual_stack(&remote.addresses)?;
    entries.extend(neighbours(segment, owner, ip, ip6));
    Ok(entries)
}

fn encode_local(local: &Local, ifindex: u32) -> Result<Vec<Entry>, EncodeError> {
    let segment = segment_of(local.encap);
    let mac = local.mac.0;
    let group = endpoint_identity(local.identity);
    let (ip, ip6) = dual_stack(&local.addresses)?;
    // Bandwidth limits do not apply to the node itself.
    let receiver = match local.owner {
        Owner::Pod => group,
        Owner::Node => FdbEntry::NODE | group,
    };
    let port = Port {
        segment,
        mac,
        class: 0,
        slot: 0,
        group,
        ip: ip.octets(),
        queue: 0,
        ip6: ip6.map_or(Address::default(), |ip| Address(ip.octets())),
    };
    let mut entries = vec![
        Entry::Port { ifindex, port },
        Entry::Fdb(FdbKey::new(segment, mac), FdbEntry { ifindex, vtep: Vtep::default(), group: receiver }),
    ];
    let owner = NeighEntry { mac, flags: 0, ifindex, group };
    entries.extend(neighbours(segment, owner, ip, ip6));
    entries.push(Entry::Hook { ifindex, interface: local.port.clone() });
    Ok(entries)
}

fn encode_service(service: &Service) -> Result<Vec<Entry>, EncodeError> {
    let network = service.scope.network.as_ref().ok_or(EncodeError::WholeVrf)?;
    let is_elsewhere = |backend: &&datapath::Backend| backend.encap != Some(network.encap);
    if let Some(elsewhere) = service.backends.iter().find(is_elsewhere) {
        return Err(EncodeError::BackendElsewhere(elsewhere.ip));
    }
    let of_other_family = |backend: &&datapath::Backend| backend.ip.is_ipv4() != service.vip.is_ipv4();
    if let Some(other) = service.backends.iter().find(of_other_family) {
        return Err(EncodeError::OtherFamily(other.ip));
    }
    let (segment, ip) = (segment_of(network.encap), Address::from(service.vip));
    let ready = || service.backends.iter().filter(|backend| backend.readiness == Readiness::Ready);
    // At least one second: the kernel side treats zero as no expiry.
    let affinity = service.affinity.map_or(0, |time| time.as_secs().clamp(1, u32::MAX.into()) as u32);
    let mut entries: Vec<Entry> = service
        .ports
        .iter()
        .map(|port| {
            let backend = |ip| Backend::new(Address::from(ip), port.target);
            let mut backends: Vec<Backend> = ready().map(|ready| backend(ready.ip)).collect();
            backends.sort_unstable();
            backends.dedup();
            let key = ServiceKey::new(segment, ip, Be16::new(port.port), port.protocol.number());
            Entry::Service(key, Target { backends, affinity })
        })
        .collect();
    // The programs answer ARP and ND for the service address.
    let owner = NeighEntry { mac: service_mac(&ip), flags: NeighEntry::SERVICE, ifindex: 0, group: 0 };
    entries.push(Entry::Neigh(NeighKey { segment, ip }, owner));
    // Hosts that are not nodes of the cluster reach services on VLANs only.
    if segment.vni().is_none()
        && let Some(speaker) = speaker(ip, &service.backends)
    {
        entries.push(Entry::Vip(NeighKey { segment, ip }, Vip { speaker }));
    }
    Ok(entries)
}

/// The backend whose node answers for a service on the wire. Terminating backends count: their node still forwards, and has
/// the connections that it forwards elsewhere. By rendezvous hashing, so that other backends that come or go do not move it.
fn speaker(vip: Address, backends: &[datapath::Backend]) -> Option<Address> {
    let score = |backend: &Address| {
        let [[a, b], [c, d]] = [vip.words(), backend.words()];
        mix(a.rotate_left(16) ^ mix(b ^ mix(c.rotate_left(32) ^ mix(d))))
    };
    backends.iter().map(|backend| Address::from(backend.ip)).max_by_key(|backend| (score(backend), *backend))
}

fn dual_stack(addresses: &Addresses) -> Result<(Ipv4Addr, Option<Ipv6Addr>), Unsupported> {
    addresses.dual_stack().ok_or(Unsupported::ADDRESSES)
}

/// The addresses of an endpoint, with the link-local one that its kernel forms: packets from it have the endpoint's group, and
/// no other endpoint can claim it.
fn neighbours(
    segment: Segment,
    owner: NeighEntry,
    ip: Ipv4Addr,
    ip6: Option<Ipv6Addr>,
) -> impl Iterator<Item = Entry> {
    let assigned = [Some(IpAddr::V4(ip)), ip6.map(IpAddr::V6)].into_iter().flatten().map(Address::from);
    let addresses = assigned.chain([Address::link_local(&owner.mac)]);
    addresses.map(move |ip| Entry::Neigh(NeighKey { segment, ip }, owner))
}

#[cfg(test)]
mod tests {
    use contiv_model::{
        mac,
        route::NextHop,
        tag::{Vlan, Vni},
    };

    use super::*;
    use crate::datapath::{Backend, Gateway, Scope};

    const DEVICES: Devices = Devices { overlay: 7, overlay_port: 4789, uplinks: vec![] };

    fn vxlan() -> Encap {
        Encap::Vxlan { vni: Vni::try_from(10_001).unwrap(), local: Vlan::try_from(1).unwrap() }
    }

    fn vlan() -> Encap {
        Encap::Vlan(Vlan::try_from(100).unwrap())
    }

    fn local() -> Local {
        let ip6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
        let addresses = (Ipv4Addr::new(10, 1, 1, 1), Some(ip6));
        let mac = mac::Mac([2, 2, 10, 1, 1, 1]);
        Local::new("n1.t-a", &Network::new("n1.t", vxlan()), "vvport1", mac, addresses)
    }

    fn remote(encap: Encap) -> Remote {
        let next_hop = NextHop::on(encap, Some(Ipv4Addr::new(192, 0, 2, 2).into())).unwrap();
        let mac = mac::Mac([2, 2, 10, 1, 1, 2]);
        Remote::new("n1.t-b", &Network::new("n1.t", encap), next_hop, mac, Ipv4Addr::new(10, 1, 1, 2))
    }

    #[test]
    fn the_program_of_a_local_endpoint_is_attached_last() {
        let entries = encode(&Object::Local(local()), &DEVICES, |_| Some(9)).unwrap();
        assert!(matches!(entries[0], Entry::Port { ifindex: 9, .. }));
        assert_eq!(entries.iter().filter(|e| matches!(e, Entry::Neigh(_, o) if o.ifindex == 9)).count(), 3);
        assert_eq!(entries.last(), Some(&Entry::Hook { ifindex: 9, interface: "vvport1".into() }));
    }

    #[test]
    fn the_forwarding_entry_of_the_nodes_own_port_has_the_node_flag() {
        let local = Local { owner: Owner::Node, ..local() };
        let entries = encode(&Object::Local(local), &DEVICES, |_| Some(9)).unwrap();
        assert!(matches!(entries[1], Entry::Fdb(_, FdbEntry { ifindex: 9, group: FdbEntry::NODE, .. })));
    }

    #[test]
    fn a_missing_interface_is_named() {
        let error = encode(&Object::Local(local()), &DEVICES, |_| None).unwrap_err();
        assert_eq!(error.to_string(), "no interface vvport1");
    }

    #[test]
    fn remote_endpoints_have_a_vtep_on_vxlan_only() {
        for (encap, vtep) in [(vxlan(), Address::v4([192, 0, 2, 2])), (vlan(), Vtep::default())] {
            let entries = encode(&Object::Remote(remote(encap)), &DEVICES, |_| None).unwrap();
            let expected = FdbEntry { vtep, ifindex: 0, group: 0 };
            assert!(matches!(
                &entries[..],
                [Entry::Fdb(_, entry), Entry::Neigh(..), Entry::Neigh(..)] if *entry == expected
            ));
        }
    }

    #[test]
    fn what_is_not_implemented_is_refused() {
        let refused = |object| encode(&object, &DEVICES, |_| Some(9)).unwrap_err();
        let address = Ipv4Addr::new(192, 0, 2, 2).into();
        for (encap, next_hop) in [
            (vxlan(), NextHop::on(vlan(), None).unwrap()),
            (vxlan(), NextHop::Vtep { address, vni: Vni::try_from(7).unwrap() }),
            (vxlan(), NextHop::Local { endpoint: "e".into() }),
            (vlan(), NextHop::Uplink { vlan: Vlan::try_from(100).unwrap(), link: Some("eth1".into()) }),
        ] {
            let remote = Remote { next_hop, ..remote(encap) };
            assert_eq!(refused(Object::Remote(remote)), Unsupported::NEXT_HOP.into());
        }
        let several: [IpAddr; 2] = [Ipv4Addr::new(10, 1, 1, 1).into(), Ipv4Addr::new(10, 1, 1, 2).into()];
        for addresses in [Addresses::new(several), Addresses::new([Ipv6Addr::LOCALHOST.into()])] {
            let local = Local { addresses: addresses.unwrap(), ..local() };
            assert_eq!(refused(Object::Local(local)), Unsupported::ADDRESSES.into());
        }
        let network = Network::new("n1.t", vxlan());
        let gateway = Gateway { ip: Ipv4Addr::new(10, 1, 1, 254).into(), mac: None };
        let prefix = "10.1.1.0/24".parse().unwrap();
        let subnet = |gateway| {
            let gateway = Some(gateway);
            Object::Subnet(Subnet {
                network: network.id.clone(),
                vrf: network.vrf.clone(),
                encap: network.encap,
                prefix,
                gateway,
            })
        };
        let entries = encode(&subnet(gateway), &DEVICES, |_| None).unwrap();
        let [Entry::Subnet(key, value)] = entries[..] else { panic!("{entries:?}") };
        let ip = |last| Address::v4([10, 1, 1, last]);
        assert_eq!(key, SubnetKey { segment: Segment::vxlan(10_001), ip6: 0 });
        assert!(value.contains(&ip(1)) && !value.contains(&ip(254)) && value.is_last(&ip(255)));
        assert!(!value.contains(&Address::v4([10, 1, 2, 1])) && !value.is_last(&ip(254)));
        let routed = Gateway { mac: Some(mac::Mac([2; 6])), ..gateway };
        assert_eq!(refused(subnet(routed)), Unsupported::GATEWAY.into());
        let service = Service::new("s:t", Scope::vrf(network.vrf.clone()), Ipv4Addr::new(10, 1, 1, 9));
        assert_eq!(refused(Object::Service(service.clone())), EncodeError::WholeVrf);
        let backend = Backend { encap: None, ..Backend::on(vxlan(), Ipv4Addr::new(192, 0, 2, 9)) };
        let elsewhere = Service { scope: Scope::network(&network), backends: vec![backend], ..service };
        assert_eq!(refused(Object::Service(elsewhere)), EncodeError::BackendElsewhere(backend.ip));
    }

    #[test]
    fn networks_on_vxlan_use_the_vxlan_device_and_others_the_active_uplink() {
        let network = |encap, arp| Object::Network(Network { arp, ..Network::new("n1.t", encap) });
        let entries = encode(&network(vlan(), ArpMode::Flood), &DEVICES, |_| None).unwrap();
        assert_eq!(entries, [Entry::Segment { segment: Segment::vlan(100), out: 0, flags: 0 }]);
        let entries = encode(&network(vxlan(), ArpMode::Proxy), &DEVICES, |_| None).unwrap();
        let flags = SegmentEntry::PROXY;
        assert_eq!(entries, [Entry::Segment { segment: Segment::vxlan(10_001), out: 7, flags }]);
    }

    #[test]
    fn unreachable_peers_are_refused() {
        let peer = |vtep: &str, port| Object::Peer(Peer::new(vtep.parse::<IpAddr>().unwrap(), port));
        assert_eq!(encode(&peer("192.0.2.2", 4789), &DEVICES, |_| None).unwrap().len(), 1);
        let ip6 = Address::from("2001:db8::2".parse::<IpAddr>().unwrap());
        assert_eq!(encode(&peer("2001:db8::2", 4789), &DEVICES, |_| None), Ok(vec![Entry::Peer(ip6)]));
        let error = EncodeError::OtherPort { theirs: 8472, ours: 4789 };
        assert_eq!(encode(&peer("192.0.2.2", 8472), &DEVICES, |_| None), Err(error));
    }
}
