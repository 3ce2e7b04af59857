use std::collections::{BTreeMap, BTreeSet};

use contiv_model::{name::NetworkId, network::Network, tag::Encap};

/// A number that identifies a network on a switch or on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tag {
    Vlan(u16),
    Vni(u32),
    /// VLAN id inside the switch, for VXLAN networks.
    Local(u16),
}

/// Networks by the tags that they claim. Two networks with the same tag would receive each other's frames, so only one is
/// active.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Tags(BTreeMap<Tag, BTreeSet<NetworkId>>);

impl Tags {
    /// Whether the network is the first to claim each of its tags.
    pub(super) fn is_active(&self, network: &Network) -> bool {
        let first = |tag: &Tag| self.0.get(tag).and_then(BTreeSet::first) == Some(&network.id);
        tags(network.encap).iter().all(first)
    }

    /// Adds the claims of a network and returns all networks with these tags.
    pub(super) fn claim(&mut self, network: &Network) -> BTreeSet<NetworkId> {
        let mut affected = BTreeSet::new();
        for tag in tags(network.encap) {
            let claims = self.0.entry(tag).or_default();
            claims.insert(network.id.clone());
            affected.extend(claims.iter().cloned());
        }
        affected
    }

    /// Removes the claims of `before` that its successor `after` does not repeat, and returns the other networks with these
    /// tags.
    pub(super) fn release(&mut self, before: &Network, after: Option<&Network>) -> BTreeSet<NetworkId> {
        let kept = after.map(|network| tags(network.encap)).unwrap_or_default();
        let mut affected = BTreeSet::new();
        for tag in tags(before.encap).into_iter().filter(|tag| !kept.contains(tag)) {
            if let Some(claims) = self.0.get_mut(&tag) {
                claims.remove(&before.id);
                affected.extend(claims.iter().cloned());
                if claims.is_empty() {
                    self.0.remove(&tag);
                }
            }
        }
        affected
    }
}

fn tags(encap: Encap) -> Vec<Tag> {
    match encap {
        Encap::Vlan(vlan) => vec![Tag::Vlan(vlan.get())],
        Encap::Vxlan { vni, local } => vec![Tag::Vni(vni.get()), Tag::Local(local.get())],
    }
}
