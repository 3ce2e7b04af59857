//! Checks the consistency of the store after the faults.

mod derived;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use anyhow::{Context as _, Result};
use contiv_model::{
    api::{EndpointGroup, Network},
    bitset::Bitset,
    endpoint, global, group, network, service,
};
use serde::de::DeserializeOwned;
use testkit::etcd::Etcd;

use super::{
    client::{History, Known, Object, SHARED},
    register::{GROUPS_ON, SERVICES_ON},
};

/// Keys below `/contiv.io/` and their values.
pub(super) struct State {
    entries: BTreeMap<String, String>,
}

/// Bits of the allocation map that are set in a network without endpoints, by prefix length.
pub(super) type Reserved = BTreeMap<u32, BTreeSet<usize>>;

impl State {
    pub(super) fn read(etcd: &Etcd) -> Result<State> {
        let mut entries = BTreeMap::new();
        for prefix in ["/contiv.io/obj/", "/contiv.io/state/", "/contiv.io/oper/"] {
            let text = etcd.ctl(&["get", "--prefix", prefix])?;
            let mut lines = text.lines();
            while let (Some(key), Some(value)) = (lines.next(), lines.next()) {
                entries.insert(key.to_owned(), value.to_owned());
            }
        }
        Ok(State { entries })
    }

    pub(super) fn has_journals(&self) -> bool {
        self.entries.keys().any(|key| key.starts_with("/contiv.io/state/ipam/"))
    }

    pub(super) fn entries(&self) -> &BTreeMap<String, String> {
        &self.entries
    }

    /// Reads the reserved bits; the networks must not have endpoints.
    pub(super) fn reserved(&self) -> Result<Reserved> {
        let networks = self.read_prefix::<network::State>("state/nets/")?;
        Ok(networks.into_values().map(|net| (net.subnet_len, net.ip_alloc_map.iter().collect())).collect())
    }

    fn read_prefix<T: DeserializeOwned>(&self, prefix: &str) -> Result<BTreeMap<String, T>> {
        let path = format!("/contiv.io/{prefix}");
        let found = self.entries.iter().filter_map(|(key, body)| Some((key.strip_prefix(&path)?, body)));
        found
            .map(|(key, body)| {
                let value = serde_json::from_str(body).with_context(|| format!("read {prefix}{key}"))?;
                Ok((key.to_owned(), value))
            })
            .collect()
    }

    fn read_key<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        let body =
            self.entries.get(&format!("/contiv.io/{key}")).with_context(|| format!("{key} is missing"))?;
        serde_json::from_str(body).with_context(|| format!("read {key}"))
    }
}

/// Decoded records and the violations found so far.
struct Check {
    networks: BTreeMap<String, network::State>,
    groups: BTreeMap<String, group::State>,
    endpoints: BTreeMap<String, endpoint::State>,
    services: BTreeMap<String, service::State>,
    wrong: Vec<String>,
}

/// Returns all violations: inconsistent records, and differences from the acknowledged writes of the clients.
pub(super) fn check(state: &State, reserved: &Reserved, histories: &[History]) -> Result<Vec<String>> {
    let mut check = Check {
        networks: state.read_prefix("state/nets/")?,
        groups: state.read_prefix("state/endpointGroups/")?,
        endpoints: state.read_prefix("state/eps/")?,
        services: state.read_prefix("state/serviceLB/")?,
        wrong: Vec::new(),
    };
    check.addresses(reserved)?;
    check.tags(state)?;
    check.links(state)?;
    check.groups(state)?;
    check.policies(state)?;
    check.profiles(state)?;
    for history in histories {
        check.history(history)?;
    }
    Ok(check.wrong)
}

impl Check {
    fn same<T: Ord + std::fmt::Debug>(&mut self, what: &str, found: &BTreeSet<T>, expected: &BTreeSet<T>) {
        // Only the difference: a network has thousands of addresses.
        if found != expected {
            let unexpected: Vec<_> = found.difference(expected).collect();
            let missing: Vec<_> = expected.difference(found).collect();
            self.wrong.push(format!("{what}: unexpected {unexpected:?}, missing {missing:?}"));
        }
    }

