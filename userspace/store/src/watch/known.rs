//! The keys that a watch has reported so far, in a compact form, so that a new snapshot can be
//! reported as its difference.

use crate::{KeyValue, Listing, Update};
use contiv_model::event::Event;
use etcd_client::EventType;
use etcd_client::proto::PbEvent;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

#[derive(Debug, Default)]
pub(super) struct Known {
    /// `None` before the first snapshot.
    reported: Option<BTreeMap<String, Seen>>,
}

/// Fingerprint of a key. The revision alone is not sufficient: a store that was emptied or restored
/// from a backup reuses revisions for other contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    mod_revision: i64,
    value: u64,
}

impl Seen {
    fn of(kv: &KeyValue) -> Seen {
        let mut hasher = DefaultHasher::new();
        (&kv.value, kv.create_revision, kv.lease).hash(&mut hasher);
        Seen { mod_revision: kv.mod_revision, value: hasher.finish() }
    }
}

impl Known {
    /// Returns everything, framed, for the first snapshot; later the deleted keys, then new and
    /// changed ones in the order of their writes.
    pub(super) fn snapshot(&mut self, listing: Listing) -> Vec<Update> {
        let revision = listing.revision;
        let now = listing.items.iter().map(|kv| (kv.key.clone(), Seen::of(kv))).collect::<BTreeMap<_, _>>();
        let events: Vec<_> = match &self.reported {
            None => std::iter::once(Event::Init)
                .chain(listing.items.into_iter().map(|kv| Event::InitApply(kv.key.clone(), kv)))
                .chain([Event::InitDone])
                .collect(),
            Some(before) => {
                let gone = before.keys().filter(|key| !now.contains_key(*key)).cloned().map(Event::Delete);
                let mut changed: Vec<_> =
                    listing.items.into_iter().filter(|kv| before.get(&kv.key) != now.get(&kv.key)).collect();
                changed.sort_by_key(|kv| kv.mod_revision);
                gone.chain(changed.into_iter().map(|kv| Event::Apply(kv.key.clone(), kv))).collect()
            }
        };
        self.reported = Some(now);
        events.into_iter().map(|event| Update { revision, event }).collect()
    }

    /// Returns the changes in the order of the server, without those that were reported before.
    pub(super) fn changes(&mut self, events: Vec<PbEvent>) -> Vec<Update> {
        let reported = self.reported.get_or_insert_default();
        let mut updates = Vec::with_capacity(events.len());
        for event in events {
            let put = event.r#type == EventType::Put as i32;
            let Some(kv) = event.kv.and_then(KeyValue::from_wire) else { continue };
            let revision = kv.mod_revision;
            if reported.get(&kv.key).is_some_and(|seen| seen.mod_revision >= revision) {
                continue;
            }
            if put {
                reported.insert(kv.key.clone(), Seen::of(&kv));
                updates.push(Update { revision, event: Event::Apply(kv.key.clone(), kv) });
            } else if reported.remove(&kv.key).is_some() {
                updates.push(Update { revision, event: Event::Delete(kv.key) });
            }
        }
        updates
    }
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
        Listing { revision, items: items.iter().map(|(k, v, r)| kv(k, v, *r)).collect() }
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
        let first = known.snapshot(listing(5, &[("a", "1", 2), ("b", "1", 3), ("c", "1", 4)]));
        assert_eq!(described(&first), ["init", "have a", "have b", "have c", "done"]);
        assert!(known.snapshot(listing(6, &[("a", "1", 2), ("b", "1", 3), ("c", "1", 4)])).is_empty());
        let second = known.snapshot(listing(9, &[("a", "2", 9), ("c", "1", 4), ("d", "1", 8)]));
        assert_eq!(described(&second), ["-b@9", "d@8", "a@9"]);
    }

    #[test]
    fn a_restored_store_with_the_same_revisions_is_seen() {
        let mut known = Known::default();
        known.snapshot(listing(2, &[("a", "old", 2)]));
        assert_eq!(described(&known.snapshot(listing(2, &[("a", "new", 2)]))), ["a@2"]);
    }

    #[test]
    fn reported_changes_are_not_repeated() {
        let mut known = Known::default();
        known.snapshot(listing(5, &[("a", "1", 5)]));
        let events = vec![
            event(EventType::Put, "a", 5),
            event(EventType::Put, "b", 6),
            event(EventType::Delete, "b", 7),
            event(EventType::Delete, "b", 7),
        ];
        assert_eq!(described(&known.changes(events)), ["b@6", "-b@7"]);
    }
}
