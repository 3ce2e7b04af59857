//! Operational records of this node's endpoints, in the store. Unlike the journal, they survive a power failure: a record
//! is written before netmaster creates the endpoint, and deleted after netmaster has deleted it.

use std::borrow::Cow;

use contiv_model::{
    endpoint::{Oper, State},
    key::{ENDPOINTS_OPER, Key},
    name::EndpointId,
};
use contiv_store::{Guard, KeyValue, Outcome, Txn};

use super::{
    failure::{Failure, Step},
    link::AttachedPort,
    pod::Pod,
    pods::Pods,
    recorded::{OwnRecord, Recorded},
    undo::{Rollback, RollbackStep},
};
use crate::{error::one_line, state};

/// Prefix that the interface name in the record lacks: in the original Contiv, the pair was `vport3` in the pod and
/// `vvport3` on the node.
const HOST_END_PREFIX: &str = "v";

impl Pods {
    /// Records an endpoint that netmaster is about to create, without addresses and port. An existing record is kept:
    /// this node wrote it before a reboot, or the endpoint belongs to another node. Returns the rollback step of the
    /// write.
    pub(super) async fn begin_record(
        &self,
        pod: &Pod,
        rollback: &mut Rollback,
    ) -> Result<Option<RollbackStep>, Failure> {
        let node = &self.parts().node;
        let id = pod.endpoint_id();
        let oper = Oper {
            id: id.to_string(),
            net_id: pod.network_id().to_string(),
            endpoint_id: pod.endpoint.clone(),
            service_name: pod.group.as_ref().map(ToString::to_string).unwrap_or_default(),
            cont_uuid: pod.endpoint.clone(),
            homing_host: node.host.to_string(),
            intf_name: pod.ifname.clone(),
            vtep_ip: node.vtep.to_string(),
            cni_configuration: configuration(pod),
            ..Oper::default()
        };
        let key = Key::EndpointOper(id.clone()).to_string();
        let txn = Txn::new().guard(Guard::absent(key.clone())).put(key, encode(&oper)?);
        match self.parts().store.commit(txn).await {
            Ok(Outcome::Committed { revision }) => Ok(Some(RollbackStep::PreliminaryRecord(id, revision))),
            Ok(Outcome::Conflict) => Ok(None),
            Err(error) => {
                if may_be_applied(&error) {
                    rollback.set_unanswered();
                }
                Err(record_failure(&error))
            }
        }
    }

    /// Deletes the record that [`begin_record`](Self::begin_record) wrote at `revision`, unless it was written again.
    pub(super) async fn delete_preliminary_record(
        &self,
        id: EndpointId,
        revision: i64,
    ) -> Result<(), Failure> {
        let key = Key::EndpointOper(id).to_string();
        let txn = Txn::new().guard(Guard::ModRevision { key: key.clone(), revision }).delete(key);
        self.parts().store.commit(txn).await.map(drop).map_err(|e| record_failure(&e))
    }

    /// Writes the record of an ADD that was interrupted before it wrote it.
    pub(super) async fn complete_record(&self, pod: &Pod, port: &str) -> Result<(), Failure> {
        let id = pod.endpoint_id();
        let Some(state) = self.stored(&id, Step::Record).await? else { return Ok(()) };
        self.record(&id, &oper(&state, pod, port, &self.parts().node.vtep.to_string())).await
    }

    pub(super) async fn record(&self, id: &EndpointId, oper: &Oper) -> Result<(), Failure> {
        let txn = Txn::new().put(Key::EndpointOper(id.clone()).to_string(), encode(oper)?);
        // A transaction without guards cannot conflict.
        self.parts().store.commit(txn).await.map(drop).map_err(|e| record_failure(&e))
    }

    pub(super) async fn delete_record(&self, id: &EndpointId) -> Result<(), Failure> {
        let txn = Txn::new().delete(Key::EndpointOper(id.clone()).to_string());
        // A transaction without guards cannot conflict; deleting a missing key is no error.
        self.parts().store.commit(txn).await.map(drop).map_err(|e| record_failure(&e))
    }

    /// Returns the record that this node has written for the endpoint. Endpoints that others created at netmaster have
    /// none.
    pub(super) async fn own_record(&self, pod: &Pod) -> Result<Option<OwnRecord>, Failure> {
        let record = self.record_of(pod).await?;
        Ok(record.filter(|record| record.has_vtep_of(&self.parts().node)))
    }

    /// Returns the record that a node has written for the endpoint.
    pub(super) async fn record_of(&self, pod: &Pod) -> Result<Option<OwnRecord>, Failure> {
        let key = Key::EndpointOper(pod.endpoint_id()).to_string();
        let record = self.parts().store.get(&key).await;
        let record = record.map_err(|e| Failure::new(Step::Delete, one_line(&e)).temporary())?;
        let Some(record) = record else { return Ok(None) };
        let oper = match serde_json::from_slice::<Oper>(&record.value) {
            Ok(oper) => oper,
            Err(error) => {
                tracing::warn!("read {key}: {error}");
                return Ok(None);
            }
        };
        let is_of_agent = oper.cont_uuid == pod.endpoint;
        Ok(is_of_agent.then_some(OwnRecord { oper, revision: record.mod_revision }))
    }

