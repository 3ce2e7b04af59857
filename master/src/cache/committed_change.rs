//! Changes of a committed transaction, as the cache applies them.

use std::collections::BTreeSet;

use contiv_model::{endpoint, global, group, network, service};

use super::ClusterCache;
use super::allocation_edit::{StagedEdits, commit_allocations};
use super::index::Index;
use super::record::{Entry, Overlays};
use super::revisions::Revisions;

/// Changes of a committed transaction.
#[derive(Default)]
pub struct Change {
    pub(super) overlays: Overlays,
    pub(super) networks: StagedEdits<network::State>,
    pub(super) groups: StagedEdits<group::State>,
    /// Endpoints whose records cannot be decoded and were written again, unchanged.
    pub(super) renewed: BTreeSet<String>,
    /// Lines for the log.
    pub(super) notices: Vec<String>,
}

impl ClusterCache {
    /// Applies a committed change.
    pub fn commit(&mut self, change: Change, at: impl Into<Revisions>) {
        let at = at.into();
        self.index_changes::<endpoint::State>(&change, &at, Index::endpoint);
        self.index_changes::<service::State>(&change, &at, Index::service);
        self.forget_unreadable(<endpoint::State as Entry>::overlay(&change.overlays).keys(), &at);
        self.note_replaced::<global::Config>(&change, &at);
        for id in &change.renewed {
            self.note_renewed(id, &at);
        }
        for notice in &change.notices {
            tracing::warn!("{notice}");
        }
        let deleted = &mut self.deleted;
        change.overlays.apply(&mut self.tables, &mut self.links, &at, |key, revision| {
            deleted.insert(key, revision);
        });
        commit_allocations(&mut self.networks, deleted, change.networks, &at);
        commit_allocations(&mut self.groups, deleted, change.groups, &at);
    }

    /// Notes that records of entries of `T` that could not be decoded were replaced or deleted. The watch does not: it
    /// reports the revisions that the table has.
    fn note_replaced<T: Entry>(&mut self, change: &Change, at: &Revisions) {
        for id in T::overlay(&change.overlays).keys() {
            self.note_entry::<T>(id, true, at.of(&T::path(id)));
        }
    }

    /// Passes the entries of `T` that the change replaces to the index.
    fn index_changes<T: Entry>(
        &mut self,
        change: &Change,
        at: &Revisions,
        note: impl Fn(&mut Index, Option<&T>, Option<&T>),
    ) {
        for (id, new) in T::overlay(&change.overlays) {
            let known = self.table::<T>().get(id);
            if known.is_none_or(|known| known.revision <= at.of(&T::path(id))) {
                let old = known.map(|known| known.value.clone());
                note(&mut self.index, old.as_deref(), new.as_deref());
            }
        }
    }
}