    fn link(&mut self, what: &str, found: &str, expected: &str) {
        if found != expected {
            self.wrong.push(format!("{what}: found {found:?}, expected {expected:?}"));
        }
    }

    /// Allocation maps and counters match the endpoints and services; no address is allocated twice.
    fn addresses(&mut self, reserved: &Reserved) -> Result<()> {
        let mut taken: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        let mut wrong = Vec::new();
        let endpoints = self.endpoints.values().map(|ep| (&ep.id, ep.net_id.clone(), &ep.ip_address));
        let services = self.services.values().map(|service| {
            (&service.id, format!("{}.{}", service.network_name, service.tenant_name), &service.ip_address)
        });
        for (id, network_id, address) in endpoints.chain(services) {
            let Some((network_id, network)) = self.networks.get_key_value(&network_id) else {
                wrong.push(format!("{id}: its network {network_id} does not exist"));
                continue;
            };
            let (address, base): (Ipv4Addr, Ipv4Addr) = (address.parse()?, network.subnet_ip.parse()?);
            let bit = usize::try_from(u32::from(address) - u32::from(base))?;
            if !taken.entry(network_id).or_default().insert(bit) {
                wrong.push(format!("address {address} allocated twice on {network_id}"));
            }
        }
        let mut found = Vec::new();
        for (id, network) in &self.networks {
            let addresses = taken.remove(id.as_str()).unwrap_or_default();
            let base =
                reserved.get(&network.subnet_len).context("no reserved bits for this prefix length")?;
            let expected: BTreeSet<usize> = base.union(&addresses).copied().collect();
            found.push((format!("allocation map of {id}"), network.ip_alloc_map.iter().collect(), expected));
            let endpoints = self.endpoints.values().filter(|endpoint| endpoint.net_id == *id).count();
            let (endpoints, addresses) = (i64::try_from(endpoints)?, i64::try_from(addresses.len())?);
            wrong.extend(differ(&format!("endpoint counter of {id}"), network.ep_count, endpoints));
            wrong.extend(differ(&format!("address counter of {id}"), network.ep_addr_count, addresses));
        }
        self.wrong.append(&mut wrong);
        for (what, found, expected) in found {
            self.same(&what, &found, &expected);
        }
        Ok(())
    }

    /// Tags are unique, and the pools contain all others.
    fn tags(&mut self, state: &State) -> Result<()> {
        let (mut vlans, mut vnis, mut locals) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut wrong = Vec::new();
        for (id, network) in &self.networks {
            let mut once = |set: &mut BTreeSet<usize>, tag: i64, what: &str| {
                if usize::try_from(tag).is_ok_and(|tag| tag == 0 || !set.insert(tag)) {
                    wrong.push(format!("{what} {tag} of {id} is zero or not unique"));
                }
            };
            if network.pkt_tag_type == "vxlan" {
                once(&mut vnis, network.ext_pkt_tag, "VNI");
                once(&mut locals, network.pkt_tag, "local VLAN");
            } else {
                once(&mut vlans, network.pkt_tag, "VLAN");
            }
        }
        self.wrong.append(&mut wrong);
        let used = |all: &Bitset, free: &Bitset| -> BTreeSet<usize> {
            all.iter().filter(|bit| !free.contains(*bit)).collect()
        };
        let (pool, oper): (global::VlanPool, global::VlanPoolOper) =
            (state.read_key("state/auto-vlan/global")?, state.read_key("oper/auto-vlan/global")?);
        self.same("VLANs in use", &used(&pool.vlans, &oper.free_vlans), &vlans);
        let (pool, oper): (global::VxlanPool, global::VxlanPoolOper) =
            (state.read_key("state/auto-vxlan/global")?, state.read_key("oper/auto-vxlan/global")?);
        let start = usize::try_from(pool.free_vxlans_start)?;
        let used_vnis = used(&pool.vxlans, &oper.free_vxlans).into_iter().map(|slot| start + slot).collect();
        self.same("VNIs in use", &used_vnis, &vnis);
        self.same("local VLANs in use", &used(&pool.local_vlans, &oper.free_local_vlans), &locals);
        Ok(())
    }

