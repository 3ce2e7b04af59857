//! Services.

use std::collections::{BTreeSet, HashSet};

use contiv_model::api::{Link, Network, ServiceLb, ServiceLbOper, Tenant};
use contiv_model::key::ObjectType;
use contiv_model::service::{Port, State};

use super::{Cluster, Object};
use crate::cache::{ClusterCache, Labels, StagedTxn};
use crate::domain::allocation::AllocationScope;
use crate::domain::object_key;
use crate::domain::services::{delete, delete_stray_slices, is_kept, put_with_providers, state_key};
use crate::ipam::in_use;
use crate::problem::Problem;
use crate::reports::{self, Report};
use crate::schema::{Field, LINK, Schema, Type, format};

static SCHEMA: Schema = Schema {
    go_type: "contivModel.ServiceLB",
    fields: &[
        Field::any("key", Type::Text),
        Field::text("ipAddress", 15, format::IPV4_OR_EMPTY),
        Field::text("networkName", 64, format::NAME),
        Field::any("ports", Type::Texts),
        Field::any("selectors", Type::Texts),
        Field::text("serviceName", 256, format::NAME),
        Field::text("tenantName", 64, format::NAME),
        Field::any("links", Type::Struct(&LINKS)),
    ],
};

static LINKS: Schema = Schema {
    go_type: "contivModel.ServiceLBLinks",
    fields: &[Field::any("Network", Type::Struct(&LINK)), Field::any("Tenant", Type::Struct(&LINK))],
};

impl Object for ServiceLb {
    const KIND: ObjectType = ObjectType::ServiceLb;
    const SCHEMA: &'static Schema = &SCHEMA;
    const KEY: &'static [&'static str] = &["tenantName", "serviceName"];
    type Oper = ServiceLbOper;

    fn key(&self) -> &str {
        &self.key
    }

    fn tenant(&self) -> Option<&str> {
        Some(&self.tenant_name)
    }

    /// Like the original, the response to an update contains the links.
    fn echo(&self) -> Self {
        let mut echo = self.clone();
        echo.link();
        echo
    }

    fn create(mut self, staged: &mut StagedTxn<'_>) -> Result<Self, Problem> {
        let selectors = self.check(staged)?;
        let vip = self.take_vip(staged)?;
        self.link();
        put_with_providers(self.state(selectors, vip), staged);
        staged.guard_unchanged::<Tenant>(&self.links.tenant.key);
        staged.guard_unchanged::<Network>(&self.links.network.key);
        staged.put(&self.key, self.clone());
        Ok(self)
    }

    /// The address does not change: a requested address is stored in the object without effect.
    fn update(self, old: &Self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let selectors = self.check(staged)?;
        if self.network_name != old.network_name {
            return Err(Problem::conflict("Cannot change network association after service is created."));
        }
        let known = staged.get::<State>(&self.state_key());
        let vip = match &known {
            Some(state) => state.ip_address.clone(),
            None => self.take_vip(staged)?,
        };
        let same = |state: &State| {
            state.ports.as_ref() == Some(&self.ports) && state.selectors.as_ref() == Some(&selectors)
        };
        if !known.is_some_and(|state| same(&state)) {
            put_with_providers(self.state(selectors, vip), staged);
        }
        staged.put(&old.key, ServiceLb { links: old.links.clone(), ..self });
        Ok(())
    }

    fn delete(&self, staged: &mut StagedTxn<'_>) -> Result<(), Problem> {
        let id = self.state_key();
        let vip = staged.get::<State>(&id).map(|state| state.ip_address.clone());
        delete(&id, staged);
        if let (Some(vip), Ok(scope)) =
            (vip, AllocationScope::of_network(staged, &self.tenant_name, &self.network_name))
            && let Ok(host) = scope.subnet.host(&vip)
        {
            scope.release(staged, host);
        }
        Ok(())
    }

    fn can_inspect(&self, cache: &ClusterCache) -> Result<(), Problem> {
        match cache.get::<State>(&self.state_key()) {
            Some(_) => Ok(()),
            None => Err(Problem::not_found("invalid Service name. Oper state does not exist")),
        }
    }

    fn oper(&self, cache: &ClusterCache, _cluster: &Cluster) -> Option<Report<ServiceLbOper>> {
        cache.shared::<State>(&self.state_key()).map(|state| reports::service(state, cache))
    }
}

