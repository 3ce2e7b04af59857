//! References of staged objects.

use std::collections::{BTreeMap, HashMap};

use contiv_model::key::ObjectType;

use super::links::Linked;

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
