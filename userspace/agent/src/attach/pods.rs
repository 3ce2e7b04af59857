use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use contiv_model::{
    endpoint::{Endpoint, State},
    key::Key,
    name::EndpointId,
    tag::Encap,
};
use contiv_store::{KeyValue, Store};
use tokio::sync::{OnceCell, OwnedMutexGuard, watch};
use tokio_util::task::TaskTracker;

use super::{
    conditions::Conditions,
    failure::{Failure, Step},
    journal::{Journal, Progress},
    key_lock::KeyLock,
    link::{self, AttachedPort, Links, Underlay},
    pod::Pod,
    recorded::Recorded,
    warnings::NodeWarnings,
};
use crate::{
    continuity::Regression,
    datapath::{Owner, PortRequirements},
    error::one_line,
    master::Master,
    plan::Node,
    reconcile::{self, Presence, Waiters},
    state::{Attacher, Attachment, Reader},
    sysctl,
};

/// Time limit for the datapath to set or delete an endpoint.
pub(super) const DATAPATH_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit for the state to catch up with netmaster.
pub(super) const STATE_TIMEOUT: Duration = Duration::from_secs(10);
/// Size in bytes of the VXLAN, UDP, IP and Ethernet headers of a tunnel between VTEPs of this address family.
fn vxlan_overhead(vtep: IpAddr) -> u32 {
    if vtep.is_ipv4() { 50 } else { 70 }
}

/// Locks of a request.
pub(super) type Locks = (OwnedMutexGuard<()>, OwnedMutexGuard<()>);

/// Attaches and detaches endpoints of this node.
#[derive(Clone)]
pub struct Pods(pub(super) Arc<Inner>);

/// Dependencies of [`Pods`].
pub struct Parts {
    /// This node.
    pub node: Node,
    /// Client of netmaster, which creates and deletes endpoints.
    pub master: Master,
    /// Creates and deletes interfaces.
    pub links: Arc<Links>,
    /// Store for the endpoints' operational records.
    pub store: Store,
    /// Records interfaces in the state.
    pub attacher: Attacher,
    /// Reads networks and endpoints.
    pub reader: Reader,
    /// Waits until the datapath has set or deleted an endpoint.
    pub waiters: Waiters,
    /// Status of the reconciler, for the reason of a timeout.
    pub status: watch::Receiver<reconcile::Status>,
    /// Present while the store is regressed.
    pub regression: watch::Receiver<Option<Regression>>,
    /// Reason why the datapath is not changed yet: the agent is starting. Present until the global settings are known.
    pub unsettled: watch::Receiver<Option<String>>,
    /// Attachments, including those of earlier processes.
    pub journal: Journal,
    /// Time that a pod has to be attached again after its network namespace vanished. Its addresses are released
    /// afterwards.
    pub return_timeout: Duration,
    /// Uplink interfaces for VLAN networks.
    pub uplinks: Vec<String>,
    /// Datapath's requirements for interfaces.
    pub requirements: PortRequirements,
}

pub(super) struct Inner {
    parts: Parts,
    pub(super) locks: KeyLock,
    /// Time at which an attachment was first found without interface and network namespace.
    pub(super) lost_since: Mutex<BTreeMap<EndpointId, Instant>>,
    /// Records of this node at the first read for which the records of all networks were readable.
    pub(super) recorded: OnceCell<Recorded>,
    /// `None` while unknown.
    underlay: Mutex<Option<Underlay>>,
    /// Held during the search for connections of an earlier pod, which reads all connections of the node.
    pub(super) tracking: Arc<tokio::sync::Mutex<()>>,
    /// Calls of [`Pods::reclaim`] that have not ended.
    reclaims: TaskTracker,
    pub(super) conditions: Mutex<Conditions>,
    pub(super) warnings: watch::Sender<NodeWarnings>,
}

impl Pods {
    /// Creates the service. It does nothing until requests arrive.
    pub fn new(parts: Parts) -> Pods {
        let (warnings, _) = watch::channel(NodeWarnings::default());
        let (locks, lost_since, underlay) = (KeyLock::default(), Mutex::default(), Mutex::default());
        let (recorded, tracking, conditions) = (OnceCell::new(), Arc::default(), Mutex::default());
        let reclaims = TaskTracker::new();
        let inner =
            Inner { parts, locks, lost_since, recorded, underlay, tracking, reclaims, conditions, warnings };
        Pods(Arc::new(inner))
    }

