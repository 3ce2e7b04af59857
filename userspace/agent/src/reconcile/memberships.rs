use std::collections::{BTreeMap, BTreeSet};

use contiv_model::policy::Identity;

use crate::datapath::{Desired, Object, ObjectId, Observed};

/// Groups that the endpoints of this node have in the datapath, as far as this process can determine.
///
/// An endpoint whose operation failed or is pending has another group in the datapath than in the plan. The rules of that
/// group are kept until the endpoint has left it.
#[derive(Debug, Default)]
pub(super) struct Memberships {
    /// After a failure an endpoint may have several groups.
    groups: BTreeMap<ObjectId, BTreeSet<Identity>>,
}

impl Memberships {
    /// Records the result of a full resync.
    pub(super) fn observed(&mut self, observed: &Observed, desired: &Desired) {
        // Garbage is not collected in this case, so this is the only report that there is none.
        if observed.orphans == 0 && observed.retained == 0 {
            self.collected(desired);
        }
        for (id, object) in desired.iter().filter(|(id, _)| observed.in_sync.contains(id)) {
            self.set(id, object);
        }
    }

    /// Records that the datapath has the object.
    pub(super) fn set(&mut self, id: &ObjectId, object: &Object) {
        let Object::Local(local) = object else { return };
        match local.identity {
            Some(identity) => drop(self.groups.insert(id.clone(), [identity].into())),
            None => self.deleted(id),
        }
    }

    /// Records that the datapath may have a part of the object.
    pub(super) fn failed(&mut self, id: &ObjectId, object: &Object) {
        if let Object::Local(local) = object
            && let Some(identity) = local.identity
        {
            self.groups.entry(id.clone()).or_default().insert(identity);
        }
    }

    /// Records that the datapath does not have the object.
    pub(super) fn deleted(&mut self, id: &ObjectId) {
        self.groups.remove(id);
    }

    /// Records that the datapath has no endpoints that are not desired.
    pub(super) fn collected(&mut self, desired: &Desired) {
        self.groups.retain(|id, _| desired.get(id).is_some());
    }

    /// Returns an endpoint that has the group in the datapath but another desired group.
    pub(super) fn leaving(&self, group: Identity, desired: &Desired) -> Option<&ObjectId> {
        let is_leaving = |id: &ObjectId| match desired.get(id) {
            Some(Object::Local(local)) => local.identity != Some(group),
            _ => true,
        };
        self.groups.iter().find(|(id, groups)| groups.contains(&group) && is_leaving(id)).map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The endpoint's deletion failed halfway, or the switch has lost the endpoint.
    #[test]
    fn a_datapath_without_other_items_has_no_deleted_endpoint() {
        let (group, endpoint) = (Identity::try_from(5).unwrap(), ObjectId::Local("e1".into()));
        let mut memberships = Memberships::default();
        memberships.groups.insert(endpoint.clone(), [group].into());
        for (orphans, retained) in [(1, 0), (0, 1)] {
            let observed = Observed { orphans, retained, ..Observed::default() };
            memberships.observed(&observed, &Desired::default());
            assert_eq!(memberships.leaving(group, &Desired::default()), Some(&endpoint));
        }
        memberships.observed(&Observed::default(), &Desired::default());
        assert_eq!(memberships.leaving(group, &Desired::default()), None);
    }
}
