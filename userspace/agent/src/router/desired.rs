use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::name::HostName;
use ipnet::{IpNet, Ipv4Net};

use super::host::HostRoutes;
use crate::{bgp::Report, state::State};

/// What the kernel shall forward.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Desired {
    /// Whether the nodes route VLAN networks.
    pub(super) is_routing: bool,
    /// Addresses of the endpoints of this node.
    pub(super) endpoints: BTreeSet<IpAddr>,
    /// Settings of the BGP speaker; `None` without a `Bgp` object.
    pub(super) router: Option<Ipv4Net>,
    /// VLAN networks that are not routed, and why.
    pub(super) refused: Vec<String>,
    /// Routes of the node itself.
    pub(super) host: HostRoutes,
}

impl Desired {
    pub(super) fn of(state: &State, host: &HostName) -> Desired {
        let host_routes = HostRoutes::of(state, host);
        if !state.is_routing_vlans() {
            return Desired { host: host_routes, ..Desired::default() };
        }
        let refused = |(id, first)| {
            format!(
                "network {id} is not routed: its subnet overlaps that of network {first}, and the physical network has one route for \
                 an address; use another subnet"
            )
        };
        Desired {
            is_routing: true,
            endpoints: state.routed_vlan_addresses(host),
            router: state.bgp_speaker(host).map(|speaker| speaker.router),
            refused: state.ambiguous_networks().map(refused).collect(),
            host: host_routes,
        }
    }

    /// Whether the kernel shall have rules or routes.
    pub(super) fn is_needed(&self) -> bool {
        self.is_routing || !self.host.gateways.is_empty()
    }
}

/// Routes of the leaf switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Learnt {
    /// Next hops by prefix.
    pub(super) routes: BTreeMap<IpNet, IpAddr>,
    /// Whether these are all routes. Before, the kernel keeps those of an earlier process.
    pub(super) is_complete: bool,
}

impl Learnt {
    pub(super) fn of(report: &Report) -> Learnt {
        match report {
            Report::Unknown => Learnt::default(),
            Report::Absent | Report::Refused(_) => Learnt { is_complete: true, ..Learnt::default() },
            Report::Running(running) => {
                let routes = running.learnt.routes.iter().map(|(prefix, route)| (*prefix, route.next_hop));
                Learnt { routes: routes.collect(), is_complete: running.learnt.complete }
            }
        }
    }
}
