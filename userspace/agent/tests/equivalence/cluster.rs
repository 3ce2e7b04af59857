//! A generated cluster around one node, before and after a change, and packets.

use std::{net::IpAddr, sync::Arc, time::Duration};

use contiv_model::{
    group::Dscp,
    mac::Mac,
    name::EndpointId,
    policy::{Identity, Rule},
    route::NextHop,
    service::{Port, Readiness},
    tag::Encap,
};
use netplugin::datapath::{
    Backend, Desired, Gateway, Group, Local, Network, Object, Peer, Remote, Scope, Service, Subnet,
};

use crate::{
    node::topology::{self, VTEPS, VXLAN_PORT},
    packet::Probe,
};

/// Two tenants with a VXLAN and a VLAN network each. All networks have the same addresses.
pub(crate) const NETWORKS: usize = 4;
/// Pods of the node.
pub(crate) const PODS: usize = 9;
pub(crate) const GROUPS: u32 = 5;
/// Endpoints of each network on other nodes.
pub(crate) const REMOTES: [u8; 3] = [11, 12, 13];
/// Last part of the address of the gateway, a router that the cluster does not know.
const GATEWAY: u8 = 254;
/// Last part of the first address of a service.
const VIPS: u8 = 200;

#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) pods: Vec<Pod>,
    /// Endpoints on other nodes, for each network and each of [`REMOTES`]; `None` if there is none.
    pub(crate) remotes: Vec<Option<Member>>,
    /// Whether the subnets of a network are known.
    pub(crate) subnets: Vec<bool>,
    /// Settings of the groups; the number of a group is its index plus 1.
    pub(crate) groups: Vec<Changing<Profile>>,
    pub(crate) services: Vec<Balanced>,
    pub(crate) probes: Vec<Probe>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Before,
    After,
}

/// A value and what it is after the change; `None` if it is the same.
#[derive(Clone, Debug)]
pub(crate) struct Changing<T> {
    pub(crate) before: T,
    pub(crate) after: Option<T>,
}

impl<T> Changing<T> {
    pub(crate) fn at(&self, stage: Stage) -> &T {
        match stage {
            Stage::After => self.after.as_ref().unwrap_or(&self.before),
            Stage::Before => &self.before,
        }
    }
}

/// The group of an endpoint.
pub(crate) type Member = Changing<Option<u32>>;

/// A pod of the node, if it is attached.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    /// Network; `None` if the pod is not attached.
    pub(crate) network: Option<usize>,
    pub(crate) group: Member,
}

#[derive(Clone, Debug)]
pub(crate) struct Profile {
    pub(crate) dscp: Option<u8>,
    pub(crate) rules: Arc<[Rule]>,
}

#[derive(Clone, Debug)]
pub(crate) struct Balanced {
    pub(crate) network: usize,
    pub(crate) ip6: bool,
    pub(crate) ports: Vec<Port>,
    /// Last parts of addresses.
    pub(crate) backends: Changing<Vec<(u8, Readiness)>>,
    pub(crate) affinity: bool,
}

/// Returns one of the networks.
pub(crate) fn network(number: usize) -> Network {
    let tenant = if number.is_multiple_of(2) { "blue" } else { "green" };
    let encap = match number {
        0 | 1 => {
            let vni = 10_001 + number as u32;
            Encap::Vxlan { vni: vni.try_into().unwrap(), local: (1 + number as u16).try_into().unwrap() }
        }
        _ => Encap::Vlan((50 * number as u16).try_into().unwrap()),
    };
    let name = if number < 2 { "overlay" } else { "wire" };
    Network::new(format!("{name}.{tenant}"), encap)
}

pub(crate) fn is_vlan(number: usize) -> bool {
    matches!(network(number).encap, Encap::Vlan(_))
}

/// VTEP of an endpoint on another node.
pub(crate) fn vtep(last: u8) -> IpAddr {
    VTEPS[usize::from(last) % VTEPS.len()].into()
}

pub(crate) fn address(last: u8, ip6: bool) -> IpAddr {
    if ip6 { topology::ip6(last).into() } else { topology::ip(last).into() }
}

pub(crate) fn port(pod: usize) -> String {
    format!("vvport{}", pod + 1)
}

fn identity(group: Option<u32>) -> Option<Identity> {
    group.map(|number| number.try_into().unwrap())
}

