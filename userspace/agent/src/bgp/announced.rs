//! What the node announces, and with which settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use contiv_model::{
    endpoint::Endpoint,
    name::{EndpointId, HostName},
    tag::Encap,
};
use ipnet::IpNet;

use crate::{
    addresses,
    state::{BgpSpeaker, State},
};

/// Settings and addresses of the speaker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Announced {
    /// `None` without a `Bgp` object of this node.
    pub(super) speaker: Option<BgpSpeaker>,
    /// Whether the forward mode is `routing`.
    pub(super) is_routing: bool,
    /// Whether this node forwards what the neighbor sends to the addresses.
    pub(super) routes_vlans: bool,
    /// Addresses of the endpoints with an interface on this node whose network is an active VLAN network.
    pub(super) endpoints: Arc<BTreeMap<EndpointId, BTreeSet<IpAddr>>>,
}

impl Announced {
    /// While the settings are invalid, those of `last` stay in effect.
    pub(super) fn of(state: &State, host: &HostName, last: &Announced) -> Announced {
        let earlier = last.speaker.as_ref().filter(|_| state.has_invalid_speaker(host));
        let Some(speaker) = state.bgp_speaker(host).or(earlier) else { return Announced::default() };
        let is_vlan = |network| matches!(network, Some(Encap::Vlan(_)));
        let (is_routing, routes_vlans) = (state.is_routing(), state.is_routing_vlans());
        let routed = routes_vlans.then(|| state.routed_vlan_addresses(host));
        let is_announced = |ip: &IpAddr| match &routed {
            Some(routed) => routed.contains(ip),
            None => is_routing && !state.is_of_fabric(*ip) && !state.is_around(*ip),
        };
        let addresses = |endpoint: &Endpoint| -> BTreeSet<IpAddr> {
            endpoint.addresses().iter().filter(|ip| is_announced(ip)).collect()
        };
        // After a reboot an endpoint's record exists without an interface until its pod is deleted.
        let endpoints = state
            .on_host(host)
            .filter(|id| state.attachment(id).is_some())
            .filter_map(|id| Some((id, state.endpoint(id)?)))
            .filter(|(_, endpoint)| {
                is_vlan(state.active_network(&endpoint.network).map(|network| network.encap))
            })
            .map(|(id, endpoint)| (id.clone(), addresses(endpoint)))
            .filter(|(_, addresses)| !addresses.is_empty());
        let endpoints = Arc::new(endpoints.collect());
        Announced { speaker: Some(speaker.clone()), is_routing, routes_vlans, endpoints }
    }

    /// Without the endpoints that have no interface on this node any more.
    pub(super) fn attached(&self, state: &State) -> Announced {
        let attached = self.endpoints.iter().filter(|(id, _)| state.attachment(id).is_some());
        let endpoints = attached.map(|(id, addresses)| (id.clone(), addresses.clone())).collect();
        Announced { endpoints: Arc::new(endpoints), ..self.clone() }
    }

    /// Addresses of all endpoints.
    pub(super) fn addresses(&self) -> Arc<BTreeSet<IpAddr>> {
        Arc::new(self.endpoints.values().flatten().copied().collect())
    }
}

/// Next hop of IPv6 routes: a global IPv6 address of the interface that has the router IP (RFC 2545 section 3). It stays the same as
/// long as the interface has it: others come and go (RFC 8981), and the kernel may list a new one first.
/// Nodes may have thousands of interfaces, so it is looked up at intervals.
#[derive(Debug, Default)]
pub(super) struct Ipv6NextHop {
    router: Option<Ipv4Addr>,
    address: Option<Ipv6Addr>,
    checked: Option<Instant>,
}

impl Ipv6NextHop {
    /// Interval between lookups.
    pub(super) const INTERVAL: Duration = Duration::from_secs(5);

    /// `None` if there is none. The address stays as it is if the interfaces cannot be read.
    pub(super) fn of(&mut self, router: Ipv4Addr) -> Option<Ipv6Addr> {
        let is_current = self.checked.is_some_and(|at| at.elapsed() < Self::INTERVAL);
        if self.router != Some(router) {
            *self = Ipv6NextHop { router: Some(router), ..Ipv6NextHop::default() };
        } else if is_current {
            return self.address;
        }
        match addresses::read() {
            Ok(addresses) => self.address = beside(router, self.address, &addresses),
            Err(error) => tracing::warn!("read the addresses of this node: {error}"),
        }
        self.checked = Some(Instant::now());
        self.address
    }
}

