//! Whether the books of addresses and tags are those of the endpoints and networks that there are. They are written
//! together, so they differ only when somebody edited the store. Told; what is mended of it, [`crate::repair::mark_held`] does.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use contiv_model::{endpoint, network};

use crate::cache::Draft;
use crate::domain::allocation::is_taken;
use crate::domain::tag_pools::pools;

/// A line for each difference.
pub fn audit(draft: &Draft<'_>) -> Vec<String> {
    let mut lines = vec![];
    for endpoint in draft.world().all::<endpoint::State>() {
        audit_endpoint(draft, endpoint, &mut lines);
    }
    audit_tags(draft, &mut lines);
    lines
}

fn audit_endpoint(draft: &Draft<'_>, endpoint: &endpoint::State, lines: &mut Vec<String>) {
    let (id, network) = (&endpoint.id, &endpoint.net_id);
    let Some(ledger) = draft.world().ledger::<network::State>(network) else {
        lines.push(format!("endpoint {id} is on network {network}, which is not there"));
        return;
    };
    for address in [&endpoint.ip_address, &endpoint.ipv6_address] {
        if address.is_empty() {
            continue;
        }
        match is_taken(ledger, address) {
            Some(true) => {}
            Some(false) => {
                lines.push(format!("endpoint {id} has {address}, which is free on network {network}"));
            }
            None => lines.push(format!("endpoint {id} has {address}, which network {network} cannot have")),
        }
        let holders = address.parse().map(|ip: IpAddr| draft.world().holders(network, ip));
        if let Ok([first, others @ ..]) = holders
            && !others.is_empty()
            && first == id
        {
            lines.push(format!(
                "{address} on network {network} is that of {first} and of {}",
                others.join(", ")
            ));
        }
    }
}

fn audit_tags(draft: &Draft<'_>, lines: &mut Vec<String>) {
    // Without settings there are no tags.
    let Ok((vlans, vxlans)) = pools(draft) else { return };
    let vlans: HashSet<i64> = vlans.used().map(|tag| tag as i64).collect();
    let vxlans: HashSet<i64> = vxlans.used().map(|tag| tag as i64).collect();
    let mut holders: BTreeMap<(&str, i64), &str> = BTreeMap::new();
    for ledger in draft.world().ledgers::<network::State>() {
        let network = &ledger.body;
        let (kind, tag, taken) = match network.pkt_tag_type.as_str() {
            "vlan" => ("VLAN", network.pkt_tag, &vlans),
            _ => ("VNI", network.ext_pkt_tag, &vxlans),
        };
        if !taken.contains(&tag) {
            lines.push(format!("network {} has {kind} {tag}, which is free", network.id));
        }
        if let Some(other) = holders.insert((kind, tag), &network.id) {
            lines.push(format!("{kind} {tag} is that of networks {other} and {}", network.id));
        }
    }
}
