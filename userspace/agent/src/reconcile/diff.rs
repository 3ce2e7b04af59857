use std::collections::BTreeSet;

use crate::datapath::{Desired, ObjectId, Observed, Op};

/// Ops that bring the datapath from `observed` to `desired`: sets in the order of creation, then garbage collection.
pub fn diff(desired: &Desired, observed: &Observed) -> Vec<Op> {
    let missing = desired.iter().filter(|(id, _)| !observed.in_sync.contains(id));
    let mut ops: Vec<Op> = missing.map(|(_, object)| Op::Set(object.clone())).collect();
    if observed.orphans > 0 {
        ops.push(Op::GarbageCollect);
    }
    ops
}

/// Ops that apply `desired` for the objects `ids`.
///
/// Deletions come first, dependents before their dependencies: a deleted object may free its tag, address or port for an
/// object of the same batch. Peers are deleted last, when no object refers to them.
pub fn ordered(ids: &BTreeSet<ObjectId>, desired: &Desired) -> Vec<Op> {
    let gone = |id: &&ObjectId| desired.get(id).is_none();
    let is_peer = |id: &&ObjectId| matches!(id, ObjectId::Peer(_));
    let delete = |id: &ObjectId| Op::Delete(id.clone());
    let first = ids.iter().rev().filter(gone).filter(|id| !is_peer(id)).map(delete);
    let then = ids.iter().filter_map(|id| desired.get(id)).map(|object| Op::Set(object.clone()));
    let last = ids.iter().filter(gone).filter(is_peer).map(delete);
    first.chain(then).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::{Network, Object, Peer};

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
