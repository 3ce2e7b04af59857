//! Routes of the node itself: by its interface on the infra network `contivh1`, it reaches the other networks of the tenant
//! (INVENTORY section 2.6).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::{
    name::{EndpointId, HostName},
    network::Network,
    tag::Encap,
};
use ipnet::IpNet;
use rtnetlink::Handle;

use super::{
    interface,
    retention::Retention,
    routes::{self, HOST, Hop, Table},
};
use crate::state::State;

/// Name of the infra network, and of its interface on each node.
const NAME: &str = "contivh1";

/// Networks that the node reaches through a gateway of its infra network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostRoutes {
    /// Gateways by subnet.
    pub(super) gateways: BTreeMap<IpNet, IpAddr>,
    /// Subnets that the node shall not reach so, also not by a route of an earlier process.
    pub(super) refused: BTreeSet<IpNet>,
    /// Networks that the node does not reach, and why.
    pub(super) missing: Vec<String>,
}

impl HostRoutes {
    /// The original has routes to the VXLAN networks of all tenants. Here the gateway of a network forwards to networks of its
    /// tenant, and only in forward mode `routing`.
    pub(super) fn of(state: &State, host: &HostName) -> HostRoutes {
        let mut routes = HostRoutes::default();
        let is_joined = |network: &&Network| {
            let id = EndpointId::new(&network.id, host.as_str());
            network.name.as_str() == NAME && state.attachment(&id).is_some()
        };
        // An interface has one name, so the node joins one of these networks.
        let Some(infra) = state.infra_networks().find(is_joined) else { return routes };
        let others = state.networks_of(&infra.tenant).filter_map(|id| state.active_network(id));
        let is_reachable = |other: &&Network| {
            matches!(other.encap, Encap::Vxlan { .. })
                && other.id != infra.id
                && state.is_routed_between(infra, other)
        };
        // The router forwards to subnets with a gateway.
        for subnet in others.filter(is_reachable).flat_map(routed_subnets) {
            // The route would precede those by which the node reaches it.
            if let Some(why) = of_others(state, subnet) {
                routes.refused.insert(subnet);
                routes.missing.push(format!(
                    "this node has no route to {subnet}: {why}; use a subnet for the network that the fabric does not use"
                ));
                continue;
            }
            let gateway = match subnet {
                IpNet::V4(_) => infra.gateway.map(IpAddr::V4),
                IpNet::V6(_) => infra.gateway_v6.map(IpAddr::V6),
            };
            match gateway {
                Some(gateway) => _ = routes.gateways.insert(subnet, gateway),
                None => routes.missing.push(format!(
                    "this node has no route to {subnet}: network {} has no gateway of that address family; create it with one",
                    infra.id
                )),
            }
        }
        routes
    }
}

fn routed_subnets(network: &Network) -> impl Iterator<Item = IpNet> {
    let v4 = network.gateway.map(|_| IpNet::V4(network.subnet));
    let v6 = network.gateway_v6.and(network.subnet_v6).map(IpNet::V6);
    v4.into_iter().chain(v6)
}

/// What the node reaches in a subnet without the network that has it; `None` for nothing.
fn of_others(state: &State, subnet: IpNet) -> Option<String> {
    if let Some(ip) = state.fabric_addresses().find(|ip| subnet.contains(ip)) {
        return Some(format!(
            "{ip} is an address of a node, a leaf switch, the store, netmaster or a gateway"
        ));
    }
    let private = state.private_subnet().map(IpNet::V4).filter(|private| private.contains(&subnet));
    if let Some(private) = private {
        return Some(format!("it is in the private subnet {private}, by which the node reaches its pods"));
    }
    let mut around = state.networks_around().filter(|(interface, _)| *interface != NAME);
    let (interface, network) = around.find(|(_, network)| network.contains(&subnet))?;
    Some(format!("it is in the network {network} of interface {interface} of this node"))
}

