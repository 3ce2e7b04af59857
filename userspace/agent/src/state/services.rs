use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::{
    name::{ServiceId, TenantName},
    service::Service,
};

use super::take_out;

/// Services and what serves them, which are told apart.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Services {
    services: BTreeMap<ServiceId, Service>,
    of: BTreeMap<TenantName, BTreeSet<ServiceId>>,
    providers: BTreeMap<ServiceId, Vec<IpAddr>>,
}

impl Services {
    pub(super) fn get(&self, id: &ServiceId) -> Option<&Service> {
        self.services.get(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    pub(super) fn of(&self, tenant: &TenantName) -> impl Iterator<Item = &ServiceId> {
        self.of.get(tenant).into_iter().flatten()
    }

    pub(super) fn providers(&self, id: &ServiceId) -> &[IpAddr] {
        self.providers.get(id).map_or(&[], Vec::as_slice)
    }

    /// Whether it was another before.
    pub(super) fn set(&mut self, id: &ServiceId, service: Option<Service>) -> bool {
        if self.services.get(id) == service.as_ref() {
            return false;
        }
        if let Some(before) = self.services.remove(id) {
            take_out(&mut self.of, &before.tenant, id);
        }
        if let Some(service) = service {
            self.of.entry(service.tenant.clone()).or_default().insert(id.clone());
            self.services.insert(id.clone(), service);
        }
        true
    }

    /// Whether they were others before.
    pub(super) fn set_providers(&mut self, id: &ServiceId, providers: Option<Vec<IpAddr>>) -> bool {
        let before = match providers {
            Some(providers) if self.providers(id) == providers => return false,
            Some(providers) => self.providers.insert(id.clone(), providers),
            None => self.providers.remove(id),
        };
        // None and nobody are the same.
        before.is_some_and(|before| !before.is_empty()) || !self.providers(id).is_empty()
    }
}
