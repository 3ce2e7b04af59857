//! Guards of the transaction that writes the commit record.
//!
//! A large change may have more guards than a transaction. They are checked in several transactions
//! first. The transaction of the commit record checks that no guarded key was put since then.

use contiv_model::key::MODELDB;
use contiv_store::Guard;

use super::step::STEP_OPS;

/// Guards for the commit record: all of them if they fit, otherwise ranges that contain all guarded
/// keys. The guards held at `revision` or later.
pub(super) fn at_commit(guards: Vec<Guard>, revision: i64) -> Vec<Guard> {
    if guards.len() < STEP_OPS {
        return guards;
    }
    let mut keys: Vec<&str> = guards.iter().map(key_of).collect();
    keys.sort_unstable();
    // A range must not contain keys of another kind, which other programs may put. The split at
    // kinds adds at most one range for each.
    let chunks = keys.chunks(keys.len().div_ceil(STEP_OPS / 2));
    let ranges = chunks.flat_map(|chunk| chunk.chunk_by(|a, b| kind(a) == kind(b)));
    let ranges = ranges.filter_map(|keys| Some((keys.first()?, keys.last()?)));
    ranges
        .map(|(first, last)| Guard::NotPutSince { first: (*first).into(), last: (*last).into(), revision })
        .collect()
}

fn key_of(guard: &Guard) -> &str {
    match guard {
        Guard::ModRevision { key, .. } | Guard::CreateRevision { key, .. } => key,
        Guard::NotPutSince { first, .. } => first,
    }
}

/// First parts of the key, such as `/contiv.io/state/eps` or `/contiv.io/obj/modeldb/rule`. There are
/// some thirty.
fn kind(key: &str) -> &str {
    let parts = if key.starts_with(MODELDB) { 4 } else { 3 };
    key.match_indices('/').nth(parts).map_or("", |(end, _)| &key[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The store reads every key in a range: a range over several types would read all objects between.
    #[test]
    fn a_range_has_keys_of_one_type_of_object() {
        let keys = (0..200).map(|rule| format!("{MODELDB}rule/t:p:{rule}"));
        let others = ["endpointGroup/t:g", "network/t:n", "policy/t:p", "tenant/t"];
        let keys = keys.chain(others.map(|key| format!("{MODELDB}{key}")));
        let guards: Vec<_> = keys.map(|key| Guard::ModRevision { key, revision: 7 }).collect();
        let object_type = |key: &str| key[MODELDB.len()..].split('/').next().map(str::to_owned);
        let ranges = at_commit(guards.clone(), 9);
        assert!(ranges.len() < STEP_OPS, "{}", ranges.len());
        let mut found = 0;
        for range in &ranges {
            let Guard::NotPutSince { first, last, revision: 9 } = range else { panic!("{range:?}") };
            assert_eq!(object_type(first), object_type(last));
            found += guards.iter().filter(|guard| (first.as_str()..=last).contains(&key_of(guard))).count();
        }
        assert_eq!(found, guards.len());
    }
}
