//! Routes of the leader.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;
use contiv_model::{endpoint, key::ObjectType, node, registry};
use http_body_util::BodyExt;
use serde_json::json;

use super::path;
use super::reclaim::{ReclaimRequest, reclaim};
use super::response::{ErrorFormat, text};
use crate::aci::RepeatablePlan;
use crate::cache::{ClusterCache, StagedTxn};
use crate::go_json;
use crate::leadership::{Identity, Leader};
use crate::objects::{self, Type};
use crate::plugin::{Call, Cleanup, clean_up};
use crate::problem::{Answer, Problem};
use crate::reports::{self, Report};

/// Serves requests on the leader.
pub(super) struct Routes<'l>(pub(super) &'l Leader);

impl Routes<'_> {
    pub(super) async fn answer(&self, request: Request, format: ErrorFormat) -> Response<Body> {
        let (head, body) = request.into_parts();
        let parts = path::parts(&head.uri);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match (&head.method, parts.as_slice()) {
            (&Method::GET, ["api", "v1", types, ""]) if Type::by_plural(types).is_some() => {
                format.json(self.read(types, |t, cache| (t.list)(cache)).await)
            }
            (&Method::GET, ["api", "v1", "inspect", "endpoints", key, ""]) if !key.is_empty() => {
                let key = (*key).to_owned();
                let find = move |cache: &ClusterCache| {
                    let found = reports::find_endpoint(cache, &key);
                    Box::new(|| found) as Report<Answer>
                };
                format.json(self.0.reads.read(find).await)
            }
            (&Method::GET, ["api", "v1", "inspect", "nodes", ""]) => {
                format.json(go_json::encode(&reports::nodes(&self.0.cache.read())))
            }
            (&Method::GET, ["api", "v1", "inspect", "nodes", host, ""]) if !host.is_empty() => {
                format.json(reports::find_node(&self.0.cache.read(), host))
            }
            (&Method::POST, ["api", "v1", "nodes", host, "acceptedStore", ""]) if !host.is_empty() => {
                format.json(self.accept_store(host).await)
            }
            (&Method::GET, ["api", "v1", "inspect", types, key, ""]) if is_object(types, key) => {
                let (key, cluster) = ((*key).to_owned(), self.0.cluster.clone());
                format.json(self.read(types, move |t, cache| (t.inspect)(cache, &key, &cluster)).await)
            }
            (&Method::GET, ["api", "v1", types, key, ""]) if is_object(types, key) => {
                format.json(object_type(types).and_then(|t| (t.operations.get)(&self.0.cache.read(), key)))
            }
            (&Method::POST | &Method::PUT, ["api", "v1", types, key, ""]) if is_object(types, key) => {
                format.json(self.put(types, key, body).await)
            }
            (&Method::DELETE, ["api", "v1", types, key, ""]) if is_object(types, key) => {
                format.json(self.delete(types, key).await)
            }
            (&Method::POST, ["plugin", call]) if is_json(&head.headers) => {
                match self.plugin(call, body).await {
                    Some(answer) => format.json(answer),
                    None => format.no_route(),
                }
            }
            (&Method::GET, ["info"]) => {
                let own = &self.0.identity;
                format.json(go_json::encode(&info(&self.0.cache.read(), "leader", &own.address, own)))
            }
            (&Method::DELETE, ["debug", "epcleanup", "tenant", tenant, kind, name]) => {
                match self.clean_up(tenant, kind, name).await {
                    Ok(done) => text(done),
                    Err(problem) => format.problem(&problem),
                }
            }
            (&Method::GET, ["services"]) => {
                format.json_as_text(self.0.reads.read(reports::service_states).await)
            }
            (&Method::GET, ["service", id]) if !id.is_empty() => {
                format.json_as_text(reports::service_state(&self.0.cache.read(), id))
            }
            (&Method::GET, ["debug", "ofnet"]) => format.problem(&no_ofnet()),
            _ => format.no_route(),
        }
    }

    async fn read(
        &self,
        types: &str,
        read: impl FnOnce(&objects::Operations, &ClusterCache) -> Report<Answer> + Send + 'static,
    ) -> Answer {
        let t = object_type(types)?;
        self.0.reads.read(move |cache| read(&t.operations, cache)).await
    }

    async fn put(&self, types: &str, key: &str, body: Body) -> Answer {
        let t = object_type(types)?;
        let request = (t.operations.check)(key, &read_body(body).await?)?;
        let plan = move |staged: &mut StagedTxn<'_>| (t.operations.put)(&request, staged);
        self.change(t, key, Arc::new(plan)).await
    }

    async fn delete(&self, types: &str, key: &str) -> Answer {
        let (t, of) = (object_type(types)?, key.to_owned());
        let plan = move |staged: &mut StagedTxn<'_>| (t.operations.delete)(&of, staged);
        self.change(t, key, Arc::new(plan)).await
    }

    /// Changes of application profiles need the consent of the ACI gateway.
    async fn change(&self, t: &Type, key: &str, plan: RepeatablePlan) -> Answer {
        match t.kind {
            ObjectType::AppProfile => self.0.fabric.change(&self.0.cache, &self.0.queue, key, plan).await,
            _ => self.0.queue.submit(Box::new(move |staged| plan(staged)), t.operations.exclusive).await,
        }
    }

    /// Tells the agent of a node that waits for it to follow this store.
    async fn accept_store(&self, host: &str) -> Answer {
        let host = host.to_owned();
        let plan = move |staged: &mut StagedTxn<'_>| {
            let status = staged.get::<node::Status>(&host);
            let status = status.ok_or_else(|| Problem::not_found("node not found"))?;
            if !status.degraded.iter().any(|line| line.starts_with(node::STORE_REGRESSED)) {
                let why = format!("node {host} has not reported {}", node::STORE_REGRESSED);
                return Err(Problem::conflict(why));
            }
            let accepted = node::AcceptedStore { host: host.clone() };
            let answer = go_json::encode(&accepted);
            staged.put(&host, accepted);
            answer
        };
        self.0.queue.submit(Box::new(plan), false).await
    }

    async fn plugin(&self, call: &str, body: Body) -> Option<Answer> {
        let body = match read_body(body).await {
            Ok(body) => body,
            Err(problem) => return Some(Err(problem)),
        };
        let call = match Call::decode(call, &body)? {
            Ok(call) => call,
            Err(problem) => return Some(Err(problem)),
        };
        Some(self.0.queue.submit(Box::new(move |staged| call.plan(staged)), false).await)
    }

    /// Deletes the endpoints in batches, each endpoint atomically. Then requests the nodes to
    /// remove the interfaces.
    async fn clean_up(&self, tenant: &str, kind: &str, name: &str) -> Result<String, Problem> {
        let cleanup = Cleanup::read(tenant, kind, name)?;
        let (found, requests) = {
            let cache = self.0.cache.read();
            let found = cleanup.find(&cache)?;
            let host = |id: &String| cache.get::<endpoint::State>(id).map(|e| e.homing_host.clone());
            let request = |id: &String| ReclaimRequest::of(id, &host(id)?, &cache);
            let requests: Vec<ReclaimRequest> = found.iter().filter_map(request).collect();
            (found, requests)
        };
        for some in found.chunks(Cleanup::BATCH) {
            let some = some.to_vec();
            self.0.queue.submit(Box::new(move |staged| clean_up(&some, staged)), true).await?;
        }
        let mut left = reclaim(requests).await;
        if left.is_empty() {
            return Ok(cleanup.done());
        }
        left.sort();
        Err(Problem::unavailable(format!(
            "endpoints and addresses are deleted, but {} of {} interfaces may remain; repeat DELETE /debug/reclaimEndpoint/ENDPOINT on each node: {}",
            left.len(),
            found.len(),
            left.join(", ")
        )))
    }
}