    /// Returns the records of this node. They are read once, when the records of all networks are readable: the journal
    /// contains the later records of this process.
    pub(super) async fn recorded(&self) -> Result<Cow<'_, Recorded>, Failure> {
        if self.parts().reader.with(state::State::has_unreadable_network) {
            return self.list_recorded().await.map(Cow::Owned);
        }
        self.0.recorded.get_or_try_init(|| self.list_recorded()).await.map(Cow::Borrowed)
    }

    async fn list_recorded(&self) -> Result<Recorded, Failure> {
        let parts = self.parts();
        let mut recorded = Recorded::default();
        let keep = |record: &KeyValue| {
            if let Some(own) = OwnRecord::of_pod(record, &parts.node) {
                parts.reader.with(|state| recorded.insert(own, &parts.node, state));
            }
            false
        };
        let listed = parts.store.list_where(ENDPOINTS_OPER, keep).await;
        listed.map_err(|e| record_failure(&e))?;
        Ok(recorded)
    }

    /// Deletes a record on a network that does not exist, unless it was written again or parts of its attachment exist.
    /// netmaster has no endpoint there.
    pub(super) async fn delete_stranded_record(
        &self,
        id: &EndpointId,
        record: &OwnRecord,
        ports: &[AttachedPort],
    ) -> Result<(), Failure> {
        let _lock = self.0.locks.lock(id.as_str()).await;
        let parts = self.parts();
        let is_attached = parts.reader.with(|state| state.attachment(id).is_some());
        // An ADD on a new network with this name has an entry.
        if is_attached || parts.journal.contains(id) || self.is_of_original(&record.oper, ports).await? {
            return Ok(());
        }
        let key = Key::EndpointOper(id.clone()).to_string();
        let unchanged = Guard::ModRevision { key: key.clone(), revision: record.revision };
        let no_endpoint = Guard::absent(Key::Endpoint(id.clone()).to_string());
        let txn = Txn::new().guard(unchanged).guard(no_endpoint).delete(key);
        parts.store.commit(txn).await.map(drop).map_err(|e| record_failure(&e))
    }

    /// Reports whether the recorded interface exists and was created by the original netplugin. Such interfaces do not
    /// identify their endpoints, and may belong to running pods.
    pub(super) async fn is_of_original(&self, oper: &Oper, ports: &[AttachedPort]) -> Result<bool, Failure> {
        match host_end(oper).filter(|port| !ports.iter().any(|known| known.port == *port)) {
            Some(port) => self.parts().links.exists(&port).await.map_err(|e| Failure::link(Step::Unplug, &e)),
            None => Ok(false),
        }
    }
}

/// Reports whether the store may have committed a transaction although it returned this error.
fn may_be_applied(error: &contiv_store::Error) -> bool {
    error.outcome_unknown() || error.is_out_of_space()
}

/// The record of an attached endpoint.
pub(super) fn oper(state: &State, pod: &Pod, port: &str, vtep: &str) -> Oper {
    Oper {
        id: state.id.clone(),
        net_id: state.net_id.clone(),
        endpoint_id: state.endpoint_id.clone(),
        service_name: state.service_name.clone(),
        cont_uuid: pod.endpoint.clone(),
        ip_address: state.ip_address.clone(),
        ipv6_address: state.ipv6_address.clone(),
        mac_address: state.mac_address.clone(),
        homing_host: state.homing_host.clone(),
        intf_name: pod.ifname.clone(),
        port_name: port.strip_prefix(HOST_END_PREFIX).unwrap_or(port).to_owned(),
        vtep_ip: vtep.to_owned(),
        cni_configuration: configuration(pod),
    }
}

/// Returns the host end of the recorded endpoint; `None` if the record was written before the interface was created.
fn host_end(oper: &Oper) -> Option<String> {
    (!oper.port_name.is_empty()).then(|| format!("{HOST_END_PREFIX}{}", oper.port_name))
}

fn configuration(pod: &Pod) -> Option<String> {
    Some(pod.configuration.clone()).filter(|name| !name.is_empty())
}

fn encode(oper: &Oper) -> Result<Vec<u8>, Failure> {
    serde_json::to_vec(oper).map_err(|e| Failure::new(Step::Record, e.to_string()))
}

fn record_failure(error: &contiv_store::Error) -> Failure {
    Failure::new(Step::Record, one_line(error)).temporary()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use contiv_store::{Error, Operation};

    use super::*;

    /// After an error because of the quota, etcd may have the record.
    #[test]
    fn a_record_may_exist_after_these_errors() {
        let (operation, key) = (Operation::Commit, || "k".to_owned());
        let timeout =
            Error::Timeout { operation, key: key(), endpoints: String::new(), limit: Duration::ZERO };
        assert!(may_be_applied(&timeout) && may_be_applied(&Error::OutOfSpace { operation, key: key() }));
        assert!(!may_be_applied(&Error::TooManyOps { key: key(), guards: 1, ops: 1 }));
    }
}
