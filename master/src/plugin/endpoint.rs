//! `createEndpoint` and `deleteEndpoint`.

use contiv_model::endpoint::State;
use contiv_model::mac::Mac;
use contiv_model::network;
use schemars::JsonSchema;
use serde::Serialize;

use super::request::{ConfigEp, CreateEndpoint, DeleteEndpoint};
use super::unreadable;
use crate::cache::StagedTxn;
use crate::domain::allocation::AllocationScope;
use crate::domain::network_record::{network_id, network_record};
use crate::domain::services;
use crate::go_json;
use crate::problem::{Answer, Problem};

/// Response to both calls.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EndpointReply")]
pub(super) struct Reply<'a> {
    #[serde(rename = "EndpointConfig")]
    config: &'a State,
}

/// Id of the endpoint that the call creates.
fn id_of(request: &CreateEndpoint) -> String {
    let network = network_id(&request.tenant_name, &request.network_name);
    match request.config.container.as_str() {
        "" => format!("{}-native-intf", request.config.host),
        container => format!("{network}-{container}"),
    }
}

/// Nodes of the requested endpoint and of the existing endpoint with its id. On an infra network, the
/// container of an endpoint is its node: the id belongs to that node before the endpoint exists.
pub(super) fn nodes_of_create(request: &CreateEndpoint, staged: &StagedTxn<'_>) -> Vec<String> {
    let config = &request.config;
    let existing = staged.get::<State>(&id_of(request)).map(|known| known.homing_host.clone());
    let network = network_record(staged.cache(), &request.tenant_name, &request.network_name);
    let is_infra = network.is_some_and(|network| network.body.nw_type == "infra");
    let named = is_infra.then(|| config.container.clone());
    existing.into_iter().chain(named).chain([config.host.clone()]).collect()
}

/// Node of the endpoint, if it exists. An endpoint whose record cannot be decoded does not exist for
/// the agents of single nodes if its node is unknown.
pub(super) fn nodes_of_delete(
    request: &DeleteEndpoint,
    staged: &StagedTxn<'_>,
) -> Result<Vec<String>, Problem> {
    let id = request.id();
    match unreadable::find_known(&id, staged) {
        Some(known) if known.homing_host.is_empty() => Err(Problem::key_not_found()),
        Some(known) => Ok(vec![known.homing_host]),
        None => Ok(staged.get::<State>(&id).map(|known| known.homing_host.clone()).into_iter().collect()),
    }
}

pub(super) fn create(request: &CreateEndpoint, staged: &mut StagedTxn<'_>) -> Answer {
    let config = &request.config;
    let (tenant, name) = (&request.tenant_name, &request.network_name);
    let network = network_id(tenant, name);
    let id = id_of(request);
    let group = match config.service_name.as_str() {
        "" => None,
        name => Some(format!("{name}:{}", request.tenant_name)),
    };
    let mut scope = AllocationScope::of_network(staged, tenant, name)?;
    // An existing endpoint is returned unchanged, whatever the other fields are.
    if let Some(endpoint) = staged.get::<State>(&id) {
        ensure_same(&endpoint, &network, config)?;
        let reply = go_json::encode(&Reply { config: &endpoint })?;
        // The record gets another revision: a deletion that its node has sent before must not be carried out.
        if endpoint.homing_host == config.host {
            staged.renew_endpoint(&id);
        }
        return Ok(reply);
    }
    if staged.unreadable_endpoint(&id).is_some() {
        let error = format!("endpoint {id} has a record that cannot be decoded; delete the endpoint first");
        return Err(Problem::conflict(error));
    }
    // Endpoints on infra networks are nodes and belong to no group.
    if scope.network.body.nw_type != "infra" {
        scope = AllocationScope::find(staged, &network, group.as_deref())?;
    }
    let address = match config.ip_address.as_str() {
        "" => scope.lowest_free(staged)?,
        address => scope.requested(staged, address)?,
    };
    let address6 = scope.next_free_v6(staged, &config.ipv6_address)?;

    let ip = scope.subnet.address(address.host);
    let ip6 = address6.as_ref().zip(scope.subnet6).map(|(candidate, subnet)| subnet.address(candidate.host));
    scope.take(staged, &address);
    if let Some(candidate) = &address6 {
        scope.take_v6(staged, candidate);
    }
    scope.count_endpoint(staged, 1);
    let endpoint = State {
        id: id.clone(),
        net_id: network,
        endpoint_id: config.container.clone(),
        service_name: config.service_name.clone(),
        endpoint_group_id: scope.group.map_or(0, |group| group.body.endpoint_group_id),
        endpoint_group_key: scope.group.map(|group| group.body.id.clone()).unwrap_or_default(),
        ip_address: ip.to_string(),
        ipv6_address: ip6.map(|ip| ip.to_string()).unwrap_or_default(),
        mac_address: Mac::of_endpoint(ip).to_string(),
        homing_host: config.host.clone(),
        ep_common_name: request.common_name.clone(),
        ..State::default()
    };
    let reply = go_json::encode(&Reply { config: &endpoint });
    staged.put(&id, endpoint);
    reply
}

