//! A generated cluster around one node, before and after a change, and packets.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use contiv_model::{
    group::Dscp,
    mac::Mac,
    name::EndpointId,
    policy::{Identity, Rule},
    route::{NextHop, NextHops},
    service::{Port, Readiness},
    tag::{Encap, Vni},
    vrf::Vrf,
};
use ipnet::IpNet;
use netplugin::datapath::{
    Backend, Desired, Gateway, Group, Local, Network, Object, Peer, Remote, Route, RouteId, Scope, Service,
    Subnet,
};

use crate::{
    lifecycle::Lifecycle,
    node::topology::{VTEPS, VXLAN_PORT},
    packet::Probe,
};

/// Two tenants with two VXLAN networks and two VLAN networks each. The VXLAN networks of both tenants have the same addresses, and
/// those of one tenant's VLANs are the same again. The networks of a tenant that the nodes route are a VRF.
pub(crate) const NETWORKS: usize = 8;
/// Pods of the node.
pub(crate) const PODS: usize = 14;
pub(crate) const GROUPS: u32 = 5;
/// Endpoints of each network on other nodes.
pub(crate) const REMOTES: [u8; 3] = [11, 12, 13];
/// Last part of the address of the gateway: the node, or a router that the cluster does not know.
pub(crate) const GATEWAY: u8 = 254;
/// Third part of addresses that no network has.
const NOWHERE: u8 = 9;
/// Last part of the first address of a service.
const VIPS: u8 = 200;

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) routing: Routing,
    /// Whether the pods of routed VXLAN networks have host access.
    pub(crate) hosts: bool,
    pub(crate) pods: Vec<Pod>,
    /// Endpoints on other nodes, for each network and each of [`REMOTES`]; `None` if there is none.
    pub(crate) remotes: Vec<Option<Far>>,
    /// Whether the subnets of a network are known, if it is not routed.
    pub(crate) subnets: Vec<bool>,
    /// Settings of the groups; the number of a group is its index plus 1.
    pub(crate) groups: Vec<Changing<Profile>>,
    pub(crate) services: Vec<Balanced>,
    pub(crate) probes: Vec<Probe>,
}

/// Networks that the nodes route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routing {
    Off,
    Vxlans,
    /// Frames of VLANs stay on the node, whose kernel forwards their packets.
    Vlans,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Before,
    /// Before the change, without services that are created again with it.
    Between,
    After,
}

/// A value and what it is after the change; `None` if it is the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Changing<T> {
    pub(crate) before: T,
    pub(crate) after: Option<T>,
}

impl<T> Changing<T> {
    /// The value after the change.
    pub(crate) fn latest(&self) -> &T {
        self.after.as_ref().unwrap_or(&self.before)
    }

    pub(crate) fn at(&self, stage: Stage) -> &T {
        match stage {
            Stage::After => self.latest(),
            Stage::Before | Stage::Between => &self.before,
        }
    }
}

/// The group of an endpoint.
pub(crate) type Member = Changing<Option<u32>>;

/// A pod of the node, if it is attached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pod {
    /// Network; `None` if the pod is not attached.
    pub(crate) network: Option<usize>,
    pub(crate) group: Member,
}

/// An endpoint on another node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    pub(crate) group: Member,
    pub(crate) presence: Presence,
}

/// When the node has the record of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Always,
    FromChange,
    UntilChange,
}

impl Presence {
    fn at(self, stage: Stage) -> bool {
        match self {
            Presence::Always => true,
            Presence::FromChange => stage == Stage::After,
            Presence::UntilChange => stage != Stage::After,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) dscp: Option<u8>,
    pub(crate) rules: Arc<[Rule]>,
}

#[derive(Clone, Debug)]
pub(crate) struct Balanced {
    pub(crate) network: usize,
    pub(crate) scope: Extent,
    pub(crate) ip6: bool,
    /// After the change there are at least the same ports.
    pub(crate) ports: Changing<Vec<Port>>,
    pub(crate) backends: Changing<Vec<(At, Readiness)>>,
    pub(crate) affinity: bool,
    pub(crate) lifecycle: Lifecycle,
}

/// Who can use a service, and where its address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The endpoints of its network, of which it has an address.
    Network,
    /// Those of the VRF if that is routed, with an address of the network.
    Vrf,
    /// As `Vrf`, with an address that is in no subnet.
    Anywhere,
}

