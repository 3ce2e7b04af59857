//! Counters of rules, services and the router, read from the flow tables.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use contiv_model::name::RuleId;
use openflow_rs::{Connection, FlowFilter, Match};
use tokio::runtime::Handle;

use super::{
    desired::{domain::domains_of_service, model::SwitchModel},
    error::ovs_error,
    pipeline::{self, Counted},
    tables::cookie::Cookie,
};
use crate::datapath::{
    Error, ObjectId, Unsupported,
    telemetry::{self, Counters, PacketEvents, ServiceCounters, ServicePort, Telemetry, Traffic},
};

/// Table, priority and match of a flow.
type FlowKey = (u8, u16, Match);

/// What the packets of a flow count for.
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
    flows: Arc<HashMap<FlowKey, Subject>>,
}

impl fmt::Debug for FlowCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowCounters").field("flows", &self.lock().flows.len()).finish()
    }
}

impl FlowCounters {
    /// Reads from these bridges the flows of the installed groups and services, and those of the router.
    pub(crate) fn follow(&self, bridges: Vec<Connection>, model: &SwitchModel) {
        let rules = model.index.groups().flat_map(pipeline::counted_rules);
        let rules = rules.filter_map(|(flow, rule)| Some((flow, Subject::Rule(rule?))));
        let services = model.index.services().flat_map(|service| {
            let owner = Cookie::of(&ObjectId::Service(service.id.clone()));
            let domains = domains_of_service(&model.index, &model.numbers, &model.base, service);
            let number = model.numbers.services.get(&owner);
            let counted = move |domain| Some(pipeline::counted_services(service, domain, number?));
            domains.into_iter().filter_map(counted).flatten().map(|(flow, port, counted)| {
                let (service, protocol, port) = (service.id.clone(), port.protocol, port.port);
                (flow, Subject::Service(ServicePort { service, protocol, port }, counted))
            })
        });
        let key = |flow: openflow_rs::Flow| (flow.table, flow.priority, flow.matching);
        let drops = pipeline::counted_drops().into_iter().map(|(flow, reason)| (flow, Subject::Drop(reason)));
        let counted = rules.chain(services).chain(drops);
        let flows = counted.map(|(flow, subject)| (key(flow), subject));
        *self.lock() = Source { bridges, flows: Arc::new(flows.collect()) };
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
        // One of the tables has the flows of all addresses, too.
        let of_base = |table| FlowFilter {
            table,
            cookie: Cookie::BASE.0,
            cookie_mask: u64::MAX,
            ..FlowFilter::default()
        };
        let filters: Vec<FlowFilter> = of_objects.chain(pipeline::DROP_TABLES.map(of_base)).collect();
        for bridge in &bridges {
            for filter in &filters {
                let dump = bridge.dump_flows(filter.clone()).await;
                for stats in dump.map_err(|error| ovs_error("read the counters of flows", error))? {
                    let key = (stats.flow.table, stats.flow.priority, stats.flow.matching);
                    let Some(subject) = flows.get(&key).filter(|_| stats.packets > 0) else { continue };
                    sums.add(subject, Traffic { packets: stats.packets, bytes: stats.bytes });
                }
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