/// Whether the record is that of the endpoint. Ids join names with dots and dashes, which names may
/// contain, so another endpoint may have the same id.
pub(super) fn is_endpoint(record: &State, network: &str, endpoint: &str) -> bool {
    record.net_id == network && record.endpoint_id == endpoint
}

/// Fails if the record is that of another endpoint.
fn ensure_same(record: &State, network: &str, config: &ConfigEp) -> Result<(), Problem> {
    let same = match config.container.as_str() {
        "" => record.endpoint_id.is_empty() && record.homing_host == config.host,
        container => is_endpoint(record, network, container),
    };
    if same {
        return Ok(());
    }
    let State { id, endpoint_id, net_id, homing_host, .. } = record;
    Err(Problem::conflict(format!(
        "endpoint {:?} of network {network} on host {} conflicts with endpoint {endpoint_id:?} of network {net_id} \
         on host {homing_host}: both have the id {id}",
        config.container, config.host
    )))
}

pub(super) fn delete(request: &DeleteEndpoint, staged: &mut StagedTxn<'_>) -> Answer {
    let (network, id) = (request.network(), request.id());
    let other_network = staged.committed::<network::State>(&network).is_some()
        && network_record(staged.cache(), &request.tenant_name, &request.network_name).is_none();
    let endpoint = match unreadable::find_known(&id, staged) {
        Some(known) => unreadable::of_request(known, &network, &request.endpoint_id, staged),
        None => staged.get::<State>(&id).filter(|known| is_endpoint(known, &network, &request.endpoint_id)),
    };
    let endpoint = endpoint.filter(|_| !other_network).ok_or_else(Problem::key_not_found)?;
    check_revision(request, &id, staged)?;
    let reply = go_json::encode(&Reply { config: &endpoint })?;
    remove(&endpoint, staged);
    Ok(reply)
}

/// Fails if the record is not the one that the request is about.
fn check_revision(request: &DeleteEndpoint, id: &str, staged: &StagedTxn<'_>) -> Result<(), Problem> {
    let Some(expected) = request.mod_revision else { return Ok(()) };
    let state = match staged.endpoint_revision(id) {
        Some(revision) if revision == expected => return Ok(()),
        Some(revision) => format!("its record has revision {revision}"),
        None => "another request changes it".to_owned(),
    };
    Err(Problem::precondition(format!("ModRevision {expected}: endpoint {id}: {state}; read it again")))
}

/// Deletes the endpoint, frees its addresses, and removes it from services. If its record cannot be
/// decoded, frees the addresses that are known.
pub(super) fn remove(endpoint: &State, staged: &mut StagedTxn<'_>) {
    let network = &endpoint.net_id;
    let group = Some(endpoint.endpoint_group_key.as_str()).filter(|key| !key.is_empty());
    let is_unreadable = staged.unreadable_endpoint(&endpoint.id).is_some();

    staged.delete_endpoint(&endpoint.id);
    match is_unreadable {
        // Its labels may be unknown.
        true => services::remove_provider(endpoint, staged),
        false => services::update_providers(endpoint, staged),
    }
    // The group or the infra network may have been deleted before.
    let scope = AllocationScope::find(staged, network, group)
        .or_else(|_| AllocationScope::find(staged, network, None));
    let mut released = vec![];
    if let Ok(scope) = scope {
        let host = scope.subnet.host(&endpoint.ip_address);
        if host.is_ok_and(|host| scope.release(staged, host)) {
            released.push(endpoint.ip_address.as_str());
        }
        if scope.release_v6(staged, &endpoint.ipv6_address) {
            released.push(endpoint.ipv6_address.as_str());
        }
        scope.count_endpoint(staged, -1);
    }
    if is_unreadable {
        staged.note(unreadable::deletion_notice(endpoint, &released));
    }
}
