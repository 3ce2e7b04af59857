//! Books of addresses that somebody has edited, made right. What an endpoint has is taken, whatever they say: else it would
//! be given out a second time. What nobody has is only released when that was asked for: it may be reserved, by
//! `allocAddress`, for an endpoint that is yet to come.

use std::collections::HashSet;

use contiv_model::{endpoint, group, network};

use crate::cache::Draft;
use crate::domain::allocation::{Place, is_taken};

/// Marks the addresses that endpoints have; a line for each that was free.
pub fn mark_held(draft: &mut Draft<'_>) -> Vec<String> {
    let (world, mut lines) = (draft.world(), vec![]);
    let groups = world.ledgers::<group::State>().map(|ledger| &ledger.body);
    let pooled: HashSet<String> = groups
        .filter(|group| !group.ip_pool.is_empty())
        .map(|group| format!("{}.{}", group.network_name, group.tenant_name))
        .collect();
    for endpoint in world.all::<endpoint::State>() {
        let network = &endpoint.net_id;
        let Some(ledger) = world.ledger::<network::State>(network) else { continue };
        // Addresses of pools are taken on the network, whoever has them.
        let may_be_free =
            |address: &&String| pooled.contains(network) || is_taken(ledger, address) == Some(false);
        for address in [&endpoint.ip_address, &endpoint.ipv6_address].into_iter().filter(may_be_free) {
            let Ok(place) = Place::find(draft, network, None) else { continue };
            if place.mark(draft, address) {
                lines.push(format!(
                    "endpoint {} has {address}, which was free on network {network}",
                    endpoint.id
                ));
            }
        }
    }
    lines
}

/// Releases the addresses that no endpoint, no service and no gateway has; a line for each network that had any.
pub fn release_unheld(draft: &mut Draft<'_>) -> Vec<String> {
    let (world, mut lines) = (draft.world(), vec![]);
    for ledger in world.ledgers::<network::State>() {
        let id = &ledger.body.id;
        let Ok(place) = Place::find(draft, id, None) else { continue };
        let hosts = ledger.pool.bits().iter().filter(|host| place.release(draft, *host)).count();
        let hosts6: Vec<String> = place.addresses6().collect();
        let hosts6 = hosts6.iter().filter(|address| place.release6(draft, address)).count();
        if hosts + hosts6 > 0 {
            lines.push(format!("network {id}: {hosts} IPv4 and {hosts6} IPv6 addresses were nobody's"));
        }
    }
    lines
}
