//! Changes of nodes.

use std::fs::File;

use serde_json::json;

use crate::{
    netctl, read, run,
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

#[test]
fn a_rejection_does_not_keep_other_nodes_from_following_the_store() {
    let node = |host: &str| json!({"host": host, "degraded": ["store-regressed: the store was emptied"]});
    let nodes = json!([node("h1"), node("h2"), node("h3")]);
    let server = Server::start(move |request| match request.line.as_str() {
        "GET /api/v1/inspect/nodes/" => Reply::json(&nodes),
        "POST /api/v1/nodes/h1/acceptedStore/" => {
            Reply::refused("node h1 has not reported store-regressed\n")
        }
        _ => Reply::json(&json!({"host": "h"})),
    });
    let accepted = "h2: store accepted\nh3: store accepted\n";
    let (stdout, stderr, code) = run(&server, &["node", "accept-store", "h1", "h2", "h3"]);
    assert_eq!(stdout, accepted);
    assert_eq!(stderr, "netctl: accept the store for node h1: node h1 has not reported store-regressed\n");
    assert_eq!((code, server.take().len()), (3, 3));
    // The data of the first one came back after the list.
    let (stdout, stderr, code) = run(&server, &["node", "accept-store", "--all"]);
    assert_eq!(stdout, format!("h1: does not report store-regressed any more\n{accepted}"));
    assert_eq!((stderr.as_str(), code, server.take().len()), ("", 0, 4));
}

#[test]
fn a_failure_after_a_rejection_is_reported_with_it() {
    let failures: [fn() -> Reply; 2] = [|| Reply::new(503, "", "no netmaster leads"), Reply::lost];
    for failure in failures {
        for words in [["node", "rm"], ["node", "accept-store"]] {
            let server = Server::start(move |request| match request.line.contains("/nodes/h1/") {
                true => Reply::refused("node h1 is not as it must be\n"),
                false => failure(),
            });
            let (stdout, stderr, code) = run(&server, &[&words[..], &["h1", "h2", "h3"]].concat());
            let lines: Vec<&str> = stderr.lines().collect();
            assert_eq!((stdout.as_str(), lines.len(), code), ("", 2, 3), "{words:?}: {stderr}");
            assert!(lines[0].ends_with(" node h1: node h1 is not as it must be"), "{words:?}: {stderr}");
            assert!(lines[1].contains(" node h2: "), "{words:?}: {stderr}");
            assert!(lines[1].ends_with(" (later changes not sent: 1)"), "{words:?}: {stderr}");
            assert!(server.take().iter().all(|request| !request.line.contains("/h3/")), "{words:?}");
        }
    }
}

#[test]
fn a_rejection_is_reported_also_if_the_output_cannot_be_written() {
    let server = Server::start(|request| match request.line.contains("/nodes/h1/") {
        true => Reply::json(&json!({"host": "h1", "releasedEndpoints": 0})),
        false => Reply::refused("node h2 is not as it must be\n"),
    });
    for words in [["node", "rm"], ["node", "accept-store"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let words = [&words[..], &["h1", "h2"]].concat();
        let (_, stderr, code) = read(&netctl(&server.url(), &words).stdout(full).output().unwrap());
        assert!(stderr.ends_with(" node h2: node h2 is not as it must be\n"), "{words:?}: {stderr}");
        assert_eq!((stderr.lines().count(), code), (1, 3), "{words:?}: {stderr}");
    }
}
