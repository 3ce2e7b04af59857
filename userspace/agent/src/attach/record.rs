//! Operational records of this node's endpoints, in the store. Unlike the journal, they outlive a power failure: a record is written
//! before netmaster creates the endpoint, and deleted after netmaster has deleted it.

use std::{borrow::Cow, collections::BTreeMap};

use contiv_model::{
    endpoint::{Oper, State},
    key::{ENDPOINTS_OPER, Key},
    name::{EndpointId, NetworkId},
};
use contiv_store::{Guard, KeyValue, Outcome, Txn};

use super::{
    failure::{Failure, Step},
    pod::Pod,
    pods::Pods,
    undo::{Rollback, RollbackStep},
};
use crate::{error::one_line, state};

/// Prefix that the record's interface name lacks: the original's pair was `vport3` in the pod and `vvport3` on the node.
const HOST_END_PREFIX: &str = "v";

impl Pods {
    /// Records an endpoint that netmaster is about to create, without addresses and port. A record that exists stays: this node wrote it
    /// before a reboot, or the endpoint is another node's. Returns how to roll back what was written.
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
                if error.outcome_unknown() {
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

    /// Writes the record of an ADD that was interrupted before it did.
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

    /// The record that this node wrote of the endpoint. Endpoints that others created at netmaster have none.
    pub(super) async fn own_record(&self, pod: &Pod) -> Result<Option<Oper>, Failure> {
        let parts = self.parts();
        let key = Key::EndpointOper(pod.endpoint_id()).to_string();
        let record = parts.store.get(&key).await;
        let record = record.map_err(|e| Failure::new(Step::Delete, one_line(&e)).temporary())?;
        let Some(record) = record else { return Ok(None) };
        let oper = match serde_json::from_slice::<Oper>(&record.value) {
            Ok(oper) => oper,
            Err(error) => {
                tracing::warn!("read {key}: {error}");
                return Ok(None);
            }
        };
        // Another machine may have this node's name by mistake.
        let is_own = oper.cont_uuid == pod.endpoint && oper.vtep_ip == parts.node.vtep.to_string();
        Ok(is_own.then_some(oper))
    }

    /// Pods whose endpoints this node has recorded on networks that exist. Read once when the records of all networks are readable:
    /// the journal has what this process records.
    pub(super) async fn recorded(&self) -> Result<Cow<'_, [Pod]>, Failure> {
        if self.parts().reader.with(state::State::has_unreadable_network) {
            return self.list_recorded().await.map(Cow::Owned);
        }
        let recorded = self.0.recorded.get_or_try_init(|| self.list_recorded()).await;
        recorded.map(|recorded| Cow::Borrowed(recorded.as_slice()))
    }

    async fn list_recorded(&self) -> Result<Vec<Pod>, Failure> {
        // A listing may show a record twice.
        let mut pods: BTreeMap<EndpointId, Pod> = BTreeMap::new();
        let keep = |record: &KeyValue| {
            pods.extend(self.pod_of_record(record).map(|pod| (pod.endpoint_id(), pod)));
            false
        };
        let listed = self.parts().store.list_where(ENDPOINTS_OPER, keep).await;
        listed.map_err(|e| record_failure(&e))?;
        Ok(pods.into_values().collect())
    }

    fn pod_of_record(&self, record: &KeyValue) -> Option<Pod> {
        let oper = serde_json::from_slice::<Oper>(&record.value).ok()?;
        let host = self.parts().node.host.as_str();
        // The node's own endpoints are on infra networks.
        if oper.homing_host != host || oper.cont_uuid == host {
            return None;
        }
        let id = NetworkId::from(oper.net_id.as_str());
        let (tenant, network) = self.parts().reader.with(|state| {
            let network = state.network(&id)?;
            Some((network.tenant.clone(), network.name.clone()))
        })?;
        let pod = Pod::recorded(tenant, network, oper.cont_uuid);
        (record.key == Key::EndpointOper(pod.endpoint_id()).to_string()).then_some(pod)
    }
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

/// Host end of the recorded endpoint; `None` if the record was written before the interface was created.
pub(super) fn host_end(oper: &Oper) -> Option<String> {
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