/// An endpoint of a network, or of the tenant's other network of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At {
    pub(crate) is_other: bool,
    /// Last part of the addresses.
    pub(crate) last: u8,
}

impl At {
    /// The network, seen from the network `number`.
    pub(crate) fn network(self, number: usize) -> usize {
        if self.is_other { other(number) } else { number }
    }
}

/// Tag of a network.
pub(crate) fn encap(number: usize) -> Encap {
    match number {
        2 | 3 | 6 | 7 => Encap::Vlan((50 * number as u16).try_into().unwrap()),
        _ => {
            let vni = 10_001 + number as u32;
            Encap::Vxlan { vni: vni.try_into().unwrap(), local: (1 + number as u16).try_into().unwrap() }
        }
    }
}

/// The other network of the tenant that is of the same kind.
pub(crate) fn other(number: usize) -> usize {
    (number + 4) % NETWORKS
}

pub(crate) fn is_vlan(number: usize) -> bool {
    matches!(encap(number), Encap::Vlan(_))
}

/// The VXLAN network with this tag.
pub(crate) fn with_vni(vni: Vni) -> Option<usize> {
    (0..NETWORKS).find(|number| matches!(encap(*number), Encap::Vxlan { vni: known, .. } if known == vni))
}

/// VTEP of an endpoint on another node.
pub(crate) fn vtep(last: u8) -> IpAddr {
    VTEPS[usize::from(last) % VTEPS.len()].into()
}

/// Third part of the IPv4 addresses of a network, and second one of IPv6 addresses.
pub(crate) fn subnet(number: usize) -> u8 {
    match number {
        // The kernel routes a prefix for one tenant.
        3 => 5,
        7 => 6,
        0..4 => 7,
        _ => 8,
    }
}

/// The address with this last part in a subnet.
pub(crate) fn address_in(subnet: u8, last: u8, ip6: bool) -> IpAddr {
    if ip6 {
        Ipv6Addr::new(0x2001, 0xdb8, subnet.into(), 0, 0, 0, 0, last.into()).into()
    } else {
        ip(subnet, last).into()
    }
}

fn ip(subnet: u8, last: u8) -> Ipv4Addr {
    [10, subnet, 0, last].into()
}

pub(crate) fn address(number: usize, last: u8, ip6: bool) -> IpAddr {
    address_in(subnet(number), last, ip6)
}

/// Ethernet address of an endpoint.
pub(crate) fn mac(number: usize, last: u8) -> [u8; 6] {
    Mac::of_endpoint(ip(subnet(number), last)).0
}

