//! Containers start and die: what their endpoints are called, and which services they are behind.

use contiv_model::endpoint::State;
use contiv_model::{group, network};
use schemars::JsonSchema;
use serde::Serialize;

use super::request::UpdateEndpoint;
use crate::cache::Draft;
use crate::domain::services;
use crate::go_json;
use crate::problem::{Answer, Problem};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "UpdateReply")]
pub(super) struct Reply<'a> {
    #[serde(rename = "IPAddress")]
    address: &'a str,
}

pub(super) fn update(request: &UpdateEndpoint, draft: &mut Draft<'_>) -> Answer {
    match request.event.as_str() {
        "start" => start(request, draft)?,
        "die" if !die(request, draft)? => return go_json::encode(&()),
        _ => {}
    }
    go_json::encode(&Reply { address: &request.ip_address })
}

/// The endpoint's container runs, and has these labels besides those that it had.
fn start(request: &UpdateEndpoint, draft: &mut Draft<'_>) -> Result<(), Problem> {
    let id = format!("{}-{}", network_id(request, draft)?, request.endpoint_id);
    let old = draft.get::<State>(&id).ok_or_else(Problem::key_not_found)?;
    if request.container_id.is_empty() {
        return Err(nameless(request, &id));
    }
    let mut labels = old.labels.clone().unwrap_or_default();
    labels.extend(request.labels.clone().unwrap_or_default());
    let new = State {
        labels: Some(labels),
        container_id: request.container_id.clone(),
        ep_common_name: request.common_name.clone(),
        ..(*old).clone()
    };
    if new != *old {
        draft.put(&id, new);
    }
    services::follow(&old, draft);
    Ok(())
}

/// The container runs no more, and its endpoint has no labels; false if nobody knows it.
fn die(request: &UpdateEndpoint, draft: &mut Draft<'_>) -> Result<bool, Problem> {
    if request.container_id.is_empty() {
        return Err(Problem::invalid("invalid containerID in UpdateEndpointRequest:(nil)"));
    }
    let mut known = false;
    for id in draft.of_container(&request.container_id) {
        let Some(old) = draft.get::<State>(&id).filter(|endpoint| endpoint.labels.is_some()) else {
            continue;
        };
        known = true;
        draft.put(&id, State { labels: None, ..(*old).clone() });
        services::follow(&old, draft);
    }
    Ok(known)
}

/// What is called a network may be a group on one.
fn network_id(request: &UpdateEndpoint, draft: &Draft<'_>) -> Result<String, Problem> {
    let (name, tenant) = (&request.network, &request.tenant);
    let network = format!("{name}.{tenant}");
    if draft.ledger_before::<network::State>(&network).is_some() {
        return Ok(network);
    }
    let group = draft.ledger_before::<group::State>(&format!("{name}:{tenant}"));
    let group = group.ok_or_else(Problem::key_not_found)?;
    Ok(format!("{}.{tenant}", group.body.network_name))
}

/// In the original's words, which are a Go struct.
fn nameless(request: &UpdateEndpoint, id: &str) -> Problem {
    let labels = request.labels.iter().flatten().map(|(name, value)| format!("{name}:{value}"));
    let labels = labels.collect::<Vec<_>>().join(" ");
    let (ip, tenant, network) = (&request.ip_address, &request.tenant, &request.network);
    Problem::invalid(format!(
        "invalid ProviderID from providerInfo:{{&{{{ip}  map[{labels}] {tenant} {network} []  {id}}}}}"
    ))
}
