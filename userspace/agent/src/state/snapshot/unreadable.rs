//! Records that exist in the store and have never been valid in this process. If a record was valid before, its last
//! valid version stays in effect. Of unreadable records, only the keys are known.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::{
    endpoint::Endpoint,
    group::GroupNumber,
    key::Key,
    name::{EndpointId, GroupKey, HostName, NetworkId},
    network::Network,
};

use super::State;
use crate::state::{Attachment, DirtySet};

/// Unreadable records of the kinds on which forwarding depends.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Unreadable {
    keys: BTreeSet<Key>,
    /// Networks that may be those of unreadable endpoints with an interface on this node.
    networks: BTreeSet<NetworkId>,
}

impl Unreadable {
    /// Groups whose record, or the record of one of their policies, is unreadable, each with that record.
    fn groups(&self) -> impl Iterator<Item = (GroupKey, &Key)> {
        // There may be many records of other kinds.
        let own = self.keys.range(Key::Group("".into())..).map_while(|key| match key {
            Key::Group(group) => Some((group.clone(), key)),
            _ => None,
        });
        let policies = self.keys.range(Key::Policy("".into())..).map_while(|key| match key {
            Key::Policy(id) => Some((id.group(), key)),
            _ => None,
        });
        own.chain(policies.filter_map(|(group, key)| Some((group?, key))))
    }
}

impl State {
    /// Keys of the unreadable records on which forwarding depends.
    pub fn unreadable(&self) -> impl Iterator<Item = &Key> {
        self.unreadable.keys.iter()
    }

    /// Keys of the unreadable records whose objects may be missing in the plan. The plan contains a group with endpoints
    /// on the node, which is blocked while its settings are unknown. The plans of other nodes do not contain the group.
    pub fn unplanned(&self) -> impl Iterator<Item = &Key> {
        self.unreadable().filter(|key| !is_of_group(key))
    }

    /// Returns the unreadable records because of which the datapath of `host` may have more objects than its plan:
    /// [`unplanned`](Self::unplanned), and those that block a group with endpoints there.
    pub fn unreadable_on(&self, host: &HostName) -> BTreeSet<Key> {
        let blocked = self.blocked_groups(host).into_iter();
        let here = blocked.filter(|(number, _)| self.is_group_on(*number, host)).map(|(_, key)| key);
        self.unplanned().cloned().chain(here).collect()
    }

    /// Reports whether the record is one on which forwarding depends, exists in the store, and has never been valid.
    pub fn is_unreadable(&self, key: &Key) -> bool {
        self.unreadable.keys.contains(key)
    }

    /// Reports whether the record of a network is unreadable. Then neither its name nor its tenant is known, because the
    /// id joins them.
    pub fn has_unreadable_network(&self) -> bool {
        self.unreadable().any(|key| matches!(key, Key::Network(_)))
    }

    /// Returns the unreadable record because of which the state may lack an endpoint: the endpoint's own record, or that
    /// of a network that it may be on.
    pub fn unreadable_record_of(&self, id: &EndpointId) -> Option<Key> {
        let own = std::iter::once(Key::Endpoint(id.clone()));
        own.chain(id.possible_networks().map(Key::Network)).find(|key| self.is_unreadable(key))
    }

    /// Reports whether an unreadable record may be that of an endpoint with this address, or of its network.
    pub fn is_unreadable_address(&self, address: IpAddr) -> bool {
        let is_on = |id: &EndpointId| {
            let networks: Vec<&Network> = id.possible_networks().filter_map(|id| self.network(&id)).collect();
            networks.is_empty() && !self.is_of_fabric(address)
                || networks.iter().any(|network| network.contains(address))
        };
        self.unreadable().any(|key| match key {
            Key::Network(_) => !self.is_of_fabric(address),
            Key::Endpoint(id) => is_on(id),
            _ => false,
        })
    }

    /// Interfaces on this node whose endpoint is not in the store.
    pub fn orphaned_interfaces(&self) -> impl Iterator<Item = (&EndpointId, &Attachment)> {
        let is_orphaned =
            move |id: &EndpointId| self.endpoint(id).is_none() && self.unreadable_record_of(id).is_none();
        self.attachments().filter(move |(id, _)| is_orphaned(id))
    }

