//! Counters of rules, services and the router, read from the flow tables.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use contiv_model::{name::RuleId, service::Port};
use openflow_rs::{Connection, FlowFilter, FlowStats, Match};
use tokio::runtime::Handle;

use super::{
    desired::{domain::domains_of_service, model::SwitchModel},
    error::ovs_error,
    pipeline::{self, Counted, Domain},
    tables::cookie::Cookie,
};
use crate::datapath::{
    Error, Group, Object, ObjectId, Service, Unsupported,
    telemetry::{self, Counters, PacketEvents, ServiceCounters, ServicePort, Telemetry, Traffic},
};

/// Table, priority and match of a flow.
type FlowKey = (u8, u16, Match);

/// Subject that the packet count of a flow belongs to.
#[derive(Debug)]
enum Subject {
    Rule(RuleId),
    Service(ServicePort, Counted),
    Drop(&'static str),
}

/// Counters of rules, services and the router. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct FlowCounters(Arc<Mutex<Source>>);

#[derive(Default)]
struct Source {
    bridges: Vec<Connection>,
    flows: Arc<FlowsByOwner>,
}

/// Counted flows by their cookie.
type FlowsByOwner = HashMap<Cookie, Arc<CountedFlows>>;

/// The counted flows of a group, a service or the router. They are computed on the first read, so that a change is cheap.
struct CountedFlows {
    owner: Owner,
    flows: OnceLock<HashMap<FlowKey, Subject>>,
}

enum Owner {
    Group(Group),
    /// A service with its domains and its number.
    Service(Service, Vec<Domain>, u32),
    Router,
}

impl CountedFlows {
    /// `None` if the object is not installed.
    fn of(model: &SwitchModel, id: &ObjectId) -> Option<CountedFlows> {
        match &model.index.get(id)?.object {
            Object::Group(group) => Some(CountedFlows::new(Owner::Group(group.clone()))),
            Object::Service(service) => {
                let number = model.numbers.services.get(&Cookie::of(id))?;
                let domains = domains_of_service(&model.index, &model.numbers, service);
                Some(CountedFlows::new(Owner::Service(service.clone(), domains, number)))
            }
            _ => None,
        }
    }

    fn new(owner: Owner) -> CountedFlows {
        CountedFlows { owner, flows: OnceLock::new() }
    }

    fn flows(&self) -> &HashMap<FlowKey, Subject> {
        self.flows.get_or_init(|| match &self.owner {
            Owner::Group(group) => of_group(group),
            Owner::Service(service, domains, number) => of_service(service, domains, *number),
            Owner::Router => of_router(),
        })
    }
}

fn of_group(group: &Group) -> HashMap<FlowKey, Subject> {
    let rules = pipeline::counted_rules(group).into_iter();
    rules.filter_map(|(flow, rule)| Some((key(flow), Subject::Rule(rule?)))).collect()
}

fn of_service(service: &Service, domains: &[Domain], number: u32) -> HashMap<FlowKey, Subject> {
    let flows = domains.iter().flat_map(|domain| pipeline::counted_services(service, *domain, number));
    let subject = |port: Port, counted| {
        let (service, protocol, port) = (service.id.clone(), port.protocol, port.port);
        Subject::Service(ServicePort { service, protocol, port }, counted)
    };
    flows.map(|(flow, port, counted)| (key(flow), subject(port, counted))).collect()
}

fn of_router() -> HashMap<FlowKey, Subject> {
    let drops = pipeline::counted_drops().into_iter();
    drops.map(|(flow, reason)| (key(flow), Subject::Drop(reason))).collect()
}

fn key(flow: openflow_rs::Flow) -> FlowKey {
    (flow.table, flow.priority, flow.matching)
}

impl fmt::Debug for FlowCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowCounters").field("owners", &self.lock().flows.len()).finish()
    }
}

impl FlowCounters {
    /// Sets the bridges to read, and the flows to count: those of the installed groups and services, and of the router.
    pub(crate) fn follow(&self, bridges: Vec<Connection>, model: &SwitchModel) {
        let groups = model.index.groups().map(|group| ObjectId::Group(group.identity));
        let services = model.index.services().map(|service| ObjectId::Service(service.id.clone()));
        let of_object = |id: ObjectId| Some((Cookie::of(&id), Arc::new(CountedFlows::of(model, &id)?)));
        let router = (Cookie::BASE, Arc::new(CountedFlows::new(Owner::Router)));
        let flows = groups.chain(services).filter_map(of_object).chain([router]).collect();
        *self.lock() = Source { bridges, flows: Arc::new(flows) };
    }

