//! Services.

use std::collections::BTreeSet;

use contiv_model::api::{Link, Network, ServiceLb, ServiceLbOper, Tenant};
use contiv_model::key::ObjectType;
use contiv_model::service::{Port, Providers, State};

use super::{Cluster, Object};
use crate::cache::{Draft, Labels, World};
use crate::domain::allocation::Place;
use crate::domain::object_key;
use crate::domain::services::{delete, gather, state_key};
use crate::ipam::in_use;
use crate::problem::Problem;
use crate::reports;
use crate::schema::{LINK, Member, Shape, Type, format};

static SHAPE: Shape = Shape {
    go_type: "contivModel.ServiceLB",
    members: &[
        Member::any("key", Type::Text),
        Member::text("ipAddress", 15, format::IPV4_OR_EMPTY),
        Member::text("networkName", 64, format::NAME),
        Member::any("ports", Type::Texts),
        Member::any("selectors", Type::Texts),
        Member::text("serviceName", 256, format::NAME),
        Member::text("tenantName", 64, format::NAME),
        Member::any("links", Type::Struct(&LINKS)),
    ],
};

static LINKS: Shape = Shape {
    go_type: "contivModel.ServiceLBLinks",
    members: &[Member::any("Network", Type::Struct(&LINK)), Member::any("Tenant", Type::Struct(&LINK))],
};

impl Object for ServiceLb {
    const KIND: ObjectType = ObjectType::ServiceLb;
    const SHAPE: &'static Shape = &SHAPE;
    const KEY: &'static [&'static str] = &["tenantName", "serviceName"];
    type Oper = ServiceLbOper;

    fn key(&self) -> &str {
        &self.key
    }

    /// The original makes the links of an update's request, too.
    fn echo(&self) -> Self {
        let mut echo = self.clone();
        echo.link();
        echo
    }

    fn create(mut self, draft: &mut Draft<'_>) -> Result<Self, Problem> {
        let selectors = self.check(draft)?;
        let vip = self.take_vip(draft)?;
        self.link();
        gather(self.state(selectors, vip), draft);
        if let Some(tenant) = draft.edit::<Tenant>(&self.links.tenant.key) {
            tenant.link_sets.servicelbs.insert(self.key.clone(), Link::to(ObjectType::ServiceLb, &self.key));
        }
        if let Some(network) = draft.edit::<Network>(&self.links.network.key) {
            network.link_sets.servicelbs.insert(self.key.clone(), Link::to(ObjectType::ServiceLb, &self.key));
        }
        draft.put(&self.key, self.clone());
        Ok(self)
    }

    /// The address stays: one that the request asks for is kept in the object, and that is all.
    fn update(self, old: &Self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        let selectors = self.check(draft)?;
        if self.network_name != old.network_name {
            return Err(Problem::conflict("Cannot change network association after service is created."));
        }
        let known = draft.get::<State>(&self.state_key());
        let vip = match &known {
            Some(state) => state.ip_address.clone(),
            None => self.take_vip(draft)?,
        };
        let same = |state: &State| {
            state.ports.as_ref() == Some(&self.ports) && state.selectors.as_ref() == Some(&selectors)
        };
        if !known.is_some_and(|state| same(&state)) {
            gather(self.state(selectors, vip), draft);
        }
        draft.put(&old.key, ServiceLb { links: old.links.clone(), ..self });
        Ok(())
    }

    fn delete(&self, draft: &mut Draft<'_>) -> Result<(), Problem> {
        let id = self.state_key();
        let vip = draft.get::<State>(&id).map(|state| state.ip_address.clone());
        delete(&id, draft);
        if let (Some(vip), Ok(place)) = (vip, Place::find(draft, &self.network_id(), None))
            && let Ok(host) = place.subnet.host(&vip)
        {
            place.release(draft, host);
        }
        if let Some(tenant) = draft.edit::<Tenant>(&self.tenant_name) {
            tenant.link_sets.servicelbs.remove(&self.key);
        }
        if let Some(network) = draft.edit::<Network>(&object_key(&self.tenant_name, &self.network_name)) {
            network.link_sets.servicelbs.remove(&self.key);
        }
        Ok(())
    }

    fn can_inspect(&self, world: &World) -> Result<(), Problem> {
        match world.get::<State>(&self.state_key()) {
            Some(_) => Ok(()),
            None => Err(Problem::not_found("invalid Service name. Oper state does not exist")),
        }
    }

    fn oper(&self, world: &World, _cluster: &Cluster) -> Option<ServiceLbOper> {
        world.get::<State>(&self.state_key()).map(|state| reports::service(state, world))
    }
}

