//! Counters in the debug dump (`/inspect/driver`).

use serde_json::{Map, Value, json};

use crate::{
    datapath::{
        Error,
        telemetry::{Counters, Traffic},
    },
    error::one_line,
};

/// Renders the counters of rules, of services by `<service>:<protocol>:<port>`, and the number of entries of the tables
/// that packets fill. Each is an object with the field `error` if the counters cannot be read.
pub(crate) fn render(counters: &Result<Counters, Error>) -> [Value; 3] {
    let Counters { rules, services, tables, .. } = match counters {
        Ok(counters) => counters,
        Err(error) => {
            let error = one_line(error);
            return [(); 3].map(|()| json!({ "error": error }));
        }
    };
    let rules: Map<_, _> = rules.iter().map(|(id, traffic)| (id.to_string(), count(*traffic))).collect();
    let services: Map<_, _> = services
        .iter()
        .map(|(port, counters)| {
            let counters = json!({ "connections": counters.connections, "in": count(counters.to_backends),
                "out": count(counters.to_clients) });
            (port.to_string(), counters)
        })
        .collect();
    let tables: Map<_, _> =
        tables.iter().map(|usage| (usage.table.to_owned(), usage.entries.into())).collect();
    [rules, services, tables].map(Value::Object)
}

/// Renders a result as an object of names and values, or as an object with the field `error`.
pub(crate) fn object<V: Into<Value>>(values: Result<Vec<(&'static str, V)>, Error>) -> Value {
    match values {
        Ok(values) => {
            Value::Object(values.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
        }
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn count(traffic: Traffic) -> Value {
    json!({ "packets": traffic.packets, "bytes": traffic.bytes })
}
