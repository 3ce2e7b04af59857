//! Links of objects, as a transaction finds them: those of the cache with its staged changes.

use std::collections::BTreeSet;
use std::sync::Arc;

use contiv_model::key::ObjectType;

use super::StagedTxn;
use super::links::Links;
use super::record::Entry;

impl StagedTxn<'_> {
    /// Keys of the objects of type `R` that refer to the object `key` of type `T`, with staged changes
    /// applied.
    pub fn linked<T: Entry, R: Entry>(&self, key: &str) -> Arc<BTreeSet<String>> {
        match (T::TYPE, R::TYPE) {
            (Some(target), Some(referrer)) => self.link_set(target, referrer, key),
            _ => Arc::default(),
        }
    }

    fn link_set(&self, target: ObjectType, referrer: ObjectType, key: &str) -> Arc<BTreeSet<String>> {
        let mut keys = self.cache().links.get(target, referrer, key).cloned().unwrap_or_default();
        for (id, refers) in self.links.of(target, referrer, key) {
            if refers && !keys.contains(id) {
                Arc::make_mut(&mut keys).insert(id.to_owned());
            } else if !refers && keys.contains(id) {
                Arc::make_mut(&mut keys).remove(id);
            }
        }
        keys
    }

    /// Number of the keys that [`StagedTxn::linked`] returns.
    pub fn count_linked<T: Entry, R: Entry>(&self, key: &str) -> usize {
        let (Some(target), Some(referrer)) = (T::TYPE, R::TYPE) else { return 0 };
        let known = self.cache().links.get(target, referrer, key);
        let is_known = |id: &str| known.is_some_and(|known| known.contains(id));
        let count = known.map_or(0, |known| known.len());
        self.links.of(target, referrer, key).fold(count, |count, (id, refers)| match (is_known(id), refers) {
            (false, true) => count + 1,
            (true, false) => count - 1,
            (true, true) | (false, false) => count,
        })
    }

    /// Whether the object `id` of type `R` refers to the object `key` of type `T`. The cost does not
    /// depend on the number of references.
    pub fn is_linked<T: Entry, R: Entry>(&self, key: &str, id: &str) -> bool {
        let (Some(target), Some(referrer)) = (T::TYPE, R::TYPE) else { return false };
        let known = || self.cache().links.get(target, referrer, key).is_some_and(|known| known.contains(id));
        self.links.refers(target, referrer, key, id).unwrap_or_else(known)
    }

    /// Derived links of the object `key` of type `T`, with staged changes applied.
    pub fn links_of<T: Entry>(&self, key: &str) -> Links {
        let Some(target) = T::TYPE else { return Links::default() };
        let sets = T::REFERRERS.iter();
        Links::new(sets.map(|referrer| (*referrer, self.link_set(target, *referrer, key))))
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::api::{EndpointGroup, Policy};

    use super::super::{ClusterCache, StagedTxn};

    fn group(policies: &[&str]) -> EndpointGroup {
        EndpointGroup {
            key: "t:g".to_owned(),
            tenant_name: "t".to_owned(),
            policies: policies.iter().map(|&name| name.to_owned()).collect(),
            ..EndpointGroup::default()
        }
    }

    /// Whether group `t:g` is linked to the policy, as all questions about it answer.
    fn is_linked(staged: &StagedTxn<'_>, policy: &str) -> bool {
        let is_linked = staged.is_linked::<Policy, EndpointGroup>(policy, "t:g");
        assert_eq!(staged.linked::<Policy, EndpointGroup>(policy).contains("t:g"), is_linked);
        assert_eq!(staged.count_linked::<Policy, EndpointGroup>(policy), usize::from(is_linked));
        is_linked
    }

    #[test]
    fn links_are_those_of_the_last_staged_object() {
        let mut cache = ClusterCache::default();
        let mut staged = StagedTxn::new(&cache);
        staged.put("t:g", group(&["a", "a", "b"]));
        assert_eq!(["t:a", "t:b", "t:c"].map(|policy| is_linked(&staged, policy)), [true, true, false]);
        let (_, change) = staged.finish().unwrap();
        cache.commit(change, 1_i64);

        let mut staged = StagedTxn::new(&cache);
        let linked = |staged: &StagedTxn<'_>| ["t:a", "t:b", "t:c"].map(|policy| is_linked(staged, policy));
        assert_eq!(linked(&staged), [true, true, false]);
        staged.put("t:g", group(&["b", "c"]));
        assert_eq!(linked(&staged), [false, true, true]);
        staged.put("t:g", group(&["a"]));
        assert_eq!(linked(&staged), [true, false, false]);
        staged.delete::<EndpointGroup>("t:g");
        assert_eq!(linked(&staged), [false, false, false]);
        staged.put("t:g", group(&["c"]));
        assert_eq!(linked(&staged), [false, false, true]);
    }
}
