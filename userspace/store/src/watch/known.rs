//! The keys that a watch has reported so far, in a compact form, so that a new snapshot can be
//! reported as its difference.

use crate::client::{Omission, Page, Without, omitted};
use crate::{KeyValue, Listing, Position, Update};
use contiv_model::event::Event;
use etcd_client::EventType;
use etcd_client::proto::PbEvent;
use patricia_tree::PatriciaMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct Known {
    /// `None` before the first snapshot.
    reported: Option<PatriciaMap<Seen>>,
    /// Keys of the first snapshot, of which a part was reported.
    parts: Option<PatriciaMap<Seen>>,
    /// Store and revision up to which `reported` is complete.
    at: Position,
    /// Number of keys below the prefix that are not in `reported`, because the watch does not report them.
    dropped: usize,
    /// Whether the watch reports a part of the keys only.
    is_filtered: bool,
    /// Values that are not compared, and keys that are not held: only their number is compared.
    omissions: Arc<[Omission]>,
}

/// Fingerprint of a key. The revision alone is not sufficient: a store that was emptied or restored
/// from a backup reuses revisions for other contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    mod_revision: i64,
    /// Digest of the value, the lease, and the revision of the key's creation.
    content: u64,
}

impl Seen {
    /// Of a key without a value, the number of versions is compared instead.
    fn of(kv: &KeyValue, omissions: &[Omission]) -> Seen {
        let mut hasher = DefaultHasher::new();
        match omitted(omissions, kv.key.as_bytes()) {
            Some(_) => kv.version.hash(&mut hasher),
            None => kv.value.hash(&mut hasher),
        }
        (kv.lease, kv.create_revision).hash(&mut hasher);
        Seen { mod_revision: kv.mod_revision, content: hasher.finish() }
    }
}

impl Known {
    /// `is_filtered`: the watch reports a part of the keys only.
    pub(super) fn new(is_filtered: bool, omissions: Arc<[Omission]>) -> Known {
        Known { is_filtered, omissions, ..Known::default() }
    }

    pub(super) fn omissions(&self) -> Arc<[Omission]> {
        self.omissions.clone()
    }

    /// Why `listing` cannot be a later state of the store that was listed before; `None` if it can,
    /// or if this is the first listing. In one history, the revision of the store and of each key
    /// only grows, and a key that appears was created after the previous listing.
    pub(super) fn divergence(&self, listing: &Listing) -> Option<String> {
        let reported = self.reported.as_ref()?;
        let Position { cluster, revision } = self.at;
        if listing.cluster != cluster {
            return Some(format!(
                "the store's cluster id is {:x}, before it was {cluster:x}",
                listing.cluster
            ));
        }
        if listing.revision < revision {
            let now = listing.revision;
            return Some(format!("the store's revision went back from {revision} to {now}"));
        }
        let differs = |kv: &&KeyValue| match reported.get(&kv.key) {
            // A value that was not reported before, of a key that may have had values that are not reported.
            None if self.is_filtered => kv.mod_revision <= revision,
            None => kv.create_revision <= revision,
            Some(seen) if kv.mod_revision == seen.mod_revision => Seen::of(kv, &self.omissions) != *seen,
            Some(seen) => kv.mod_revision < seen.mod_revision,
        };
        let kv = listing.items.iter().find(differs)?;
        Some(format!(
            "{} of revision {} contradicts what the store had at revision {revision}",
            kv.key, kv.mod_revision
        ))
    }

    /// Key that was put last, of those that exist: one whose value is compared, if the transaction has one.
    pub(super) fn newest(&self) -> Option<String> {
        let age =
            |(key, seen): &(Vec<u8>, &Seen)| (seen.mod_revision, omitted(&self.omissions, key).is_none());
        let newest = self.reported.as_ref()?.iter().max_by_key(age)?;
        Some(text(&newest.0))
    }

    /// Number of keys below the prefix.
    pub(super) fn count(&self) -> usize {
        self.dropped + self.reported.as_ref().map_or(0, PatriciaMap::len)
    }

    /// Whether `kv`, read from the store with id `cluster`, is the known version of `key`. Both may
    /// be absent.
    pub(super) fn has(&self, key: &str, kv: Option<&KeyValue>, cluster: u64) -> bool {
        let known = self.reported.as_ref().and_then(|reported| reported.get(key));
        cluster == self.at.cluster && kv.map(|kv| Seen::of(kv, &self.omissions)).as_ref() == known
    }

