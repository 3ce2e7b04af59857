//! Adj-RIB-In: the routes that the neighbor has announced.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;

use crate::{Attributes, Family, Route};

/// The neighbor announced more prefixes than allowed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full(pub(crate) Family);

#[derive(Debug)]
pub(crate) struct AdjRibIn {
    routes: BTreeMap<IpNet, Route>,
    limit: usize,
}

impl AdjRibIn {
    pub(crate) fn new(limit: usize) -> AdjRibIn {
        AdjRibIn { routes: BTreeMap::new(), limit }
    }

    pub(crate) fn routes(&self) -> &BTreeMap<IpNet, Route> {
        &self.routes
    }

    pub(crate) fn stale(&self) -> usize {
        self.routes.values().filter(|route| route.stale).count()
    }

    /// Adds a route, or replaces the one with the same prefix.
    pub(crate) fn announce(
        &mut self,
        prefix: IpNet,
        next_hop: IpAddr,
        attributes: &Arc<Attributes>,
    ) -> Result<(), Full> {
        let route = Route { next_hop, attributes: attributes.clone(), stale: false };
        let count = self.routes.len();
        match self.routes.entry(prefix) {
            Entry::Occupied(mut entry) => drop(entry.insert(route)),
            Entry::Vacant(_) if count >= self.limit => return Err(Full(Family::of(&prefix))),
            Entry::Vacant(entry) => drop(entry.insert(route)),
        }
        Ok(())
    }

    pub(crate) fn withdraw(&mut self, prefix: &IpNet) {
        self.routes.remove(prefix);
    }

    /// Marks the routes of the families as stale, and removes all others and those that are stale already: the neighbor has
    /// restarted again (RFC 4724 section 4.2).
    pub(crate) fn retain_as_stale(&mut self, families: &[Family]) {
        self.routes.retain(|prefix, route| {
            let keep = families.contains(&Family::of(prefix)) && !route.stale;
            route.stale = true;
            keep
        });
    }

    pub(crate) fn remove_stale(&mut self, family: Family) {
        self.routes.retain(|prefix, route| Family::of(prefix) != family || !route.stale);
    }

    pub(crate) fn clear(&mut self) {
        self.routes.clear();
    }
}
