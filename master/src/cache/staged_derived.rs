//! Derived records, as a transaction finds them: those of the cache with its staged changes.
//!
//! A plan that derives a record again which the cache has not read yet cannot know whether it changes
//! the record. The transaction notes the keys; they must be read, and the plan made again.

use std::collections::BTreeSet;
use std::ops::Bound::{Included, Unbounded};

use super::StagedTxn;
use super::derived::{Content, Derived, Digest};
use super::unread::DerivedKeys;

impl StagedTxn<'_> {
    /// Stages what the record must be, unless it is already that; none if it must not exist.
    pub fn derive<T: Derived>(&mut self, id: &str, value: Option<T>) {
        let known = T::table(&self.cache().tables.derived).get(id);
        let overlay = T::overlay(&self.overlays.derived);
        let is_unchanged = match (overlay.get(id), &value, known) {
            (Some(staged), value, _) => staged == value,
            (None, Some(value), Some(known)) => known.content == Content::Known(Digest::of(value)),
            (None, value, known) => value.is_none() && known.is_none(),
        };
        let is_unread = value.is_some() && known.is_some_and(|known| known.content == Content::Unread);
        let is_unknown =
            || !T::table(&self.cache().tables.derived).knows::<T>(id) && !self.will_read::<T>(id);
        if is_unread || is_unknown() {
            self.unread.insert(DerivedKeys::around::<T>(id));
        }
        if !is_unchanged {
            self.sizes.set(T::path(id), value.as_ref());
            T::overlay_mut(&mut self.overlays.derived).insert(id.to_owned(), value);
        }
    }

    /// Whether a part of the records is to be read that has this one.
    fn will_read<T: Derived>(&self, id: &str) -> bool {
        let key = T::path(id);
        let before = self.unread.range(..=DerivedKeys::Below(key.clone())).next_back();
        matches!(before, Some(DerivedKeys::Below(prefix)) if key.starts_with(prefix))
    }

    /// Keys that must be read before this transaction can be committed.
    pub fn unread(&self) -> &BTreeSet<DerivedKeys> {
        &self.unread
    }

    /// Whether the record exists, with staged changes applied.
    pub fn has_derived<T: Derived>(&self, id: &str) -> bool {
        match T::overlay(&self.overlays.derived).get(id) {
            Some(staged) => staged.is_some(),
            None => T::table(&self.cache().tables.derived).get(id).is_some(),
        }
    }

    /// The value that this transaction puts, if it puts one. A value that is edited counts as large as
    /// it was before.
    pub fn staged_derived<T: Derived>(&mut self, id: &str) -> Option<&mut T> {
        T::overlay_mut(&mut self.overlays.derived).get_mut(id)?.as_mut()
    }

    /// Ids of the records that begin with `prefix`, with staged changes applied.
    pub fn derived_ids<T: Derived>(&mut self, prefix: &str) -> BTreeSet<String> {
        if !T::table(&self.cache().tables.derived).knows::<T>(prefix) {
            self.unread.insert(DerivedKeys::Below(T::path(prefix)));
        }
        let known = T::table(&self.cache().tables.derived).below(prefix).map(|(id, _)| id);
        let staged = T::overlay(&self.overlays.derived).range::<str, _>((Included(prefix), Unbounded));
        let staged = staged.map(|(id, _)| id).take_while(|id| id.starts_with(prefix)).cloned();
        known.chain(staged).filter(|id| self.has_derived::<T>(id)).collect()
    }
}
