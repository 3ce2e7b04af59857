//! Answers of the leader.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header, request};
use axum::response::Response;
use contiv_model::{node, registry};
use serde_json::json;

use super::admission::AnswerBy;
use super::audit_log::AuditedObject;
use super::clean_up::clean_up;
use super::in_flight::StreamMemory;
use super::objects::{ObjectRoutes, read_body};
use super::parameters::Parameters;
use super::response::{ErrorFormat, text};
use super::route::Route;
use crate::access::Scope;
use crate::cache::{ClusterCache, StagedTxn};
use crate::go_json;
use crate::leadership::{Identity, Leader, Reads};
use crate::plugin::{self, Call, CallKind};
use crate::problem::{Answer, Problem};
use crate::reports::{self, Report};

/// Reads for the client of the request. It is unknown if another netmaster counts its requests.
fn reads_for(leader: &Leader, head: &request::Parts) -> Reads {
    match head.extensions.get::<StreamMemory>() {
        Some(memory) => leader.reads.of_client(memory.client().to_string()),
        None => leader.reads.clone(),
    }
}

/// Serves requests on the leader.
pub(super) struct Routes<'l>(pub(super) &'l Leader);

impl Routes<'_> {
    /// Answers a request for the objects in the scope.
    pub(super) async fn answer(
        &self,
        route: Route,
        scope: &Scope,
        request: Request,
        format: ErrorFormat,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        if route.changes_without_object() && Parameters::of(&head.uri).dry_run() != Ok(false) {
            return format
                .problem(&Problem::invalid("dryRun: only changes of objects below /api/v1/ have it"));
        }
        let leader = self.0;
        let reads = reads_for(leader, &head);
        let objects = |object_type| ObjectRoutes { leader, reads: &reads, object_type, scope, format };
        match route {
            Route::List(t) => objects(t).list(&head).await,
            Route::Get(t, key) => objects(t).get(&key, &head).await,
            Route::Put(t, key) => objects(t).put(&key, &head, body).await,
            Route::Delete(t, key) => objects(t).delete(&key, &head).await,
            Route::Inspect(t, key) => {
                let (scope, cluster) = (scope.clone(), self.0.cluster.clone());
                let inspect =
                    move |cache: &ClusterCache| (t.operations.inspect)(cache, &key, &scope, &cluster);
                format.json(reads.read(inspect).await)
            }
            Route::InspectEndpoint(name) => {
                let scope = scope.clone();
                let find = move |cache: &ClusterCache| reports::find_endpoint(cache, &name, &scope);
                format.json(reads.read(find).await)
            }
            Route::ListNodes => {
                let list = |cache: &ClusterCache| -> Report<Answer> {
                    let nodes = reports::nodes(cache);
                    Box::new(move || go_json::encode(&nodes()))
                };
                format.json(reads.read(list).await)
            }
            Route::InspectNode(host) => {
                let find = move |cache: &ClusterCache| reports::find_node(cache, &host);
                format.json(reads.read(find).await)
            }
            Route::AcceptStore(host) => format.json(self.accept_store(&host).await),
            Route::DeleteNode(host) => format.json(self.delete_node(&host).await),
            Route::SetDatapath { host, datapath } => format.json(self.set_datapath(&host, &datapath).await),
            Route::Call(kind) if is_json(&head.headers) => self.call(kind, scope, &head, body, format).await,
            Route::Info => {
                let own = &self.0.identity;
                let info = info(&self.0.cache.read(), "leader", &own.address, own);
                format.json(go_json::encode(&info))
            }
            Route::CleanUp { tenant, kind, name } => {
                let answer_by = AnswerBy::of(&head.extensions);
                match clean_up(leader, [&tenant, &kind, &name], answer_by).await {
                    Ok(done) => text(done),
                    Err(problem) => format.problem(&problem),
                }
            }
            Route::ListServiceStates => {
                let scope = scope.clone();
                let list = move |cache: &ClusterCache| reports::service_states(cache, &scope);
                format.json_as_text(reads.read(list).await)
            }
            Route::GetServiceState(id) => {
                let scope = scope.clone();
                let find = move |cache: &ClusterCache| reports::service_state(cache, &id, &scope);
                format.json_as_text(reads.read(find).await)
            }
            Route::Ofnet => format.problem(&no_ofnet()),
            // Every netmaster answers the first five itself.
            Route::Health
            | Route::Readiness
            | Route::Version
            | Route::OpenApi
            | Route::Metrics
            | Route::Call(_)
            | Route::Unknown => format.no_route(),
        }
    }

    /// Accepts this store for a node whose agent waits for it. The reported status may be of an earlier loss of data: the agent
    /// compares the id.
    async fn accept_store(&self, host: &str) -> Answer {
        let host = host.to_owned();
        let plan = move |staged: &mut StagedTxn<'_>| {
            let status = staged.get::<node::Status>(&host);
            let status = status.ok_or_else(|| Problem::not_found("node not found"))?;
            if !status.degraded.iter().any(|line| line.starts_with(node::STORE_REGRESSED)) {
                return Err(Problem::conflict(format!("node {host} {}", node::NOT_REGRESSED)));
            }
            let regression_id = status.regression_id.clone();
            staged.put(&host, node::AcceptedStore { host: host.clone(), regression_id });
            go_json::encode(&json!({"host": host}))
        };
        self.0.queue.submit(Box::new(plan), false).await
    }

    /// Deletes a node that is gone, and its endpoints in several transactions. A repeated request
    /// deletes what is left after a failure.
    async fn delete_node(&self, host: &str) -> Answer {
        let Leader { cache, queue, .. } = self.0;
        let of = host.to_owned();
        let begin =
            move |staged: &mut StagedTxn<'_>| plugin::begin_node_deletion(&of, SystemTime::now(), staged);
        queue.submit(Box::new(begin), true).await?;
        let batches = {
            let cache = cache.read();
            plugin::release_batches(&plugin::endpoints_of_node(host, &cache))
        };
        let (last, mut released) = (batches.len(), 0);
        for (n, batch) in (1..).zip(batches) {
            let of = host.to_owned();
            let release = move |staged: &mut StagedTxn<'_>| {
                plugin::continue_node_deletion(&of, &batch, n == last, staged)
            };
            let done = queue.submit(Box::new(release), true).await?;
            released += serde_json::from_slice::<u64>(&done).unwrap_or_default();
        }
        go_json::encode(&json!({"host": host, "releasedEndpoints": released}))
    }

    /// Stores the datapath that the agent of a node is to have.
    async fn set_datapath(&self, host: &str, datapath: &str) -> Answer {
        if !node::DATAPATHS.contains(&datapath) {
            let accepted = node::DATAPATHS.join(", ");
            return Err(Problem::invalid(format!(
                "datapath {datapath:?} of node {host}; accepted: {accepted}"
            )));
        }
        let chosen = node::ChosenDatapath { host: host.to_owned(), datapath: datapath.to_owned() };
        let plan = move |staged: &mut StagedTxn<'_>| {
            if staged.get::<node::Status>(&chosen.host).is_none() {
                return Err(Problem::not_found("node not found"));
            }
            let answer = go_json::encode(&chosen);
            staged.put(&chosen.host, chosen.clone());
            answer
        };
        self.0.queue.submit(Box::new(plan), false).await
    }

    async fn call(
        &self,
        kind: CallKind,
        scope: &Scope,
        head: &request::Parts,
        body: Body,
        format: ErrorFormat,
    ) -> Response<Body> {
        let call = match read_body(body).await.and_then(|body| Call::decode(kind, &body)) {
            Ok(call) => call,
            Err(problem) => return format.problem(&problem),
        };
        if let Some(audited) = head.extensions.get::<AuditedObject>() {
            audited.set(&call.object(&self.0.cache.read()));
        }
        let scope = scope.clone();
        let plan = move |staged: &mut StagedTxn<'_>| {
            call.check_scope(&scope, staged)?;
            call.plan(&scope, staged)
        };
        format.json(self.0.queue.submit(Box::new(plan), false).await)
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

/// The original reports state here that it keeps in memory and sends to agents by RPC.
fn no_ofnet() -> Problem {
    let rules = contiv_model::key::POLICY_RULES;
    Problem::not_found(format!("there is no ofnet here; agents read the rules from the store, below {rules}"))
}

/// Exact comparison: like the original, a charset or a missing header leads to 404.
fn is_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value == "application/json")
}

pub(super) fn version() -> String {
    let version = json!({
        "GitCommit": option_env!("CONTIV_GIT_COMMIT").unwrap_or("unknown"),
        "Version": env!("CARGO_PKG_VERSION"),
        "BuildTime": option_env!("CONTIV_BUILD_TIME").unwrap_or("unknown"),
    });
    format!("{version}\n")
}
