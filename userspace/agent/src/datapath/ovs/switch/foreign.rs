//! Groups of other programs. Groups have no cookies, so those are foreign that flows of other programs use.

use std::collections::{BTreeMap, BTreeSet};

use openflow_rs::{
    Group,
    multipart::{Groups, UnknownGroup},
};

/// Returns the ids of the groups that foreign flows use, which have the ids `used`, and of the groups that these use. The switch would
/// delete the flows with their group.
pub(super) fn groups(used: BTreeSet<u32>, groups: &Groups) -> BTreeSet<u32> {
    let known: BTreeMap<u32, &Group> = groups.known.iter().map(|group| (group.id, group)).collect();
    // Those that cannot be decoded are not the agent's.
    let unknown = groups.unknown.iter().flat_map(UnknownGroup::used_groups);
    let mut pending: Vec<u32> = used.into_iter().chain(unknown).collect();
    let mut foreign = BTreeSet::new();
    while let Some(id) = pending.pop() {
        if foreign.insert(id) {
            pending.extend(known.get(&id).into_iter().flat_map(|group| group.used_groups()));
        }
    }
    foreign
}

#[cfg(test)]
mod tests {
    use openflow_rs::{Action, Bucket, GroupKind};

    use super::*;

    #[test]
    fn groups_behind_a_foreign_group_are_foreign() {
        let group = |id, next| {
            let buckets = vec![Bucket::new([Action::Group(next)])];
            Group { id, kind: GroupKind::All, buckets }
        };
        let all = Groups::from(vec![group(7, 8), group(8, 7), group(9, 7)]);
        assert_eq!(groups(BTreeSet::from([7]), &all), BTreeSet::from([7, 8]));
        assert!(groups(BTreeSet::new(), &all).is_empty());
    }
}