/// The parts of a service that are not one of its fields.
pub(super) trait Parts {
    fn state_key(&self) -> String;
    fn network_id(&self) -> String;
    fn link(&mut self);
    fn check(&self, draft: &Draft<'_>) -> Result<Labels, Problem>;
    fn take_vip(&self, draft: &mut Draft<'_>) -> Result<String, Problem>;
    fn state(&self, selectors: Labels, vip: String) -> State;
}

impl Parts for ServiceLb {
    fn state_key(&self) -> String {
        state_key(&self.service_name, &self.tenant_name)
    }

    fn network_id(&self) -> String {
        format!("{}.{}", self.network_name, self.tenant_name)
    }

    fn link(&mut self) {
        self.links.tenant = Link::to(ObjectType::Tenant, &self.tenant_name);
        self.links.network = Link::to(ObjectType::Network, object_key(&self.tenant_name, &self.network_name));
    }

    /// In the original's order and words; gives the selectors.
    fn check(&self, draft: &Draft<'_>) -> Result<Labels, Problem> {
        if self.selectors.is_empty() {
            return Err(Problem::invalid("Invalid selector options"));
        }
        check_ports(&self.ports)?;
        let (tenant, network) = (&self.tenant_name, &self.network_name);
        if draft.get::<Tenant>(tenant).is_none() {
            return Err(Problem::not_found(format!("Tenant {tenant} not found")));
        }
        if draft.get::<Network>(&object_key(tenant, network)).is_none() {
            return Err(Problem::not_found(format!("Network {network} not found")));
        }
        self.selectors.iter().map(|text| selector(text)).collect()
    }

    fn take_vip(&self, draft: &mut Draft<'_>) -> Result<String, Problem> {
        let place = Place::find(draft, &self.network_id(), None)?;
        let choice = match self.ip_address.as_str() {
            "" => place.choose(draft)?,
            address => {
                let choice = place.explicit(draft, address)?;
                if !place.subnet.excludes(choice.host) && place.is_taken(draft, &choice) {
                    return Err(in_use(address));
                }
                choice
            }
        };
        place.take(draft, &choice);
        Ok(place.subnet.address(choice.host).to_string())
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

/// The states that follow from the objects, and from the labels of the endpoints; what is of none is deleted.
pub fn restore(draft: &mut Draft<'_>) {
    let world = draft.world();
    for service in world.all::<ServiceLb>() {
        let known = world.get::<State>(&service.state_key()).map(|state| Ok(state.ip_address.clone()));
        let Ok(selectors) = service.selectors.iter().map(|text| selector(text)).collect() else { continue };
        match known.unwrap_or_else(|| service.take_vip(draft)) {
            Ok(vip) => gather(service.state(selectors, vip), draft),
            Err(problem) => tracing::error!(service = service.key, %problem, "a service has no address"),
        }
    }
    let mut wanted = world.all::<ServiceLb>().map(Parts::state_key).collect::<BTreeSet<_>>();
    wanted.retain(|id| draft.get::<State>(id).is_some());
    let strays = world.table::<State>().keys().chain(world.table::<Providers>().keys());
    for id in strays.filter(|id| !wanted.contains(*id)) {
        delete(id, draft);
    }
}

/// `name=value`; the same name again counts as it does last.
fn selector(text: &str) -> Result<(String, String), Problem> {
    let parts = text.split_once('=').filter(|(name, value)| !name.is_empty() && !value.contains('='));
    let (name, value) = parts.ok_or_else(|| {
        Problem::invalid(format!("Invalid selector {text}. selector format is key1=value1"))
    })?;
    Ok((name.to_owned(), value.to_owned()))
}

const PORTS: &str = "Invalid Port maping . Port format is - Port:TargetPort:Protocol";

/// All of them. What the original refuses, too, is refused in its words; it looks at the form of the first.
fn check_ports(ports: &[String]) -> Result<(), Problem> {
    let mut seen = vec![];
    for (n, text) in ports.iter().enumerate() {
        let port = text.parse::<Port>().map_err(|error| match n == 0 && !has_form(text) {
            true => Problem::invalid(PORTS),
            false => Problem::invalid(format!("{PORTS}; {error}")),
        })?;
        if seen.contains(&(port.protocol, port.port)) {
            let (port, protocol) = (port.port, port.protocol);
            return Err(Problem::invalid(format!("{PORTS}; port {port} of {protocol} is there twice")));
        }
        seen.push((port.protocol, port.port));
    }
    match ports.is_empty() {
        true => Err(Problem::invalid(PORTS)),
        false => Ok(()),
    }
}

/// Two numbers, whatever they are, and a protocol.
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
