//! What the store holds afterwards, and whether it can be so.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
};

use anyhow::{Context as _, Result};
use contiv_model::{
    api::{EndpointGroup, Network, Tenant},
    bitset::Bitset,
    endpoint, global, group, network,
};
use serde::de::DeserializeOwned;
use testkit::etcd::Etcd;

use super::client::{History, Known, SHARED, Thing};

/// The keys below `/contiv.io/` and their bodies.
pub(super) struct State {
    entries: BTreeMap<String, String>,
}

/// The bits of a network that no endpoint has, by the length of its prefix.
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

    /// Of networks that have no endpoint yet.
    pub(super) fn reserved(&self) -> Result<Reserved> {
        let networks = self.below::<network::State>("state/nets/")?;
        Ok(networks.into_values().map(|net| (net.subnet_len, net.ip_alloc_map.iter().collect())).collect())
    }

    fn below<T: DeserializeOwned>(&self, place: &str) -> Result<BTreeMap<String, T>> {
        let prefix = format!("/contiv.io/{place}");
        let found = self.entries.iter().filter_map(|(key, body)| Some((key.strip_prefix(&prefix)?, body)));
        found
            .map(|(key, body)| {
                let value = serde_json::from_str(body).with_context(|| format!("read {place}{key}"))?;
                Ok((key.to_owned(), value))
            })
            .collect()
    }

    fn one<T: DeserializeOwned>(&self, key: &str) -> Result<T> {
        let body =
            self.entries.get(&format!("/contiv.io/{key}")).with_context(|| format!("{key} is missing"))?;
        serde_json::from_str(body).with_context(|| format!("read {key}"))
    }
}

/// All records, decoded, and what is wrong with them so far.
struct Check {
    networks: BTreeMap<String, network::State>,
    groups: BTreeMap<String, group::State>,
    endpoints: BTreeMap<String, endpoint::State>,
    wrong: Vec<String>,
}

/// Everything that cannot be: in the store by itself, and against what clients were told.
pub(super) fn check(state: &State, reserved: &Reserved, histories: &[History]) -> Result<Vec<String>> {
    let mut check = Check {
        networks: state.below("state/nets/")?,
        groups: state.below("state/endpointGroups/")?,
        endpoints: state.below("state/eps/")?,
        wrong: Vec::new(),
    };
    check.addresses(reserved)?;
    check.tags(state)?;
    check.links(state)?;
    check.groups(state)?;
    for history in histories {
        check.history(history)?;
    }
    Ok(check.wrong)
}

impl Check {
    fn same<T: Ord + std::fmt::Debug>(&mut self, what: &str, found: &BTreeSet<T>, expected: &BTreeSet<T>) {
        // Only what differs: a network has thousands of addresses.
        if found != expected {
            let stray: Vec<_> = found.difference(expected).collect();
            let missing: Vec<_> = expected.difference(found).collect();
            self.wrong.push(format!("{what}: {stray:?} must not be there, {missing:?} are missing"));
        }
    }

    fn link(&mut self, what: &str, found: &str, expected: &str) {
        if found != expected {
            self.wrong.push(format!("{what}: {found:?}, not {expected:?}"));
        }
    }

    /// Bitmaps and counts are those of the endpoints; no address is there twice.
    fn addresses(&mut self, reserved: &Reserved) -> Result<()> {
        let mut taken: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
        let mut wrong = Vec::new();
        for endpoint in self.endpoints.values() {
            let Some(network) = self.networks.get(&endpoint.net_id) else {
                wrong.push(format!("endpoint {} is on no network", endpoint.id));
                continue;
            };
            let (address, base): (Ipv4Addr, Ipv4Addr) =
                (endpoint.ip_address.parse()?, network.subnet_ip.parse()?);
            let bit = usize::try_from(u32::from(address) - u32::from(base))?;
            if !taken.entry(&endpoint.net_id).or_default().insert(bit) {
                wrong.push(format!("address {address} is there twice on {}", endpoint.net_id));
            }
        }
        let mut found = Vec::new();
        for (id, network) in &self.networks {
            let endpoints = taken.remove(id.as_str()).unwrap_or_default();
            let count = i64::try_from(endpoints.len())?;
            let base = reserved.get(&network.subnet_len).context("a network of another size")?;
            let expected: BTreeSet<usize> = base.union(&endpoints).copied().collect();
            found.push((format!("bitmap of {id}"), network.ip_alloc_map.iter().collect(), expected));
            wrong.extend(differ(&format!("endpoints counted on {id}"), network.ep_count, count));
            wrong.extend(differ(&format!("addresses counted on {id}"), network.ep_addr_count, count));
        }
        self.wrong.append(&mut wrong);
        for (what, found, expected) in found {
            self.same(&what, &found, &expected);
        }
        Ok(())
    }

