//! Containers that the agents of single nodes report.

use netmaster::access::Scope;
use netmaster::plugin::{Call, CallKind};
use netmaster::problem::Kind;
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// Endpoint `a` is on node `h1`, endpoint `b` on node `h2`.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    for (id, host) in [("a", "h1"), ("b", "h2")] {
        let config = json!({"Container": id, "Host": host});
        let body = json!({"TenantName": "default", "NetworkName": "net", "ConfigEP": config});
        fixture.call("createEndpoint", &body).unwrap();
    }
    fixture
}

/// An event of a container, whose id is always the same.
fn report(fixture: &mut Fixture, scope: &Scope, event: &str, endpoint: &str) -> Result<Value, Kind> {
    let body = json!({"Event": event, "Tenant": "default", "Network": "net", "EndpointID": endpoint,
        "ContainerID": "c0ffee", "Labels": {"app": "web"}});
    let kind = CallKind::by_name("updateEndpoint").unwrap();
    let call = Call::decode(kind, body.to_string().as_bytes()).unwrap();
    let answer = fixture.run(|staged| {
        call.check_scope(scope, staged)?;
        call.plan(scope, staged)
    });
    answer.map(|body| serde_json::from_slice(&body).unwrap()).map_err(|problem| problem.kind)
}

/// Whether the endpoints have labels.
fn labelled(fixture: &Fixture) -> Vec<bool> {
    fixture.endpoints().into_iter().map(|endpoint| endpoint.labels.is_some()).collect()
}

/// An agent reports the id of a container on another node as that of its own endpoint.
#[test]
fn a_container_id_that_another_node_has_blocks_no_agent() {
    let (first, second) = (Scope::Node("h1".into()), Scope::Node("h2".into()));
    let mut fixture = fixture();
    let done = Ok(json!({"IPAddress": ""}));
    assert_eq!(report(&mut fixture, &first, "start", "a"), done);
    assert_eq!(report(&mut fixture, &second, "start", "b"), done);
    assert_eq!(labelled(&fixture), [true, true]);
    assert_eq!(report(&mut fixture, &second, "die", "b"), done);
    assert_eq!(labelled(&fixture), [true, false]);
    // The endpoint of the other node is not touched.
    for endpoint in ["b", ""] {
        assert_eq!(report(&mut fixture, &second, "die", endpoint), Ok(Value::Null));
    }
    for event in ["start", "die"] {
        assert_eq!(report(&mut fixture, &second, event, "a"), Err(Kind::Forbidden), "{event}");
    }
    assert_eq!(labelled(&fixture), [true, false]);
    assert_eq!(report(&mut fixture, &first, "die", ""), done);
    assert_eq!(labelled(&fixture), [false, false]);
}

#[test]
fn a_token_for_all_nodes_ends_all_endpoints_of_a_container() {
    let mut fixture = fixture();
    for endpoint in ["a", "b"] {
        report(&mut fixture, &Scope::All, "start", endpoint).unwrap();
    }
    report(&mut fixture, &Scope::All, "die", "a").unwrap();
    assert_eq!(labelled(&fixture), [false, false]);
}
