//! Access of pods to the API. They reach the node by infra networks, and by host access.

use std::net::IpAddr;

use contiv_model::{endpoint::Endpoint, network::Network};

use crate::{datapath::host_access::kernel_address, state::State};

/// Paths that are open to pods.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// Whether a request is refused, because its client is or may be a pod.
pub(super) fn is_refused(path: &str, from: IpAddr, is_assigned: impl FnOnce(IpAddr) -> bool) -> bool {
    !OPEN.contains(&path) && is_pod(from, is_assigned)
}

/// Pods have link-local addresses as well, which are not in their records.
fn is_pod(from: IpAddr, is_assigned: impl FnOnce(IpAddr) -> bool) -> bool {
    let from = from.to_canonical();
    let is_link_local = match from {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    is_link_local || !from.is_loopback() && is_assigned(from)
}

/// Whether the address is assigned to an endpoint, or may be: of networks that the node does not need, the state has no
/// endpoints, and of unreadable records it has no addresses.
pub(super) fn is_assigned(state: &State, address: IpAddr) -> bool {
    let is_unknown =
        |network: &Network| network.contains(address) && state.on_network(&network.id).next().is_none();
    state.endpoints().any(|endpoint| has(endpoint, address))
        || is_private(state, address)
        || state.networks().any(is_unknown)
        || state.is_unreadable_address(address)
}

/// Whether the address is one by which host access leads from a pod to the kernel, in no record. The kernel itself has one of the
/// private subnet, too.
fn is_private(state: &State, address: IpAddr) -> bool {
    let IpAddr::V4(address) = address else { return false };
    let subnet = state.private_subnet().filter(|subnet| subnet.contains(&address));
    subnet.is_some_and(|subnet| address != kernel_address(subnet))
}

/// Whether the address is assigned to the endpoint.
fn has(endpoint: &Endpoint, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => endpoint.ip == address,
        IpAddr::V6(address) => endpoint.ip6 == Some(address),
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::{
        global::Config,
        key::Key,
        mac::Mac,
        network::Kind,
        tag::{Encap, Vlan},
    };

    use super::*;
    use crate::state::{ClusterObject, Vtep};

    #[test]
    fn pods_see_health_and_metrics_only() {
        let pod = "10.1.0.9".parse().unwrap();
        for (path, open) in [
            ("/healthz", true),
            ("/readyz", true),
            ("/metrics", true),
            ("/inspect/driver", false),
            ("/monitor", false),
            ("/trace", false),
            ("/svcstats", false),
            ("/debug/reclaimEndpoint/a", false),
            ("/metrics/../inspect/driver", false),
        ] {
            assert_eq!(is_refused(path, pod, |from| from == pod), !open, "{path}");
        }
    }

    #[test]
    fn addresses_of_networks_without_known_endpoints_are_refused() {
        let network = |name: &str, subnet: &str| Network {
            id: format!("{name}.t").as_str().into(),
            tenant: "t".parse().unwrap(),
            name: name.parse().unwrap(),
            kind: Kind::Data,
            encap: Encap::Vlan(Vlan::try_from(1).unwrap()),
            subnet: subnet.parse().unwrap(),
            gateway: None,
            subnet_v6: None,
            gateway_v6: None,
        };
        let endpoint = Endpoint {
            id: "here.t-e1".into(),
            network: "here.t".into(),
            group: None,
            group_number: None,
            ip: [10, 1, 0, 1].into(),
            ip6: None,
            mac: Mac([2, 2, 10, 1, 0, 1]),
            host: "h".into(),
            vtep: None,
        };
        let mut state = State::default();
        for network in [network("here", "10.1.0.0/24"), network("elsewhere", "10.2.0.0/24")] {
            state.set(&Key::Network(network.id.clone()), Some(ClusterObject::Network(network)));
        }
        state.set(&Key::Endpoint(endpoint.id.clone()), Some(ClusterObject::Endpoint(endpoint)));
        for (address, assigned) in
            [("10.1.0.1", true), ("10.1.0.2", false), ("10.2.0.1", true), ("192.0.2.1", false)]
        {
            assert_eq!(is_assigned(&state, address.parse().unwrap()), assigned, "{address}");
        }
        let assigned = |state: &State| {
            let addresses = ["10.1.0.2", "192.0.2.1", "192.0.2.2"].map(|address| address.parse().unwrap());
            addresses.map(|address| is_assigned(state, address))
        };
        // An endpoint of the network has any address of it.
        state.reject(&Key::Endpoint("here.t-e2".into()));
        assert_eq!(assigned(&state), [true, false, false]);
        // Of a network not even the subnet is known. The last address is that of a node.
        let vtep = Vtep { host: "h".into(), address: [192, 0, 2, 2].into(), port: 4789, since: 0 };
        state.set(&Key::NodeVtep("h".into()), Some(ClusterObject::Node(vtep)));
        state.reject(&Key::Network("unreadable.t".into()));
        assert_eq!(assigned(&state), [true, true, false]);
    }

    /// Local delivery is not masqueraded: the node sees the private address of its pod.
    #[test]
    fn addresses_of_host_access_are_refused() {
        let set = |state: &mut State, mode: &str| {
            let (fwd_mode, pvt_subnet) = (mode.to_owned(), "172.19.0.0/16".to_owned());
            let config = Config { fwd_mode, pvt_subnet, ..Config::default() };
            state.set(&Key::MasterConfig, Some(ClusterObject::Config(config)));
        };
        let assigned = |state: &State| {
            let addresses = ["172.19.0.7", "172.19.255.253", "172.19.255.254", "172.20.0.7", "2001:db8::7"];
            addresses.map(|address| is_assigned(state, address.parse().unwrap()))
        };
        let mut state = State::default();
        set(&mut state, "routing");
        assert_eq!(assigned(&state), [false; 5]);
        state.allow_host_access();
        // The kernel has the third address.
        assert_eq!(assigned(&state), [true, true, false, false, false]);
        set(&mut state, "bridge");
        assert_eq!(assigned(&state), [false; 5]);
    }

    #[test]
    fn pods_are_recognised_by_all_their_addresses() {
        let assigned = ["10.1.0.9", "2001:db8::9", "127.0.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        for (from, pod) in [
            ("10.1.0.9", true),
            ("::ffff:10.1.0.9", true),
            ("2001:db8::9", true),
            ("fe80::2:aff:fe01:9", true),
            ("169.254.1.1", true),
            ("10.1.0.8", false),
            ("127.0.0.1", false),
            ("::1", false),
        ] {
            assert_eq!(is_pod(from.parse().unwrap(), |from| assigned.contains(&from)), pod, "{from}");
        }
    }
}