    /// Reports that the node keeps its datapath because the chosen one is not possible.
    pub fn report_refused_datapath(&self, why: String) {
        self.0.warnings.send_modify(|warnings| warnings.refused_datapath = Some(why));
    }

    /// Reports the reason why the next start of the agent needs other flags; `None` if it does not.
    pub fn report_forward_mode(&self, why: Option<String>) {
        self.0.warnings.send_modify(|warnings| warnings.other_forward_mode = why);
    }

    /// Reports whether the kernel's connection tracking is nearly full.
    pub fn check_tracking(&self) {
        let tracking = sysctl::tracking().unwrap_or_default();
        self.0.warnings.send_if_modified(|warnings| {
            let before = warnings.nearly_full;
            warnings.set_tracking(tracking);
            if before.is_none()
                && let Some(line) = warnings.nearly_full_line()
            {
                tracing::warn!("{line}");
            }
            warnings.nearly_full != before
        });
    }

    pub(super) fn parts(&self) -> &Parts {
        &self.0.parts
    }

    /// Locks the attachment for a request: first the name of the endpoint, which a DEL looks up on all networks, then its
    /// id.
    pub(super) async fn lock(&self, pod: &Pod) -> Locks {
        let id = pod.endpoint_id();
        (self.0.locks.lock(&pod.endpoint).await, self.0.locks.lock(id.as_str()).await)
    }

    /// Like [`lock`](Self::lock); `None` while a request is running.
    pub(super) fn try_lock(&self, pod: &Pod) -> Option<Locks> {
        let id = pod.endpoint_id();
        Some((self.0.locks.try_lock(&pod.endpoint)?, self.0.locks.try_lock(id.as_str())?))
    }

    /// Returns the attachment that has the id of the pod's endpoint, if it is another attachment: ids join names with
    /// dashes, which names may contain.
    pub(super) fn same_id(&self, pod: &Pod) -> Option<String> {
        let id = pod.endpoint_id();
        if let Some(entry) = self.parts().journal.get(&id) {
            let other = || format!("interface {} of container {}", entry.ifname, entry.container);
            return (!entry.is_of(pod)).then(other);
        }
        let owner = self.parts().reader.with(|state| state.attachment(&id).map(|at| at.owner));
        owner.filter(|owner| *owner != pod.owner).map(|owner| match owner {
            Owner::Node => "the node's own interface".to_owned(),
            Owner::Pod => "a pod's interface".to_owned(),
        })
    }

    /// Returns the endpoint; `None` if the complete state does not have it. Fails while the state is incomplete or not in
    /// sync with the store, or a record is unreadable: an interface whose endpoint is unknown for that reason must not be
    /// deleted.
    pub(super) async fn endpoint(&self, id: &EndpointId, step: Step) -> Result<Option<Endpoint>, Failure> {
        let reader = &self.parts().reader;
        let known = || reader.with(|state| (state.endpoint(id).cloned(), state.unreadable_record_of(id)));
        if let (Some(endpoint), _) = known() {
            return Ok(Some(endpoint));
        }
        self.synced(step).await?;
        match known() {
            (None, Some(key)) => Err(Failure::unreadable(step, &key)),
            (endpoint, _) => Ok(endpoint),
        }
    }

    /// Waits until the state is complete. Fails while it is not in sync with the store.
    pub(super) async fn synced(&self, step: Step) -> Result<(), Failure> {
        self.check_store(step)?;
        let synced = tokio::time::timeout(STATE_TIMEOUT, self.parts().reader.synced()).await;
        self.check_store(step)?;
        synced.map_err(|_| {
            let why = format!("the state has not arrived from the store within {STATE_TIMEOUT:?}");
            Failure::new(step, why).temporary()
        })
    }

    /// Returns the endpoint as it is now in the store.
    pub(super) async fn stored(&self, id: &EndpointId, step: Step) -> Result<Option<State>, Failure> {
        let Some(record) = self.stored_record(id, step).await? else { return Ok(None) };
        let state = serde_json::from_slice(&record.value);
        state.map(Some).map_err(|e| Failure::new(step, format!("read {}: {e}", record.key)))
    }