    /// Returns everything, framed, for the first snapshot; later the deleted keys, then new and
    /// changed ones in the order of their writes. `dropped` is the number of keys that the listing lacks.
    pub(super) fn snapshot(&mut self, listing: Listing, dropped: usize) -> Vec<Update> {
        let revision = listing.revision;
        let now: PatriciaMap<Seen> =
            listing.items.iter().map(|kv| (&kv.key, Seen::of(kv, &self.omissions))).collect();
        let events: Vec<_> = match &self.reported {
            None => std::iter::once(Event::Init)
                .chain(listing.items.into_iter().map(|kv| Event::InitApply(kv.key.clone(), kv)))
                .chain([Event::InitDone])
                .collect(),
            Some(before) => {
                let gone =
                    before.keys().filter(|key| !now.contains_key(key)).map(|key| Event::Delete(text(&key)));
                let mut changed: Vec<_> =
                    listing.items.into_iter().filter(|kv| before.get(&kv.key) != now.get(&kv.key)).collect();
                changed.sort_by_key(|kv| kv.mod_revision);
                gone.chain(changed.into_iter().map(|kv| Event::Apply(kv.key.clone(), kv))).collect()
            }
        };
        self.reported = Some(now);
        self.dropped = dropped;
        self.at = Position { cluster: listing.cluster, revision };
        events.into_iter().map(|event| Update { revision, event }).collect()
    }

    /// Returns a part of the first snapshot.
    pub(super) fn part(&mut self, page: Page) -> Vec<Update> {
        let revision = page.at.revision;
        let begin = self.parts.is_none().then_some(Event::Init);
        let parts = self.parts.get_or_insert_default();
        parts.extend(page.items.iter().map(|kv| (&kv.key, Seen::of(kv, &self.omissions))));
        self.dropped += page.dropped;
        if page.is_last {
            self.reported = self.parts.take();
            self.at = page.at;
        }
        let puts = page.items.into_iter().map(|kv| Event::InitApply(kv.key.clone(), kv));
        let end = page.is_last.then_some(Event::InitDone);
        begin.into_iter().chain(puts).chain(end).map(|event| Update { revision, event }).collect()
    }

    /// Forgets a snapshot of which a part was reported.
    pub(super) fn forget_parts(&mut self) {
        (self.parts, self.dropped) = (None, 0);
    }

    /// Whether there was a snapshot.
    pub(super) fn is_complete(&self) -> bool {
        self.reported.is_some()
    }

    /// Returns the changes in the order of the server, without those that were reported before.
    /// Without a snapshot, which keys exist is unknown: all are returned. A key whose value is not kept
    /// counts as deleted.
    pub(super) fn changes(&mut self, events: Vec<PbEvent>, keep: impl Fn(&KeyValue) -> bool) -> Vec<Update> {
        let mut updates = Vec::with_capacity(events.len());
        // All changes of a revision come together.
        let counted = self.at.revision;
        for event in events {
            let is_put = event.r#type == EventType::Put as i32;
            let Some(kv) = event.kv.and_then(KeyValue::from_wire) else { continue };
            let revision = kv.mod_revision;
            self.at.revision = self.at.revision.max(revision);
            if omitted(&self.omissions, kv.key.as_bytes()) == Some(Without::Keys) {
                updates.extend(self.change_of_omitted(is_put, kv, counted));
                continue;
            }
            let is_kept = is_put && keep(&kv);
            let is_news = match &mut self.reported {
                None => true,
                Some(reported) if reported.get(&kv.key).is_some_and(|seen| seen.mod_revision >= revision) => {
                    false
                }
                Some(reported) => {
                    let was_kept = match is_kept {
                        true => reported.insert(&kv.key, Seen::of(&kv, &self.omissions)).is_some(),
                        false => reported.remove(&kv.key).is_some(),
                    };
                    let existed = !is_put || kv.version > 1;
                    if revision > counted {
                        // The key was among the dropped ones, or is now.
                        self.dropped = self.dropped.saturating_sub(usize::from(existed && !was_kept));
                        self.dropped += usize::from(is_put && !is_kept);
                    }
                    is_kept || was_kept
                }
            };
            let key = kv.key.clone();
            if is_news {
                let event = if is_kept { Event::Apply(key, kv) } else { Event::Delete(key) };
                updates.push(Update { revision, event });
            }
        }
        updates
    }

    /// A change of a key that is not held; `None` if it was reported before, which revisions up to `counted` were.
    fn change_of_omitted(&mut self, is_put: bool, kv: KeyValue, counted: i64) -> Option<Update> {
        let (revision, key) = (kv.mod_revision, kv.key.clone());
        if self.is_complete() {
            if revision <= counted {
                return None;
            }
            match is_put {
                true => self.dropped += usize::from(kv.version <= 1),
                false => self.dropped = self.dropped.saturating_sub(1),
            }
        }
        let event = if is_put { Event::Apply(key, kv) } else { Event::Delete(key) };
        Some(Update { revision, event })
    }
}

