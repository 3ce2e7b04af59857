//! Counters of rules, read from the flow tables.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use contiv_model::name::RuleId;
use openflow_rs::{Connection, FlowFilter, Match};
use tokio::runtime::Handle;

use super::{error::ovs_error, pipeline, tables::index::FlowIndex};
use crate::datapath::{
    Error, Unsupported,
    telemetry::{self, Counters, PacketEvents, Telemetry, Traffic},
};

/// Table, priority and match of a flow.
type FlowKey = (u8, u16, Match);

/// Counters of rules. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct RuleCounters(Arc<Mutex<Source>>);

#[derive(Default)]
struct Source {
    bridges: Vec<Connection>,
    rules: Arc<HashMap<FlowKey, RuleId>>,
}

impl fmt::Debug for RuleCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleCounters").field("flows", &self.lock().rules.len()).finish()
    }
}

impl RuleCounters {
    /// Reads from these bridges the flows of the installed groups.
    pub(crate) fn follow(&self, bridges: Vec<Connection>, index: &FlowIndex) {
        let flows = index.groups().flat_map(pipeline::counted_rules);
        let rules =
            flows.filter_map(|(flow, rule)| Some(((flow.table, flow.priority, flow.matching), rule?)));
        *self.lock() = Source { bridges, rules: Arc::new(rules.collect()) };
    }

    fn lock(&self) -> MutexGuard<'_, Source> {
        // Each change is a single step, so that the value is consistent after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read(&self) -> Result<Counters, Error> {
        let (bridges, rules) = {
            let source = self.lock();
            (source.bridges.clone(), source.rules.clone())
        };
        let mut sums = BTreeMap::<RuleId, Traffic>::new();
        for bridge in bridges.iter().filter(|_| !rules.is_empty()) {
            for table in pipeline::RULE_TABLES {
                let flows = bridge.dump_flows(FlowFilter { table, ..FlowFilter::default() }).await;
                for stats in flows.map_err(|error| ovs_error("read the counters of rules", error))? {
                    let key = (table, stats.flow.priority, stats.flow.matching);
                    let Some(rule) = rules.get(&key).filter(|_| stats.packets > 0) else { continue };
                    let sum = sums.entry(rule.clone()).or_default();
                    sum.packets += stats.packets;
                    sum.bytes += stats.bytes;
                }
            }
        }
        Ok(Counters { rules: sums.into_iter().collect(), ..Counters::default() })
    }
}

impl Telemetry for RuleCounters {
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
