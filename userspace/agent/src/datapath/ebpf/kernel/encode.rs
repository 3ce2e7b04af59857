//! Encodes objects as kernel entries. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_abi::{
    Address, Backend, Be16, FdbEntry, FdbKey, NeighEntry, NeighKey, Port, Segment, SegmentEntry, ServiceKey,
    Vip, Vtep,
    policy::{self, GROUP_NUMBERS},
    service_mac,
};
use contiv_model::{global::ArpMode, group::GroupNumber, name::RuleId, service::Readiness, tag::Encap};

use super::entry::Entry;
use crate::datapath::{
    self, Group, Local, Network, Object, Owner, Peer, Remote, Service,
    ebpf::{policy::DesiredGroup, programs::interfaces::Devices, service::ports::Target},
};

/// An object that this datapath does not support.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EncodeError {
    #[error("tunnels over IPv6 are not supported; give the node an IPv4 VTEP address")]
    Ipv6Vtep,
    #[error("the node uses VXLAN port {theirs}, this node {ours}; configure the same port on all nodes")]
    OtherPort { theirs: u16, ours: u16 },
    #[error("the VXLAN endpoint has no VTEP")]
    NoVtep,
    #[error("no interface {0}")]
    NoInterface(String),
    #[error("rule {rule}: group {number} exceeds the maximum group number ({GROUP_NUMBERS})")]
    PeerNumber { rule: RuleId, number: GroupNumber },
    #[error("the group number must be below {GROUP_NUMBERS}")]
    GroupNumber,
    #[error("services without a network are not supported yet; give the service a network")]
    WholeCluster,
    #[error("the backend {0} is not on the network of the service")]
    BackendElsewhere(IpAddr),
    #[error("the backend {0} and the service have different address families")]
    OtherFamily(IpAddr),
    #[error("not supported")]
    Unsupported,
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
        Object::Group(_) => Err(EncodeError::Unsupported),
        Object::Service(service) => encode_service(service),
        Object::Remote(remote) => encode_remote(remote),
        Object::Local(local) => {
            let index = ifindex(&local.port).ok_or_else(|| EncodeError::NoInterface(local.port.clone()))?;
            Ok(encode_local(local, index))
        }
    }
}

/// The group number in the kernel; `None` if it exceeds the table.
pub(crate) fn group_number(group: GroupNumber) -> Option<u16> {
    u16::try_from(group.get()).ok().filter(|number| usize::from(*number) < GROUP_NUMBERS)
}

/// The group number of an endpoint; zero if it exceeds the table. Rules cannot refer to such a group ([`group`]).
fn endpoint_group(group: Option<GroupNumber>) -> u32 {
    group.and_then(group_number).map_or(0, u32::from)
}

/// Encodes a group. A burst above 4 GiB - 1 is limited to that value.
pub(crate) fn group(object: &Group) -> Result<DesiredGroup<'_>, EncodeError> {
    let number = group_number(object.number).ok_or(EncodeError::GroupNumber)?;
    for rule in object.rules.iter() {
        if let Some(number) = rule.peer.group
            && group_number(number).is_none()
        {
            return Err(EncodeError::PeerNumber { rule: rule.id.clone(), number });
        }
    }
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
    Ok(vec![Entry::Peer(vtep(peer.vtep)?)])
}

fn encode_network(network: &Network, devices: &Devices) -> Vec<Entry> {
    let out = match network.encap {
        Encap::Vlan(_) => devices.uplink,
        Encap::Vxlan { .. } => devices.overlay,
    };
    let flags = match network.arp {
        ArpMode::Proxy => SegmentEntry::PROXY,
        ArpMode::Flood => 0,
    };
    vec![Entry::Segment { segment: segment_of(network.encap), out, flags }]
}

fn encode_remote(remote: &Remote) -> Result<Vec<Entry>, EncodeError> {
    let segment = segment_of(remote.encap);
    let mut entries = vec![];
    if segment.vni().is_some() {
        let vtep = vtep(remote.vtep.ok_or(EncodeError::NoVtep)?)?;
        entries.push(Entry::Fdb(FdbKey::new(segment, remote.mac.0), FdbEntry { ifindex: 0, vtep, group: 0 }));
    }
    entries.extend(neighbours(
        segment,
        NeighEntry { mac: remote.mac.0, flags: 0, ifindex: 0, group: endpoint_group(remote.group) },
        remote.ip,
        remote.ip6,
    ));
    Ok(entries)
}

fn encode_local(local: &Local, ifindex: u32) -> Vec<Entry> {
    let segment = segment_of(local.encap);
    let mac = local.mac.0;
    let group = endpoint_group(local.group);
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
        ip: local.ip.octets(),
        queue: 0,
        ip6: local.ip6.map_or(Address::default(), |ip| Address(ip.octets())),
    };
    let mut entries = vec![
        Entry::Port { ifindex, port },
        Entry::Fdb(FdbKey::new(segment, mac), FdbEntry { ifindex, vtep: [0; 4], group: receiver }),
    ];
    let owner = NeighEntry { mac, flags: 0, ifindex, group };
    entries.extend(neighbours(segment, owner, local.ip, local.ip6));
    entries.push(Entry::Hook { ifindex, interface: local.port.clone() });
    entries
}