    /// Interfaces on this node, `host`, whose endpoint is on another node according to its record, each with the name of
    /// that node.
    pub fn foreign_interfaces(&self, host: &HostName) -> impl Iterator<Item = (&EndpointId, &HostName)> {
        let hosts = self.attachments().filter_map(|(id, _)| Some((id, &self.endpoint(id)?.host)));
        hosts.filter(move |(_, other)| *other != host)
    }

    /// Networks of this node, `host`: networks with endpoints on it, and networks of its interfaces whose endpoint is
    /// unreadable. The latter networks may not exist.
    pub fn networks_here(&self, host: &HostName) -> impl Iterator<Item = &NetworkId> {
        let more = self.unreadable.networks.iter().filter(move |id| !self.is_network_on(id, host));
        self.networks_on(host).chain(more)
    }

    /// Whether the network is one of [`networks_here`](Self::networks_here).
    pub fn is_network_here(&self, id: &NetworkId, host: &HostName) -> bool {
        self.is_network_on(id, host) || self.has_unreadable_interface(id)
    }

    /// Reports whether this node has an interface that may be on the network and whose endpoint is unreadable.
    pub fn has_unreadable_interface(&self, id: &NetworkId) -> bool {
        self.unreadable.networks.contains(id)
    }

    /// Returns the groups whose settings are unknown because a record is unreadable: that of the group, or of one of its
    /// policies. Each group has the first such record. If the group's record is unreadable, the endpoints on `host`
    /// contain its number.
    pub fn blocked_groups(&self, host: &HostName) -> BTreeMap<GroupNumber, Key> {
        let mut blocked = BTreeMap::new();
        for (group, record) in self.unreadable.groups() {
            let members = self.on_host(host).filter_map(|id| self.endpoint(id));
            for number in self.numbers_of(&group, members) {
                blocked.entry(number).or_insert_with(|| record.clone());
            }
        }
        blocked
    }

    /// Records that the value at `key` is invalid, and returns the affected objects. Nothing is affected if a valid
    /// version is known, which stays in effect.
    pub fn reject(&mut self, key: &Key) -> DirtySet {
        if let Key::Bgp(host) = key
            && self.bgp_speaker(host).is_none()
        {
            self.invalid_speakers.insert(host.clone());
        }
        if self.is_known(key) || !self.unreadable.keys.insert(key.clone()) {
            return DirtySet::default();
        }
        self.change_unreadable(key)
    }

    /// Records that the record at `key` is valid or has been deleted, and returns the objects that were affected because
    /// it was unreadable.
    pub(super) fn end_rejection(&mut self, key: &Key) -> DirtySet {
        if let Key::Bgp(host) = key {
            self.invalid_speakers.remove(host);
        }
        match self.unreadable.keys.remove(key) {
            true => self.change_unreadable(key),
            false => DirtySet::default(),
        }
    }

    /// Recomputes the networks of the interfaces whose endpoint is unreadable.
    pub(super) fn find_unreadable_interfaces(&mut self) {
        let is_unreadable = |id: &&EndpointId| self.is_unreadable(&Key::Endpoint((*id).clone()));
        let ids = self.attachments().map(|(id, _)| id).filter(is_unreadable);
        let networks: BTreeSet<NetworkId> = ids.flat_map(EndpointId::possible_networks).collect();
        self.unreadable.networks = networks;
    }

    fn change_unreadable(&mut self, key: &Key) -> DirtySet {
        let group = match key {
            Key::Group(group) => Some(group.clone()),
            Key::Policy(id) => id.group(),
            _ => None,
        };
        let groups = group.map(|group| self.numbers_of(&group, self.endpoints())).unwrap_or_default();
        if let Key::Endpoint(id) = key
            && self.attachment(id).is_some()
        {
            self.find_unreadable_interfaces();
        }
        DirtySet { groups, unreadable: !is_of_group(key), ..DirtySet::default() }
    }

