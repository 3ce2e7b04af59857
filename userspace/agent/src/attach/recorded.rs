//! The operational records of this node's endpoints, as listed from the store.

use std::collections::BTreeMap;

use contiv_model::{
    endpoint::Oper,
    key::Key,
    name::{EndpointId, NetworkId},
};
use contiv_store::KeyValue;

use super::pod::Pod;
use crate::{plan::Node, state::State};

/// A record that this node wrote.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OwnRecord {
    pub(super) oper: Oper,
    /// Revision of the store at which it was written.
    pub(super) revision: i64,
}

/// Endpoints of pods that this node has recorded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Recorded {
    /// Endpoints on networks that exist.
    pub(super) pods: BTreeMap<EndpointId, Pod>,
    /// Records on networks that do not exist.
    pub(super) stranded: BTreeMap<EndpointId, OwnRecord>,
}

impl OwnRecord {
    /// Decodes the record of a pod's endpoint on the node; `None` for another record.
    pub(super) fn of_pod(record: &KeyValue, node: &Node) -> Option<OwnRecord> {
        let oper = serde_json::from_slice::<Oper>(&record.value).ok()?;
        let host = node.host.as_str();
        // The node's own endpoints are on infra networks.
        (oper.homing_host == host && oper.cont_uuid != host)
            .then_some(OwnRecord { oper, revision: record.mod_revision })
            .filter(|own| record.key == Key::EndpointOper(own.id()).to_string())
    }

    fn id(&self) -> EndpointId {
        EndpointId::new(&self.network(), &self.oper.cont_uuid)
    }

    fn network(&self) -> NetworkId {
        self.oper.net_id.as_str().into()
    }

    /// Reports whether this machine wrote the record: another machine may use its name by mistake.
    pub(super) fn has_vtep_of(&self, node: &Node) -> bool {
        self.oper.vtep_ip == node.vtep.to_string()
    }
}

impl Recorded {
    /// Adds a record from [`OwnRecord::of_pod`], which a listing may contain twice. Ignores a record on a network whose
    /// own record is unreadable.
    pub(super) fn insert(&mut self, record: OwnRecord, node: &Node, state: &State) {
        let (id, network) = (record.id(), record.network());
        if let Some(network) = state.network(&network) {
            let (tenant, name) = (network.tenant.clone(), network.name.clone());
            self.pods.insert(id, Pod::recorded(tenant, name, record.oper.cont_uuid));
        } else if !state.is_unreadable(&Key::Network(network)) && record.has_vtep_of(node) {
            self.stranded.insert(id, record);
        }
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::{
        network::{Kind, Network},
        tag::Encap,
    };

    use super::*;
    use crate::state::ClusterObject;

    fn node() -> Node {
        Node { host: "h".into(), vtep: [192, 168, 0, 1].into() }
    }

    fn record(network: &str, name: &str, host: &str, vtep: &str) -> KeyValue {
        let oper = Oper {
            net_id: network.into(),
            cont_uuid: name.into(),
            homing_host: host.into(),
            vtep_ip: vtep.into(),
            ..Oper::default()
        };
        KeyValue {
            key: format!("/contiv.io/oper/eps/{network}-{name}"),
            value: serde_json::to_vec(&oper).unwrap().into(),
            create_revision: 1,
            mod_revision: 7,
            version: 1,
            lease: 0,
        }
    }

    fn state() -> State {
        let network = Network {
            id: "n.t".into(),
            tenant: "t".parse().unwrap(),
            name: "n".parse().unwrap(),
            kind: Kind::Data,
            encap: Encap::Vlan(5.try_into().unwrap()),
            subnet: "10.0.0.0/24".parse().unwrap(),
            gateway: None,
            subnet_v6: None,
            gateway_v6: None,
        };
        let mut state = State::default();
        state.set(&Key::Network("n.t".into()), Some(ClusterObject::Network(network)));
        state.reject(&Key::Network("bad.t".into()));
        state
    }

    #[test]
    fn records_on_networks_that_do_not_exist_are_stranded() {
        const VTEP: &str = "192.168.0.1";
        let (node, state) = (node(), state());
        let mut recorded = Recorded::default();
        for record in [
            record("n.t", "a", "h", VTEP),
            record("gone.t", "b", "h", VTEP),
            record("gone.t", "b", "h", VTEP),
            // Unreadable networks may exist, and another machine may have the name.
            record("bad.t", "c", "h", VTEP),
            record("gone.t", "d", "h", "192.168.0.2"),
        ] {
            recorded.insert(OwnRecord::of_pod(&record, &node).unwrap(), &node, &state);
        }
        let ids = |ids: Vec<&EndpointId>| ids.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(ids(recorded.pods.keys().collect()), ["n.t-a"]);
        assert_eq!(recorded.pods.values().next().unwrap().endpoint_id().as_str(), "n.t-a");
        assert_eq!(ids(recorded.stranded.keys().collect()), ["gone.t-b"]);
        assert_eq!(recorded.stranded.values().next().unwrap().revision, 7);
    }

    #[test]
    fn records_of_others_are_left_out() {
        let is_own = |record: &KeyValue| OwnRecord::of_pod(record, &node()).is_some();
        assert!(is_own(&record("n.t", "a", "h", "")));
        assert!(!is_own(&record("n.t", "a", "other", "")) && !is_own(&record("n.t", "h", "h", "")));
        let misplaced = KeyValue { key: "/contiv.io/oper/eps/n.t-b".into(), ..record("n.t", "a", "h", "") };
        assert!(!is_own(&misplaced));
        assert!(!is_own(&KeyValue { value: "{".into(), ..misplaced }));
    }
}
