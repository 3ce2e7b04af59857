//! Allocation of addresses without an endpoint, as Docker's IPAM needs it.

use std::net::IpAddr;

use contiv_model::network;
use schemars::JsonSchema;
use serde::Serialize;

use super::request::{AllocAddress, ReleaseAddress};
use crate::cache::StagedTxn;
use crate::domain::allocation::AllocationScope;
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

pub(super) fn alloc(request: &AllocAddress, staged: &mut StagedTxn<'_>) -> Answer {
    let (network, group) = match request.network_id.as_str() {
        "" => (network_with(staged, &request.address_pool)?, None),
        id => parts(id),
    };
    let scope = AllocationScope::find(staged, &network, group.as_deref())?;
    // A colon anywhere selects IPv6, also in `subnet/length:tenant`, which some clients send.
    let address = match request.address_pool.contains(':') {
        true => alloc6(&scope, staged, &request.preferred)?,
        false => alloc4(&scope, staged, &request.preferred)?,
    };
    go_json::encode(&Allocated { network_id: &request.network_id, address })
}

fn alloc4<'w>(
    scope: &AllocationScope<'w>,
    staged: &mut StagedTxn<'w>,
    preferred: &str,
) -> Result<String, Problem> {
    let candidate = match preferred {
        "" => scope.lowest_free(staged)?,
        address => {
            let candidate = scope.requested(staged, address)?;
            if scope.subnet.is_outside_range(candidate.host) {
                // The bitmap cannot record addresses outside the range; endpoints record them in
                // their state.
                let range = scope.subnet.range();
                return Err(Problem::conflict(format!("address {address} is not in the range {range}")));
            }
            if scope.is_taken(staged, &candidate) {
                return Err(in_use(address));
            }
            candidate
        }
    };
    scope.take(staged, &candidate);
    Ok(format!("{}/{}", scope.subnet.address(candidate.host), scope.subnet.len))
}

fn alloc6<'w>(
    scope: &AllocationScope<'w>,
    staged: &mut StagedTxn<'w>,
    preferred: &str,
) -> Result<String, Problem> {
    let invalid = || Problem::invalid("subnet length 0 is invalid");
    let subnet = scope.subnet6.ok_or_else(invalid)?;
    let candidate = scope.next_free_v6(staged, preferred)?.ok_or_else(invalid)?;
    if !preferred.is_empty() && scope.is_taken_v6(staged, &candidate) {
        return Err(in_use(preferred));
    }
    scope.take_v6(staged, &candidate);
    Ok(format!("{}/{}", subnet.address(candidate.host), subnet.len))
}

pub(super) fn release(request: &ReleaseAddress, staged: &mut StagedTxn<'_>) -> Answer {
    let (network, group) = parts(&request.network_id);
    let scope = AllocationScope::find(staged, &network, group.as_deref())?;
    let address = &request.address;
    if let (Ok(IpAddr::V6(_)), Some(subnet)) = (address.parse(), scope.subnet6) {
        let ip = subnet.address(subnet.host(address, true)?);
        ensure_not_in_use(staged, &network, ip.into())?;
        scope.release_v6(staged, address);
    } else {
        let host = scope.subnet.host(address)?;
        ensure_not_in_use(staged, &network, scope.subnet.address(host).into())?;
        scope.release(staged, host);
    }
    go_json::encode(&"success")
}

/// Fails for the address of an endpoint or service, which would otherwise be allocated twice.
fn ensure_not_in_use(staged: &StagedTxn<'_>, network: &str, ip: IpAddr) -> Result<(), Problem> {
    match staged.address_owner(network, ip) {
        Some(holder) => Err(Problem::conflict(format!("address {ip} is in use by {holder}"))),
        None => Ok(()),
    }
}

/// Splits `net:group.tenant` into network id and group key. Other texts are network ids.
fn parts(id: &str) -> (String, Option<String>) {
    let split = id.split_once(':').and_then(|(network, rest)| Some((network, rest.split_once('.')?)));
    match split {
        Some((network, (group, tenant))) => {
            (format!("{network}.{tenant}"), Some(format!("{group}:{tenant}")))
        }
        None => (id.to_owned(), None),
    }
}

/// Id of the network with this subnet. If several tenants have one, the last.
fn network_with(staged: &StagedTxn<'_>, pool: &str) -> Result<String, Problem> {
    let (address, len) = pool.split_once('/').ok_or_else(|| {
        Problem::invalid(format!("address pool {pool:?} without a network id: expected address/length"))
    })?;
    let wanted6 = Subnet6::parse(pool);
    // `a.b.c.d/len:tenant` is accepted as well.
    let len = len.split(':').next().unwrap_or(len);
    let same = |body: &network::State| match wanted6 {
        Some(wanted) => Subnet6::of_state(body) == Some(wanted),
        None => body.subnet_ip == address && body.subnet_len.to_string() == len,
    };
    let networks = staged.cache().allocations::<network::State>();
    let found = networks.filter(|record| same(&record.body)).last();
    found.map(|record| record.body.id.clone()).ok_or_else(|| Problem::not_found("network not found"))
}