    /// Returns the numbers of a group: the number in its record, or those in the records of its members.
    fn numbers_of<'a>(
        &self,
        group: &GroupKey,
        members: impl Iterator<Item = &'a Endpoint>,
    ) -> BTreeSet<GroupNumber> {
        match self.groups.number(group) {
            Some(number) => [number].into(),
            None => {
                let members = members.filter(|endpoint| endpoint.group.as_ref() == Some(group));
                members.filter_map(|endpoint| endpoint.group_number).collect()
            }
        }
    }

    /// Reports whether a valid version of the record is known. Forwarding does not depend on records of other kinds.
    fn is_known(&self, key: &Key) -> bool {
        match key {
            Key::Network(id) => self.network(id).is_some(),
            Key::Endpoint(id) => self.endpoint(id).is_some(),
            Key::Group(group) => self.groups.number(group).is_some(),
            Key::Policy(id) => self.groups.has_policy(id),
            Key::ServiceLb(id) => self.service(id).is_some(),
            Key::Providers(id) => self.services.has_slice(id.as_str()),
            Key::Service { address, .. } => self.vteps.has_registration(address),
            Key::NodeVtep(host) => self.vteps.has_record(host),
            _ => true,
        }
    }
}

/// Reports whether the record is that of a group or of a policy of a group.
fn is_of_group(key: &Key) -> bool {
    matches!(key, Key::Group(_) | Key::Policy(_))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use contiv_model::{
        group::Group,
        mac::Mac,
        network::Kind,
        tag::{Encap, Vlan},
    };

    use super::*;
    use crate::state::ClusterObject;

    const HOST: &str = "h0";

    fn network(id: &str) -> (Key, ClusterObject) {
        let (name, tenant) = id.split_once('.').unwrap();
        let network = Network {
            id: id.into(),
            tenant: tenant.parse().unwrap(),
            name: name.parse().unwrap(),
            kind: Kind::Data,
            encap: Encap::Vlan(Vlan::try_from(5).unwrap()),
            subnet: "10.0.0.0/24".parse().unwrap(),
            gateway: None,
            subnet_v6: None,
            gateway_v6: None,
        };
        (Key::Network(id.into()), ClusterObject::Network(network))
    }

    fn endpoint(id: &str, group: Option<(&str, u32)>) -> (Key, ClusterObject) {
        let ip = Ipv4Addr::new(10, 0, 0, 1);
        let endpoint = Endpoint {
            id: id.into(),
            network: "n.t".into(),
            group: group.map(|(key, _)| key.into()),
            group_number: group.and_then(|(_, number)| GroupNumber::try_from(number).ok()),
            ip,
            ip6: None,
            mac: Mac::of_endpoint(ip),
            host: HOST.into(),
            vtep: None,
        };
        (Key::Endpoint(id.into()), ClusterObject::Endpoint(endpoint))
    }

    fn keys(state: &State) -> Vec<String> {
        state.unreadable().map(ToString::to_string).collect()
    }

    fn here(state: &State) -> Vec<String> {
        state.networks_here(&HOST.into()).map(ToString::to_string).collect()
    }

    #[test]
    fn a_record_that_was_valid_is_not_unreadable() {
        let mut state = State::default();
        let (key, object) = network("n.t");
        assert!(state.reject(&key).unreadable && state.is_unreadable(&key));
        assert!(state.has_unreadable_network());
        assert_eq!(keys(&state), ["/contiv.io/state/nets/n.t"]);
        // A second rejection changes nothing.
        assert!(state.reject(&key).is_empty());
        assert!(state.set(&key, Some(object)).unreadable);
        assert!(keys(&state).is_empty() && !state.has_unreadable_network());
        assert!(state.reject(&key).is_empty() && keys(&state).is_empty());
        // After the deletion, the next version belongs to another object.
        assert!(!state.set(&key, None).unreadable);
        assert!(state.reject(&key).unreadable);
        assert!(state.set(&key, None).unreadable && keys(&state).is_empty());
    }

    #[test]
    fn records_of_all_kinds_of_forwarding_can_be_unreadable() {
        let mut state = State::default();
        let all = [
            Key::Network("n.t".into()),
            Key::Endpoint("n.t-e".into()),
            Key::Group("g:t".into()),
            Key::Policy("t:g:t:p".into()),
            Key::ServiceLb("s:t".into()),
            Key::Providers("s:t/1".into()),
            Key::Service { name: contiv_model::registry::VTEP.to_owned(), address: "192.0.2.1:1".to_owned() },
            Key::NodeVtep("h1".into()),
        ];
        for key in &all {
            // The plan contains the groups.
            assert_eq!(state.reject(key).unreadable, !is_of_group(key), "{key}");
            assert!(state.is_unreadable(key), "{key}");
        }
        // The datapath waits for the settings, and does not depend on BGP.
        for key in [Key::MasterConfig, Key::Bgp("h1".into())] {
            assert!(state.reject(&key).is_empty(), "{key}");
        }
        assert_eq!(keys(&state).len(), all.len());
    }

    #[test]
    fn an_interface_keeps_its_network_while_its_endpoint_is_unreadable() {
        let mut state = State::default();
        let (key, object) = endpoint("n.t-a-b", None);
        let id: EndpointId = "n.t-a-b".into();
        let orphaned = |state: &State| state.orphaned_interfaces().count();
        state.reject(&key);
        assert_eq!(state.unreadable_record_of(&id), Some(key.clone()));
        assert_eq!(here(&state), Vec::<String>::new(), "it may be on another node");
        assert!(state.set_attachment(&id, Some(Attachment::of_pod("vvport1"))).unreadable);
        // The id does not show where the network's id ends.
        assert_eq!((here(&state), orphaned(&state)), (vec!["n.t".to_owned(), "n.t-a".to_owned()], 0));
        assert!(state.is_network_here(&"n.t".into(), &HOST.into()));
        state.set(&key, Some(object));
        assert_eq!((here(&state), state.unreadable_record_of(&id)), (vec!["n.t".to_owned()], None));
        state.set(&key, None);
        assert_eq!(orphaned(&state), 1);
        assert!(!state.set_attachment(&id, None).unreadable);
        // The unreadable record may be that of the endpoint's network.
        state.reject(&Key::Network("n.t".into()));
        assert_eq!(state.unreadable_record_of(&id), Some(Key::Network("n.t".into())));
    }

    #[test]
    fn unreadable_groups_and_policies_block_their_members() {
        let mut state = State::default();
        let (group, policy) = (Key::Group("g:t".into()), Key::Policy("t:g:t:p".into()));
        let number = GroupNumber::try_from(5).unwrap();
        let blocked = |state: &State| state.blocked_groups(&HOST.into()).into_iter().collect::<Vec<_>>();
        state.reject(&policy);
        assert_eq!(blocked(&state), []);
        // The number is in the record of the group, or in those of its members.
        let record = Group { key: "g:t".into(), number, dscp: None, rate: None };
        state.set(&group, Some(ClusterObject::Group(record)));
        assert_eq!(blocked(&state), [(number, policy.clone())]);
        state.set(&group, None);
        assert_eq!(blocked(&state), []);
        let (key, object) = endpoint("n.t-e", Some(("g:t", 5)));
        state.set(&key, Some(object));
        assert_eq!(blocked(&state), [(number, policy.clone())]);
        assert_eq!(state.reject(&group).groups, [number].into());
        assert_eq!(blocked(&state), [(number, group.clone())]);
        assert_eq!(state.set(&group, None).groups, [number].into());
        assert_eq!(state.set(&policy, None).groups, [number].into());
        assert_eq!(blocked(&state), []);
    }

    #[test]
    fn groups_are_in_the_plan_of_the_nodes_with_their_members() {
        let mut state = State::default();
        let [group, policy, other] =
            [Key::Group("g:t".into()), Key::Policy("t:g:t:p".into()), Key::Endpoint("n.t-x".into())];
        let here = |state: &State| state.unreadable_on(&HOST.into());
        let (key, object) = endpoint("n.t-e", Some(("g:t", 5)));
        for record in [&group, &policy] {
            state.reject(record);
            assert!(state.unplanned().next().is_none() && here(&state).is_empty(), "{record}");
            state.set(&key, Some(object.clone()));
            assert!(state.unplanned().next().is_none(), "{record}");
            assert_eq!(here(&state), BTreeSet::from([record.clone()]));
            assert!(state.unreadable_on(&"h1".into()).is_empty(), "{record}");
            state.set(&key, None);
            state.set(record, None);
        }
        // The number is known, and the group has no member on this node.
        let number = GroupNumber::try_from(5).unwrap();
        let record = Group { key: "g:t".into(), number, dscp: None, rate: None };
        state.set(&group, Some(ClusterObject::Group(record)));
        state.reject(&policy);
        assert!(here(&state).is_empty());
        state.reject(&other);
        assert_eq!(state.unplanned().collect::<Vec<_>>(), [&other]);
        assert_eq!(here(&state), BTreeSet::from([other.clone()]));
    }
}
