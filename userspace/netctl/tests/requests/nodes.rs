//! Deletion of nodes.

use serde_json::json;

use crate::{
    run,
    server::{Reply, Server},
};

#[test]
fn a_rejection_does_not_stop_later_deletions() {
    let server = Server::start(|request| match request.line.as_str() {
        "DELETE /api/v1/nodes/h1/" => Reply::json(&json!({"host": "h1", "releasedEndpoints": 40})),
        "DELETE /api/v1/nodes/h3/" => Reply::json(&json!({"host": "h3", "releasedEndpoints": 0})),
        _ => Reply::refused("node h2 is registered; stop its agent\n"),
    });
    let (stdout, stderr, code) = run(&server, &["node", "rm", "h1", "h2", "h3"]);
    assert_eq!(stdout, "h1: deleted, endpoints released: 40\nh3: deleted, endpoints released: 0\n");
    assert_eq!(stderr, "netctl: delete node h2: node h2 is registered; stop its agent\n");
    assert_eq!((code, server.take().len()), (3, 3));
    assert_eq!(run(&server, &["node", "rm"]).2, 1);
    assert!(server.take().is_empty(), "a host is required");
}
