use std::collections::BTreeSet;

use crate::datapath::{Desired, ObjectId, Observed, Op};

/// Returns the ops that change the datapath from `observed` to `desired`: sets in the order of creation, then garbage
/// collection.
pub fn diff(desired: &Desired, observed: &Observed) -> Vec<Op> {
    let missing = desired.iter().filter(|(id, _)| !observed.in_sync.contains(id));
    let mut ops: Vec<Op> = missing.map(|(_, object)| Op::Set(object.clone())).collect();
    if observed.orphans > 0 {
        ops.push(Op::GarbageCollect);
    }
    ops
}

/// Returns the ops that apply `desired` for the objects `ids`.
///
/// Deletions come first, dependents before their dependencies: a deleted object may release its tag, address or port for
/// an object of the same batch. Peers and groups are deleted last, when no object refers to them: an endpoint has the
/// rules of its old group until it has those of the new one.
pub fn ordered(ids: &BTreeSet<ObjectId>, desired: &Desired) -> Vec<Op> {
    let sets = ids.iter().filter_map(|id| desired.get(id)).map(|object| Op::Set(object.clone()));
    let gone: BTreeSet<&ObjectId> = ids.iter().filter(|id| desired.get(id).is_none()).collect();
    around(&gone, sets)
}

/// Returns the ops of a full resync: those of [`diff`], and the deletions of `gone` in the order of [`ordered`].
pub(super) fn repair(desired: &Desired, observed: &Observed, gone: &BTreeSet<ObjectId>) -> Vec<Op> {
    around(&gone.iter().collect(), diff(desired, observed).into_iter())
}

/// Puts the deletions of the objects `gone` before and after the other ops. Deletions of groups are the last ops.
fn around(gone: &BTreeSet<&ObjectId>, ops: impl Iterator<Item = Op>) -> Vec<Op> {
    let is_peer = |id: &&&ObjectId| matches!(id, ObjectId::Peer(_));
    let is_group = |id: &&&ObjectId| matches!(id, ObjectId::Group(_));
    let delete = |id: &&ObjectId| Op::Delete((*id).clone());
    let first = gone.iter().rev().filter(|id| !is_peer(id) && !is_group(id)).map(delete);
    let peers = gone.iter().filter(is_peer).map(delete);
    let groups = gone.iter().filter(is_group).map(delete);
    first.chain(ops).chain(peers).chain(groups).collect()
}

/// Splits the deletions of groups from the ops before them.
pub(super) fn split_groups(ops: &[Op]) -> (&[Op], &[Op]) {
    let is_deletion = |op: &Op| matches!(op, Op::Delete(ObjectId::Group(_)));
    ops.split_at(ops.iter().rposition(|op| !is_deletion(op)).map_or(0, |last| last + 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::{Group, Network, Object, Peer};

    fn peer(n: u8) -> Object {
        Object::Peer(Peer::new([10, 0, 0, n], 4789))
    }

    fn network(name: &str) -> Object {
        let encap = contiv_model::tag::Encap::Vlan(5.try_into().unwrap());
        Object::Network(Network::new(name, encap))
    }

    #[test]
    fn objects_in_sync_need_no_op() {
        let desired: Desired = [peer(1), network("a")].into_iter().collect();
        let mut observed = Observed { in_sync: [network("a").id()].into(), ..Observed::default() };
        assert_eq!(diff(&desired, &observed), [Op::Set(peer(1))]);
        observed.orphans = 3;
        assert_eq!(diff(&desired, &observed), [Op::Set(peer(1)), Op::GarbageCollect]);
        observed = Observed {
            in_sync: [network("a").id(), peer(1).id()].into(),
            retained: 3,
            ..Observed::default()
        };
        assert!(diff(&desired, &observed).is_empty(), "what is retained is no reason for an op");
    }

    fn group(number: u32) -> Object {
        Object::Group(Group::new(contiv_model::policy::Identity::try_from(number).unwrap(), []))
    }

    #[test]
    fn a_group_is_deleted_when_its_endpoints_have_left() {
        let desired: Desired = [group(6), network("b")].into_iter().collect();
        let ids = [group(5).id(), group(6).id(), peer(1).id(), ObjectId::Local("x".into())].into();
        let ops = ordered(&ids, &desired);
        let (deletion_of_peer, deletion_of_group) = (Op::Delete(peer(1).id()), Op::Delete(group(5).id()));
        let first = Op::Delete(ObjectId::Local("x".into()));
        assert_eq!(
            ops,
            [first.clone(), Op::Set(group(6)), deletion_of_peer.clone(), deletion_of_group.clone()]
        );
        assert_eq!(split_groups(&ops), (&ops[..3], &ops[3..]));
        assert_eq!(split_groups(&ops[3..]), (&ops[..0], &ops[3..]));
        // The same in a full resync.
        let observed = Observed { in_sync: [group(6).id()].into(), orphans: 1, ..Observed::default() };
        let gone = [group(5).id(), peer(1).id(), ObjectId::Local("x".into())].into();
        assert_eq!(
            repair(&desired, &observed, &gone),
            [first, Op::Set(network("b")), Op::GarbageCollect, deletion_of_peer, deletion_of_group]
        );
    }

    #[test]
    fn tags_are_given_up_before_they_are_taken_and_peers_go_last() {
        let desired: Desired = [network("b"), peer(2)].into_iter().collect();
        let ids = [
            ObjectId::Local("x".into()),
            ObjectId::Remote("y".into()),
            network("a").id(),
            network("b").id(),
            peer(1).id(),
            peer(2).id(),
        ];
        let ops = ordered(&ids.into(), &desired);
        let expected = [
            Op::Delete(ObjectId::Local("x".into())),
            Op::Delete(ObjectId::Remote("y".into())),
            Op::Delete(network("a").id()),
            Op::Set(peer(2)),
            Op::Set(network("b")),
            Op::Delete(peer(1).id()),
        ];
        assert_eq!(ops, expected);
    }
}
