//! A change of the node's name while its pods run.
//!
//! Records of endpoints contain the name of their node. The plan for another name lacks the endpoints whose interfaces
//! are on this node, and the first full resync would delete their forwarding. So the agent does not start with another
//! name: forwarding continues without an agent.

use std::collections::BTreeMap;

use contiv_model::{
    event::Event,
    key::Key,
    name::{EndpointId, HostName},
};

use crate::{
    plan::Node,
    state::{ClusterObject, State, Update},
};

/// The interfaces on this node belong to endpoints of another host name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "start as host {now:?}: the pods on this node are those of host {before:?}; their forwarding is unchanged; use --host {before}, or, \
     to rename the node, drain it with that name, stop the agent, and run: netplugin cleanup"
)]
pub struct Renamed {
    /// Name in the earlier process, or of the node in the records.
    pub before: String,
    /// Name of this process.
    pub now: String,
}

impl Renamed {
    pub(super) fn new(before: &HostName, now: &HostName) -> Renamed {
        Renamed { before: before.to_string(), now: now.to_string() }
    }

    /// Compares the name of the node with the endpoints of its interfaces, in the state and in `updates` that are about
    /// to be applied. The node was renamed only if all of them have other names. If an agent with such a name is
    /// registered with another VTEP, it runs on another machine.
    pub(super) fn find(state: &State, node: &Node, updates: &[Update]) -> Option<Renamed> {
        let listed: BTreeMap<&EndpointId, &HostName> = updates.iter().filter_map(listed_host).collect();
        let mut hosts = BTreeMap::<&HostName, usize>::new();
        for (id, _) in state.attachments() {
            let known = || state.endpoint(id).map(|endpoint| &endpoint.host);
            // The API also creates endpoints without a node.
            let host = listed.get(id).copied().or_else(known).filter(|host| !host.as_str().is_empty());
            if let Some(host) = host {
                *hosts.entry(host).or_default() += 1;
            }
        }
        if hosts.contains_key(&node.host) {
            return None;
        }
        hosts.retain(|host, _| !state.is_registered_elsewhere(host, node.vtep));
        let (before, _) = hosts.into_iter().max_by_key(|(_, interfaces)| *interfaces)?;
        Some(Renamed::new(before, &node.host))
    }
}

/// An endpoint of a listing, and its node.
fn listed_host(update: &Update) -> Option<(&EndpointId, &HostName)> {
    match &update.event {
        Event::InitApply(Key::Endpoint(id), Ok(ClusterObject::Endpoint(endpoint))) => {
            Some((id, &endpoint.host))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use contiv_model::{endpoint::Endpoint, key::ENDPOINTS, mac::Mac, registry};

    use super::*;
    use crate::state::{Attachment, Vtep};

    const VTEP: [u8; 4] = [192, 168, 0, 1];

    fn node() -> Node {
        Node { host: "new".into(), vtep: VTEP.into() }
    }

    fn endpoint(id: &str, host: &str) -> ClusterObject {
        let ip = [10, 0, 0, 1].into();
        ClusterObject::Endpoint(Endpoint {
            id: id.into(),
            network: "n.t".into(),
            group: None,
            group_number: None,
            ip,
            ip6: None,
            mac: Mac::of_endpoint(ip),
            host: host.into(),
            vtep: None,
        })
    }

    fn register(state: &mut State, host: &str, address: [u8; 4]) {
        let address = IpAddr::from(address);
        let key = Key::Service { name: registry::VTEP.to_owned(), address: format!("{address}:4789") };
        let vtep = Vtep { host: host.into(), address, port: 4789, since: 1 };
        state.set(&key, Some(ClusterObject::Registration(vtep)));
    }

    /// Returns the state of a node with these interfaces, each with the node of its endpoint, or an empty string for no
    /// endpoint.
    fn state(interfaces: &[(&str, &str)]) -> State {
        let mut state = State::default();
        for (id, host) in interfaces {
            state.set_attachment(&(*id).into(), Some(Attachment::of_pod(format!("vv{id}"))));
            if !host.is_empty() {
                state.set(&Key::Endpoint((*id).into()), Some(endpoint(id, host)));
            }
        }
        state
    }

    fn before(state: &State, updates: &[Update]) -> Option<String> {
        Renamed::find(state, &node(), updates).map(|renamed| renamed.before)
    }

    #[test]
    fn a_node_whose_interfaces_are_all_of_another_name_was_renamed() {
        assert_eq!(before(&state(&[]), &[]), None);
        assert_eq!(before(&state(&[("n.t-a", "")]), &[]), None);
        assert_eq!(before(&state(&[("n.t-a", "old"), ("n.t-b", "")]), &[]), Some("old".into()));
        let several = state(&[("n.t-a", "c"), ("n.t-b", "old"), ("n.t-c", "old")]);
        assert_eq!(before(&several, &[]), Some("old".into()));
        assert_eq!(before(&state(&[("n.t-a", "old"), ("n.t-b", "new")]), &[]), None);
    }

    #[test]
    fn another_machine_is_no_earlier_name() {
        let mut state = state(&[("n.t-a", "old")]);
        register(&mut state, "old", VTEP);
        assert_eq!(before(&state, &[]), Some("old".into()));
        register(&mut state, "other", [192, 168, 0, 2]);
        state.set(&Key::Endpoint("n.t-a".into()), Some(endpoint("n.t-a", "other")));
        assert_eq!(before(&state, &[]), None);
    }

    #[test]
    fn a_listing_that_completes_the_state_counts() {
        let state = state(&[("n.t-a", ""), ("n.t-b", "")]);
        let update = |id: &str, host: &str| Update {
            source: ENDPOINTS.into(),
            revision: 1,
            event: Event::InitApply(Key::Endpoint(id.into()), Ok(endpoint(id, host))),
        };
        assert_eq!(before(&state, &[update("n.t-a", "old")]), Some("old".into()));
        assert_eq!(before(&state, &[update("n.t-a", "old"), update("n.t-b", "new")]), None);
        assert_eq!(before(&state, &[update("n.t-elsewhere", "old")]), None);
        let error = Renamed::find(&state, &node(), &[update("n.t-a", "old")]).unwrap().to_string();
        assert!(
            error.starts_with(r#"start as host "new": "#) && error.contains("use --host old, or"),
            "{error}"
        );
    }
}
