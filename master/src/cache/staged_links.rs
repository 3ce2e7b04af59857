//! References of staged objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use contiv_model::key::ObjectType;

use super::StagedTxn;
use super::links::{Linked, Links};
use super::record::Entry;

/// Which staged objects refer to an object, and which did before: by key, whether it does.
type Members = BTreeMap<String, bool>;

/// Changes of references that a transaction stages. A plan that asks for the links of many objects does
/// not evaluate the references of all staged ones each time.
#[derive(Default)]
pub(super) struct StagedLinks {
    /// By the type of the object and the type of the referring objects, then by the key of the object.
    sets: HashMap<(ObjectType, ObjectType), HashMap<String, Members>>,
}

impl StagedLinks {
    /// Notes that the object with key `id` changes from `old`, which the transaction had before.
    pub(super) fn replace<T: Linked>(&mut self, id: &str, old: Option<&T>, new: Option<&T>) {
        let Some(referrer) = T::TYPE else { return };
        for (object, refers) in [(old, false), (new, true)] {
            for (target, key) in object.map(Linked::references).unwrap_or_default() {
                let members = self.sets.entry((target, referrer)).or_default().entry(key).or_default();
                members.insert(id.to_owned(), refers);
            }
        }
    }

    fn members(&self, target: ObjectType, referrer: ObjectType, key: &str) -> Option<&Members> {
        self.sets.get(&(target, referrer))?.get(key)
    }

    /// Staged objects of type `referrer` whose references to the object with this key may differ from
    /// those of the cache, and whether they refer to it.
    pub(super) fn of(
        &self,
        target: ObjectType,
        referrer: ObjectType,
        key: &str,
    ) -> impl Iterator<Item = (&str, bool)> {
        let members = self.members(target, referrer, key).into_iter().flatten();
        members.map(|(id, refers)| (id.as_str(), *refers))
    }

    /// Whether the object `id` refers to the object with this key; none if that is not staged.
    pub(super) fn refers(
        &self,
        target: ObjectType,
        referrer: ObjectType,
        key: &str,
        id: &str,
    ) -> Option<bool> {
        self.members(target, referrer, key)?.get(id).copied()
    }
}

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

    /// Notes what the object refers to that is put, or none if it is deleted.
    pub(super) fn relink<T: Entry>(&mut self, id: &str, new: Option<&T>) {
        if T::TYPE.is_some() {
            let old = self.get::<T>(id);
            self.links.replace(id, old.as_deref(), new);
        }
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