    /// Updates the counted flows after changes of groups and services.
    pub(crate) fn update(&self, model: &SwitchModel, changed: &BTreeSet<ObjectId>) {
        if changed.is_empty() {
            return;
        }
        let mut source = self.lock();
        // Copied only if a reader holds it.
        let flows = Arc::make_mut(&mut source.flows);
        for id in changed {
            match CountedFlows::of(model, id) {
                Some(counted) => drop(flows.insert(Cookie::of(id), Arc::new(counted))),
                None => drop(flows.remove(&Cookie::of(id))),
            }
        }
    }

    /// Returns the counted flows, each with its owner.
    #[cfg(test)]
    pub(crate) fn lines(&self) -> BTreeSet<String> {
        let flows = self.lock().flows.clone();
        let lines = flows.iter().flat_map(|(owner, counted)| {
            counted.flows().iter().map(move |(key, subject)| format!("{owner:?} {key:?} {subject:?}"))
        });
        lines.collect()
    }

    fn lock(&self) -> MutexGuard<'_, Source> {
        // Each change is a single step, so that the value is consistent after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self) -> Result<Counters, Error> {
        let (bridges, flows) = {
            let source = self.lock();
            (source.bridges.clone(), source.flows.clone())
        };
        let mut sums = Sums::default();
        let of_objects = pipeline::RULE_TABLES.into_iter().chain(pipeline::SERVICE_TABLES);
        let of_objects = of_objects.map(|table| FlowFilter { table, ..FlowFilter::default() });
        // One of the tables also has the flows of all addresses.
        let of_base = |table| FlowFilter {
            table,
            cookie: Cookie::BASE.0,
            cookie_mask: u64::MAX,
            ..FlowFilter::default()
        };
        let filters: Vec<FlowFilter> = of_objects.chain(pipeline::DROP_TABLES.map(of_base)).collect();
        for bridge in &bridges {
            for filter in &filters {
                let count = |stats: FlowStats| {
                    let traffic = Traffic { packets: stats.packets, bytes: stats.bytes };
                    let owner = flows.get(&Cookie(stats.flow.cookie)).filter(|_| traffic.packets > 0);
                    let key = key(stats.flow);
                    if let Some(subject) = owner.and_then(|owner| owner.flows().get(&key)) {
                        sums.add(subject, traffic);
                    }
                };
                let read = bridge.visit_flows(filter.clone(), count).await;
                read.map_err(|error| ovs_error("read the counters of flows", error))?;
            }
        }
        let services = sums.services.into_iter().filter(|(_, counters)| counters.connections > 0);
        Ok(Counters {
            rules: sums.rules.into_iter().collect(),
            services: services.collect(),
            drops: sums.drops.into_iter().collect(),
            ..Counters::default()
        })
    }
}

#[derive(Default)]
struct Sums {
    rules: BTreeMap<RuleId, Traffic>,
    services: BTreeMap<ServicePort, ServiceCounters>,
    drops: BTreeMap<&'static str, u64>,
}

impl Sums {
    fn add(&mut self, subject: &Subject, traffic: Traffic) {
        let sum = match subject {
            Subject::Drop(reason) => {
                *self.drops.entry(reason).or_default() += traffic.packets;
                return;
            }
            Subject::Rule(rule) => self.rules.entry(rule.clone()).or_default(),
            Subject::Service(port, counted) => {
                let counters = self.services.entry(port.clone()).or_default();
                match counted {
                    Counted::Connections => {
                        counters.connections += traffic.packets;
                        return;
                    }
                    Counted::ToBackends => &mut counters.to_backends,
                    Counted::ToClients => &mut counters.to_clients,
                }
            }
        };
        sum.packets += traffic.packets;
        sum.bytes += traffic.bytes;
    }
}

impl Telemetry for FlowCounters {
    /// Must be called on a thread that may block, in a tokio runtime.
    fn counters(&self) -> Result<Counters, Error> {
        Handle::current().block_on(self.read())
    }

    fn connections(&self) -> Result<Vec<telemetry::Connection>, Error> {
        Ok(vec![])
    }

    fn subscribe(&self) -> Result<Box<dyn PacketEvents>, Error> {
        Err(ovs_error("report packets", Unsupported::Object))
    }
}