    /// Each network has tags of its own, and the pools have all others.
    fn tags(&mut self, state: &State) -> Result<()> {
        let (mut vlans, mut vnis, mut locals) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut wrong = Vec::new();
        for (id, network) in &self.networks {
            let mut once = |set: &mut BTreeSet<usize>, tag: i64, what: &str| {
                if usize::try_from(tag).is_ok_and(|tag| tag == 0 || !set.insert(tag)) {
                    wrong.push(format!("{what} {tag} of {id} is another's, or none"));
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
            (state.one("state/auto-vlan/global")?, state.one("oper/auto-vlan/global")?);
        self.same("VLANs in use", &used(&pool.vlans, &oper.free_vlans), &vlans);
        let (pool, oper): (global::VxlanPool, global::VxlanPoolOper) =
            (state.one("state/auto-vxlan/global")?, state.one("oper/auto-vxlan/global")?);
        let start = usize::try_from(pool.free_vxlans_start)?;
        let used_vnis = used(&pool.vxlans, &oper.free_vxlans).into_iter().map(|slot| start + slot).collect();
        self.same("VNIs in use", &used_vnis, &vnis);
        self.same("local VLANs in use", &used(&pool.local_vlans, &oper.free_local_vlans), &locals);
        Ok(())
    }

    /// Objects and state are one to one, and links go both ways.
    fn links(&mut self, state: &State) -> Result<()> {
        let networks = state.below::<Network>("obj/modeldb/network/")?;
        let groups = state.below::<EndpointGroup>("obj/modeldb/endpointGroup/")?;
        let tenant: Tenant = state.one("obj/modeldb/tenant/default")?;
        let names = |keys: Vec<&String>| keys.into_iter().cloned().collect::<BTreeSet<_>>();
        let in_state = self.networks.values().map(|n| format!("{}:{}", n.tenant, n.network_name)).collect();
        self.same("networks as objects and as state", &names(networks.keys().collect()), &in_state);
        let in_state = self.groups.values().map(|g| format!("{}:{}", g.tenant_name, g.group_name)).collect();
        self.same("groups as objects and as state", &names(groups.keys().collect()), &in_state);
        let linked = names(tenant.link_sets.networks.keys().collect());
        self.same("networks of the tenant", &linked, &names(networks.keys().collect()));
        let linked = names(tenant.link_sets.endpoint_groups.keys().collect());
        self.same("groups of the tenant", &linked, &names(groups.keys().collect()));
        for (key, network) in &networks {
            let on_it = groups.iter().filter(|(_, group)| group.network_name == network.network_name);
            let expected = names(on_it.map(|(key, _)| key).collect());
            let linked = names(network.link_sets.endpoint_groups.keys().collect());
            self.same(&format!("groups of network {key}"), &linked, &expected);
            self.link(&format!("tenant of network {key}"), &network.links.tenant.key, "default");
        }
        for (key, group) in &groups {
            let expected = format!("default:{}", group.network_name);
            self.link(&format!("network of group {key}"), &group.links.network.key, &expected);
        }
        Ok(())
    }

    /// Numbers are given once, and members are counted.
    fn groups(&mut self, state: &State) -> Result<()> {
        let mut numbers = BTreeSet::new();
        let mut wrong = Vec::new();
        for (key, group) in &self.groups {
            if !numbers.insert(group.endpoint_group_id) {
                wrong.push(format!("number {} of group {key} is another's", group.endpoint_group_id));
            }
            let members = self.endpoints.values().filter(|endpoint| endpoint.endpoint_group_key == *key);
            wrong.extend(differ(
                &format!("endpoints counted in {key}"),
                group.ep_count,
                i64::try_from(members.count())?,
            ));
        }
        self.wrong.append(&mut wrong);
        let highest = numbers.last().copied().unwrap_or_default();
        let counter: serde_json::Value =
            if numbers.is_empty() { 0.into() } else { state.one("state/group-ids/global")? };
        let counted = counter.as_object().and_then(|o| o.values().find_map(serde_json::Value::as_i64));
        if counted.is_some_and(|counted| counted < highest) {
            self.wrong.push(format!("group number {highest} is above the counter {counted:?}"));
        }
        Ok(())
    }

    /// What was acknowledged is so.
    fn history(&mut self, history: &History) -> Result<()> {
        for (thing, known) in history {
            let (there, address) = match thing {
                Thing::Network(name) => (self.networks.contains_key(&format!("{name}.default")), None),
                Thing::Group { name, .. } => (self.groups.contains_key(&format!("{name}:default")), None),
                Thing::Endpoint { id, network, .. } => {
                    match self.endpoints.get(&format!("{network}.default-{id}")) {
                        Some(endpoint) => (true, Some(endpoint.ip_address.parse()?)),
                        None => (false, None),
                    }
                }
            };
            let explained = match known {
                Known::Present(told) => there && *told == address,
                Known::Absent => !there,
                Known::Unknown => true,
            };
            if !explained {
                self.wrong.push(format!("{thing}: told {known:?}; in the store: {there}, {address:?}"));
            }
        }
        Ok(())
    }
}

fn differ(what: &str, found: i64, expected: i64) -> Option<String> {
    (found != expected).then(|| format!("{what}: {found}, not {expected}"))
}

/// The networks that the arena begins with: one for all clients, and one of the size that clients make.
pub(super) const BEGIN: [(&str, &str); 2] = [(SHARED, "10.32.0.0/16"), ("small", "10.33.0.0/28")];