impl Cluster {
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
    pub(crate) fn is_remote(&self, network: usize, last: u8) -> bool {
        self.remotes().any(|(at, known, _)| (at, known) == (network, last))
    }

    /// Network, last part of the addresses and group of endpoints on other nodes.
    fn remotes(&self) -> impl Iterator<Item = (usize, u8, &Member)> {
        self.remotes.iter().enumerate().filter_map(|(at, member)| {
            Some((at / REMOTES.len(), REMOTES[at % REMOTES.len()], member.as_ref()?))
        })
    }

    /// Numbers of the services of a network.
    pub(crate) fn services_of(&self, network: usize) -> impl Iterator<Item = usize> {
        (0..self.services.len()).filter(move |at| self.services[*at].network == network)
    }

    pub(crate) fn service(&self, stage: Stage, at: usize) -> Service {
        let balanced = &self.services[at];
        let network = network(balanced.network);
        let position = self.services_of(balanced.network).take_while(|known| *known < at).count();
        let backend = |(last, readiness): &(u8, Readiness)| Backend {
            readiness: *readiness,
            ..Backend::on(network.encap, address(*last, balanced.ip6))
        };
        let mut backends: Vec<Backend> = balanced.backends.at(stage).iter().map(backend).collect();
        backends.sort_unstable();
        backends.dedup_by_key(|backend| backend.ip);
        let mut ports = balanced.ports.clone();
        ports.sort_unstable();
        ports.dedup_by_key(|port| (port.protocol, port.port));
        let vip = address(VIPS + position as u8, balanced.ip6);
        let affinity = balanced.affinity.then_some(Duration::from_secs(3600));
        Service {
            ports,
            backends,
            affinity,
            ..Service::new(format!("s{at}:t"), Scope::network(&network), vip)
        }
    }

    /// The desired state of the node.
    pub(crate) fn desired(&self, stage: Stage) -> Desired {
        let networks: Vec<Network> = (0..NETWORKS).map(network).collect();
        let peers = VTEPS.map(|vtep| Object::Peer(Peer::new(vtep, VXLAN_PORT).with_networks(&networks)));
        let services = (0..self.services.len()).map(|at| Object::Service(self.service(stage, at)));
        peers
            .into_iter()
            .chain(self.subnets())
            .chain(self.groups(stage))
            .chain(self.remotes().map(|(number, last, member)| remote(number, last, *member.at(stage))))
            .chain(services)
            .chain((0..self.pods.len()).filter_map(|pod| self.local(stage, pod)))
            .chain(networks.iter().cloned().map(Object::Network))
            .collect()
    }

    fn subnets(&self) -> impl Iterator<Item = Object> {
        let known = self.subnets.iter().enumerate().filter(|(_, known)| **known);
        known.flat_map(|(number, _)| {
            [false, true].map(|ip6| {
                let Network { id, vrf, encap, .. } = network(number);
                let prefix = if ip6 { "2001:db8:7::/64" } else { "10.7.0.0/24" };
                let gateway = Some(Gateway { ip: address(GATEWAY, ip6), mac: None });
                Object::Subnet(Subnet { network: id, vrf, encap, prefix: prefix.parse().unwrap(), gateway })
            })
        })
    }

    fn local(&self, stage: Stage, pod: usize) -> Option<Object> {
        let Pod { network: number, group } = &self.pods[pod];
        let (last, network) = (self.last(pod)?, network((*number)?));
        let port = port(pod);
        let id = EndpointId::new(&network.id, &port);
        let addresses = (topology::ip(last), Some(topology::ip6(last)));
        let local = Local::new(id, &network, port, Mac(topology::mac(last)), addresses);
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
}

fn remote(number: usize, last: u8, group: Option<u32>) -> Object {
    let network = network(number);
    let next_hop = match network.encap {
        Encap::Vxlan { vni, .. } => NextHop::Vtep { address: vtep(last), vni },
        Encap::Vlan(vlan) => NextHop::Uplink { vlan, link: None },
    };
    let id = EndpointId::new(&network.id, &format!("far{last}"));
    let addresses = (topology::ip(last), Some(topology::ip6(last)));
    let remote = Remote::new(id, &network, next_hop, Mac(topology::mac(last)), addresses);
    Object::Remote(Remote { identity: identity(group), ..remote })
}
