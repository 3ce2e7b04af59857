use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::name::HostName;

/// Where a node's tunnels end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vtep {
    /// The node.
    pub host: HostName,
    /// The address.
    pub address: IpAddr,
    /// The UDP port.
    pub port: u16,
    /// The store revision of the word: of two registrations of one node, the later is right.
    pub since: i64,
}

/// The VTEPs of all nodes: registered by living agents, and left behind by all that ever ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Vteps {
    /// By the registration's key, since one node may have two while an older one expires.
    registrations: BTreeMap<String, Vtep>,
    registered: BTreeMap<HostName, BTreeSet<String>>,
    left: BTreeMap<HostName, Vtep>,
    /// Who claims an address, in either way.
    claims: BTreeMap<IpAddr, BTreeSet<HostName>>,
}

/// What a change concerns.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Nodes whose VTEP is another one than before.
    pub(super) moved: BTreeSet<HostName>,
}

impl Vteps {
    /// A living agent's word goes before what it left behind.
    pub(super) fn of(&self, host: &HostName) -> Option<&Vtep> {
        let keys = self.registered.get(host).into_iter().flatten();
        let registered = keys.filter_map(|key| self.registrations.get(key)).max_by_key(|vtep| vtep.since);
        registered.or_else(|| self.left.get(host))
    }

    pub(super) fn is_registered(&self, host: &HostName) -> bool {
        self.registered.contains_key(host)
    }

    pub(super) fn hosts_at(&self, address: IpAddr) -> impl Iterator<Item = &HostName> {
        self.claims.get(&address).into_iter().flatten()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.claims.keys().copied()
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

    pub(super) fn leave(&mut self, host: &HostName, vtep: Option<Vtep>) -> Changes {
        let before = self.left.get(host).cloned();
        // Written often, with the same VTEP.
        let same = |a: &Vtep, b: &Vtep| (a.address, a.port) == (b.address, b.port);
        if before.is_none() && vtep.is_none()
            || before.as_ref().zip(vtep.as_ref()).is_some_and(|(a, b)| same(a, b))
        {
            return Changes::default();
        }
        self.change(&before, &vtep.clone(), |vteps| {
            vteps.left.remove(host);
            if let Some(vtep) = vtep {
                vteps.left.insert(host.clone(), vtep);
            }
        })
    }

    fn change(
        &mut self,
        before: &Option<Vtep>,
        after: &Option<Vtep>,
        make: impl FnOnce(&mut Vteps),
    ) -> Changes {
        let concerned: Vec<Vtep> = before.iter().chain(after).cloned().collect();
        let had: BTreeMap<HostName, Option<Vtep>> =
            concerned.iter().map(|vtep| (vtep.host.clone(), self.of(&vtep.host).cloned())).collect();
        make(self);
        let mut changes = Changes::default();
        for vtep in concerned {
            self.reclaim(&vtep.host, vtep.address);
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

    /// Whether `host` claims `address` may have changed.
    fn reclaim(&mut self, host: &HostName, address: IpAddr) {
        let keys = self.registered.get(host).into_iter().flatten();
        let claimed = keys
            .filter_map(|key| self.registrations.get(key))
            .chain(self.left.get(host))
            .any(|vtep| vtep.address == address);
        if claimed {
            self.claims.entry(address).or_default().insert(host.clone());
        } else if let Some(hosts) = self.claims.get_mut(&address) {
            hosts.remove(host);
            if hosts.is_empty() {
                self.claims.remove(&address);
            }
        }
    }
}
