//! Garbage collection of nodes: endpoints of a node that is gone for a configured time are
//! released.
//!
//! A node is registered as long as one of its leased registrations exists. When the last one
//! expires, the leader writes a mark to the store. The mark is deleted when the node registers
//! again, also if it is gone once more before the leader checks. Only nodes with a node status
//! count, because endpoints may be on hosts without an agent.
//!
//! The leader counts the time with its monotonic clock and writes it to the mark now and then, where
//! the next leader finds it. Clocks of different machines are never compared. A failed leader may
//! lose some of the time, which only delays the release.
//!
//! When most nodes disappear at the same time, the cause is their network or the store: nothing is
//! released and no time is counted until enough of them are back, or deleted by an operator.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::slice;
use std::time::{Duration, Instant, SystemTime};

use contiv_model::endpoint::{Oper, State};
use contiv_model::{bgp, node, registry};

use super::{Cleanup, clean_up, unreadable};
use crate::cache::{ClusterCache, StagedTxn};
use crate::go_json;
use crate::problem::Answer;

/// So many nodes may be gone in any cluster.
const FEW_NODES: usize = 2;
/// The counted time is written this often in the time after which endpoints are released, at most
/// every second.
const WRITES: u32 = 50;
const SHORTEST_STEP: Duration = Duration::from_secs(1);

/// Time for which the marked nodes are gone.
#[derive(Debug, Default)]
pub struct GoneClock {
    counted: BTreeMap<String, Counted>,
    last: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Counted {
    time: Duration,
    /// Revision of the mark when the count began.
    since: i64,
}

impl GoneClock {
    /// Adds the time since the last call, unless most nodes are gone. Continues what earlier leaders
    /// have counted.
    pub fn advance(&mut self, cache: &ClusterCache, now: Instant) {
        let passed = self.last.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
        let passed = if most_nodes_are_gone(cache) { Duration::ZERO } else { passed };
        let known = mem::take(&mut self.counted);
        for mark in cache.table::<node::Gone>().values() {
            let gone = &mark.value;
            let counted = match known.get(&gone.host) {
                Some(known) => Counted { time: known.time.saturating_add(passed), since: known.since },
                None => Counted { time: Duration::from_secs(gone.counted_seconds), since: mark.revision },
            };
            self.counted.insert(gone.host.clone(), counted);
        }
    }

    /// Whether the node has registered since the count began. It may be gone again.
    fn has_returned(&self, host: &str, cache: &ClusterCache) -> bool {
        self.counted.get(host).is_some_and(|counted| cache.last_registration(host) > counted.since)
    }
}

/// Whether more than half of the nodes are not registered.
pub fn most_nodes_are_gone(cache: &ClusterCache) -> bool {
    let registered_hosts = registered(cache);
    let is_gone = |status: &&node::Status| !registered_hosts.contains(status.host.as_str());
    let (all, gone) =
        (cache.all::<node::Status>().count(), cache.all::<node::Status>().filter(is_gone).count());
    gone > FEW_NODES && gone * 2 > all
}

/// Changes that garbage collection has to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGcPlan {
    /// Nodes without registration that are not marked as gone yet.
    pub newly_gone: Vec<String>,
    /// Nodes that have registered again or are no longer known.
    pub returned: Vec<String>,
    /// Seconds for which nodes have been gone, where the mark must be updated.
    pub counted: BTreeMap<String, u64>,
    /// Nodes that are gone for long enough, with the ids of their endpoints, and of those that their
    /// agents have only recorded.
    pub expired: BTreeMap<String, Vec<String>>,
}

impl NodeGcPlan {
    /// Compares registrations with the marked nodes. Without `gone_after`, no node expires.
    pub fn new(cache: &ClusterCache, clock: &GoneClock, gone_after: Option<Duration>) -> NodeGcPlan {
        let registered_hosts = registered(cache);
        let stopped = most_nodes_are_gone(cache);
        let mut plan = NodeGcPlan::default();
        for status in
            cache.all::<node::Status>().filter(|status| !registered_hosts.contains(status.host.as_str()))
        {
            let host = &status.host;
            let Some(gone) = cache.get::<node::Gone>(host) else {
                plan.newly_gone.push(host.clone());
                continue;
            };
            if clock.has_returned(host, cache) {
                continue;
            }
            let (Some(counted), Some(gone_after)) = (clock.counted.get(host), gone_after) else { continue };
            let unwritten = counted.time.saturating_sub(Duration::from_secs(gone.counted_seconds));
            if counted.time >= gone_after && !stopped {
                plan.expired.insert(host.clone(), vec![]);
            } else if unwritten >= (gone_after / WRITES).max(SHORTEST_STEP) {
                plan.counted.insert(host.clone(), counted.time.as_secs());
            }
        }
        let returned = cache.all::<node::Gone>().filter(|gone| {
            registered_hosts.contains(gone.host.as_str())
                || cache.get::<node::Status>(&gone.host).is_none()
                || clock.has_returned(&gone.host, cache)
        });
        plan.returned = returned.map(|gone| gone.host.clone()).collect();
        if !plan.expired.is_empty() {
            add_endpoints(cache, &mut plan.expired);
        }
        plan
    }

