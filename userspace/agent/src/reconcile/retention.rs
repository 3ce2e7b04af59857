use std::collections::BTreeSet;

use contiv_model::key::Key;

use crate::{
    datapath::{Desired, Error, Object, ObjectId, Op},
    error::one_line,
    plan::{self, Node},
    state::{DirtySet, State},
};

/// Maximum number of records listed in the degraded condition.
const LISTED: usize = 5;

/// Retains the datapath's entries of objects whose records have been unreadable since the start of the process.
///
/// An earlier process has created these entries. They belong to no object of the plan, and the datapath does not show
/// which entry belongs to which record. So while a record is unreadable, no orphans are removed. Only objects that this
/// process has planned, and endpoints without an interface, are deleted. Records of groups and policies do not count: a
/// group with endpoints on this node is in the plan, and blocked.
///
/// If the datapath belongs to another version, its entries are not in tables that this process can change. It is not
/// changed at all meanwhile ([`Postponed`](crate::datapath::Postponed)).
///
/// Retention ends with the first full resync that finds all records readable, or no orphans. From then on the datapath
/// has only objects that this process has planned. If a record becomes unreadable later, its last valid version stays in
/// effect.
#[derive(Debug, Default)]
pub(super) struct Retention {
    is_over: bool,
    /// Unreadable records.
    keys: BTreeSet<Key>,
    /// Objects to be deleted that may be in the datapath.
    gone: BTreeSet<ObjectId>,
    /// Objects omitted from the plan, because the datapath may have a more complete version than the readable records
    /// provide.
    withheld: Vec<Object>,
}

impl Retention {
    /// Reports whether entries that belong to no object are retained.
    pub(super) fn is_active(&self) -> bool {
        !self.is_over && !self.keys.is_empty()
    }

    /// Adapts the plan of a full resync, which replaces the plan `before`. `dirty` contains the changes since then.
    pub(super) fn begin(
        &mut self,
        desired: &mut Desired,
        (state, node): (&State, &Node),
        (before, dirty): (&Desired, &DirtySet),
    ) {
        if self.is_over {
            return;
        }
        self.keys = state.unplanned().cloned().collect();
        self.withheld.clear();
        if self.keys.is_empty() {
            // All orphans are removed.
            self.gone.clear();
            return;
        }
        for id in plan::incomplete_services(state).filter(|id| before.get(id).is_none()) {
            self.withheld.extend(desired.remove(&id));
        }
        let planned = before.iter().map(|(id, _)| id.clone());
        let detached = dirty.endpoints.iter().map(|id| ObjectId::Local(id.clone()));
        self.gone.extend(planned.chain(detached.filter(|id| is_detached(state, node, id))));
        self.gone.retain(|id| desired.get(id).is_none());
    }

    /// Updates the plan like [`plan::update`], and returns the ids of the objects that may have changed.
    pub(super) fn update(
        &mut self,
        desired: &mut Desired,
        (state, node): (&State, &Node),
        dirty: &DirtySet,
    ) -> BTreeSet<ObjectId> {
        if !self.is_active() {
            return plan::update(desired, state, node, dirty);
        }
        let is_planned = |id: &ObjectId| desired.get(id).is_some();
        let affected = plan::affected(state, node, dirty);
        let planned: BTreeSet<ObjectId> = affected.into_iter().filter(is_planned).collect();
        let withheld: Vec<_> = plan::incomplete_services(state).filter(|id| !is_planned(id)).collect();
        let ids = plan::update(desired, state, node, dirty);
        for id in &withheld {
            desired.remove(id);
        }
        for id in &ids {
            if desired.get(id).is_some() {
                self.gone.remove(id);
            } else if planned.contains(id) || is_detached(state, node, id) {
                self.gone.insert(id.clone());
            }
        }
        ids
    }

    /// Objects to be deleted that a full resync does not find while orphans are retained.
    pub(super) fn gone(&self) -> &BTreeSet<ObjectId> {
        &self.gone
    }

    /// Reports whether the operation does not change retained entries.
    pub(super) fn allows(&self, op: &Op) -> bool {
        match op {
            Op::Delete(id) => !self.is_active() || self.gone.contains(id),
            Op::Set(_) | Op::GarbageCollect => true,
        }
    }

    /// Records that an object has been deleted.
    pub(super) fn deleted(&mut self, id: &ObjectId) {
        self.gone.remove(id);
    }

    /// Records that the datapath has `count` retained items. If there are none, no object is omitted from the plan.
    pub(super) fn observed(&mut self, count: usize, desired: &mut Desired) {
        if !self.is_active() || count > 0 {
            return;
        }
        self.keys.clear();
        self.gone.clear();
        for object in self.withheld.drain(..) {
            desired.insert(object);
        }
    }

    /// Records that a full resync has succeeded and has removed all orphans that are not retained.
    pub(super) fn resynced(&mut self) {
        self.is_over |= self.keys.is_empty();
    }

    /// Degraded condition for operators.
    pub(super) fn condition(&self) -> Option<String> {
        let objects = self.is_active().then(|| self.objects())?;
        Some(format!("orphans: kept, because they may be those of {objects}"))
    }

    /// Returns the degraded condition while the datapath is not changed because of `error`.
    pub(super) fn postponement(&self, error: &Error) -> String {
        format!("{}, because it would end what the node forwards for {}", one_line(error), self.objects())
    }

