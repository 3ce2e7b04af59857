//! What the leader answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use axum::response::Response;
use contiv_model::{endpoint, key::ObjectType, registry};
use http_body_util::BodyExt;
use serde_json::json;

use super::path;
use super::reclaim::{Orphan, reclaim};
use super::response::{Wants, text};
use crate::aci::Plan;
use crate::cache::{Draft, World};
use crate::go_json;
use crate::leadership::{Identity, Leader};
use crate::objects::{self, Type};
use crate::plugin::{Call, Cleanup, clean_up};
use crate::problem::{Answer, Problem};
use crate::reports;

/// Serves requests on the leader.
pub(super) struct Routes<'l>(pub(super) &'l Leader);

impl Routes<'_> {
    pub(super) async fn answer(&self, request: Request, wants: Wants) -> Response<Body> {
        let (head, body) = request.into_parts();
        let parts = path::parts(&head.uri);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match (&head.method, parts.as_slice()) {
            (&Method::GET, ["api", "v1", types, ""]) if Type::by_plural(types).is_some() => {
                wants.json(self.read(types, |t, world| (t.list)(world)))
            }
            (&Method::GET, ["api", "v1", "inspect", "endpoints", key, ""]) if !key.is_empty() => {
                wants.json(reports::find_endpoint(&self.0.world.read(), key))
            }
            (&Method::GET, ["api", "v1", "inspect", "nodes", ""]) => {
                wants.json(go_json::encode(&reports::nodes(&self.0.world.read())))
            }
            (&Method::GET, ["api", "v1", "inspect", "nodes", host, ""]) if !host.is_empty() => {
                wants.json(reports::find_node(&self.0.world.read(), host))
            }
            (&Method::GET, ["api", "v1", "inspect", types, key, ""]) if is_object(types, key) => {
                wants.json(self.read(types, |t, world| (t.inspect)(world, key, &self.0.cluster)))
            }
            (&Method::GET, ["api", "v1", types, key, ""]) if is_object(types, key) => {
                wants.json(self.read(types, |t, world| (t.get)(world, key)))
            }
            (&Method::POST | &Method::PUT, ["api", "v1", types, key, ""]) if is_object(types, key) => {
                wants.json(self.put(types, key, body).await)
            }
            (&Method::DELETE, ["api", "v1", types, key, ""]) if is_object(types, key) => {
                wants.json(self.delete(types, key).await)
            }
            (&Method::POST, ["plugin", call]) if is_json(&head.headers) => {
                match self.plugin(call, body).await {
                    Some(answer) => wants.json(answer),
                    None => wants.no_route(),
                }
            }
            (&Method::GET, ["version"]) => text(version()),
            (&Method::GET, ["info"]) => {
                let own = &self.0.identity;
                wants.json(go_json::encode(&info(&self.0.world.read(), "leader", &own.address, own)))
            }
            (&Method::DELETE, ["debug", "epcleanup", "tenant", tenant, kind, name]) => {
                match self.clean_up(tenant, kind, name).await {
                    Ok(done) => text(done),
                    Err(problem) => wants.problem(&problem),
                }
            }
            (&Method::GET, ["services"]) => wants.sniffed(reports::service_states(&self.0.world.read())),
            (&Method::GET, ["service", id]) if !id.is_empty() => {
                wants.sniffed(reports::service_state(&self.0.world.read(), id))
            }
            (&Method::GET, ["debug", "ofnet"]) => wants.problem(&no_ofnet()),
            _ => wants.no_route(),
        }
    }

    fn read(&self, types: &str, read: impl FnOnce(&objects::Operations, &World) -> Answer) -> Answer {
        read(&object_type(types)?.operations, &self.0.world.read())
    }

    async fn put(&self, types: &str, key: &str, body: Body) -> Answer {
        let t = object_type(types)?;
        let request = (t.operations.check)(key, &read_body(body).await?)?;
        let plan = move |draft: &mut Draft<'_>| (t.operations.put)(&request, draft);
        self.change(t, key, Arc::new(plan)).await
    }

    async fn delete(&self, types: &str, key: &str) -> Answer {
        let (t, of) = (object_type(types)?, key.to_owned());
        let plan = move |draft: &mut Draft<'_>| (t.operations.delete)(&of, draft);
        self.change(t, key, Arc::new(plan)).await
    }

    /// A fabric must agree to application profiles.
    async fn change(&self, t: &Type, key: &str, plan: Plan) -> Answer {
        match t.kind {
            ObjectType::AppProfile => self.0.fabric.change(&self.0.world, &self.0.queue, key, plan).await,
            _ => self.0.queue.submit(Box::new(move |draft| plan(draft)), t.operations.alone).await,
        }
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
        Some(self.0.queue.submit(Box::new(move |draft| call.plan(draft)), false).await)
    }

    /// Each endpoint goes whole; many of them in several transactions. Then the nodes that are there are asked to take
    /// their interfaces away.
    async fn clean_up(&self, tenant: &str, kind: &str, name: &str) -> Result<String, Problem> {
        let cleanup = Cleanup::read(tenant, kind, name)?;
        let (found, orphans) = {
            let world = self.0.world.read();
            let found = cleanup.find(&world)?;
            let host = |id: &String| world.get::<endpoint::State>(id).map(|e| e.homing_host.clone());
            let orphan = |id: &String| Orphan::of(id, &host(id)?, &world);
            let orphans: Vec<Orphan> = found.iter().filter_map(orphan).collect();
            (found, orphans)
        };
        for some in found.chunks(Cleanup::AT_ONCE) {
            let some = some.to_vec();
            self.0.queue.submit(Box::new(move |draft| clean_up(&some, draft)), true).await?;
        }
        let mut left = reclaim(orphans).await;
        if left.is_empty() {
            return Ok(cleanup.done());
        }
        left.sort();
        Err(Problem::unavailable(format!(
            "endpoints and addresses are cleaned up, but {} of {} interfaces may be left; ask each node for DELETE \
             /debug/reclaimEndpoint/ENDPOINT again: {}",
            left.len(),
            found.len(),
            left.join(", ")
        )))
    }
}

/// What a netmaster in `state` says of itself and of the cluster.
pub(super) fn info(world: &World, state: &str, leader: &str, own: &Identity) -> serde_json::Value {
    let nodes = |name: &str| -> BTreeSet<&str> {
        let services = world.all::<registry::ServiceInfo>().filter(|service| service.service_name == name);
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

/// What the original kept in memory and told its agents by calls.
fn no_ofnet() -> Problem {
    let rules = contiv_model::key::POLICY_RULES;
    Problem::not_found(format!("there is no ofnet here; agents read the rules from the store, below {rules}"))
}

/// Exactly this; with a charset, or without the header, the original does not find its own calls.
fn is_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value == "application/json")
}

async fn read_body(body: Body) -> Result<Bytes, Problem> {
    let body = body.collect().await;
    body.map(|body| body.to_bytes()).map_err(|error| Problem::invalid(crate::problem::one_line(&error)))
}

fn version() -> String {
    let version = json!({
        "GitCommit": option_env!("CONTIV_GIT_COMMIT").unwrap_or("unknown"),
        "Version": env!("CARGO_PKG_VERSION"),
        "BuildTime": option_env!("CONTIV_BUILD_TIME").unwrap_or("unknown"),
    });
    format!("{version}\n")
}
