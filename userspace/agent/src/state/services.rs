use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::{
    name::{ServiceId, TenantName},
    service::{Providers, Service},
};

use super::index::remove_from;

/// Services and their providers, which the store keeps under separate keys and in slices.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Services {
    services: BTreeMap<ServiceId, Service>,
    by_tenant: BTreeMap<TenantName, BTreeSet<ServiceId>>,
    /// Providers in all slices, sorted.
    providers: BTreeMap<ServiceId, Vec<IpAddr>>,
    /// Slices by the last part of their keys, of each service.
    slices: BTreeMap<ServiceId, BTreeMap<String, Vec<IpAddr>>>,
}

impl Services {
    pub(super) fn get(&self, id: &ServiceId) -> Option<&Service> {
        self.services.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    pub(super) fn of_tenant(&self, tenant: &TenantName) -> impl Iterator<Item = &ServiceId> {
        self.by_tenant.get(tenant).into_iter().flatten()
    }

    pub(super) fn providers(&self, id: &ServiceId) -> &[IpAddr] {
        self.providers.get(id).map_or(&[], Vec::as_slice)
    }

    /// Whether there is a slice of providers; `key` is the last part of its key.
    pub(super) fn has_slice(&self, key: &str) -> bool {
        let slices = self.slices.get(&ServiceId::from(Providers::service_of(key)));
        slices.is_some_and(|slices| slices.contains_key(key))
    }

    /// Returns whether the service changed.
    pub(super) fn set(&mut self, id: &ServiceId, service: Option<Service>) -> bool {
        if self.services.get(id) == service.as_ref() {
            return false;
        }
        if let Some(before) = self.services.remove(id) {
            remove_from(&mut self.by_tenant, &before.tenant, id);
        }
        if let Some(service) = service {
            self.by_tenant.entry(service.tenant.clone()).or_default().insert(id.clone());
            self.services.insert(id.clone(), service);
        }
        true
    }

    /// Sets or removes a slice of providers; `key` is the last part of its key. Returns the service if
    /// its providers changed.
    pub(super) fn set_providers(&mut self, key: &str, providers: Option<Vec<IpAddr>>) -> Option<ServiceId> {
        let id = ServiceId::from(Providers::service_of(key));
        let slices = self.slices.entry(id.clone()).or_default();
        match providers {
            Some(providers) => slices.insert(key.to_owned(), providers),
            None => slices.remove(key),
        };
        let mut all: Vec<IpAddr> = slices.values().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        if slices.is_empty() {
            self.slices.remove(&id);
        }
        // A missing list equals an empty one.
        if self.providers(&id) == all {
            return None;
        }
        match all.is_empty() {
            true => self.providers.remove(&id),
            false => self.providers.insert(id.clone(), all),
        };
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_of_all_slices_are_merged() {
        let ip = |n: u8| IpAddr::from([10, 0, 0, n]);
        let of = |numbers: &[u8]| Some(numbers.iter().copied().map(ip).collect::<Vec<_>>());
        let (web, mut services) = (ServiceId::from("web:t"), Services::default());
        assert_eq!(services.set_providers("web:t/1", of(&[3])), Some(web.clone()));
        assert_eq!(services.set_providers("web:t", of(&[1, 4])), Some(web.clone()));
        assert_eq!(services.set_providers("db:t", of(&[])), None);
        assert_eq!(services.providers(&web), [ip(1), ip(3), ip(4)]);
        // Moving an address to another slice is no change.
        assert_eq!(services.set_providers("web:t/1", of(&[3, 4])), None);
        assert_eq!(services.set_providers("web:t", of(&[1])), None);
        assert_eq!(services.set_providers("web:t/1", None), Some(web.clone()));
        assert_eq!(services.providers(&web), [ip(1)]);
        assert_eq!(services.set_providers("web:t", None), Some(web.clone()));
        assert_eq!(services.providers(&web), [] as [IpAddr; 0]);
    }
}