    /// Returns the objects whose records are unreadable, and advice.
    fn objects(&self) -> String {
        let mut listed: Vec<String> = self.keys.iter().take(LISTED).map(ToString::to_string).collect();
        let more = self.keys.len() - listed.len();
        listed.extend((more > 0).then(|| format!("{more} more")));
        format!("invalid objects: {}; repair or delete these records", listed.join(", "))
    }
}

/// Reports whether the object is an endpoint that has no interface on this node and is not known to be on another node.
fn is_detached(state: &State, node: &Node, id: &ObjectId) -> bool {
    let ObjectId::Local(id) = id else { return false };
    state.attachment(id).is_none() && state.endpoint(id).is_none_or(|endpoint| endpoint.host == node.host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        datapath::{Network, Peer},
        plan::tests::node,
        state::Attachment,
    };

    fn network(name: &str) -> Object {
        Object::Network(Network::new(name, contiv_model::tag::Encap::Vlan(5.try_into().unwrap())))
    }

    fn peer() -> Object {
        Object::Peer(Peer::new([10, 0, 0, 1], 4789))
    }

    fn unreadable(keys: impl IntoIterator<Item = Key>) -> State {
        let mut state = State::default();
        keys.into_iter().for_each(|key| drop(state.reject(&key)));
        state
    }

    #[test]
    fn only_what_was_planned_is_deleted() {
        let (node, dirty) = (node(), DirtySet::default());
        let state = unreadable([Key::Network("n.t".into())]);
        let mut retention = Retention::default();
        assert!(!retention.is_active() && retention.condition().is_none());
        let mut desired: Desired = [peer(), network("m.t")].into_iter().collect();
        retention.begin(&mut desired, (&state, &node), (&Desired::default(), &dirty));
        assert!(retention.is_active() && retention.gone().is_empty());
        let delete = |object: Object| Op::Delete(object.id());
        assert!(!retention.allows(&delete(network("n.t"))) && !retention.allows(&delete(peer())));
        assert!(retention.allows(&Op::Set(peer())) && retention.allows(&Op::GarbageCollect));
        retention.observed(1, &mut desired);
        retention.resynced();
        // The next full resync has a smaller plan.
        let before = desired;
        let mut desired: Desired = [peer()].into_iter().collect();
        retention.begin(&mut desired, (&state, &node), (&before, &dirty));
        assert!(retention.allows(&delete(network("m.t"))) && !retention.allows(&delete(network("n.t"))));
        // Until the deletion has succeeded.
        let same = desired.clone();
        retention.begin(&mut desired, (&state, &node), (&same, &dirty));
        assert_eq!(*retention.gone(), [network("m.t").id()].into());
        retention.deleted(&network("m.t").id());
        assert!(retention.gone().is_empty());
        // All orphans are removed when the record is readable.
        retention.begin(&mut desired, (&State::default(), &node), (&before, &dirty));
        assert!(!retention.is_active() && retention.gone().is_empty());
        assert!(retention.allows(&delete(network("n.t"))));
        retention.resynced();
        retention.begin(&mut desired, (&state, &node), (&before, &dirty));
        assert!(!retention.is_active(), "the datapath has nothing of earlier processes");
    }

    #[test]
    fn groups_and_policies_keep_no_orphans() {
        let (node, dirty) = (node(), DirtySet::default());
        let state = unreadable([Key::Group("g:t".into()), Key::Policy("t:g:t:p".into())]);
        let mut retention = Retention::default();
        retention.begin(&mut Desired::default(), (&state, &node), (&Desired::default(), &dirty));
        assert!(!retention.is_active() && retention.condition().is_none());
        assert!(retention.allows(&Op::Delete(peer().id())));
        retention.resynced();
        assert!(retention.is_over);
    }

    #[test]
    fn an_endpoint_without_an_interface_is_deleted() {
        let node = node();
        let mut state = unreadable([Key::Network("n.t".into()), Key::Endpoint("n.t-e".into())]);
        let mut retention = Retention::default();
        let (mut desired, before) = (Desired::default(), Desired::default());
        let delete = Op::Delete(ObjectId::Local("n.t-e".into()));
        let attached = state.set_attachment(&"n.t-e".into(), Some(Attachment::of_pod("vvport1")));
        retention.begin(&mut desired, (&state, &node), (&before, &attached));
        assert!(!retention.allows(&delete));
        let detached = state.set_attachment(&"n.t-e".into(), None);
        retention.update(&mut desired, (&state, &node), &detached);
        let remote = Op::Delete(ObjectId::Remote("n.t-e".into()));
        assert!(retention.allows(&delete) && !retention.allows(&remote));
        // The same if the full resync precedes the change.
        let mut retention = Retention::default();
        retention.begin(&mut desired, (&state, &node), (&before, &detached));
        assert!(retention.allows(&delete));
    }

    #[test]
    fn without_orphans_nothing_is_withheld() {
        let (node, dirty) = (node(), DirtySet::default());
        let state = unreadable((0..7).map(|n| Key::Endpoint(format!("n.t-e{n}").into())));
        let mut retention = Retention::default();
        let mut desired = Desired::default();
        retention.begin(&mut desired, (&state, &node), (&Desired::default(), &dirty));
        let condition = retention.condition().unwrap();
        assert!(condition.contains("/contiv.io/state/eps/n.t-e4, 2 more; repair"), "{condition}");
        retention.withheld.push(peer());
        retention.observed(0, &mut desired);
        assert!(!retention.is_active() && desired.get(&peer().id()).is_some());
        retention.resynced();
        assert!(retention.is_over);
    }
}
