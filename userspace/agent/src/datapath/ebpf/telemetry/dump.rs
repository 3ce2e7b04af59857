//! What was counted, for `/inspect/driver`.

use serde_json::{Map, Value, json};

use crate::{
    datapath::{
        Error,
        telemetry::{Counters, Traffic},
    },
    error::one_line,
};

/// Rules, services by `<service>:<protocol>:<port>`, and the entries of the tables that packets fill. Why not, if they
/// cannot be read.
pub(crate) fn counted(tallies: &Result<Counters, Error>) -> [Value; 3] {
    let Counters { rules, services, tables } = match tallies {
        Ok(tallies) => tallies,
        Err(error) => {
            let error = one_line(error);
            return [(); 3].map(|()| json!({ "error": error }));
        }
    };
    let rules: Map<_, _> = rules.iter().map(|(id, traffic)| (id.to_string(), count(*traffic))).collect();
    let services: Map<_, _> = services
        .iter()
        .map(|(port, served)| {
            let served = json!({ "connections": served.connections, "in": count(served.to_backends),
                "out": count(served.to_clients) });
            (port.to_string(), served)
        })
        .collect();
    let tables: Map<_, _> = tables.iter().map(|fill| (fill.table.to_owned(), fill.entries.into())).collect();
    [rules, services, tables].map(Value::Object)
}

fn count(traffic: Traffic) -> Value {
    json!({ "packets": traffic.packets, "bytes": traffic.bytes })
}
