//! `wait` and `--watch`.

use std::{
    io::{BufRead as _, BufReader},
    process::Stdio,
};

use serde_json::{Value, json};

use crate::{
    netctl, run,
    server::{Reply, Server},
};

/// Answers the first request for the object with `before` and later ones with `after`. It does not send changes.
fn changing(before: fn() -> Reply, after: fn() -> Reply) -> Server {
    let mut is_first = true;
    Server::start(move |request| match request.is_watch() {
        true => Reply::json(&json!([])),
        false if std::mem::take(&mut is_first) => before(),
        false => after(),
    })
}

fn network(subnet: &str) -> Reply {
    Reply::json(&json!({"key": "default:n", "networkName": "n", "tenantName": "default", "subnet": subnet}))
}

fn nodes(state: &str) -> Reply {
    Reply::json(&json!([{"host": "h1", "state": state}]))
}

#[test]
fn wait_ends_when_the_condition_is_met() {
    let missing = || Reply::refused("network not found");
    let (a, b) = (|| network("a"), || network("b"));
    for (server, words, shown) in [
        (changing(missing, a), &["net", "n", "--for=create"][..], "network default:n"),
        (changing(a, missing), &["net", "n", "--for", "delete"], "network default:n"),
        (changing(a, b), &["net", "n", "--for=jsonpath={.subnet}=b"], "network default:n"),
        (changing(|| network(""), b), &["net", "n", "--for=jsonpath=.subnet"], "network default:n"),
        (changing(|| nodes("degraded"), || nodes("ready")), &["node", "h1", "--for=ready"], "node h1"),
        (
            changing(|| nodes("ready"), || nodes("gone")),
            &["node", "h1", "--for=jsonpath=.state=gone"],
            "node h1",
        ),
        // A netmaster that fails is asked again.
        (changing(Reply::lost, a), &["net", "n", "--for=create"], "network default:n"),
        (
            changing(|| Reply::new(503, "", "no leader"), a),
            &["net", "n", "--for=create"],
            "network default:n",
        ),
        // A load balancer has no answer of netmaster.
        (
            changing(|| Reply::new(502, "", "bad gateway"), a),
            &["net", "n", "--for=create"],
            "network default:n",
        ),
        (
            changing(|| Reply::new(504, "", "gateway timeout"), a),
            &["net", "n", "--for=create"],
            "network default:n",
        ),
    ] {
        let all = [&["wait"], words, &["--timeout", "1h"]].concat();
        let (stdout, stderr, code) = run(&server, &all);
        assert_eq!(
            (stdout, stderr, code),
            (format!("{shown} condition met\n"), String::new(), 0),
            "{words:?}"
        );
        let looks = server.take().into_iter().filter(|request| !request.is_watch());
        assert_eq!(looks.count(), 2, "{words:?}");
    }
}

#[test]
fn wait_ends_at_its_time_limit() {
    let exists = Server::start(|_| network("a"));
    let missing = Server::start(|_| Reply::refused("network not found"));
    let lost = Server::start(|_| Reply::lost());
    for (server, condition, reason) in [
        (&exists, "delete", "it exists"),
        (&exists, "jsonpath=.subnet=b", "it exists"),
        (&missing, "create", "it does not exist"),
        (&missing, "jsonpath=.subnet", "it does not exist"),
        (&lost, "create", "GET http://"),
    ] {
        let (stdout, stderr, code) = run(server, &["wait", "net", "n", "--for", condition, "--timeout=0s"]);
        let start = "netctl: wait for network default:n: condition not met within 0s: ";
        assert!(stderr.starts_with(&format!("{start}{reason}")), "{stderr}");
        assert_eq!((stdout.as_str(), code), ("", 5));
    }
    for (words, message) in [
        (&["net", "n", "--for", "ready"][..], "--for=ready is for nodes only"),
        (&["net", "n", "--for", "happy"], "expected create, delete, ready or jsonpath=QUERY=VALUE"),
        (&["net", "n", "--for", "jsonpath=$["], "JSONPath $["),
        (&["thing", "n", "--for", "create"], "wait thing: expected global, aci-gw"),
        (&["net", "n"], "--for"),
    ] {
        let (_, stderr, code) = run(&exists, &[&["wait"], words].concat());
        assert!(stderr.contains(message), "{stderr}");
        assert_eq!(code, 1, "{words:?}");
    }
}

#[test]
fn watched_list_is_printed_again_when_it_changes() {
    let list = |names: &[&str]| -> Reply {
        let object = |name: &&str| json!({"key": name, "tenantName": name});
        Reply::json(&names.iter().map(object).collect::<Value>())
    };
    let mut count = 0;
    let server = Server::start(move |_| {
        count += 1;
        match count {
            1 | 2 => list(&["a"]),
            // Later failures are reported.
            3 => Reply::refused("store unavailable"),
            _ => list(&["a", "b"]),
        }
    });
    for words in [&["tenant", "ls", "-q", "--watch"][..], &["get", "tenants", "-w", "-o", "name"]] {
        let prefix = if words[0] == "get" { "tenant/" } else { "" };
        let mut child =
            netctl(&server.url(), words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        if prefix.is_empty() {
            assert_eq!(lines.by_ref().take(4).collect::<Vec<_>>(), ["a", "", "a", "b"]);
        } else {
            assert_eq!(lines.by_ref().take(2).collect::<Vec<_>>(), ["tenant/a", "tenant/b"]);
        }
        child.kill().unwrap();
        let stderr = String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap();
        assert_eq!(stderr, if prefix.is_empty() { "netctl: store unavailable\n" } else { "" });
    }
    // A failure of the first request ends the command.
    let (_, stderr, code) = run(&Server::start(|_| Reply::refused("no")), &["tenant", "ls", "-w"]);
    assert_eq!((stderr.as_str(), code), ("netctl: no\n", 3));
}
