use std::collections::{BTreeMap, BTreeSet};

/// Removes `id` from the set at `key`, and the set if it becomes empty.
pub(super) fn remove_from<K: Ord, I: Ord>(index: &mut BTreeMap<K, BTreeSet<I>>, key: &K, id: &I) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}