/// Makes the node's main table have these routes; others stay if `retention` keeps them. Returns the number of changes, and the first
/// route that the kernel rejects.
pub(super) async fn sync(
    handle: &Handle,
    wanted: &HostRoutes,
    retention: &Retention,
) -> Result<(usize, Option<String>), rtnetlink::Error> {
    let link = match wanted.gateways.is_empty() {
        true => None,
        false => interface::find(handle, NAME).await?,
    };
    let via = |gateway: IpAddr, interface: u32| Hop::Via { interface, gateway: Some(gateway), mtu: None };
    let table: Table = match link.map(|link| link.header.index) {
        Some(index) => wanted.gateways.iter().map(|(to, gateway)| (*to, via(*gateway, index))).collect(),
        None => Table::new(),
    };
    routes::sync(handle, HOST, &table, |prefix| retention.keeps(prefix)).await
}

#[cfg(test)]
mod tests {
    use contiv_model::{
        endpoint::Endpoint,
        global::Config,
        key::Key,
        mac::Mac,
        network::Kind,
        tag::{Vlan, Vni},
    };

    use super::*;
    use crate::{
        datapath::Owner,
        state::{Attachment, ClusterObject, Surroundings},
    };

    const HOST_NAME: &str = "h1";

    fn network(name: &str, tenant: &str, n: u16) -> Network {
        let (vni, local) = (Vni::try_from(u32::from(n)).unwrap(), Vlan::try_from(n).unwrap());
        Network {
            id: format!("{name}.{tenant}").as_str().into(),
            tenant: tenant.parse().unwrap(),
            name: name.parse().unwrap(),
            kind: Kind::Data,
            encap: Encap::Vxlan { vni, local },
            subnet: format!("10.{n}.0.0/16").parse().unwrap(),
            gateway: Some([10, n as u8, 255, 254].into()),
            subnet_v6: Some(format!("2001:db8:{n}::/64").parse().unwrap()),
            gateway_v6: Some(format!("2001:db8:{n}::ffff").parse().unwrap()),
        }
    }

    fn infra() -> Network {
        Network { kind: Kind::Infra, ..network(NAME, "blue", 9) }
    }

    fn state(networks: impl IntoIterator<Item = Network>) -> State {
        let mut state = State::default();
        let config = Config {
            fwd_mode: "routing".to_owned(),
            pvt_subnet: "172.19.0.0/16".to_owned(),
            ..Config::default()
        };
        state.set(&Key::MasterConfig, Some(ClusterObject::Config(config)));
        for network in networks {
            state.set(&Key::Network(network.id.clone()), Some(ClusterObject::Network(network)));
        }
        state
    }

    fn join(state: &mut State) {
        let network = infra().id;
        let (id, ip) = (EndpointId::new(&network, HOST_NAME), [10, 9, 0, 1].into());
        let endpoint = Endpoint {
            id: id.clone(),
            network,
            group: None,
            group_number: None,
            ip,
            ip6: None,
            mac: Mac::of_endpoint(ip),
            host: HOST_NAME.into(),
            vtep: None,
        };
        state.set(&Key::Endpoint(id.clone()), Some(ClusterObject::Endpoint(endpoint)));
        let own = Attachment { port: NAME.to_owned(), owner: Owner::Node };
        state.set_attachment(&id, Some(own));
    }

    fn routes(state: &State) -> Vec<String> {
        let routes = HostRoutes::of(state, &HOST_NAME.into());
        assert_eq!(routes.missing, Vec::<String>::new());
        routes.gateways.iter().map(|(to, gateway)| format!("{to} via {gateway}")).collect()
    }

    #[test]
    fn the_node_has_routes_to_the_networks_of_the_tenant() {
        let vlan = Network { encap: Encap::Vlan(Vlan::try_from(7).unwrap()), ..network("n7", "blue", 7) };
        // Its subnet is part of another one, which comes first.
        let apart = Network { subnet: "10.1.5.0/24".parse().unwrap(), ..network("n8", "blue", 8) };
        let mut state = state([infra(), network("n1", "blue", 1), network("n2", "red", 2), vlan, apart]);
        assert_eq!(routes(&state), Vec::<String>::new(), "before the node has joined");
        join(&mut state);
        let both = ["10.1.0.0/16 via 10.9.255.254", "2001:db8:1::/64 via 2001:db8:9::ffff"];
        assert_eq!(routes(&state), both);
        let bridge = Config { fwd_mode: "bridge".to_owned(), ..Config::default() };
        state.set(&Key::MasterConfig, Some(ClusterObject::Config(bridge)));
        assert_eq!(routes(&state), Vec::<String>::new());
    }