    /// Every object has its state record and the reverse, and links to the objects that it names.
    fn links(&mut self, state: &State) -> Result<()> {
        let networks = state.read_prefix::<Network>("obj/modeldb/network/")?;
        let groups = state.read_prefix::<EndpointGroup>("obj/modeldb/endpointGroup/")?;
        let names = |keys: Vec<&String>| keys.into_iter().cloned().collect::<BTreeSet<_>>();
        let in_state = self.networks.values().map(|n| format!("{}:{}", n.tenant, n.network_name)).collect();
        self.same("network objects and states", &names(networks.keys().collect()), &in_state);
        let in_state = self.groups.values().map(|g| format!("{}:{}", g.tenant_name, g.group_name)).collect();
        self.same("group objects and states", &names(groups.keys().collect()), &in_state);
        for (key, network) in &networks {
            self.link(&format!("tenant of network {key}"), &network.links.tenant.key, "default");
        }
        for (key, group) in &groups {
            let expected = format!("default:{}", group.network_name);
            self.link(&format!("network of group {key}"), &group.links.network.key, &expected);
        }
        Ok(())
    }

    /// Group ids are unique, and counters match the members.
    fn groups(&mut self, state: &State) -> Result<()> {
        let mut numbers = BTreeSet::new();
        let mut wrong = Vec::new();
        for (key, group) in &self.groups {
            if !numbers.insert(group.endpoint_group_id) {
                wrong.push(format!("id {} of group {key} is not unique", group.endpoint_group_id));
            }
            let members = self.endpoints.values().filter(|endpoint| endpoint.endpoint_group_key == *key);
            wrong.extend(differ(
                &format!("endpoint counter of {key}"),
                group.ep_count,
                i64::try_from(members.count())?,
            ));
        }
        self.wrong.append(&mut wrong);
        let highest = numbers.last().copied().unwrap_or_default();
        let counter: serde_json::Value =
            if numbers.is_empty() { 0.into() } else { state.read_key("state/group-ids/global")? };
        let counted = counter.as_object().and_then(|o| o.values().find_map(serde_json::Value::as_i64));
        if counted.is_some_and(|counted| counted < highest) {
            self.wrong.push(format!("group id {highest} is above the counter {counted:?}"));
        }
        Ok(())
    }

    /// Acknowledged writes are in the store.
    fn history(&mut self, history: &History) -> Result<()> {
        for (object, known) in history {
            let (exists, address) = match object {
                Object::Network(name) => (self.networks.contains_key(&format!("{name}.default")), None),
                Object::Group { name, .. } => (self.groups.contains_key(&format!("{name}:default")), None),
                Object::Endpoint { id, network, .. } => {
                    match self.endpoints.get(&format!("{network}.default-{id}")) {
                        Some(endpoint) => (true, Some(endpoint.ip_address.parse()?)),
                        None => (false, None),
                    }
                }
            };
            let consistent = match known {
                Known::Present(expected) => exists && *expected == address,
                Known::Absent => !exists,
                Known::Unknown => true,
            };
            if !consistent {
                self.wrong
                    .push(format!("{object}: acknowledged {known:?}; in the store: {exists}, {address:?}"));
            }
        }
        Ok(())
    }
}

fn differ(what: &str, found: i64, expected: i64) -> Option<String> {
    (found != expected).then(|| format!("{what}: found {found}, expected {expected}"))
}

/// Networks that exist before the clients start: for all clients, of the size that clients create, and for registers.
pub(super) const INITIAL_NETWORKS: [(&str, &str); 4] = [
    (SHARED, "10.32.0.0/16"),
    ("small", "10.33.0.0/28"),
    (GROUPS_ON, "10.34.0.0/24"),
    (SERVICES_ON, "10.35.0.0/24"),
];