/// Body of `/info` for a netmaster in `state`.
pub(super) fn info(cache: &ClusterCache, state: &str, leader: &str, own: &Identity) -> serde_json::Value {
    let nodes = |name: &str| -> BTreeSet<&str> {
        let services = cache.all::<registry::ServiceInfo>().filter(|service| service.service_name == name);
        services.map(|service| service.host_addr.as_str()).collect()
    };
    json!({
        "current-state": state,
        "leader-ip": leader,
        "local-ip": own.ip,
        "netmaster-nodes": nodes(registry::NETMASTER),
        "netplugin-nodes": nodes(registry::NETPLUGIN),
    })
}

fn is_object(types: &str, key: &str) -> bool {
    !key.is_empty() && Type::by_plural(types).is_some()
}

fn object_type(types: &str) -> Result<&'static Type, Problem> {
    Type::by_plural(types).ok_or_else(Problem::key_not_found)
}

/// The original reports state here that it keeps in memory and sends to agents by RPC.
fn no_ofnet() -> Problem {
    let rules = contiv_model::key::POLICY_RULES;
    Problem::not_found(format!("there is no ofnet here; agents read the rules from the store, below {rules}"))
}

/// Exact comparison: like the original, a charset or a missing header leads to 404.
fn is_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value == "application/json")
}

async fn read_body(body: Body) -> Result<Bytes, Problem> {
    let body = body.collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| Problem::invalid(crate::problem::one_line(&error)))
}

pub(super) fn version() -> String {
    let version = json!({
        "GitCommit": option_env!("CONTIV_GIT_COMMIT").unwrap_or("unknown"),
        "Version": env!("CARGO_PKG_VERSION"),
        "BuildTime": option_env!("CONTIV_BUILD_TIME").unwrap_or("unknown"),
    });
    format!("{version}\n")
}
