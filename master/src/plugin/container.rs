//! `updateEndpoint`: start and exit of containers.

use contiv_model::endpoint::State;
use contiv_model::group;
use schemars::JsonSchema;
use serde::Serialize;

use super::endpoint::is_endpoint;
use super::request::{MAX_LABELS, UpdateEndpoint, labels_size};
use crate::access::Scope;
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

/// Ids of containers are what agents report: one of another node may have the same. The event `die` changes the
/// endpoints in `scope` only.
pub(super) fn update(request: &UpdateEndpoint, scope: &Scope, staged: &mut StagedTxn<'_>) -> Answer {
    match request.event.as_str() {
        "start" => start(request, staged)?,
        "die" if !die(request, scope, staged)? => return go_json::encode(&()),
        _ => {}
    }
    go_json::encode(&Reply { address: &request.ip_address })
}

/// Node of the endpoint that the call names, if it exists.
pub(super) fn node(request: &UpdateEndpoint, staged: &StagedTxn<'_>) -> Option<String> {
    let network = network_of(request, staged).ok()?;
    let named = staged.get::<State>(&format!("{network}-{}", request.endpoint_id))?;
    Some(named.homing_host.clone())
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

/// Removes the labels of the container's endpoints in `scope`. Returns false if there are none.
fn die(request: &UpdateEndpoint, scope: &Scope, staged: &mut StagedTxn<'_>) -> Result<bool, Problem> {
    if request.container_id.is_empty() {
        return Err(Problem::invalid("invalid containerID in UpdateEndpointRequest:(nil)"));
    }
    let mut known = false;
    for id in staged.endpoints_of_container(&request.container_id) {
        let old = staged.get::<State>(&id).filter(|old| scope.has_endpoint(|| None, &old.homing_host));
        let Some(old) = old.filter(|old| old.labels.is_some()) else { continue };
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
