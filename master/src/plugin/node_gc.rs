//! Nodes that are gone for good: after a time, the endpoints that lived there are released.
//!
//! A node is there as long as one of its leased registrations is. When the last has run out, the leader notes the time in
//! the store, where the next leader finds it; a node that comes back is noted no more. Only nodes that an agent has told
//! its status of count: endpoints may also live where no agent ever was.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use contiv_model::endpoint::State;
use contiv_model::{node, registry};

use super::clean_up;
use crate::cache::{Draft, World};
use crate::go_json;
use crate::problem::Answer;

/// What there is to do about nodes that went or came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// To be noted.
    pub vanished: Vec<String>,
    /// To be noted no more.
    pub back: Vec<String>,
    /// Gone for long enough, and the endpoints that are still on them.
    pub due: BTreeMap<String, Vec<String>>,
}

impl Round {
    /// As things stand `now`. Nothing is due without a `patience`.
    pub fn look(world: &World, now: SystemTime, patience: Option<Duration>) -> Round {
        let there = registered(world);
        let mut round = Round::default();
        for status in world.all::<node::Status>().filter(|status| !there.contains(status.host.as_str())) {
            let noted = world.get::<node::Gone>(&status.host).and_then(since);
            match noted {
                None => round.vanished.push(status.host.clone()),
                // A clock that was set back makes nothing due early.
                Some(since) => {
                    let away = now.duration_since(since).unwrap_or_default();
                    if patience.is_some_and(|patience| away >= patience) {
                        round.due.insert(status.host.clone(), vec![]);
                    }
                }
            }
        }
        let back = world.all::<node::Gone>().filter(|gone| {
            there.contains(gone.host.as_str()) || world.get::<node::Status>(&gone.host).is_none()
        });
        round.back = back.map(|gone| gone.host.clone()).collect();
        if !round.due.is_empty() {
            for endpoint in world.all::<State>() {
                if let Some(endpoints) = round.due.get_mut(&endpoint.homing_host) {
                    endpoints.push(endpoint.id.clone());
                }
            }
        }
        round
    }

    /// Notes who went and who came back.
    pub fn note(&self, now: SystemTime, draft: &mut Draft<'_>) -> Answer {
        for host in &self.vanished {
            let since = humantime::format_rfc3339_seconds(now).to_string();
            draft.put(host, node::Gone { host: host.clone(), since });
        }
        for host in &self.back {
            if draft.get::<node::Gone>(host).is_some() {
                draft.delete::<node::Gone>(host);
            }
        }
        Ok(vec![])
    }
}

/// Releases endpoints of a node that is gone, and tells how many; the node itself is forgotten with the `last` of them.
/// Nothing happens if the node has come back.
pub fn release(host: &str, endpoints: &[String], last: bool, draft: &mut Draft<'_>) -> Answer {
    let status = draft.get::<node::Status>(host);
    if registered(draft.world()).contains(host) || draft.get::<node::Gone>(host).is_none() {
        return go_json::encode(&0);
    }
    draft.rely_on::<node::Gone>(host);
    if let Some(status) = status {
        // The store itself says that the node is not back.
        let vtep = format!("{}/{}:{}", registry::VTEP, status.vtep_ip, status.vxlan_port);
        draft.rely_on::<registry::ServiceInfo>(&vtep);
    }
    let there = endpoints.iter().filter(|id| draft.get::<State>(id).is_some()).count();
    clean_up(endpoints, draft)?;
    if last {
        draft.delete::<node::Gone>(host);
        draft.delete::<node::Status>(host);
    }
    go_json::encode(&there)
}

fn registered(world: &World) -> BTreeSet<&str> {
    let agents = world
        .all::<registry::ServiceInfo>()
        .filter(|service| [registry::NETPLUGIN, registry::VTEP].contains(&service.service_name.as_str()));
    agents.map(|service| service.hostname.as_str()).collect()
}

fn since(gone: &node::Gone) -> Option<SystemTime> {
    match humantime::parse_rfc3339(&gone.since) {
        Ok(since) => Some(since),
        Err(error) => {
            tracing::warn!(host = gone.host, since = gone.since, %error, "since when the node is gone cannot be read; it counts from now");
            None
        }
    }
}
