//! Compares the allocation records of addresses and tags with the endpoints, services and networks. Both are
//! written in one transaction, so a difference means that another program changed the store.
//! [`crate::repair::mark_in_use`] repairs some of the differences.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use contiv_model::{api, endpoint, group, network, service};

use crate::cache::{RecordBody as _, StagedTxn};
use crate::domain::network_addresses::NetworksById;
use crate::domain::network_record::network_id;
use crate::domain::tag_pools::pools;

/// One line for each difference.
pub fn audit(staged: &StagedTxn<'_>) -> Vec<String> {
    let (mut lines, mut networks) = (vec![], NetworksById::new(staged.cache()));
    for endpoint in staged.cache().all::<endpoint::State>() {
        audit_endpoint(staged, &mut networks, endpoint, &mut lines);
    }
    for service in staged.cache().all::<service::State>() {
        audit_service(staged, &mut networks, service, &mut lines);
    }
    audit_tags(staged, &mut lines);
    audit_network_ids(staged, &mut lines);
    audit_group_numbers(staged, &mut lines);
    lines
}

fn audit_endpoint(
    staged: &StagedTxn<'_>,
    networks: &mut NetworksById<'_>,
    endpoint: &endpoint::State,
    lines: &mut Vec<String>,
) {
    let (id, network) = (&endpoint.id, &endpoint.net_id);
    let Some(addresses) = networks.get(network) else {
        lines.push(format!("endpoint {id}: network {network} does not exist"));
        return;
    };
    for address in [&endpoint.ip_address, &endpoint.ipv6_address] {
        if address.is_empty() {
            continue;
        }
        match addresses.is_taken(address) {
            Some(true) => {}
            Some(false) => {
                lines.push(format!("endpoint {id}: address {address} is not allocated on network {network}"));
            }
            None => lines.push(format!("endpoint {id}: address {address} is not in network {network}")),
        }
        let holders = address.parse().map(|ip: IpAddr| staged.cache().address_owners(network, ip));
        if let Ok([first, others @ ..]) = holders
            && !others.is_empty()
            && first == id
        {
            lines.push(format!(
                "address {address} on network {network}: used by endpoints {first} and {}",
                others.join(", ")
            ));
        }
    }
}

fn audit_service(
    staged: &StagedTxn<'_>,
    networks: &mut NetworksById<'_>,
    service: &service::State,
    lines: &mut Vec<String>,
) {
    let (id, address) = (&service.id, &service.ip_address);
    let network = network_id(&service.tenant_name, &service.network_name);
    let Some(addresses) = networks.get(&network) else {
        lines.push(format!("service {id}: network {network} does not exist"));
        return;
    };
    match addresses.is_taken(address) {
        Some(true) => {}
        Some(false) => {
            lines.push(format!("service {id}: address {address} is not allocated on network {network}"));
        }
        None => lines.push(format!("service {id}: address {address} is not in network {network}")),
    }
    let Ok(ip) = address.parse::<IpAddr>() else { return };
    for endpoint in staged.cache().address_owners(&network, ip) {
        lines.push(format!(
            "address {address} on network {network}: used by service {id} and endpoint {endpoint}"
        ));
    }
}

fn audit_tags(staged: &StagedTxn<'_>, lines: &mut Vec<String>) {
    // Without global settings there are no tag pools.
    let Ok((vlans, vxlans)) = pools(staged) else { return };
    let vlans: HashSet<i64> = vlans.used().map(|tag| tag as i64).collect();
    let vxlans: HashSet<i64> = vxlans.used().map(|tag| tag as i64).collect();
    let mut holders: BTreeMap<(&str, i64), &str> = BTreeMap::new();
    for record in staged.cache().allocations::<network::State>() {
        let network = &record.body;
        let (kind, tag, taken) = match network.pkt_tag_type.as_str() {
            "vlan" => ("VLAN", network.pkt_tag, &vlans),
            _ => ("VNI", network.ext_pkt_tag, &vxlans),
        };
        if !taken.contains(&tag) {
            lines.push(format!("network {}: {kind} {tag} is not allocated", network.id));
        }
        if let Some(other) = holders.insert((kind, tag), &network.id) {
            lines.push(format!("{kind} {tag}: used by networks {other} and {}", network.id));
        }
    }
}

/// Groups with one number. The original netmaster began again with the first number after a restart.
fn audit_group_numbers(staged: &StagedTxn<'_>, lines: &mut Vec<String>) {
    let mut groups: BTreeMap<i64, Vec<&str>> = BTreeMap::new();
    for record in staged.cache().allocations::<group::State>() {
        groups.entry(record.body.endpoint_group_id).or_default().push(record.body.id.as_str());
    }
    for (number, mut ids) in groups.into_iter().filter(|(_, ids)| ids.len() > 1) {
        ids.sort_unstable();
        lines.push(format!(
            "groups {}: all have the number {number}, and nodes evaluate the policies of all for each of them; delete all but one, \
             and create them again",
            ids.join(" and ")
        ));
    }
}

/// Networks of two tenants that have one record between them. Releases before this check could
/// create them.
fn audit_network_ids(staged: &StagedTxn<'_>, lines: &mut Vec<String>) {
    let mut objects: BTreeMap<String, Vec<&api::Network>> = BTreeMap::new();
    for network in staged.cache().all::<api::Network>() {
        objects.entry(network_id(&network.tenant_name, &network.network_name)).or_default().push(network);
    }
    for (id, networks) in objects.into_iter().filter(|(_, networks)| networks.len() > 1) {
        let name =
            |network: &&api::Network| format!("{} of tenant {}", network.network_name, network.tenant_name);
        let names: Vec<String> = networks.iter().map(name).collect();
        let record = staged.cache().allocation::<network::State>(&id).map(|record| &record.body);
        let owner = record.map_or_else(
            || "none of them".to_owned(),
            |body| format!("network {} of tenant {}", body.network_name, body.tenant),
        );
        lines.push(format!(
            "networks {}: all have the key {}, which belongs to {owner}; delete the others and create them with other names",
            names.join(" and "),
            network::State::key(&id)
        ));
    }
}
