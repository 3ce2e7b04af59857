//! Endpoints come and go.

use contiv_model::endpoint::State;
use contiv_model::mac::Mac;
use schemars::JsonSchema;
use serde::Serialize;

use super::request::{CreateEndpoint, DeleteEndpoint};
use crate::cache::Draft;
use crate::domain::allocation::Place;
use crate::domain::services;
use crate::go_json;
use crate::problem::{Answer, Problem};

/// The answer to both calls.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "EndpointReply")]
pub(super) struct Reply<'a> {
    #[serde(rename = "EndpointConfig")]
    config: &'a State,
}

pub(super) fn create(request: &CreateEndpoint, draft: &mut Draft<'_>) -> Answer {
    let config = &request.config;
    let network = format!("{}.{}", request.network_name, request.tenant_name);
    let id = match config.container.as_str() {
        "" => format!("{}-native-intf", config.host),
        container => format!("{network}-{container}"),
    };
    let group = match config.service_name.as_str() {
        "" => None,
        name => Some(format!("{name}:{}", request.tenant_name)),
    };
    let mut place = Place::find(draft, &network, None)?;
    // One that exists is what was asked for, whatever else the request says.
    if let Some(endpoint) = draft.get::<State>(&id) {
        return go_json::encode(&Reply { config: &endpoint });
    }
    // Infra networks carry nodes; those are in no group.
    if place.network.body.nw_type != "infra" {
        place = Place::find(draft, &network, group.as_deref())?;
    }
    let address = match config.ip_address.as_str() {
        "" => place.choose(draft)?,
        address => place.explicit(draft, address)?,
    };
    let address6 = place.choose6(draft, &config.ipv6_address)?;

    let ip = place.subnet.address(address.host);
    let ip6 = address6.as_ref().zip(place.subnet6).map(|(choice, subnet)| subnet.address(choice.host));
    place.take(draft, &address);
    if let Some(choice) = &address6 {
        place.take6(draft, choice);
    }
    place.count_endpoint(draft, 1);
    let endpoint = State {
        id: id.clone(),
        net_id: network,
        endpoint_id: config.container.clone(),
        service_name: config.service_name.clone(),
        endpoint_group_id: place.group.map_or(0, |group| group.body.endpoint_group_id),
        endpoint_group_key: place.group.map(|group| group.body.id.clone()).unwrap_or_default(),
        ip_address: ip.to_string(),
        ipv6_address: ip6.map(|ip| ip.to_string()).unwrap_or_default(),
        mac_address: Mac::of_endpoint(ip).to_string(),
        homing_host: config.host.clone(),
        ep_common_name: request.common_name.clone(),
        ..State::default()
    };
    let reply = go_json::encode(&Reply { config: &endpoint });
    draft.put(&id, endpoint);
    reply
}

pub(super) fn delete(request: &DeleteEndpoint, draft: &mut Draft<'_>) -> Answer {
    let network = format!("{}.{}", request.network_name, request.tenant_name);
    let id = format!("{network}-{}", request.endpoint_id);
    let endpoint = draft.get::<State>(&id).ok_or_else(Problem::key_not_found)?;
    let reply = go_json::encode(&Reply { config: &endpoint })?;
    remove(&endpoint, draft);
    Ok(reply)
}

/// Deletes it, with its addresses; no service has it any more.
pub(super) fn remove(endpoint: &State, draft: &mut Draft<'_>) {
    let network = &endpoint.net_id;
    let group = Some(endpoint.endpoint_group_key.as_str()).filter(|key| !key.is_empty());

    draft.delete::<State>(&endpoint.id);
    services::follow(endpoint, draft);
    // The group, or an infra network, may be gone before its endpoints.
    let place = Place::find(draft, network, group).or_else(|_| Place::find(draft, network, None));
    if let Ok(place) = place {
        if let Ok(host) = place.subnet.host(&endpoint.ip_address) {
            place.release(draft, host);
        }
        place.release6(draft, &endpoint.ipv6_address);
        place.count_endpoint(draft, -1);
    }
}