/// A key, which was text when it was inserted.
fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use etcd_client::proto::PbKeyValue;

    fn kv(key: &str, value: &str, mod_revision: i64) -> KeyValue {
        let value = value.to_owned().into();
        KeyValue { key: key.into(), value, create_revision: 1, mod_revision, version: 1, lease: 0 }
    }

    fn listing(revision: i64, items: &[(&str, &str, i64)]) -> Listing {
        Listing { cluster: 1, revision, items: items.iter().map(|(k, v, r)| kv(k, v, *r)).collect() }
    }

    fn event(kind: EventType, key: &str, revision: i64) -> PbEvent {
        let kv = PbKeyValue { key: key.into(), mod_revision: revision, ..PbKeyValue::default() };
        PbEvent { r#type: kind as i32, kv: Some(kv), prev_kv: None }
    }

    fn described(updates: &[Update]) -> Vec<String> {
        updates
            .iter()
            .map(|u| match &u.event {
                Event::Init => "init".into(),
                Event::InitApply(k, _) => format!("have {k}"),
                Event::InitDone => "done".into(),
                Event::Apply(k, v) => format!("{k}@{}", v.mod_revision),
                Event::Delete(k) => format!("-{k}@{}", u.revision),
            })
            .collect()
    }

    #[test]
    fn a_second_snapshot_reports_only_the_difference() {
        let mut known = Known::default();
        let first = known.snapshot(listing(5, &[("a", "1", 2), ("b", "1", 3), ("c", "1", 4)]), 0);
        assert_eq!(described(&first), ["init", "have a", "have b", "have c", "done"]);
        assert!(known.snapshot(listing(6, &[("a", "1", 2), ("b", "1", 3), ("c", "1", 4)]), 0).is_empty());
        let second = known.snapshot(listing(9, &[("a", "2", 9), ("c", "1", 4), ("d", "1", 8)]), 0);
        assert_eq!(described(&second), ["-b@9", "d@8", "a@9"]);
    }

    #[test]
    fn a_restored_store_with_the_same_revisions_is_seen() {
        let mut known = Known::default();
        known.snapshot(listing(2, &[("a", "old", 2)]), 0);
        assert_eq!(described(&known.snapshot(listing(2, &[("a", "new", 2)]), 0)), ["a@2"]);
    }

    #[test]
    fn listings_of_another_history_are_told_from_later_ones() {
        let mut known = Known::default();
        assert_eq!(known.divergence(&listing(5, &[("a", "1", 2)])), None);
        known.snapshot(listing(5, &[("a", "1", 2), ("b", "1", 5)]), 0);
        let created = |revision, mut items: Vec<KeyValue>, at| {
            items.iter_mut().for_each(|kv| kv.create_revision = at);
            Listing { cluster: 1, revision, items }
        };
        let later = |items: &[(&str, &str, i64)]| known.divergence(&listing(9, items));
        // Deleted, unchanged and changed keys.
        assert_eq!(later(&[]), None);
        assert_eq!(later(&[("a", "1", 2)]), None);
        assert_eq!(later(&[("a", "2", 9), ("b", "1", 5)]), None);
        assert_eq!(known.divergence(&created(9, vec![kv("c", "1", 8)], 8)), None);
        // Older and other versions, and keys that should have been known.
        assert!(later(&[("b", "0", 3)]).unwrap().starts_with("b of revision 3 contradicts"));
        assert!(later(&[("a", "2", 2)]).is_some());
        assert!(known.divergence(&created(9, vec![kv("c", "1", 8)], 4)).is_some());
        assert!(known.divergence(&listing(4, &[])).unwrap().ends_with("went back from 5 to 4"));
        let other = Listing { cluster: 2, ..listing(9, &[]) };
        assert!(known.divergence(&other).unwrap().contains("cluster id is 2"));
        known.changes(vec![event(EventType::Put, "b", 12)], |_| true);
        assert!(known.divergence(&listing(11, &[("b", "1", 11)])).is_some());
    }

    #[test]
    fn reported_changes_are_not_repeated() {
        let mut known = Known::default();
        known.snapshot(listing(5, &[("a", "1", 5)]), 0);
        let events = vec![
            event(EventType::Put, "a", 5),
            event(EventType::Put, "b", 6),
            event(EventType::Delete, "b", 7),
            event(EventType::Delete, "b", 7),
        ];
        assert_eq!(described(&known.changes(events, |_| true)), ["b@6", "-b@7"]);
    }

    #[test]
    fn without_a_snapshot_every_change_is_reported() {
        let mut known = Known::default();
        let events = vec![event(EventType::Delete, "a", 5), event(EventType::Put, "a", 6)];
        assert_eq!(described(&known.changes(events, |_| true)), ["-a@5", "a@6"]);
        let first = known.snapshot(listing(9, &[("a", "1", 6)]), 0);
        assert_eq!(described(&first), ["init", "have a", "done"]);
    }

    /// A listing of all keys is later compared with one that left values out.
    #[test]
    fn values_that_were_left_out_are_not_compared() {
        let mut known = Known::new(false, [("b/".to_owned(), Without::Values)].into());
        known.snapshot(listing(5, &[("a", "1", 2), ("b/1", "", 3)]), 0);
        assert_eq!(known.divergence(&listing(9, &[("a", "1", 2), ("b/1", "1", 3)])), None);
        assert!(known.has("b/1", Some(&kv("b/1", "1", 3)), 1), "what is newest may be without a value");
        assert!(known.divergence(&listing(9, &[("a", "", 2)])).is_some());
        let mut recreated = listing(9, &[("b/1", "1", 3)]);
        recreated.items[0].version = 2;
        assert!(known.divergence(&recreated).is_some());
        assert!(known.snapshot(listing(9, &[("a", "1", 2), ("b/1", "1", 3)]), 0).is_empty());
        // Of keys that were put together, the one whose value is compared tells more about the store.
        known.changes(vec![event(EventType::Put, "a", 10), event(EventType::Put, "b/1", 10)], |_| true);
        assert_eq!(known.newest().as_deref(), Some("a"));
        known.changes(vec![event(EventType::Put, "b/1", 11)], |_| true);
        assert_eq!(known.newest().as_deref(), Some("b/1"));
    }

    /// Their changes are reported, and their number is that of the store.
    #[test]
    fn keys_that_were_left_out_are_counted() {
        let mut known = Known::new(false, [("b/".to_owned(), Without::Keys)].into());
        known.snapshot(listing(5, &[("a", "1", 2)]), 3);
        assert_eq!(known.count(), 4);
        let put = |key: &str, revision, version| {
            let kv = PbKeyValue { key: key.into(), mod_revision: revision, version, ..PbKeyValue::default() };
            PbEvent { r#type: EventType::Put as i32, kv: Some(kv), prev_kv: None }
        };
        let events = vec![put("b/1", 6, 1), put("b/1", 7, 2), event(EventType::Delete, "b/2", 8)];
        let updates = known.changes(events.clone(), |_| true);
        assert_eq!(
            (described(&updates), known.count()),
            (vec!["b/1@6".into(), "b/1@7".into(), "-b/2@8".into()], 4)
        );
        // Again, as a server may send after a reconnection.
        assert_eq!((known.changes(events, |_| true), known.count()), (vec![], 4));
        assert_eq!(known.newest().as_deref(), Some("a"));
        let later = listing(9, &[("a", "1", 2)]);
        assert_eq!(known.divergence(&later), None);
        assert_eq!((known.snapshot(later, 5), known.count()), (vec![], 6));
    }

    /// The watch reports keys with value "1" only.
    #[test]
    fn keys_that_are_not_kept_are_counted_but_not_reported() {
        let keep = |kv: &KeyValue| kv.value == "1";
        let put = |key: &str, value: &str, revision, version| {
            let kv = PbKeyValue {
                key: key.into(),
                value: value.into(),
                mod_revision: revision,
                version,
                ..PbKeyValue::default()
            };
            PbEvent { r#type: EventType::Put as i32, kv: Some(kv), prev_kv: None }
        };
        let mut known = Known::new(true, Arc::default());
        let first = known.snapshot(listing(5, &[("a", "1", 5)]), 2);
        assert_eq!(
            (described(&first), known.count()),
            (vec!["init".into(), "have a".into(), "done".into()], 3)
        );
        let mut changed = |event| {
            let updates = known.changes(vec![event], keep);
            (described(&updates), known.count())
        };
        let none = Vec::<String>::new;
        assert_eq!(changed(put("new", "2", 6, 1)), (none(), 4));
        assert_eq!(changed(put("new", "2", 7, 2)), (none(), 4));
        assert_eq!(changed(put("new", "1", 8, 3)), (vec!["new@8".into()], 4));
        assert_eq!(changed(put("a", "2", 9, 2)), (vec!["-a@9".into()], 4));
        assert_eq!(changed(event(EventType::Delete, "a", 10)), (none(), 3));
        // Again, as a server may send after a reconnection.
        assert_eq!(changed(event(EventType::Delete, "a", 10)), (none(), 3));
        // A key whose value was not kept before may be as old as it likes.
        assert_eq!(known.divergence(&listing(12, &[("old", "1", 12)])), None);
        assert!(known.divergence(&listing(12, &[("old", "1", 9)])).is_some());
    }
}