fn encode_service(service: &Service) -> Result<Vec<Entry>, EncodeError> {
    let scope = service.scope.as_ref().ok_or(EncodeError::WholeCluster)?;
    if let Some(elsewhere) = service.backends.iter().find(|backend| backend.encap != scope.encap) {
        return Err(EncodeError::BackendElsewhere(elsewhere.ip));
    }
    let of_other_family = |backend: &&datapath::Backend| backend.ip.is_ipv4() != service.vip.is_ipv4();
    if let Some(other) = service.backends.iter().find(of_other_family) {
        return Err(EncodeError::OtherFamily(other.ip));
    }
    let (segment, ip) = (segment_of(scope.encap), Address::from(service.vip));
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
        && let Some(first) = ready().map(|backend| Address::from(backend.ip)).min()
    {
        entries.push(Entry::Vip(NeighKey { segment, ip }, Vip { first }));
    }
    Ok(entries)
}

fn neighbours(
    segment: Segment,
    owner: NeighEntry,
    ip: Ipv4Addr,
    ip6: Option<Ipv6Addr>,
) -> impl Iterator<Item = Entry> {
    let addresses = [Some(IpAddr::V4(ip)), ip6.map(IpAddr::V6)].into_iter().flatten();
    addresses.map(move |ip| Entry::Neigh(NeighKey { segment, ip: Address::from(ip) }, owner))
}

fn vtep(address: IpAddr) -> Result<Vtep, EncodeError> {
    match address {
        IpAddr::V4(address) => Ok(address.octets()),
        IpAddr::V6(_) => Err(EncodeError::Ipv6Vtep),
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::{
        mac,
        tag::{Vlan, Vni},
    };

    use super::*;

    const DEVICES: Devices = Devices { overlay: 7, overlay_port: 4789, uplink: 3 };

    fn vxlan() -> Encap {
        Encap::Vxlan { vni: Vni::try_from(10_001).unwrap(), local: Vlan::try_from(1).unwrap() }
    }

    fn local() -> Local {
        Local {
            id: "n1.t-a".into(),
            network: "n1.t".into(),
            encap: vxlan(),
            port: "vvport1".into(),
            owner: Owner::Pod,
            mac: mac::Mac([2, 2, 10, 1, 1, 1]),
            ip: Ipv4Addr::new(10, 1, 1, 1),
            ip6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
            group: None,
        }
    }

    #[test]
    fn the_program_of_a_local_endpoint_is_attached_last() {
        let entries = encode(&Object::Local(local()), &DEVICES, |_| Some(9)).unwrap();
        assert!(matches!(entries[0], Entry::Port { ifindex: 9, .. }));
        assert_eq!(entries.iter().filter(|e| matches!(e, Entry::Neigh(_, o) if o.ifindex == 9)).count(), 2);
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
    fn remote_endpoints_have_a_destination_on_vxlan_only() {
        let mut remote = Remote {
            id: "n1.t-b".into(),
            network: "n1.t".into(),
            encap: vxlan(),
            vtep: Some(Ipv4Addr::new(192, 0, 2, 2).into()),
            mac: mac::Mac([2, 2, 10, 1, 1, 2]),
            ip: Ipv4Addr::new(10, 1, 1, 2),
            ip6: None,
            group: None,
        };
        let entries = encode(&Object::Remote(remote.clone()), &DEVICES, |_| None).unwrap();
        let expected = FdbEntry { ifindex: 0, vtep: [192, 0, 2, 2], group: 0 };
        assert!(matches!(&entries[0], Entry::Fdb(_, entry) if *entry == expected));

        remote.vtep = None;
        assert_eq!(encode(&Object::Remote(remote.clone()), &DEVICES, |_| None), Err(EncodeError::NoVtep));
        remote.encap = Encap::Vlan(Vlan::try_from(100).unwrap());
        let entries = encode(&Object::Remote(remote), &DEVICES, |_| None).unwrap();
        assert!(matches!(entries[..], [Entry::Neigh(..)]));
    }

    #[test]
    fn networks_use_the_device_of_their_encapsulation() {
        let network = |encap, arp| Object::Network(Network { id: "n1.t".into(), encap, arp });
        let vlan = Encap::Vlan(Vlan::try_from(100).unwrap());
        let entries = encode(&network(vlan, ArpMode::Flood), &DEVICES, |_| None).unwrap();
        assert_eq!(entries, [Entry::Segment { segment: Segment::vlan(100), out: 3, flags: 0 }]);
        let entries = encode(&network(vxlan(), ArpMode::Proxy), &DEVICES, |_| None).unwrap();
        let flags = SegmentEntry::PROXY;
        assert_eq!(entries, [Entry::Segment { segment: Segment::vxlan(10_001), out: 7, flags }]);
    }

    #[test]
    fn unreachable_peers_are_refused() {
        let peer = |vtep: &str, port| Object::Peer(Peer { vtep: vtep.parse().unwrap(), port });
        assert_eq!(encode(&peer("192.0.2.2", 4789), &DEVICES, |_| None).unwrap().len(), 1);
        assert_eq!(encode(&peer("2001:db8::2", 4789), &DEVICES, |_| None), Err(EncodeError::Ipv6Vtep));
        let error = EncodeError::OtherPort { theirs: 8472, ours: 4789 };
        assert_eq!(encode(&peer("192.0.2.2", 8472), &DEVICES, |_| None), Err(error));
    }
}