    /// Returns the record of the endpoint as it is now in the store, valid or not.
    pub(super) async fn stored_record(
        &self,
        id: &EndpointId,
        step: Step,
    ) -> Result<Option<KeyValue>, Failure> {
        let found = self.parts().store.get(&Key::Endpoint(id.clone()).to_string()).await;
        found.map_err(|e| Failure::new(step, one_line(&e)).temporary())
    }

    /// Reads the node's interfaces again: new pods use their MTU, and a missing VTEP address becomes a warning.
    pub async fn refresh_underlay(&self) -> Result<Underlay, link::Error> {
        let Parts { node, links, uplinks, .. } = self.parts();
        let underlay = links.underlay(node.vtep, uplinks).await?;
        *self.0.underlay.lock().unwrap_or_else(PoisonError::into_inner) = Some(underlay);
        let missing = (!underlay.has_vtep).then_some(node.vtep);
        self.0.warnings.send_if_modified(|warnings| {
            let changed = warnings.missing_vtep != missing;
            warnings.missing_vtep = missing;
            if changed {
                match warnings.missing_vtep_line() {
                    Some(line) => tracing::error!("{line}"),
                    None => tracing::info!(vtep = %node.vtep, "an interface has the VTEP address"),
                }
            }
            changed
        });
        Ok(underlay)
    }

    /// Fails while the store is regressed, because it does not show which addresses are in use, and while the agent
    /// starts.
    pub(super) fn check_store(&self, step: Step) -> Result<(), Failure> {
        let regressed = self.parts().regression.borrow().as_ref().map(ToString::to_string);
        match regressed.or_else(|| self.unsettled()) {
            Some(why) => Err(Failure::new(step, why).temporary()),
            None => Ok(()),
        }
    }

    /// Fails while the agent starts, because the datapath is not changed.
    pub(super) fn check_settled(&self, step: Step) -> Result<(), Failure> {
        match self.unsettled() {
            Some(_) => self.check_store(step),
            None => Ok(()),
        }
    }

    /// Returns the reason why the datapath is not changed yet.
    pub(super) fn unsettled(&self) -> Option<String> {
        self.parts().unsettled.borrow().clone()
    }

    /// Fails while the datapath is not changed because records are unreadable.
    pub(super) fn check_datapath(&self, step: Step) -> Result<(), Failure> {
        match &self.parts().status.borrow().postponed {
            Some(why) => Err(Failure::new(step, why.clone()).temporary()),
            None => Ok(()),
        }
    }

    pub(super) async fn mtu(&self, encap: Encap) -> Result<u32, link::Error> {
        let known = *self.0.underlay.lock().unwrap_or_else(PoisonError::into_inner);
        let underlay = match known {
            Some(underlay) => underlay,
            None => self.refresh_underlay().await?,
        };
        Ok(match encap {
            Encap::Vlan(_) => underlay.uplink_mtu,
            Encap::Vxlan { .. } => underlay.vtep_mtu.saturating_sub(vxlan_overhead(self.parts().node.vtep)),
        })
    }

    /// Removes interfaces that no longer exist from the state, for example because the pod's namespace was deleted. Their
    /// endpoints are kept: see [`release_lost`](Self::release_lost).
    pub async fn remove_vanished(&self) -> Result<(), link::Error> {
        let Parts { links, reader, attacher, .. } = self.parts();
        let before: Vec<_> =
            reader.with(|state| state.attachments().map(|(id, at)| (id.clone(), at.port.clone())).collect());
        // Listed after the state was read, so that an interface created in between is found.
        let existing = links.attachments().await?;
        for (id, port) in before {
            if existing.iter().any(|attachment| attachment.port == port && attachment.endpoint == id) {
                continue;
            }
            // A request may have created the interface again.
            let _lock = self.0.locks.lock(id.as_str()).await;
            let is_recorded =
                reader.with(|state| state.attachment(&id).is_some_and(|at: &Attachment| at.port == port));
            if is_recorded && links.port_of(&id).await?.is_none_or(|now| now != port) {
                tracing::warn!(endpoint = %id, port, "interface does not exist; its pod's namespace was deleted");
                attacher.detach(&id);
                links.release(&port).await?;
            }
        }
        Ok(())
    }

