//! `updateEndpoint`: start and exit of containers.

use std::collections::BTreeSet;

use contiv_model::endpoint::State;
use contiv_model::group;
use schemars::JsonSchema;
use serde::Serialize;

use super::endpoint::is_endpoint;
use super::request::{MAX_LABELS, UpdateEndpoint, labels_size};
use crate::cache::{Labels, StagedTxn};
use crate::domain::network_record::{network_id, network_record};
use crate::domain::services;
use crate::go_json;
use crate::problem::{Answer, Problem};

/// Largest number of labels of an endpoint. Every node reads them, and each call adds some.
const MAX_LABEL_COUNT: usize = 1024;

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "UpdateReply")]
pub(super) struct Reply<'a> {
    #[serde(rename = "IPAddress")]
    address: &'a str,
}

pub(super) fn update(request: &UpdateEndpoint, staged: &mut StagedTxn<'_>) -> Answer {
    match request.event.as_str() {
        "start" => start(request, staged)?,
        "die" if !die(request, staged)? => return go_json::encode(&()),
        _ => {}
    }
    go_json::encode(&Reply { address: &request.ip_address })
}

/// Nodes of the endpoints that the call changes.
pub(super) fn nodes(request: &UpdateEndpoint, staged: &StagedTxn<'_>) -> Vec<String> {
    let network = network_of(request, staged).ok();
    let named = network.map(|network| format!("{network}-{}", request.endpoint_id));
    let of_container = match request.container_id.as_str() {
        "" => BTreeSet::new(),
        container => staged.endpoints_of_container(container),
    };
    let ids = named.into_iter().chain(of_container);
    ids.filter_map(|id| staged.get::<State>(&id).map(|known| known.homing_host.clone())).collect()
}

/// Sets the container of the endpoint and adds the labels.
fn start(request: &UpdateEndpoint, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
    let network = network_of(request, staged)?;
    let id = format!("{network}-{}", request.endpoint_id);
    let old = staged.get::<State>(&id).filter(|known| is_endpoint(known, &network, &request.endpoint_id));
    let old = old.ok_or_else(Problem::key_not_found)?;
    if request.container_id.is_empty() {
        return Err(missing_provider_id(request, &id));
    }
    let mut labels = old.labels.clone().unwrap_or_default();
    labels.extend(request.labels.clone().unwrap_or_default());
    check_labels(&id, old.labels.as_ref(), &labels)?;
    let new = State {
        labels: Some(labels),
        container_id: request.container_id.clone(),
        ep_common_name: request.common_name.clone(),
        ..(*old).clone()
    };
    if new != *old {
        staged.put(&id, new);
    }
    services::update_providers(&old, staged);
    Ok(())
}

/// Fails if an endpoint would have too many or too large labels. Those that an earlier release has
/// accepted may stay, but not grow.
fn check_labels(id: &str, old: Option<&Labels>, new: &Labels) -> Result<(), Problem> {
    let size =
        |labels: &Labels| labels_size(labels.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let check = |what: &str, old: usize, new: usize, limit: usize| {
        if new <= limit.max(old) {
            return Ok(());
        }
        Err(Problem::invalid(format!(
            "endpoint {id} would have {new} {what} with those of earlier calls; the limit is {limit}; the event die removes them"
        )))
    };
    check("labels", old.map_or(0, Labels::len), new.len(), MAX_LABEL_COUNT)?;
    check("bytes of labels", old.map_or(0, size), size(new), MAX_LABELS)
}

/// Removes the labels of the container's endpoints. Returns false if there are none.
fn die(request: &UpdateEndpoint, staged: &mut StagedTxn<'_>) -> Result<bool, Problem> {
    if request.container_id.is_empty() {
        return Err(Problem::invalid("invalid containerID in UpdateEndpointRequest:(nil)"));
    }
    let mut known = false;
    for id in staged.endpoints_of_container(&request.container_id) {
        let Some(old) = staged.get::<State>(&id).filter(|endpoint| endpoint.labels.is_some()) else {
            continue;
        };
        known = true;
        staged.put(&id, State { labels: None, ..(*old).clone() });
        services::update_providers(&old, staged);
    }
    Ok(known)
}

/// The network field may contain the name of a group.
fn network_of(request: &UpdateEndpoint, staged: &StagedTxn<'_>) -> Result<String, Problem> {
    let (name, tenant) = (&request.network, &request.tenant);
    if let Some(network) = network_record(staged.cache(), tenant, name) {
        return Ok(network.body.id.clone());
    }
    let group = staged.committed::<group::State>(&format!("{name}:{tenant}"));
    let group = group.ok_or_else(Problem::key_not_found)?;
    Ok(network_id(tenant, &group.body.network_name))
}

/// The original's error text, which contains a formatted Go struct.
fn missing_provider_id(request: &UpdateEndpoint, id: &str) -> Problem {
    let labels = request.labels.iter().flatten().map(|(name, value)| format!("{name}:{value}"));
    let labels = labels.collect::<Vec<_>>().join(" ");
    let (ip, tenant, network) = (&request.ip_address, &request.tenant, &request.network);
    Problem::invalid(format!(
        "invalid ProviderID from providerInfo:{{&{{{ip}  map[{labels}] {tenant} {network} []  {id}}}}}"
    ))
}