/// Derived values and helpers.
pub(super) trait Derived {
    fn state_key(&self) -> String;
    fn link(&mut self);
    fn check(&self, staged: &StagedTxn<'_>) -> Result<Labels, Problem>;
    fn take_vip(&self, staged: &mut StagedTxn<'_>) -> Result<String, Problem>;
    fn state(&self, selectors: Labels, vip: String) -> State;
}

impl Derived for ServiceLb {
    fn state_key(&self) -> String {
        state_key(&self.service_name, &self.tenant_name)
    }

    fn link(&mut self) {
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        self.links.network = Link::to(ObjectType::Network, object_key(&self.tenant_name, &self.network_name));
    }

    /// Validates in the original's order, and returns the selectors.
    fn check(&self, staged: &StagedTxn<'_>) -> Result<Labels, Problem> {
        if self.selectors.is_empty() {
            return Err(Problem::invalid("Invalid selector options"));
        }
        check_ports(&self.ports)?;
        let (tenant, network) = (&self.tenant_name, &self.network_name);
        if staged.get::<Tenant>(tenant).is_none() {
            return Err(Problem::not_found(format!("Tenant {tenant} not found")));
        }
        if staged.get::<Network>(&object_key(tenant, network)).is_none() {
            return Err(Problem::not_found(format!("Network {network} not found")));
        }
        self.selectors.iter().map(|text| selector(text)).collect()
    }

    fn take_vip(&self, staged: &mut StagedTxn<'_>) -> Result<String, Problem> {
        let scope = AllocationScope::of_network(staged, &self.tenant_name, &self.network_name)?;
        let candidate = match self.ip_address.as_str() {
            "" => scope.lowest_free(staged)?,
            address => {
                let candidate = scope.requested(staged, address)?;
                if !scope.subnet.is_outside_range(candidate.host) && scope.is_taken(staged, &candidate) {
                    return Err(in_use(address));
                }
                candidate
            }
        };
        scope.take(staged, &candidate);
        Ok(scope.subnet.address(candidate.host).to_string())
    }

    fn state(&self, selectors: Labels, vip: String) -> State {
        State {
            id: self.state_key(),
            service_name: self.service_name.clone(),
            tenant_name: self.tenant_name.clone(),
            network_name: self.network_name.clone(),
            ports: Some(self.ports.clone()),
            selectors: Some(selectors),
            ip_address: vip,
            providers: None,
        }
    }
}

/// Restores the service states from the objects and the labels of endpoints, and deletes states
/// without an object. A state that cannot be decoded stays with its providers: its address is not known. So do those of
/// an object that cannot be decoded.
pub fn restore(staged: &mut StagedTxn<'_>) {
    let cache = staged.cache();
    for service in cache.all::<ServiceLb>().filter(|service| !is_kept(&service.state_key(), cache)) {
        let known = cache.get::<State>(&service.state_key()).map(|state| Ok(state.ip_address.clone()));
        let Ok(selectors) = service.selectors.iter().map(|text| selector(text)).collect() else { continue };
        match known.unwrap_or_else(|| service.take_vip(staged)) {
            Ok(vip) => put_with_providers(service.state(selectors, vip), staged),
            Err(problem) => {
                tracing::error!(service = service.key, %problem, "restore a service: no address allocated");
            }
        }
    }
    let mut wanted = cache.all::<ServiceLb>().map(Derived::state_key).collect::<BTreeSet<_>>();
    wanted.retain(|id| staged.get::<State>(id).is_some());
    for id in cache.table::<State>().keys().filter(|id| !wanted.contains(*id) && !is_kept(id, cache)) {
        delete(id, staged);
    }
    delete_stray_slices(staged);
}

/// Parses `name=value`. If a name occurs twice, the last value is used.
fn selector(text: &str) -> Result<(String, String), Problem> {
    let parts = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.contains('='));
    let (name, value) = parts.ok_or_else(|| {
        Problem::invalid(format!("Invalid selector {text}. selector format is key1=value1"))
    })?;
    Ok((name.to_owned(), value.to_owned()))
}

const PORTS: &str = "Invalid Port maping . Port format is - Port:TargetPort:Protocol";

/// Validates all ports. The original checks only the format of the first port, and its error text
/// is used for what it rejects.
fn check_ports(ports: &[String]) -> Result<(), Problem> {
    let mut seen = HashSet::new();
    for (n, text) in ports.iter().enumerate() {
        let port = text.parse::<Port>().map_err(|error| match n == 0 && !has_form(text) {
            true => Problem::invalid(PORTS),
            false => Problem::invalid(format!("{PORTS}; {error}")),
        })?;
        if !seen.insert((port.protocol, port.port)) {
            let (port, protocol) = (port.port, port.protocol);
            return Err(Problem::invalid(format!("{PORTS}; duplicate port {port} of {protocol}")));
        }
    }
    match ports.is_empty() {
        true => Err(Problem::invalid(PORTS)),
        false => Ok(()),
    }
}

/// Whether the text has two numbers and a protocol.
fn has_form(text: &str) -> bool {
    let parts: Vec<&str> = text.split(':').collect();
    let number = |text: &str| text.parse::<i64>().is_ok();
    match parts.as_slice() {
        [port, target, protocol, ..] => {
            number(port) && number(target) && ["TCP", "UDP"].contains(&protocol.to_uppercase().as_str())
        }
        _ => false,
    }
}
