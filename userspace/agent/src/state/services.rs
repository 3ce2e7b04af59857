use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::{
    name::{ServiceId, TenantName},
    service::Service,
};

use super::index::remove_from;

/// Services and their providers, which the store keeps under separate keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Services {
    services: BTreeMap<ServiceId, Service>,
    by_tenant: BTreeMap<TenantName, BTreeSet<ServiceId>>,
    providers: BTreeMap<ServiceId, Vec<IpAddr>>,
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

    /// Returns whether the providers changed.
    pub(super) fn set_providers(&mut self, id: &ServiceId, providers: Option<Vec<IpAddr>>) -> bool {
        let before = match providers {
            Some(providers) if self.providers(id) == providers => return false,
            Some(providers) => self.providers.insert(id.clone(), providers),
            None => self.providers.remove(id),
        };
        // A missing list equals an empty one.
        before.is_some_and(|before| !before.is_empty()) || !self.providers(id).is_empty()
    }
}