    #[test]
    fn a_missing_gateway_is_reported() {
        let infra = Network { gateway_v6: None, ..infra() };
        let mut state = state([infra, network("n1", "blue", 1)]);
        join(&mut state);
        let found = HostRoutes::of(&state, &HOST_NAME.into());
        let to: Vec<_> = found.gateways.keys().map(ToString::to_string).collect();
        assert_eq!(to, ["10.1.0.0/16"]);
        let why = "this node has no route to 2001:db8:1::/64: network contivh1.blue has no gateway of that address family; create \
                   it with one";
        assert_eq!(found.missing, [why]);
    }

    /// The route would lead what the nodes send each other into the overlay.
    #[test]
    fn a_subnet_with_an_address_of_the_fabric_is_not_reached() {
        let mut state = state([infra(), network("n1", "blue", 1), network("n2", "blue", 2)]);
        join(&mut state);
        state.reserve([[10, 1, 0, 9].into()]);
        let found = HostRoutes::of(&state, &HOST_NAME.into());
        let to: Vec<_> = found.gateways.keys().map(ToString::to_string).collect();
        assert_eq!(to, ["10.2.0.0/16", "2001:db8:1::/64", "2001:db8:2::/64"]);
        assert!(found.missing[0].contains("10.1.0.0/16: 10.1.0.9 is an address of"), "{:?}", found.missing);
    }

    /// Only `admin` creates networks with a gateway here.
    #[test]
    fn a_subnet_without_a_gateway_is_not_reached() {
        let no_v4 = Network { gateway: None, ..network("n1", "blue", 1) };
        let no_v6 = Network { gateway_v6: None, ..network("n2", "blue", 2) };
        let mut state = state([infra(), no_v4, no_v6]);
        join(&mut state);
        assert_eq!(routes(&state), ["10.2.0.0/16 via 10.9.255.254", "2001:db8:1::/64 via 2001:db8:9::ffff"]);
    }

    /// The routes would be those to a part of it.
    #[test]
    fn a_subnet_in_a_network_of_the_node_is_not_reached() {
        let subnets = ["10.77.0.96/29", "172.19.0.0/24", "10.80.0.8/29", "10.16.4.0/24", "10.78.0.0/15"];
        let networks = subnets.into_iter().zip(1..).map(|(subnet, n)| Network {
            subnet: subnet.parse().unwrap(),
            subnet_v6: None,
            ..network(&format!("n{n}"), "blue", n)
        });
        let other = Network { name: "mgmt0".parse().unwrap(), tenant: "red".parse().unwrap(), ..infra() };
        let other = Network { id: "mgmt0.red".into(), subnet: "10.80.0.0/16".parse().unwrap(), ..other };
        let mut state = state([infra(), other].into_iter().chain(networks));
        join(&mut state);
        state.allow_host_access();
        state.surround(Surroundings {
            networks: [
                ("eth0", "10.77.0.0/24"),
                ("eth1", "10.78.9.0/24"),
                ("mgmt0", "10.80.0.0/16"),
                (NAME, "10.16.0.0/16"),
            ]
            .map(|(interface, network)| (interface.to_owned(), network.parse().unwrap()))
            .into(),
            ..Surroundings::default()
        });
        let found = HostRoutes::of(&state, &HOST_NAME.into());
        let to: Vec<_> = found.gateways.keys().map(ToString::to_string).collect();
        assert_eq!(to, ["10.16.4.0/24", "10.78.0.0/15"]);
        let whys = [
            "10.77.0.96/29: it is in the network 10.77.0.0/24 of interface eth0 of this node; use",
            "172.19.0.0/24: it is in the private subnet 172.19.0.0/16, by which the node reaches its pods; use",
            "10.80.0.8/29: it is in the network 10.80.0.0/16 of interface mgmt0 of this node; use",
        ];
        assert!(found.missing.iter().zip(whys).all(|(line, why)| line.contains(why)), "{:?}", found.missing);
        assert_eq!((found.missing.len(), found.refused.len()), (whys.len(), whys.len()));
    }

    #[test]
    fn another_infra_network_leads_nowhere() {
        let other = Network { name: "mgmt0".parse().unwrap(), ..infra() };
        let mut state = state([other, network("n1", "blue", 1)]);
        join(&mut state);
        assert_eq!(routes(&state), Vec::<String>::new());
    }
}
