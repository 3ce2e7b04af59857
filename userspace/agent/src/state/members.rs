use std::collections::BTreeMap;

use contiv_model::name::HostName;

/// Number of endpoints per node and group or network.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Members<K>(BTreeMap<HostName, BTreeMap<K, usize>>);

impl<K> Default for Members<K> {
    fn default() -> Self {
        Members(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Members<K> {
    /// Groups or networks with endpoints on the node.
    pub(super) fn on_host(&self, host: &HostName) -> impl Iterator<Item = &K> {
        self.0.get(host).into_iter().flat_map(BTreeMap::keys)
    }

    /// Groups or networks with endpoints on the node, starting with `first`.
    pub(super) fn on_host_from(&self, host: &HostName, first: K) -> impl Iterator<Item = &K> {
        self.0.get(host).into_iter().flat_map(move |counts| counts.range(first.clone()..).map(|(key, _)| key))
    }

    /// Groups or networks with endpoints on any node, with repetitions.
    pub(super) fn all(&self) -> impl Iterator<Item = &K> {
        self.0.values().flat_map(BTreeMap::keys)
    }

    pub(super) fn is_on_host(&self, key: &K, host: &HostName) -> bool {
        self.0.get(host).is_some_and(|counts| counts.contains_key(key))
    }

    /// Counts an endpoint on the node; true if it is the first of its group or network there.
    pub(super) fn add(&mut self, key: &K, host: &HostName) -> bool {
        let count = self.0.entry(host.clone()).or_default().entry(key.clone()).or_default();
        *count += 1;
        *count == 1
    }

    /// Uncounts an endpoint on the node; true if it was the last of its group or network there.
    pub(super) fn remove(&mut self, key: &K, host: &HostName) -> bool {
        let Some(counts) = self.0.get_mut(host) else { return false };
        let Some(count) = counts.get_mut(key) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            counts.remove(key);
            if counts.is_empty() {
                self.0.remove(host);
            }
        }
        last
    }
}
