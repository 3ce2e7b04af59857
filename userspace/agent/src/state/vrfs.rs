use std::collections::{BTreeMap, BTreeSet};

use contiv_model::{
    name::{NetworkId, TenantName},
    network::Network,
    vrf::Vrf,
};
use ipnet::IpNet;

use super::index::remove_from;

/// VRFs of networks.
///
/// A network is in the VRF of its tenant, unless one of its subnets overlaps a subnet of a network of the tenant that
/// precedes it by id: then it has a VRF of its own. The subnets of one VRF thus never overlap, and the VRF of a network
/// depends only on the networks that overlap it. Networks that are inactive because of their tags count as well.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Vrfs {
    subnets: BTreeMap<TenantName, BTreeMap<IpNet, BTreeSet<NetworkId>>>,
    /// Networks with a VRF of their own.
    separate: BTreeSet<NetworkId>,
}

impl Vrfs {
    /// The VRF of a known network.
    pub(super) fn of(&self, network: &Network) -> Vrf {
        match self.separate.contains(&network.id) {
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
        let mut affected = BTreeSet::from([id.clone()]);
        if let Some(network) = before {
            affected.extend(self.overlapping(network).cloned());
            if let Some(subnets) = self.subnets.get_mut(&network.tenant) {
                network.subnets().for_each(|subnet| remove_from(subnets, &subnet, id));
                if subnets.is_empty() {
                    self.subnets.remove(&network.tenant);
                }
            }
        }
        if let Some(network) = networks.get(id) {
            let subnets = self.subnets.entry(network.tenant.clone()).or_default();
            for subnet in network.subnets() {
                subnets.entry(subnet).or_default().insert(id.clone());
            }
            affected.extend(self.overlapping(network).cloned());
        }
        affected.retain(|id| {
            let is_separate = networks
                .get(id)
                .is_some_and(|network| overlapping(&self.subnets, network).any(|other| other < id));
            match is_separate {
                true => self.separate.insert(id.clone()),
                false => self.separate.remove(id),
            }
        });
        affected
    }

    fn overlapping(&self, network: &Network) -> impl Iterator<Item = &NetworkId> {
        overlapping(&self.subnets, network)
    }
}

/// The networks of the tenant, with repetitions, that have an address in common with `network`, itself included.
fn overlapping<'a>(
    subnets: &'a BTreeMap<TenantName, BTreeMap<IpNet, BTreeSet<NetworkId>>>,
    network: &Network,
) -> impl Iterator<Item = &'a NetworkId> + use<'a> {
    let of_network: Vec<IpNet> = network.subnets().collect();
    let of_tenant = subnets.get(&network.tenant);
    of_tenant.into_iter().flat_map(move |of_tenant| {
        of_network.clone().into_iter().flat_map(move |subnet| {
            let around = std::iter::successors(subnet.supernet(), IpNet::supernet);
            let around = around.filter_map(move |subnet| of_tenant.get(&subnet));
            // Prefixes are ordered by their first address, and the shorter first.
            let inside = of_tenant.range(subnet..=IpNet::from(subnet.broadcast())).map(|(_, ids)| ids);
            around.chain(inside).flatten()
        })
    })
}

#[cfg(test)]
mod tests {
    use contiv_model::{network::Kind, tag::Encap};
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
        /// After any changes, a network has its own VRF if it overlaps one of its tenant that precedes it; and the networks
        /// that moved are reported.
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
