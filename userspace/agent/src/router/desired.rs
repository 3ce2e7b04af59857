use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::{
    key::Key,
    name::{EndpointId, HostName},
};
use ipnet::{IpNet, Ipv4Net};

use super::{host::HostRoutes, nat_table::NatTable, quota};
use crate::{
    bgp::Report,
    datapath::{KERNEL_PORT, Owner, host_access::HOST_PORT},
    state::State,
};

/// Longest name of an interface (`IFNAMSIZ` without the end).
const MAX_INTERFACE_NAME: usize = 15;

/// What the kernel shall forward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Desired {
    /// Whether the nodes route VLAN networks.
    pub(super) is_routing: bool,
    /// Addresses of the endpoints of this node.
    pub(super) endpoints: BTreeSet<IpAddr>,
    /// Their interfaces.
    pub(super) ports: BTreeSet<String>,
    /// Settings of the BGP speaker; `None` without a `Bgp` object.
    pub(super) router: Option<Ipv4Net>,
    /// VLAN networks and addresses that are not routed, and why.
    pub(super) refused: Vec<String>,
    /// Routes of the node itself.
    pub(super) host: HostRoutes,
    /// Host access of the node's pods.
    pub(super) access: Option<NatTable>,
    /// Prefixes of other networks, which host access leads to none of.
    pub(super) cluster: BTreeSet<IpNet>,
    /// Interfaces of the pods with host access.
    pub(super) pods: BTreeSet<String>,
}

impl Desired {
    /// `tunnels` are the UDP ports of tunnels.
    pub(super) fn of(state: &State, host: &HostName, tunnels: &BTreeSet<u16>) -> Desired {
        let access = host_access(state, host, tunnels);
        let (cluster, pods) = match access {
            Some(_) => (
                state.routed_vlan_subnets().filter(|subnet| matches!(subnet, IpNet::V4(_))).collect(),
                state.host_access_ports().map(str::to_owned).collect(),
            ),
            None => (BTreeSet::new(), BTreeSet::new()),
        };
        let any = Desired { host: HostRoutes::of(state, host), access, cluster, pods, ..Desired::default() };
        if !state.is_routing_vlans() {
            return any;
        }
        let refused = |(id, first)| {
            format!(
                "network {id} is not routed: its subnet overlaps that of network {first}, and the physical network has one route for \
                 an address; use another subnet"
            )
        };
        let taken = |ip| {
            format!(
                "endpoint address {ip} is not routed: a node, a leaf switch, the store, netmaster or a gateway has it, or it \
                 is in a network of an interface of this node; use a subnet for the network that the fabric does not use"
            )
        };
        Desired {
            is_routing: true,
            endpoints: state.routed_vlan_addresses(host),
            ports: state.routed_vlan_ports(host).map(str::to_owned).collect(),
            router: state.bgp_speaker(host).map(|speaker| speaker.router),
            refused: state
                .ambiguous_networks()
                .map(refused)
                .chain(state.refused_vlan_addresses(host).into_iter().map(taken))
                .collect(),
            ..any
        }
    }

    /// Prefixes of which it is known whether the kernel shall have routes of the agent to them, without those that BGP has learnt.
    pub(super) fn prefixes(&self) -> impl Iterator<Item = IpNet> {
        let endpoints = self.endpoints.iter().copied().map(IpNet::from);
        let host = self.host.gateways.keys().chain(&self.host.refused).copied();
        endpoints.chain(host).chain(self.cluster.iter().copied())
    }

    /// Whether the kernel shall have anything of the agent.
    pub(super) fn is_needed(&self) -> bool {
        self.is_routing || !self.host.gateways.is_empty() || self.access.is_some()
    }
}

fn host_access(state: &State, host: &HostName, tunnels: &BTreeSet<u16>) -> Option<NatTable> {
    let subnet = state.host_access(host)?;
    let infra = state.infra_networks().map(|network| network.name.to_string());
    let infra = infra.chain(unreadable_infra(state, host));
    let closed = infra.chain([HOST_PORT, KERNEL_PORT].map(str::to_owned)).collect();
    let leaves = state.bgp_speaker(host).map(|speaker| speaker.neighbor).into_iter().collect();
    let pods = quota::rounded(state.attachments().count());
    Some(NatTable { subnet, closed, tunnels: tunnels.clone(), leaves, pods })
}

/// Interfaces that this node may have on infra networks whose records are unreadable. The id of a network does not tell where its
/// name ends.
fn unreadable_infra<'a>(state: &'a State, host: &'a HostName) -> impl Iterator<Item = String> + 'a {
    let joined = state.unreadable().filter_map(move |key| match key {
        Key::Network(id) => {
            let own = state.attachment(&EndpointId::new(id, host.as_str()));
            own.is_some_and(|attachment| attachment.owner == Owner::Node).then_some(id.as_str())
        }
        _ => None,
    });
    let names = joined.flat_map(|id| id.match_indices('.').filter_map(move |(dot, _)| id.get(..dot)));
    names.filter(|name| name.len() <= MAX_INTERFACE_NAME).map(str::to_owned)
}

/// Routes of the leaf switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Learnt {
    /// Next hops by prefix.
    pub(super) routes: BTreeMap<IpNet, IpAddr>,
    /// Whether these are all routes. Before, the kernel keeps those of an earlier process.
    pub(super) is_complete: bool,
    /// Addresses of the speaker and of its neighbor, if it runs.
    pub(super) session: Option<(Ipv4Net, IpAddr)>,
}

impl Learnt {
    pub(super) fn of(report: &Report) -> Learnt {
        match report {
            Report::Unknown => Learnt::default(),
            Report::Absent | Report::Refused(_) => Learnt { is_complete: true, ..Learnt::default() },
            Report::Running(running) => {
                let routes = running.learnt.routes.iter().map(|(prefix, route)| (*prefix, route.next_hop));
                let session = Some((running.router, running.status.neighbor));
                Learnt { routes: routes.collect(), is_complete: running.learnt.complete, session }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::name::NetworkId;

    use super::*;
    use crate::state::Attachment;

    #[test]
    fn the_interface_on_an_unreadable_infra_network_stays_closed() {
        let (mut state, host) = (State::default(), HostName::from("h1"));
        let network = NetworkId::from("a.b.t");
        let own = Attachment { port: "vvport1".to_owned(), owner: Owner::Node };
        state.set_attachment(&EndpointId::new(&network, "h1"), Some(own));
        let names = |state: &State| unreadable_infra(state, &host).collect::<Vec<_>>();
        assert_eq!(names(&state), [""; 0]);
        state.reject(&Key::Network("c.t".into()));
        assert_eq!(names(&state), [""; 0]);
        state.reject(&Key::Network(network));
        assert_eq!(names(&state), ["a", "a.b"]);
        // `nft` would refuse the whole table.
        let long = NetworkId::from("mgmt.a-long-tenant-name.x");
        let own = Attachment { port: "vvport2".to_owned(), owner: Owner::Node };
        state.set_attachment(&EndpointId::new(&long, "h1"), Some(own));
        state.reject(&Key::Network(long));
        assert_eq!(names(&state), ["a", "a.b", "mgmt"]);
    }
}
