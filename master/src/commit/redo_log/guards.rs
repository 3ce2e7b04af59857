//! Guards of the transaction that writes the commit record.
//!
//! A large change may have more guards than a transaction. They are checked in several transactions
//! first. The transaction of the commit record checks that no guarded key was put since then.

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

/// First parts of the key, such as `/contiv.io/state/eps`. There are some twenty.
fn kind(key: &str) -> &str {
    key.match_indices('/').nth(3).map_or("", |(end, _)| &key[..end])
}