/// The global address `current` of the interface with the router IP, or else its first one.
fn beside(router: Ipv4Addr, current: Option<Ipv6Addr>, all: &[(String, IpNet)]) -> Option<Ipv6Addr> {
    let (interface, _) = all.iter().find(|(_, address)| address.addr() == IpAddr::V4(router))?;
    let of_interface = all.iter().filter(|(of, _)| of == interface);
    let addresses = of_interface.filter_map(|(_, address)| match address {
        IpNet::V6(address) => Some(address.addr()),
        IpNet::V4(_) => None,
    });
    let is_global = |ip: &Ipv6Addr| !ip.is_unicast_link_local() && !ip.is_loopback() && !ip.is_multicast();
    let global: Vec<Ipv6Addr> = addresses.filter(is_global).collect();
    current.filter(|current| global.contains(current)).or(global.first().copied())
}

#[cfg(test)]
mod tests {
    use testkit::{Netns, needs};

    use contiv_model::key::Key;

    use super::*;
    use crate::state::Attachment;

    #[test]
    fn endpoints_without_an_interface_are_left_out() {
        let address = |last: u8| BTreeSet::from([IpAddr::from([10, 1, 1, last])]);
        let [one, two] = ["n.t-c1", "n.t-c2"].map(EndpointId::from);
        let endpoints = BTreeMap::from([(one, address(1)), (two.clone(), address(2))]);
        let before = Announced { endpoints: Arc::new(endpoints), ..Announced::default() };
        let mut state = State::default();
        state.set_attachment(&two, Some(Attachment::of_pod("vvport2")));
        assert_eq!(*before.attached(&state).addresses(), address(2));
        state.set_attachment(&two, None);
        assert!(before.attached(&state).addresses().is_empty());
    }

    #[test]
    fn invalid_settings_leave_those_of_an_earlier_process_in_effect() {
        let (host, mut state) = (HostName::from("h1"), State::default());
        let speaker = BgpSpeaker {
            router: "50.1.1.1/24".parse().unwrap(),
            asn: 65002,
            neighbor: [50, 1, 1, 2].into(),
            neighbor_as: 65001,
        };
        let last = Announced { speaker: Some(speaker), ..Announced::default() };
        let found = |state: &State| Announced::of(state, &host, &last).speaker;
        assert_eq!(found(&state), None, "the object was deleted");
        state.reject(&Key::Bgp(host.clone()));
        assert_eq!(found(&state), last.speaker);
        state.set(&Key::Bgp(host.clone()), None);
        assert_eq!(found(&state), None);
    }

    #[test]
    fn the_next_hop_stays_while_the_interface_has_it() {
        needs!(root(), binary("ip"));
        let (node, leaf) = (Netns::new("node").unwrap(), Netns::new("leaf").unwrap());
        node.veth("eth0", &leaf, "eth0").unwrap();
        node.ip("address add 50.1.1.1/24 dev eth0 label eth0:bgp").unwrap();
        node.up("eth0").unwrap();
        let router = Ipv4Addr::new(50, 1, 1, 1);
        let look = |current: Option<Ipv6Addr>| {
            let read = || anyhow::Ok(beside(router, current, &addresses::read()?));
            node.run(read).unwrap()
        };
        assert_eq!(look(None), None, "link-local only");
        let [one, two] = ["2001:db8:50::1", "2001:db8:50::2"].map(|text| text.parse::<Ipv6Addr>().unwrap());
        node.address("eth0", &format!("{one}/64")).unwrap();
        assert_eq!(look(None), Some(one));
        node.address("eth0", &format!("{two}/64")).unwrap();
        assert_eq!([one, two].map(|current| look(Some(current))), [Some(one), Some(two)]);
        node.ip(&format!("address del {one}/64 dev eth0")).unwrap();
        assert_eq!(look(Some(one)), Some(two));
    }
}
