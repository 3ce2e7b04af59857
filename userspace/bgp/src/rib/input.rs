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
    /// Number of stale routes of each family.
    stale: BTreeMap<Family, usize>,
    limit: usize,
}

impl AdjRibIn {
    pub(crate) fn new(limit: usize) -> AdjRibIn {
        AdjRibIn { routes: BTreeMap::new(), stale: BTreeMap::new(), limit }
    }

    pub(crate) fn routes(&self) -> &BTreeMap<IpNet, Route> {
        &self.routes
    }

    pub(crate) fn stale(&self) -> usize {
        self.stale.values().sum()
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
        let replaced = match self.routes.entry(prefix) {
            Entry::Occupied(mut entry) => Some(entry.insert(route)),
            Entry::Vacant(_) if count >= self.limit => return Err(Full(Family::of(&prefix))),
            Entry::Vacant(entry) => {
                entry.insert(route);
                None
            }
        };
        if let Some(replaced) = replaced {
            self.discount(&prefix, &replaced);
        }
        Ok(())
    }

    pub(crate) fn withdraw(&mut self, prefix: &IpNet) {
        if let Some(removed) = self.routes.remove(prefix) {
            self.discount(prefix, &removed);
        }
    }

    /// A route was replaced or removed.
    fn discount(&mut self, prefix: &IpNet, route: &Route) {
        if let Some(count) = self.stale.get_mut(&Family::of(prefix)) {
            *count -= usize::from(route.stale);
        }
    }

    /// Marks the routes of the families as stale, and removes all others and those that are stale already: the neighbor has
    /// restarted again (RFC 4724 section 4.2).
    pub(crate) fn retain_as_stale(&mut self, families: &[Family]) {
        let stale = &mut self.stale;
        stale.clear();
        self.routes.retain(|prefix, route| {
            let family = Family::of(prefix);
            let keep = families.contains(&family) && !route.stale;
            route.stale = true;
            *stale.entry(family).or_default() += usize::from(keep);
            keep
        });
    }

    /// Returns whether there were any. Without them it costs nothing: the neighbor may send any number of End-of-RIB markers.
    pub(crate) fn remove_stale(&mut self, family: Family) -> bool {
        let is_any = self.stale.remove(&family).is_some_and(|count| count > 0);
        if is_any {
            self.routes.retain(|prefix, route| Family::of(prefix) != family || !route.stale);
        }
        is_any
    }

    pub(crate) fn clear(&mut self) {
        self.routes.clear();
        self.stale.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origin;

    #[test]
    fn stale_routes_are_counted() {
        let prefix = |text: &str| text.parse::<IpNet>().unwrap();
        let attributes = Arc::new(Attributes {
            origin: Origin::Igp,
            as_path: vec![65001],
            as_path_length: 1,
            med: None,
            local_pref: None,
        });
        let mut table = AdjRibIn::new(10);
        let announce = |table: &mut AdjRibIn, text: &str| {
            table.announce(prefix(text), [10, 9, 0, 2].into(), &attributes).unwrap();
            assert_eq!(table.stale(), table.routes.values().filter(|route| route.stale).count(), "{text}");
            table.stale()
        };
        let all = ["20.1.0.0/16", "20.2.0.0/16", "2001:db8:1::/48", "2001:db8:2::/48"];
        assert_eq!(all.map(|text| announce(&mut table, text)), [0; 4]);
        assert!(!table.remove_stale(Family::Ipv4), "none is stale");
        table.retain_as_stale(&Family::ALL);
        assert_eq!(table.stale(), 4);
        let fresh = ["20.1.0.0/16", "20.1.0.0/16", "20.3.0.0/16"];
        assert_eq!(fresh.map(|text| announce(&mut table, text)), [3; 3]);
        table.withdraw(&prefix("20.1.0.0/16"));
        assert_eq!(table.stale(), 3);
        table.withdraw(&prefix("20.2.0.0/16"));
        assert_eq!(table.stale(), 2);
        assert_eq!(Family::ALL.map(|family| table.remove_stale(family)), [false, true]);
        assert_eq!((table.stale(), table.routes().len()), (0, 1));
        table.retain_as_stale(&[Family::Ipv6]);
        assert_eq!((table.stale(), table.routes().len()), (0, 0));
    }
}
