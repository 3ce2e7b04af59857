//! Access of pods to the API. They reach the node through infra networks and host access.

use std::net::IpAddr;

use contiv_model::{endpoint::Endpoint, network::Network};
use ipnet::IpNet;

use crate::{
    addresses,
    datapath::host_access::{HOST_PORT, kernel_address},
    state::{Reader, State},
};

/// Paths that are open to pods.
const OPEN: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// The client is or may be a pod.
const ENDPOINT: &str = "not open to endpoints; ask from a node";
/// The client is not this node, and the addresses of pods are not known yet.
const UNKNOWN: &str = "the addresses of endpoints are not known yet; ask from this node";

/// Returns the reason why a request of a client with this address is refused; `None` if it is served.
pub(super) fn refusal(path: &str, from: IpAddr, reader: &Reader) -> Option<&'static str> {
    let from = from.to_canonical();
    if OPEN.contains(&path) || from.is_loopback() {
        return None;
    }
    match addresses::read() {
        Ok(own) => refusal_of(from, &own, reader),
        Err(error) => {
            tracing::warn!("API: read the addresses of this node: {error}");
            Some(UNKNOWN)
        }
    }
}

/// Like [`refusal`], for a path that is not open to pods, and an address that is not a loopback address. `own` contains
/// the addresses of this node.
fn refusal_of(from: IpAddr, own: &[(String, IpNet)], reader: &Reader) -> Option<&'static str> {
    if is_link_local(from) || is_behind_host_port(from, own) {
        return Some(ENDPOINT);
    }
    if !is_complete(reader) {
        let is_own = own.iter().any(|(_, address)| address.addr() == from);
        return (!is_own).then_some(UNKNOWN);
    }
    reader.with(|state| is_assigned(state, from)).then_some(ENDPOINT)
}

/// Pods also have link-local addresses, which are not in their records.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Reports whether the kernel reaches the address through the port of host access. Until the router changes it, the port
/// has the subnet of an earlier process or of earlier settings.
fn is_behind_host_port(address: IpAddr, own: &[(String, IpNet)]) -> bool {
    let mut ports = own.iter().filter(|(interface, _)| interface == HOST_PORT);
    ports.any(|(_, port)| port.contains(&address) && port.addr() != address)
}

/// Reports whether the state contains the addresses of all endpoints. netmaster sets the forward mode after its start.
fn is_complete(reader: &Reader) -> bool {
    let has_settings = |state: &State| state.config().is_some_and(|config| !config.fwd_mode.is_empty());
    reader.awaited().is_empty() && reader.with(has_settings)
}

/// Reports whether the address is or may be assigned to an endpoint: the state has no endpoints of networks that the node
/// does not need, and no addresses of unreadable records.
fn is_assigned(state: &State, address: IpAddr) -> bool {
    let is_unknown =
        |network: &Network| network.contains(address) && state.on_network(&network.id).next().is_none();
    state.endpoints().any(|endpoint| has(endpoint, address))
        || is_private(state, address)
        || state.networks().any(is_unknown)
        || state.is_unreadable_address(address)
}

