//! Addresses without an endpoint: how Docker asks for them.

use std::net::IpAddr;

use contiv_model::network;
use schemars::JsonSchema;
use serde::Serialize;

use super::request::{AllocAddress, ReleaseAddress};
use crate::cache::Draft;
use crate::domain::allocation::Place;
use crate::go_json;
use crate::ipam::{Subnet6, in_use};
use crate::problem::{Answer, Problem};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Address")]
pub(super) struct Allocated<'a> {
    #[serde(rename = "NetworkID")]
    network_id: &'a str,
    #[serde(rename = "IPv4Address")]
    address: String,
}

pub(super) fn alloc(request: &AllocAddress, draft: &mut Draft<'_>) -> Answer {
    let (network, group) = match request.network_id.as_str() {
        "" => (network_with(draft, &request.address_pool)?, None),
        id => parts(id),
    };
    let place = Place::find(draft, &network, group.as_deref())?;
    // A colon anywhere means IPv6, also in the `subnet/length:tenant` that some clients send.
    let address = match request.address_pool.contains(':') {
        true => alloc6(&place, draft, &request.preferred)?,
        false => alloc4(&place, draft, &request.preferred)?,
    };
    go_json::encode(&Allocated { network_id: &request.network_id, address })
}

fn alloc4<'w>(place: &Place<'w>, draft: &mut Draft<'w>, preferred: &str) -> Result<String, Problem> {
    let choice = match preferred {
        "" => place.choose(draft)?,
        address => {
            let choice = place.explicit(draft, address)?;
            if place.subnet.excludes(choice.host) {
                // There is nowhere to note that it was given out; an endpoint notes it itself.
                let range = place.subnet.range();
                return Err(Problem::conflict(format!("address {address} is not in the range {range}")));
            }
            if place.is_taken(draft, &choice) {
                return Err(in_use(address));
            }
            choice
        }
    };
    place.take(draft, &choice);
    Ok(format!("{}/{}", place.subnet.address(choice.host), place.subnet.len))
}

fn alloc6<'w>(place: &Place<'w>, draft: &mut Draft<'w>, preferred: &str) -> Result<String, Problem> {
    let invalid = || Problem::invalid("subnet length 0 is invalid");
    let subnet = place.subnet6.ok_or_else(invalid)?;
    let choice = place.choose6(draft, preferred)?.ok_or_else(invalid)?;
    if !preferred.is_empty() && place.is_taken6(draft, &choice) {
        return Err(in_use(preferred));
    }
    place.take6(draft, &choice);
    Ok(format!("{}/{}", subnet.address(choice.host), subnet.len))
}

pub(super) fn release(request: &ReleaseAddress, draft: &mut Draft<'_>) -> Answer {
    let (network, group) = parts(&request.network_id);
    let place = Place::find(draft, &network, group.as_deref())?;
    let address = &request.address;
    if let (Ok(IpAddr::V6(_)), Some(subnet)) = (address.parse(), place.subnet6) {
        let ip = subnet.address(subnet.host(address, true)?);
        unless_held(draft, &network, ip.into())?;
        place.release6(draft, address);
    } else {
        let host = place.subnet.host(address)?;
        unless_held(draft, &network, place.subnet.address(host).into())?;
        place.release(draft, host);
    }
    go_json::encode(&"success")
}

/// Freeing the address of an endpoint or a service would give it to a second one.
fn unless_held(draft: &Draft<'_>, network: &str, ip: IpAddr) -> Result<(), Problem> {
    match draft.holder(network, ip) {
        Some(holder) => Err(Problem::conflict(format!("address {ip} is in use by {holder}"))),
        None => Ok(()),
    }
}

/// `net:group.tenant` is a group's id on a network; anything else is a network's id.
fn parts(id: &str) -> (String, Option<String>) {
    let split = id.split_once(':').and_then(|(network, rest)| Some((network, rest.split_once('.')?)));
    match split {
        Some((network, (group, tenant))) => {
            (format!("{network}.{tenant}"), Some(format!("{group}:{tenant}")))
        }
        None => (id.to_owned(), None),
    }
}

/// The network with this subnet; of several, in whichever tenant, the last.
fn network_with(draft: &Draft<'_>, pool: &str) -> Result<String, Problem> {
    let (address, len) = pool.split_once('/').ok_or_else(|| {
        Problem::invalid(format!("address pool {pool:?} without a network id: expected address/length"))
    })?;
    let wanted6 = Subnet6::parse(pool);
    // `a.b.c.d/len:tenant` names a subnet, too.
    let len = len.split(':').next().unwrap_or(len);
    let same = |body: &network::State| match wanted6 {
        Some(wanted) => Subnet6::of_state(body) == Some(wanted),
        None => body.subnet_ip == address && body.subnet_len.to_string() == len,
    };
    let networks = draft.world().ledgers::<network::State>();
    let found = networks.filter(|ledger| same(&ledger.body)).last();
    found.map(|ledger| ledger.body.id.clone()).ok_or_else(|| Problem::not_found("network not found"))
}