    /// Whether a mark has to be written or deleted.
    pub fn changes_marks(&self) -> bool {
        !self.newly_gone.is_empty() || !self.returned.is_empty() || !self.counted.is_empty()
    }

    /// Stages the marks of nodes that are gone, and deletes those of nodes that returned. `now` is
    /// for people.
    pub fn mark(&self, now: SystemTime, staged: &mut StagedTxn<'_>) -> Answer {
        for host in &self.newly_gone {
            staged.put(host, gone_since(host, now));
        }
        for (host, seconds) in &self.counted {
            if let Some(gone) = staged.edit::<node::Gone>(host) {
                gone.counted_seconds = *seconds;
            }
        }
        for host in &self.returned {
            if staged.get::<node::Gone>(host).is_some() {
                staged.delete::<node::Gone>(host);
            }
        }
        Ok(vec![])
    }
}

/// The mark of a node that is noticed to be gone.
pub(super) fn gone_since(host: &str, now: SystemTime) -> node::Gone {
    let since = humantime::format_rfc3339_seconds(now).to_string();
    node::Gone { host: host.to_owned(), since, counted_seconds: 0 }
}

/// Adds the ids of the nodes' endpoints, and of those that their agents have only recorded.
fn add_endpoints(cache: &ClusterCache, nodes: &mut BTreeMap<String, Vec<String>>) {
    for endpoint in cache.all::<State>() {
        if let Some(endpoints) = nodes.get_mut(&endpoint.homing_host) {
            endpoints.push(endpoint.id.clone());
        }
    }
    for endpoint in unreadable::all(cache) {
        if let Some(endpoints) = nodes.get_mut(&endpoint.homing_host)
            && !is_of_node(cache.get::<State>(&endpoint.id), &endpoint.homing_host)
        {
            endpoints.push(endpoint.id);
        }
    }
    // An agent records an endpoint before it is created.
    for oper in cache.all::<Oper>() {
        if let Some(endpoints) = nodes.get_mut(&oper.homing_host)
            && !is_of_node(cache.get::<State>(&oper.id), &oper.homing_host)
            && !endpoints.contains(&oper.id)
        {
            endpoints.push(oper.id.clone());
        }
    }
}

/// Ids of the endpoints of a node, and of those that its agent has only recorded.
pub fn endpoints_of_node(host: &str, cache: &ClusterCache) -> Vec<String> {
    let mut nodes = BTreeMap::from([(host.to_owned(), vec![])]);
    add_endpoints(cache, &mut nodes);
    nodes.remove(host).unwrap_or_default()
}

/// Parts for [`release_endpoints`], a transaction each. At least one, which deletes the node.
pub fn release_batches(endpoints: &[String]) -> Vec<Vec<String>> {
    let mut batches: Vec<Vec<String>> = endpoints.chunks(Cleanup::BATCH).map(<[_]>::to_vec).collect();
    if batches.is_empty() {
        batches.push(vec![]);
    }
    batches
}

/// Releases endpoints of a node that is gone, deletes what its agent has recorded of endpoints with
/// these ids, and returns the number of released endpoints. With `last`, deletes the node as well.
/// Does nothing if the node is registered again.
pub fn release_endpoints(host: &str, endpoints: &[String], last: bool, staged: &mut StagedTxn<'_>) -> Answer {
    let status = staged.get::<node::Status>(host);
    if is_registered(staged.cache(), host) || staged.get::<node::Gone>(host).is_none() {
        return go_json::encode(&0);
    }
    staged.guard_unchanged::<node::Gone>(host);
    if let Some(status) = status {
        // The guard fails if the node has registered again.
        let vtep = format!("{}/{}:{}", registry::VTEP, status.vtep_ip, status.vxlan_port);
        staged.guard_unchanged::<registry::ServiceInfo>(&vtep);
    }
    let mut released = 0;
    for id in endpoints {
        if is_of_node(unreadable::find(id, staged).as_deref(), host) {
            clean_up(slice::from_ref(id), staged)?;
            released += 1;
        } else if staged.get::<Oper>(id).is_some_and(|oper| oper.homing_host == host) {
            // The endpoint does not exist, or is another node's.
            staged.delete::<Oper>(id);
        }
    }
    if last {
        staged.delete::<node::Gone>(host);
        staged.delete::<node::Status>(host);
        staged.delete::<node::Vtep>(host);
        if staged.get::<bgp::Oper>(host).is_some() {
            staged.delete::<bgp::Oper>(host);
        }
        // The datapath that was chosen for the node stays: the same machine may return after a long outage. An operator
        // deletes it with the node, also after this.
        if staged.get::<node::AcceptedStore>(host).is_some() {
            staged.delete::<node::AcceptedStore>(host);
        }
    }
    go_json::encode(&released)
}

fn is_of_node(endpoint: Option<&State>, host: &str) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.homing_host == host)
}

pub(super) fn is_registered(cache: &ClusterCache, host: &str) -> bool {
    registered(cache).contains(host)
}

fn registered(cache: &ClusterCache) -> BTreeSet<&str> {
    let agents = cache.all::<registry::ServiceInfo>().filter(|service| service.is_of_node());
    agents.map(|service| service.hostname.as_str()).collect()
}