/// Reports whether the address is a pod's private address of host access, which is in no record. The kernel's own address
/// is also in the private subnet.
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
        event::Event,
        global::Config,
        key::Key,
        mac::Mac,
        network::Kind,
        tag::{Encap, Vlan},
    };

    use super::*;
    use crate::state::{self, ClusterObject, Update, Vtep};

    const SOURCE: &str = "test";

    /// The complete state with these objects.
    fn complete(objects: impl IntoIterator<Item = (Key, ClusterObject)>) -> Reader {
        let (mut writer, _, reader, _) = state::new([SOURCE]);
        let puts = objects.into_iter().map(|(key, object)| Event::InitApply(key, Ok(object)));
        let events = [Event::Init].into_iter().chain(puts).chain([Event::InitDone]);
        writer.apply_all(events.map(|event| Update { source: SOURCE.into(), revision: 1, event }));
        reader
    }

    fn settings(mode: &str) -> (Key, ClusterObject) {
        let (fwd_mode, pvt_subnet) = (mode.to_owned(), "172.19.0.0/16".to_owned());
        (Key::MasterConfig, ClusterObject::Config(Config { fwd_mode, pvt_subnet, ..Config::default() }))
    }

    fn network(name: &str, subnet: &str) -> Network {
        Network {
            id: format!("{name}.t").as_str().into(),
            tenant: "t".parse().unwrap(),
            name: name.parse().unwrap(),
            kind: Kind::Data,
            encap: Encap::Vlan(Vlan::try_from(1).unwrap()),
            subnet: subnet.parse().unwrap(),
            gateway: None,
            subnet_v6: None,
            gateway_v6: None,
        }
    }

    fn endpoint(ip: [u8; 4], ip6: Option<&str>) -> Endpoint {
        Endpoint {
            id: "here.t-e1".into(),
            network: "here.t".into(),
            group: None,
            group_number: None,
            ip: ip.into(),
            ip6: ip6.map(|ip| ip.parse().unwrap()),
            mac: Mac([2, 2, 10, 1, 0, 1]),
            host: "h".into(),
            vtep: None,
        }
    }

    #[test]
    fn pods_see_health_and_metrics_only() {
        let pod = endpoint([10, 1, 0, 9], None);
        let from = IpAddr::V4(pod.ip);
        let reader =
            complete([settings("bridge"), (Key::Endpoint(pod.id.clone()), ClusterObject::Endpoint(pod))]);
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
            assert_eq!(refusal(path, from, &reader).is_none(), open, "{path}");
        }
    }

    /// Requests of the node are always served.
    #[test]
    fn only_the_node_is_served_before_the_addresses_of_pods_are_known() {
        let own = [("lo", "127.0.0.1/8"), ("eth0", "192.0.2.2/24"), (HOST_PORT, "172.19.255.254/16")];
        let own = own.map(|(interface, address)| (interface.to_owned(), address.parse::<IpNet>().unwrap()));
        let refusals = |reader: &Reader| {
            let clients = ["192.0.2.2", "172.19.255.254", "192.0.2.1", "10.1.0.9", "172.19.0.7"];
            clients.map(|from| refusal_of(from.parse().unwrap(), &own, reader))
        };
        let unknown = [None, None, Some(UNKNOWN), Some(UNKNOWN), Some(ENDPOINT)];
        let without_store = state::new([SOURCE]).2;
        assert_eq!(refusals(&without_store), unknown);
        for from in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(refusal("/inspect/driver", from.parse().unwrap(), &without_store), None, "{from}");
        }
        assert_eq!(refusals(&complete([])), unknown, "without settings");
        assert_eq!(refusals(&complete([settings("")])), unknown, "netmaster has not filled them in");
        // The port of host access remains, although host access is not in the settings.
        let known = [None, None, None, None, Some(ENDPOINT)];
        assert_eq!(refusals(&complete([settings("bridge")])), known);
    }

    #[test]
    fn addresses_of_networks_without_known_endpoints_are_refused() {
        let endpoint = endpoint([10, 1, 0, 1], None);
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
        // The unreadable endpoint may have any address of its network.
        state.reject(&Key::Endpoint("here.t-e2".into()));
        assert_eq!(assigned(&state), [true, false, false]);
        // Not even the subnet of the unreadable network is known. The last address is that of a node.
        let vtep = Vtep { host: "h".into(), address: [192, 0, 2, 2].into(), port: 4789, since: 0 };
        state.set(&Key::NodeVtep("h".into()), Some(ClusterObject::Node(vtep)));
        state.reject(&Key::Network("unreadable.t".into()));
        assert_eq!(assigned(&state), [true, true, false]);
    }

    /// Local delivery is not masqueraded: the node sees the private address of its pod.
    #[test]
    fn addresses_of_host_access_are_refused() {
        let set = |state: &mut State, mode: &str| {
            let (key, config) = settings(mode);
            state.set(&key, Some(config));
        };
        let assigned = |state: &State| {
            let addresses = ["172.19.0.7", "172.19.255.253", "172.19.255.254", "172.20.0.7", "2001:db8::7"];
            addresses.map(|address| is_assigned(state, address.parse().unwrap()))
        };
        let mut state = State::default();
        set(&mut state, "routing");
        assert_eq!(assigned(&state), [false; 5]);
        state.allow_host_access();
        // The third address is that of the kernel.
        assert_eq!(assigned(&state), [true, true, false, false, false]);
        set(&mut state, "bridge");
        assert_eq!(assigned(&state), [false; 5]);
    }

    #[test]
    fn pods_are_recognised_by_all_their_addresses() {
        let (network, pod) = (network("here", "10.1.0.0/24"), endpoint([10, 1, 0, 9], Some("2001:db8::9")));
        let reader = complete([
            settings("bridge"),
            (Key::Network(network.id.clone()), ClusterObject::Network(network)),
            (Key::Endpoint(pod.id.clone()), ClusterObject::Endpoint(pod)),
        ]);
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
            let refused = refusal("/monitor", from.parse().unwrap(), &reader);
            assert_eq!(refused, pod.then_some(ENDPOINT), "{from}");
        }
    }
}