    /// Adds interfaces of attachments that the state lacks: they were missing in the listing at the agent's start.
    /// Interfaces of running and unfinished requests are left to these requests.
    pub async fn recover_missed(&self) -> Result<(), link::Error> {
        let Parts { links, reader, attacher, journal, .. } = self.parts();
        for AttachedPort { port, endpoint: id, owner } in links.attachments().await? {
            let is_known = || reader.with(|state| state.attachment(&id).is_some());
            if is_known() {
                continue;
            }
            let Some(_lock) = self.0.locks.try_lock(id.as_str()) else { continue };
            let has_ended = journal.get(&id).is_none_or(|entry| entry.progress == Progress::Attached);
            // A request may have ended after the listing.
            if has_ended && !is_known() && links.port_of(&id).await?.as_ref() == Some(&port) {
                tracing::warn!(endpoint = %id, port, "attaching an interface that was missing at the start");
                attacher.attach(&id, Attachment { port, owner });
            }
        }
        Ok(())
    }

    /// Logs interfaces whose endpoint is not in the store, and reports those whose endpoint is on another node according
    /// to its record. They are kept until their pods are deleted.
    pub fn report_orphans(&self) {
        let Parts { node, reader, .. } = self.parts();
        let foreign: BTreeMap<_, _> = reader.with(|state| {
            for (id, attachment) in state.orphaned_interfaces() {
                tracing::warn!(endpoint = %id, port = attachment.port, "interface without an endpoint in the store");
            }
            state.foreign_interfaces(&node.host).map(|(id, host)| (id.clone(), host.clone())).collect()
        });
        self.0.warnings.send_if_modified(|warnings| {
            let is_changed = warnings.foreign != foreign;
            warnings.foreign = foreign;
            if is_changed && let Some(line) = warnings.foreign_line() {
                tracing::warn!("{line}");
            }
            is_changed
        });
    }

    /// Waits until the datapath reaches `wanted`.
    pub(super) async fn wait_for_datapath(
        &self,
        reply: tokio::sync::oneshot::Receiver<Result<(), String>>,
        wanted: Presence,
    ) -> Result<(), String> {
        let what = match wanted {
            Presence::Present => "set the endpoint",
            Presence::Absent => "delete the endpoint",
        };
        match tokio::time::timeout(DATAPATH_TIMEOUT, reply).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err("the agent is stopping".to_owned()),
            Err(_) => {
                let why = self.parts().status.borrow().error.clone();
                let why = why
                    .unwrap_or_else(|| "the agent has not received the endpoint from the store".to_owned());
                Err(format!("the datapath did not {what} within {DATAPATH_TIMEOUT:?}: {why}"))
            }
        }
    }

    /// Removes a local endpoint from the datapath and deletes its interface. Returns true if it had one. The endpoint at
    /// netmaster is kept. Continues if the caller disconnects: netmaster closes the connection when its own client's time
    /// limit has expired.
    pub async fn reclaim(&self, id: &EndpointId) -> Result<bool, Failure> {
        let (pods, id) = (self.clone(), id.clone());
        match self.0.reclaims.spawn(async move { pods.detach_interface(&id).await }).await {
            Ok(removed) => removed,
            Err(error) => Err(Failure::new(Step::Unplug, error.to_string())),
        }
    }

    /// Waits for the calls of [`reclaim`](Self::reclaim) that have begun, also those that were cancelled.
    pub async fn finish_reclaims(&self) {
        self.0.reclaims.close();
        self.0.reclaims.wait().await;
    }

    async fn detach_interface(&self, id: &EndpointId) -> Result<bool, Failure> {
        let _lock = self.0.locks.lock(id.as_str()).await;
        let known = self.parts().reader.with(|state| state.attachment(id).is_some());
        let port = self.parts().links.port_of(id).await.map_err(|e| Failure::link(Step::Unplug, &e))?;
        let attached = known || port.is_some();
        if attached {
            self.delete_interface(id).await?;
            self.delete_record(id).await?;
        }
        Ok(attached)
    }
}