/// The network of an address of the tenant that has network `near`, and the last part of the address.
pub(crate) fn located(near: usize, address: IpAddr) -> Option<(usize, u8)> {
    [near, other(near)].into_iter().find_map(|number| {
        let last = match address {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        (self::address(number, last, address.is_ipv6()) == address).then_some((number, last))
    })
}

pub(crate) fn port(pod: usize) -> String {
    format!("vvport{}", pod + 1)
}

fn identity(group: Option<u32>) -> Option<Identity> {
    group.map(|number| number.try_into().unwrap())
}

impl Cluster {
    /// Returns one of the networks.
    pub(crate) fn network(&self, number: usize) -> Network {
        let tenant = if number.is_multiple_of(2) { "blue" } else { "green" };
        let name = ["overlay", "wire", "second", "other"][number / 2];
        let network = Network::new(format!("{name}.{tenant}"), encap(number));
        let vrf = if self.is_routed(number) { Vrf::Tenant(tenant.parse().unwrap()) } else { network.vrf };
        Network { vrf, ..network }
    }

    /// Whether the node is the gateway of the network.
    pub(crate) fn is_routed(&self, number: usize) -> bool {
        match self.routing {
            Routing::Off => false,
            Routing::Vxlans => !is_vlan(number),
            Routing::Vlans => is_vlan(number),
        }
    }

    /// Whether the frames of the network stay on the node.
    pub(crate) fn is_on_node(&self, number: usize) -> bool {
        is_vlan(number) && self.is_routed(number)
    }

    /// Whether the subnets of the network are known.
    pub(crate) fn has_subnets(&self, number: usize) -> bool {
        self.subnets[number] || self.is_routed(number)
    }

    /// Last part of the addresses of a pod: pods of a network are numbered from 1.
    pub(crate) fn last(&self, pod: usize) -> Option<u8> {
        let network = self.pods.get(pod)?.network?;
        let before = self.pods[..pod].iter().filter(|pod| pod.network == Some(network)).count();
        Some(1 + before as u8)
    }

    /// The pod with the addresses in the network.
    pub(crate) fn pod_at(&self, network: usize, last: u8) -> Option<usize> {
        let is_in = |pod: &usize| self.pods[*pod].network == Some(network);
        (0..self.pods.len()).filter(is_in).find(|pod| self.last(*pod) == Some(last))
    }

    /// Whether an endpoint of another node has the addresses in the network.
    pub(crate) fn is_remote(&self, stage: Stage, network: usize, last: u8) -> bool {
        self.remotes(stage).any(|(at, known, _)| (at, known) == (network, last))
    }

    /// Whether the change gives another group to the endpoint with the addresses in the network, or adds or removes the endpoint.
    pub(crate) fn is_regrouped(&self, end: (usize, u8)) -> bool {
        self.is_regrouped_pod(end) || self.is_regrouped_remote(end)
    }

    /// The same of an endpoint of the node.
    pub(crate) fn is_regrouped_pod(&self, (network, last): (usize, u8)) -> bool {
        let is_changed = |group: &Member| group.at(Stage::Before) != group.at(Stage::After);
        self.pod_at(network, last).is_some_and(|pod| is_changed(&self.pods[pod].group))
    }

    /// The same of an endpoint on another node.
    pub(crate) fn is_regrouped_remote(&self, (network, last): (usize, u8)) -> bool {
        let far = |stage| self.remotes(stage).find(|(at, known, _)| (*at, *known) == (network, last));
        let group = |stage| far(stage).map(|(.., group)| *group.at(stage));
        group(Stage::Before) != group(Stage::After)
    }

    /// Whether the change removes the endpoint with the addresses in the network.
    pub(crate) fn is_removed(&self, (network, last): (usize, u8)) -> bool {
        let is_remote = |stage| self.is_remote(stage, network, last);
        is_remote(Stage::Before) && !is_remote(Stage::After)
    }

    /// Network, last part of the addresses and group of endpoints on other nodes.
    fn remotes(&self, stage: Stage) -> impl Iterator<Item = (usize, u8, &Member)> {
        self.remotes.iter().enumerate().filter_map(move |(at, far)| {
            let far = far.as_ref().filter(|far| far.presence.at(stage))?;
            Some((at / REMOTES.len(), REMOTES[at % REMOTES.len()], &far.group))
        })
    }

    /// Numbers of the services that the endpoints of a network can use.
    pub(crate) fn services_of(&self, network: usize) -> impl Iterator<Item = usize> {
        let vrf = self.network(network).vrf;
        (0..self.services.len()).filter(move |at| self.network(self.services[*at].network).vrf == vrf)
    }

    /// A service as it is in a stage, if it is installed then.
    pub(crate) fn service(&self, stage: Stage, at: usize) -> Service {
        let balanced = &self.services[at];
        let network = self.network(balanced.network);
        let backend = |(endpoint, readiness): &(At, Readiness)| {
            let number = endpoint.network(balanced.network);
            let ip = address(number, endpoint.last, balanced.ip6);
            let is_inside = self.network(number).vrf == network.vrf;
            is_inside.then_some(Backend { readiness: *readiness, ..Backend::on(encap(number), ip) })
        };
        let mut backends: Vec<Backend> = balanced.backends.at(stage).iter().filter_map(backend).collect();
        backends.sort_unstable_by_key(|backend| backend.ip);
        backends.dedup_by_key(|backend| backend.ip);
        let mut ports = balanced.ports.at(stage).clone();
        ports.sort_unstable();
        ports.dedup_by_key(|port| (port.protocol, port.port));
        let subnet = if balanced.scope == Extent::Anywhere { NOWHERE } else { subnet(balanced.network) };
        let vip = address_in(subnet, VIPS + at as u8, balanced.ip6);
        let scope = match balanced.scope {
            Extent::Vrf | Extent::Anywhere if self.is_routed(balanced.network) => Scope::vrf(network.vrf),
            Extent::Network | Extent::Vrf | Extent::Anywhere => Scope::network(&network),
        };
        let affinity = balanced.affinity.then_some(Duration::from_secs(3600));
        Service { ports, backends, affinity, ..Service::new(format!("s{at}:t"), scope, vip) }
    }

    pub(crate) fn is_installed(&self, stage: Stage, service: usize) -> bool {
        self.services[service].lifecycle.is_installed(stage)
    }

    /// The desired state of the node.
    pub(crate) fn desired(&self, stage: Stage) -> Desired {
        let networks: Vec<Network> = (0..NETWORKS).map(|number| self.network(number)).collect();
        let peers = VTEPS.map(|vtep| Object::Peer(Peer::new(vtep, VXLAN_PORT).with_networks(&networks)));
        let services = (0..self.services.len()).filter(|at| self.is_installed(stage, *at));
        let services = services.map(|at| Object::Service(self.service(stage, at)));
        let remotes = self.remotes(stage);
        let remotes = remotes.map(|(number, last, group)| self.remote(number, last, *group.at(stage)));
        peers
            .into_iter()
            .chain(self.subnets())
            .chain(self.host_routes())
            .chain(self.groups(stage))
            .chain(remotes)
            .chain(services)
            .chain((0..self.pods.len()).filter_map(|pod| self.local(stage, pod)))
            .chain(networks.iter().cloned().map(Object::Network))
            .collect()
    }

    fn subnets(&self) -> impl Iterator<Item = Object> {
        let both = (0..NETWORKS).flat_map(|number| [(number, false), (number, true)]);
        let known = both.filter(|(number, _)| self.has_subnets(*number));
        known.map(|(number, ip6)| {
            let Network { id, vrf, encap, .. } = self.network(number);
            let prefix = IpNet::new(address(number, 0, ip6), if ip6 { 64 } else { 24 }).unwrap();
            let mac = self.is_routed(number).then_some(Mac::ROUTER);
            let gateway = Some(Gateway { ip: address(number, GATEWAY, ip6), mac });
            Object::Subnet(Subnet { network: id, vrf, encap, prefix, gateway })
        })
    }

    /// The routes of both tenants to addresses in no subnet.
    fn host_routes(&self) -> impl Iterator<Item = Object> {
        let tenants = (0..2).filter(|_| self.hosts && self.routing == Routing::Vxlans);
        tenants.map(|number| {
            let id = RouteId { vrf: self.network(number).vrf, prefix: "0.0.0.0/0".parse().unwrap() };
            let next_hop = NextHop::Host { subnet: "172.19.0.0/16".parse().unwrap() };
            Object::Route(Route { id, next_hops: NextHops::from(next_hop) })
        })
    }

    fn local(&self, stage: Stage, pod: usize) -> Option<Object> {
        let Pod { network: number, group } = &self.pods[pod];
        let (last, number, port) = (self.last(pod)?, (*number)?, port(pod));
        let network = self.network(number);
        let id = EndpointId::new(&network.id, &port);
        let local = Local::new(id, &network, port, Mac(mac(number, last)), addresses(number, last));
        Some(Object::Local(Local { identity: identity(*group.at(stage)), ..local }))
    }

    /// Groups of pods of the node. Those without settings are omitted, as the agent does.
    fn groups(&self, stage: Stage) -> impl Iterator<Item = Object> {
        let mut numbers: Vec<u32> = self
            .pods
            .iter()
            .filter(|pod| pod.network.is_some())
            .filter_map(|pod| *pod.group.at(stage))
            .collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().filter_map(move |number| {
            let Profile { dscp, rules } = self.groups[number as usize - 1].at(stage);
            let dscp = dscp.map(|class| Dscp::try_from(class).unwrap());
            let group = Group { dscp, ..Group::new(identity(Some(number))?, rules.clone()) };
            (dscp.is_some() || !rules.is_empty()).then_some(Object::Group(group))
        })
    }

    fn remote(&self, number: usize, last: u8, group: Option<u32>) -> Object {
        let network = self.network(number);
        let next_hop = match network.encap {
            Encap::Vxlan { vni, .. } => NextHop::Vtep { address: vtep(last), vni },
            Encap::Vlan(vlan) => NextHop::Uplink { vlan, link: None },
        };
        let id = EndpointId::new(&network.id, &format!("far{last}"));
        let remote = Remote::new(id, &network, next_hop, Mac(mac(number, last)), addresses(number, last));
        Object::Remote(Remote { identity: identity(group), ..remote })
    }
}

fn addresses(number: usize, last: u8) -> (Ipv4Addr, Option<Ipv6Addr>) {
    let ip6 = match address(number, last, true) {
        IpAddr::V6(ip) => Some(ip),
        IpAddr::V4(_) => None,
    };
    (ip(subnet(number), last), ip6)
}
