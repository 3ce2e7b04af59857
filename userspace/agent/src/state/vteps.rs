use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::name::HostName;

/// VXLAN tunnel endpoint of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vtep {
    /// Node's name.
    pub host: HostName,
    /// Address.
    pub address: IpAddr,
    /// UDP port.
    pub port: u16,
    /// Store revision of the record. Of two registrations of one node, the later one applies.
    pub since: i64,
}

/// VTEPs of all nodes: those that running agents have registered, and those in the nodes' records, which have no lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Vteps {
    /// Keyed by registration key: a node has two while the lease of an older registration expires.
    registrations: BTreeMap<String, Vtep>,
    registered: BTreeMap<HostName, BTreeSet<String>>,
    records: BTreeMap<HostName, Vtep>,
    /// Nodes by address, from registrations and records.
    hosts: BTreeMap<IpAddr, BTreeSet<HostName>>,
}

/// Effects of a change.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Nodes whose VTEP changed.
    pub(super) moved: BTreeSet<HostName>,
}

impl Vteps {
    /// A registration takes precedence over a record.
    pub(super) fn of(&self, host: &HostName) -> Option<&Vtep> {
        let keys = self.registered.get(host).into_iter().flatten();
        let registered = keys.filter_map(|key| self.registrations.get(key)).max_by_key(|vtep| vtep.since);
        registered.or_else(|| self.records.get(host))
    }

    pub(super) fn is_registered(&self, host: &HostName) -> bool {
        self.registered.contains_key(host)
    }

    pub(super) fn has_registration(&self, key: &str) -> bool {
        self.registrations.contains_key(key)
    }

    pub(super) fn has_record(&self, host: &HostName) -> bool {
        self.records.contains_key(host)
    }

    pub(super) fn hosts_at(&self, address: IpAddr) -> impl Iterator<Item = &HostName> {
        self.hosts.get(&address).into_iter().flatten()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.hosts.keys().copied()
    }

    pub(super) fn register(&mut self, key: &str, vtep: Option<Vtep>) -> Changes {
        let before = self.registrations.get(key).cloned();
        if before == vtep {
            return Changes::default();
        }
        self.change(&before.clone(), &vtep.clone(), |vteps| {
            if let Some(before) = before {
                vteps.registrations.remove(key);
                if let Some(keys) = vteps.registered.get_mut(&before.host) {
                    keys.remove(key);
                    if keys.is_empty() {
                        vteps.registered.remove(&before.host);
                    }
                }
            }
            if let Some(vtep) = vtep {
                vteps.registered.entry(vtep.host.clone()).or_default().insert(key.to_owned());
                vteps.registrations.insert(key.to_owned(), vtep);
            }
        })
    }

    pub(super) fn set_record(&mut self, host: &HostName, vtep: Option<Vtep>) -> Changes {
        let before = self.records.get(host).cloned();
        let same = |a: &Vtep, b: &Vtep| (a.address, a.port) == (b.address, b.port);
        if before.is_none() && vtep.is_none()
            || before.as_ref().zip(vtep.as_ref()).is_some_and(|(a, b)| same(a, b))
        {
            return Changes::default();
        }
        self.change(&before, &vtep.clone(), |vteps| {
            vteps.records.remove(host);
            if let Some(vtep) = vtep {
                vteps.records.insert(host.clone(), vtep);
            }
        })
    }

    fn change(
        &mut self,
        before: &Option<Vtep>,
        after: &Option<Vtep>,
        change: impl FnOnce(&mut Vteps),
    ) -> Changes {
        let affected: Vec<Vtep> = before.iter().chain(after).cloned().collect();
        let had: BTreeMap<HostName, Option<Vtep>> =
            affected.iter().map(|vtep| (vtep.host.clone(), self.of(&vtep.host).cloned())).collect();
        change(self);
        let mut changes = Changes::default();
        for vtep in affected {
            self.reindex(&vtep.host, vtep.address);
            changes.addresses.insert(vtep.address);
        }
        for (host, had) in had {
            let has = self.of(&host);
            let address = |vtep: &Vtep| vtep.address;
            changes.addresses.extend(had.as_ref().map(address).into_iter().chain(has.map(address)));
            if had.as_ref().map(address) != has.map(address) {
                changes.moved.insert(host);
            }
        }
        changes
    }

    /// Updates the index entry of `host` at `address`.
    fn reindex(&mut self, host: &HostName, address: IpAddr) {
        let keys = self.registered.get(host).into_iter().flatten();
        let present = keys
            .filter_map(|key| self.registrations.get(key))
            .chain(self.records.get(host))
            .any(|vtep| vtep.address == address);
        if present {
            self.hosts.entry(address).or_default().insert(host.clone());
        } else if let Some(hosts) = self.hosts.get_mut(&address) {
            hosts.remove(host);
            if hosts.is_empty() {
                self.hosts.remove(&address);
            }
        }
    }
}
