//! The answer of `/inspect/bgp`: the neighbor in the form of gobgp, which the original embeds, and the routes.

use std::time::{Duration, Instant, SystemTime};

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
    let age = status.established.as_ref().map(Instant::elapsed);
    let mut timers = json!({ "uptime": age.and_then(|age| begin(SystemTime::now(), age)) });
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

/// When something of this age began, in seconds since 1970. By the wall clock as it is now: it may have been set since.
fn begin(now: SystemTime, age: Duration) -> Option<u64> {
    Some(now.duration_since(SystemTime::UNIX_EPOCH).ok()?.saturating_sub(age).as_secs())
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

    #[test]
    fn the_begin_of_a_session_follows_the_wall_clock() {
        // A node without a battery starts in 1970, and sets its clock when the session is up.
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let age = Duration::from_secs(100);
        assert_eq!(begin(at(150), age), Some(50));
        assert_eq!(begin(at(1_800_000_000), age), Some(1_799_999_900));
        assert_eq!(begin(at(10), age), Some(0));
    }
}
