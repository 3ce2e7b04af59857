//! Changes of derived links, as one watch follows them.

use tokio::sync::watch;

use super::ObjectWatch;
use crate::cache::LinkChanges;

/// Follows changes of derived links, which are no changes of the object's record.
pub(super) struct LinkFollower {
    changed: watch::Receiver<u64>,
    /// Number of the next change; none before the changes after a revision are read.
    pub(super) next: Option<u64>,
}

impl LinkFollower {
    pub(super) fn new(watch: &ObjectWatch) -> LinkFollower {
        let changed = watch.cache.read().link_changes();
        let next = watch.after.is_none().then(|| *changed.borrow());
        LinkFollower { changed, next }
    }

    /// The next changes; none if the cache is gone.
    pub(super) async fn next(&mut self, watch: &ObjectWatch) -> Option<LinkChanges> {
        if self.next.is_some_and(|next| next == *self.changed.borrow()) {
            let next = self.next;
            self.changed.wait_for(|number| Some(*number) != next).await.ok()?;
        }
        let cache = watch.cache.read();
        let changes = match (self.next, watch.after) {
            (None, Some(revision)) => cache.link_changes_after(revision),
            (next, _) => cache.link_changes_since(next.unwrap_or_default()),
        };
        self.next = Some(*self.changed.borrow());
        Some(changes)
    }
}
