use std::collections::{BTreeMap, BTreeSet};

use contiv_model::{
    name::{NetworkId, TenantName},
    network::Network,
    vrf::Vrf,
};

use super::overlaps::Overlaps;

/// VRFs of networks.
///
/// A network is in the VRF of its tenant, unless one of its subnets overlaps a subnet of a network of the tenant with a
/// lower id. In this case it has its own VRF. So the subnets of one VRF never overlap, and the VRF of a network depends
/// only on the networks that overlap it. Networks that are inactive because of their tags count as well.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Vrfs(Overlaps<TenantName>);

impl Vrfs {
    /// The VRF of a known network.
    pub(super) fn of(&self, network: &Network) -> Vrf {
        match self.0.is_later(&network.id) {
            true => network.id.clone().into(),
            false => network.tenant.clone().into(),
        }
    }

    /// Updates the VRFs after `networks` has changed at `id`; `before` is the previous version of the network. Returns the
    /// networks that move to another VRF.
    pub(super) fn update(
        &mut self,
        networks: &BTreeMap<NetworkId, Network>,
        id: &NetworkId,
        before: Option<&Network>,
    ) -> BTreeSet<NetworkId> {
        self.0.update(networks, id, before, |network| Some(network.tenant.clone()))
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::{network::Kind, tag::Encap};
    use ipnet::IpNet;
    use proptest::prelude::*;

    use super::*;

    fn network(n: u8, subnet: &str, subnet_v6: Option<&str>) -> Network {
        let tenant: TenantName = if n < 4 { "t" } else { "u" }.parse().unwrap();
        let name = format!("n{n}").parse().unwrap();
        Network {
            id: NetworkId::new(&name, &tenant),
            tenant,
            name,
            kind: Kind::Data,
            encap: Encap::Vlan(1.try_into().unwrap()),
            subnet: subnet.parse().unwrap(),
            gateway: None,
            subnet_v6: subnet_v6.map(|subnet| subnet.parse().unwrap()),
            gateway_v6: None,
        }
    }

    fn any_network() -> impl Strategy<Value = (Network, bool)> {
        let v4 = ["0.0.0.0/0", "10.0.0.0/8", "10.0.0.0/16", "10.0.3.0/24", "10.1.0.0/16", "10.1.2.3/32"];
        let v6 = ["::/0", "2001:db8::/32", "2001:db8::/64", "2001:db8:0:1::/64"];
        let subnets =
            (prop::sample::select(v4.to_vec()), prop::option::of(prop::sample::select(v6.to_vec())));
        let is_set = prop::bool::weighted(0.7);
        (0..6u8, subnets, is_set).prop_map(|(n, (v4, v6), is_set)| (network(n, v4, v6), is_set))
    }

    proptest! {
        /// After any changes, a network has its own VRF if it overlaps a network of its tenant with a lower id, and the
        /// networks that moved are reported.
        #[test]
        fn networks_that_overlap_an_earlier_one_are_separate(changes in prop::collection::vec(any_network(), 1..30)) {
            let mut networks: BTreeMap<NetworkId, Network> = BTreeMap::new();
            let mut vrfs = Vrfs::default();
            for (network, is_set) in changes {
                let id = network.id.clone();
                let known = |vrfs: &Vrfs, networks: &BTreeMap<_, Network>| -> BTreeMap<NetworkId, Vrf> {
                    networks.values().map(|network| (network.id.clone(), vrfs.of(network))).collect()
                };
                let before_change = known(&vrfs, &networks);
                let before = if is_set { networks.insert(id.clone(), network) } else { networks.remove(&id) };
                let moved = vrfs.update(&networks, &id, before.as_ref());
                for network in networks.values() {
                    let overlaps = |other: &&Network| {
                        let common = |a: &IpNet, b: &IpNet| a.contains(b) || b.contains(a);
                        other.tenant == network.tenant
                            && other.subnets().any(|a| network.subnets().any(|b| common(&a, &b)))
                    };
                    let is_separate = networks.range(..network.id.clone()).any(|(_, other)| overlaps(&other));
                    prop_assert_eq!(vrfs.of(network) == Vrf::Network(network.id.clone()), is_separate);
                    let was = before_change.get(&network.id);
                    prop_assert!(was.is_none_or(|was| *was == vrfs.of(network)) || moved.contains(&network.id));
                }
            }
            for id in networks.keys().cloned().collect::<Vec<_>>() {
                let before = networks.remove(&id);
                vrfs.update(&networks, &id, before.as_ref());
            }
            prop_assert_eq!(vrfs, Vrfs::default());
        }
    }
}
