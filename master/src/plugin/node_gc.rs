//! Garbage collection of nodes: endpoints of a node that is gone for a configured time are
//! released.
//!
//! A node is registered as long as one of its leased registrations exists. When the last one
//! expires, the leader writes the time to the store, where the next leader finds it. The entry is
//! deleted when the node registers again. Only nodes with a node status count, because endpoints
//! may be on hosts without an agent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use contiv_model::endpoint::State;
use contiv_model::{node, registry};

use super::clean_up;
use crate::cache::{ClusterCache, StagedTxn};
use crate::go_json;
use crate::problem::Answer;

/// Changes that garbage collection has to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeGcPlan {
    /// Nodes without registration that are not marked as gone yet.
    pub newly_gone: Vec<String>,
    /// Nodes that are registered again or no longer known.
    pub returned: Vec<String>,
    /// Nodes that are gone for long enough, with their endpoints.
    pub expired: BTreeMap<String, Vec<String>>,
}

impl NodeGcPlan {
    /// Compares registrations with the marked nodes. Without `gone_after`, no node expires.
    pub fn new(cache: &ClusterCache, now: SystemTime, gone_after: Option<Duration>) -> NodeGcPlan {
        let registered_hosts = registered(cache);
        let mut plan = NodeGcPlan::default();
        for status in
            cache.all::<node::Status>().filter(|status| !registered_hosts.contains(status.host.as_str()))
        {
            let marked = cache.get::<node::Gone>(&status.host).and_then(since);
            match marked {
                None => plan.newly_gone.push(status.host.clone()),
                // If the clock was set back, the duration is zero.
                Some(since) => {
                    let duration = now.duration_since(since).unwrap_or_default();
                    if gone_after.is_some_and(|gone_after| duration >= gone_after) {
                        plan.expired.insert(status.host.clone(), vec![]);
                    }
                }
            }
        }
        let returned = cache.all::<node::Gone>().filter(|gone| {
            registered_hosts.contains(gone.host.as_str()) || cache.get::<node::Status>(&gone.host).is_none()
        });
        plan.returned = returned.map(|gone| gone.host.clone()).collect();
        if !plan.expired.is_empty() {
            for endpoint in cache.all::<State>() {
                if let Some(endpoints) = plan.expired.get_mut(&endpoint.homing_host) {
                    endpoints.push(endpoint.id.clone());
                }
            }
        }
        plan
    }

    /// Stages the marks of nodes that are gone, and deletes those of nodes that returned.
    pub fn mark(&self, now: SystemTime, staged: &mut StagedTxn<'_>) -> Answer {
        for host in &self.newly_gone {
            let since = humantime::format_rfc3339_seconds(now).to_string();
            staged.put(host, node::Gone { host: host.clone(), since });
        }
        for host in &self.returned {
            if staged.get::<node::Gone>(host).is_some() {
                staged.delete::<node::Gone>(host);
            }
        }
        Ok(vec![])
    }
}

/// Releases endpoints of a node that is gone, and returns their number. With `last`, deletes the
/// node as well. Does nothing if the node is registered again.
pub fn release_endpoints(host: &str, endpoints: &[String], last: bool, staged: &mut StagedTxn<'_>) -> Answer {
    let status = staged.get::<node::Status>(host);
    if registered(staged.cache()).contains(host) || staged.get::<node::Gone>(host).is_none() {
        return go_json::encode(&0);
    }
    staged.guard_unchanged::<node::Gone>(host);
    if let Some(status) = status {
        // The guard fails if the node has registered again.
        let vtep = format!("{}/{}:{}", registry::VTEP, status.vtep_ip, status.vxlan_port);
        staged.guard_unchanged::<registry::ServiceInfo>(&vtep);
    }
    let released = endpoints.iter().filter(|id| staged.get::<State>(id).is_some()).count();
    clean_up(endpoints, staged)?;
    if last {
        staged.delete::<node::Gone>(host);
        staged.delete::<node::Status>(host);
        staged.delete::<node::Vtep>(host);
    }
    go_json::encode(&released)
}

fn registered(cache: &ClusterCache) -> BTreeSet<&str> {
    let agents = cache
        .all::<registry::ServiceInfo>()
        .filter(|service| [registry::NETPLUGIN, registry::VTEP].contains(&service.service_name.as_str()));
    agents.map(|service| service.hostname.as_str()).collect()
}

fn since(gone: &node::Gone) -> Option<SystemTime> {
    match humantime::parse_rfc3339(&gone.since) {
        Ok(since) => Some(since),
        Err(error) => {
            tracing::warn!(host = gone.host, since = gone.since, %error, "decode the time since when a node is gone: invalid; counting from now");
            None
        }
    }
}
