use std::collections::BTreeMap;

use contiv_model::name::{GroupKey, NetworkId};

/// Networks and groups that endpoints need while they are being attached, each with the number of its requests.
#[derive(Debug, Default)]
pub(super) struct Requests {
    networks: BTreeMap<NetworkId, usize>,
    groups: BTreeMap<GroupKey, usize>,
}

impl Requests {
    pub(super) fn networks(&self) -> impl Iterator<Item = &NetworkId> {
        self.networks.keys()
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = &GroupKey> {
        self.groups.keys()
    }

    pub(super) fn add(&mut self, network: &NetworkId, group: Option<&GroupKey>) {
        *self.networks.entry(network.clone()).or_default() += 1;
        if let Some(group) = group {
            *self.groups.entry(group.clone()).or_default() += 1;
        }
    }

    pub(super) fn remove(&mut self, network: &NetworkId, group: Option<&GroupKey>) {
        uncount(&mut self.networks, network);
        if let Some(group) = group {
            uncount(&mut self.groups, group);
        }
    }
}

fn uncount<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
