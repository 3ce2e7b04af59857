//! Endpoints whose records cannot be decoded. They can be deleted like others.

use std::sync::Arc;

use contiv_model::endpoint::{Oper, State};
use contiv_model::name::EndpointId;
use contiv_model::{group, network};

use crate::cache::{ClusterCache, StagedTxn};

/// Last part of the ids of nodes' own interfaces, `<host>-native-intf`.
const NODE_INTERFACE: &str = "-native-intf";

/// The endpoint with this id; what is known of it if its record cannot be decoded.
pub(super) fn find(id: &str, staged: &StagedTxn<'_>) -> Option<Arc<State>> {
    find_known(id, staged).map(Arc::new).or_else(|| staged.get(id))
}

/// What is known of the endpoint, if its record cannot be decoded and this transaction does not
/// change it.
pub(super) fn find_known(id: &str, staged: &StagedTxn<'_>) -> Option<State> {
    staged.unreadable_endpoint(id).map(|record| complete(record, staged.cache()))
}

/// All endpoints whose records cannot be decoded, with what is known of them.
pub(super) fn all(cache: &ClusterCache) -> impl Iterator<Item = State> {
    cache.unreadable_endpoints().map(|record| complete(record, cache))
}

/// The endpoint of a request, unless the record may be that of another endpoint.
pub(super) fn of_request(
    known: State,
    network: &str,
    endpoint: &str,
    staged: &StagedTxn<'_>,
) -> Option<Arc<State>> {
    let has = |known: &str, requested: &str| known.is_empty() || known == requested;
    let is_unknown = known.net_id.is_empty() && known.endpoint_id.is_empty();
    if !has(&known.net_id, network) || !has(&known.endpoint_id, endpoint) {
        return None;
    }
    if is_unknown && has_other_meaning(&known.id, network, staged.cache()) {
        tracing::warn!(
            endpoint = known.id,
            "delete an endpoint: its record cannot be decoded and may be that of another endpoint with the same id; not deleted"
        );
        return None;
    }
    let named = State { net_id: network.to_owned(), endpoint_id: endpoint.to_owned(), ..known };
    Some(with_group(named, staged.cache()).into())
}

/// Line for the log about a deleted endpoint. `released`: its addresses that are free now.
pub(super) fn deletion_notice(endpoint: &State, released: &[&str]) -> String {
    let State { id, homing_host, .. } = endpoint;
    let host = if homing_host.is_empty() { "an unknown host" } else { homing_host.as_str() };
    let addresses = match released {
        [] => {
            "no address is known to be its own; a netmaster that begins to lead with --repair releases addresses without an owner"
                .to_owned()
        }
        released => format!("released {}", released.join(" and ")),
    };
    format!("deleted endpoint {id} on {host}, whose record could not be decoded: {addresses}")
}

/// Adds what the agent of the endpoint's node has recorded to what the endpoint's record tells.
fn complete(record: &State, cache: &ClusterCache) -> State {
    let mut known = record.clone();
    let is_same = |known: &str, recorded: &str| known.is_empty() || known == recorded;
    let oper = cache.get::<Oper>(&record.id).filter(|oper| {
        is_same(&record.net_id, &oper.net_id)
            && is_same(&record.endpoint_id, &oper.endpoint_id)
            && is_same(&record.homing_host, &oper.homing_host)
    });
    if let Some(oper) = oper {
        for (field, recorded) in [
            (&mut known.net_id, &oper.net_id),
            (&mut known.endpoint_id, &oper.endpoint_id),
            (&mut known.homing_host, &oper.homing_host),
            (&mut known.service_name, &oper.service_name),
            (&mut known.ip_address, &oper.ip_address),
            (&mut known.ipv6_address, &oper.ipv6_address),
        ] {
            if field.is_empty() {
                field.clone_from(recorded);
            }
        }
    }
    with_group(known, cache)
}

/// Derives the key of the group from its name. Endpoints on infra networks belong to no group.
fn with_group(mut known: State, cache: &ClusterCache) -> State {
    let network = cache.allocation::<network::State>(&known.net_id).map(|record| &record.body);
    if let Some(network) = network.filter(|network| network.nw_type != "infra")
        && known.endpoint_group_key.is_empty()
    {
        let key = format!("{}:{}", known.service_name, network.tenant);
        if cache.allocation::<group::State>(&key).is_some() {
            known.endpoint_group_key = key;
        }
    }
    known
}

/// Whether the id may be that of a node's interface, or of an endpoint on another network.
fn has_other_meaning(id: &str, network: &str, cache: &ClusterCache) -> bool {
    let id = EndpointId::from(id);
    let exists = |id: &str| cache.allocation::<network::State>(id).is_some();
    id.as_str().ends_with(NODE_INTERFACE)
        || id.possible_networks().any(|other| other.as_str() != network && exists(other.as_str()))
}
