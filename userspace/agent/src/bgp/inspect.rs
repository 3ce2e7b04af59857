//! The answer of `/inspect/bgp`: the neighbor in the form of gobgp, which the original embeds, and the routes.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::report::{Report, Running, UP};

/// The answer; `None` if the speaker does not run. `routes` is not a member of the original.
pub fn inspect(report: &Report) -> Option<Value> {
    let running = report.running()?;
    let table = running.table();
    let prefixes: Vec<String> = table.keys().map(ToString::to_string).collect();
    Some(json!({ "peers": [peer(running)], "dsts": prefixes, "routes": routes(running) }))
}

fn peer(running: &Running) -> Value {
    let (status, counters) = (&running.status, &running.status.counters);
    let peer_type = if status.local_as == status.neighbor_as { "internal" } else { "external" };
    let config = json!({
        "peer-as": status.neighbor_as,
        "local-as": status.local_as,
        "peer-type": peer_type,
        "neighbor-address": status.neighbor,
    });
    let mut state = json!({
        "peer-as": status.neighbor_as,
        "local-as": status.local_as,
        "peer-type": peer_type,
        "neighbor-address": status.neighbor,
        "router-id": status.router_id,
        "session-state": status.state.to_string(),
        "admin-state": UP,
        "established-count": counters.established,
        "messages": {
            "received": { "total": counters.received, "update": counters.updates_received },
            "sent": { "total": counters.sent, "update": counters.updates_sent },
        },
        "adj-table": { "advertised": status.advertised, "received": status.received, "stale": status.stale },
    });
    let uptime = status.established.and_then(|since| since.duration_since(SystemTime::UNIX_EPOCH).ok());
    let mut timers = json!({ "uptime": uptime.map(|since| since.as_secs()) });
    if let Some(negotiated) = &status.negotiated {
        state["remote-router-id"] = json!(negotiated.router_id);
        timers["negotiated-hold-time"] = json!(negotiated.hold_time);
        timers["keepalive-interval"] = json!(negotiated.keepalive_interval());
    }
    if let Some(failure) = running.failure() {
        state["failure"] = json!(failure);
    }
    json!({ "config": config, "state": state, "timers": { "state": timers } })
}

/// Learnt routes.
fn routes(running: &Running) -> Vec<Value> {
    let route = |(prefix, route): (&ipnet::IpNet, &contiv_bgp::Route)| {
        json!({
            "prefix": prefix,
            "next-hop": route.next_hop,
            "as-path": route.attributes.as_path,
            "stale": route.stale,
        })
    };
    running.learnt.routes.iter().map(route).collect()
}

#[cfg(test)]
mod tests {
    use contiv_bgp::State;

    use super::{super::report::tests::running, *};

    #[test]
    fn answer_has_the_members_that_clients_of_the_original_read() {
        let answer = inspect(&running(State::Established, None)).unwrap();
        let state = &answer["peers"][0]["state"];
        assert_eq!((&state["session-state"], &state["admin-state"]), (&json!("established"), &json!("up")));
        assert_eq!(answer["dsts"], json!(["10.1.1.5/32", "20.0.0.0/8"]));
        assert_eq!(
            answer["routes"],
            json!([{ "prefix": "20.0.0.0/8", "next-hop": "50.1.1.2", "as-path": [65001], "stale": false }])
        );
        assert_eq!(inspect(&Report::Absent), None);
    }
}
