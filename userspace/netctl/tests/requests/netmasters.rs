//! Several netmasters, and netmasters that are temporarily unavailable.

use std::net::TcpListener;

use serde_json::json;

use crate::{
    netctl, read, run,
    server::{Reply, Server},
};

/// URL of a port without a listener.
fn unreachable() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

fn lines(server: &Server) -> Vec<String> {
    server.take().into_iter().map(|request| request.line).collect()
}

#[test]
fn next_netmaster_is_asked_if_one_cannot_be_reached() {
    let server = Server::start(|_| Reply::json(&json!([])));
    let (one, two, url) = (unreachable(), unreachable(), server.url());
    let asked = ["GET /api/v1/tenants/"];
    let list = format!("{one}, {two}/,{url}/");
    let (_, stderr, code) = read(&netctl(&list, &["tenant", "ls"]).output().unwrap());
    assert_eq!((stderr.as_str(), code), ("", 0));
    assert_eq!(lines(&server), asked);

    let words = ["tenant", "ls", "--netmaster", &one, "--netmaster", &url];
    let (_, stderr, code) = read(&netctl("http://127.0.0.1:2", &words).output().unwrap());
    assert_eq!((stderr.as_str(), code), ("", 0));
    assert_eq!(lines(&server), asked);

    // The one that answers is asked first from then on: two requests, the second without a detour.
    let (_, stderr, code) = read(&netctl(&list, &["tenant", "create", "t"]).output().unwrap());
    assert_eq!((stderr.as_str(), code), ("", 0));
    assert_eq!(lines(&server), ["POST /api/v1/tenants/t/"]);

    let list = format!("{one},{two}");
    let (_, stderr, code) = read(&netctl(&list, &["tenant", "ls"]).output().unwrap());
    let shown: Vec<&str> = stderr.lines().collect();
    assert_eq!((shown.len(), code), (2, 3), "{stderr}");
    assert!(shown[0].starts_with(&format!("netctl: GET {one}/api/v1/tenants/?limit=500 (check")), "{stderr}");
    assert!(shown[1].starts_with(&format!("netctl: GET {two}/api/v1/tenants/?limit=500 (check")), "{stderr}");
    assert!(shown.iter().all(|line| line.contains("refused")), "{stderr}");
}

#[test]
fn change_whose_answer_is_lost_is_not_sent_twice() {
    let lost = Server::start(|_| Reply::lost());
    let other = Server::start(|_| Reply::json(&json!([])));
    let list = format!("{},{}", lost.url(), other.url());
    for (words, code, elsewhere) in [
        (["tenant", "create", "t"], 3, false),
        (["tenant", "rm", "t"], 3, false),
        (["get", "tenants", "-oname"], 0, true),
    ] {
        let ran = read(&netctl(&list, &words).output().unwrap());
        assert_eq!(ran.2, code, "{words:?}: {ran:?}");
        assert_eq!(ran.1.contains("the change may have been carried out"), code == 3, "{ran:?}");
        assert_eq!(lost.take().len(), 1, "{words:?}");
        assert_eq!(!other.take().is_empty(), elsewhere, "{words:?}");
    }
}

/// Answers the first `count` requests with 503.
fn unavailable(count: usize, headers: &'static str, text: &'static str) -> Server {
    refusing(503, count, headers, text)
}

fn refusing(status: u16, count: usize, headers: &'static str, text: &'static str) -> Server {
    let mut left = count;
    Server::start(move |_| {
        if left == 0 {
            return Reply::json(&json!([]));
        }
        left -= 1;
        Reply::new(status, headers, format!("{text}\n"))
    })
}

#[test]
fn too_many_requests_of_a_client_are_repeated() {
    let text = "ops has 200 requests in flight; retry when one of them is answered";
    for (count, requests, code) in [(3, 4, 0), (1000, 8, 3)] {
        let server = refusing(429, count, "Retry-After: 0\r\n", text);
        let (_, stderr, got) = run(&server, &["tenant", "create", "t"]);
        assert_eq!((got, server.take().len()), (code, requests), "{stderr}");
        assert_eq!(stderr, if code == 0 { String::new() } else { format!("netctl: {text}\n") });
    }
}

#[test]
fn unavailable_netmaster_is_asked_again_as_it_says() {
    let (again, elected) = ("Retry-After: 0\r\n", "no netmaster leads; retry");
    let unsure = "netmaster x closed the connection; retry; the request may have been carried out";
    let create = ["tenant", "create", "t"];
    let list = ["tenant", "ls", "-q"];
    for (count, headers, text, words, requests, code) in [
        (3, again, elected, create, 4, 0),
        (3, again, elected, list, 4, 0),
        (3, again, unsure, list, 4, 0),
        (3, again, unsure, create, 1, 3),
        (3, "", elected, list, 1, 3),
        (1000, again, elected, list, 8, 3),
    ] {
        let server = unavailable(count, headers, text);
        let (_, stderr, got) = run(&server, &words);
        assert_eq!((got, server.take().len()), (code, requests), "{text} {words:?}: {stderr}");
        assert_eq!(stderr, if code == 0 { String::new() } else { format!("netctl: {text}\n") });
    }

    // Another netmaster may know the leader.
    let (cut_off, other) = (unavailable(1000, again, elected), unavailable(0, "", ""));
    let list = format!("{},{}", cut_off.url(), other.url());
    assert_eq!(read(&netctl(&list, &create).output().unwrap()).2, 0);
    assert_eq!((cut_off.take().len(), other.take().len()), (1, 1));
}

/// The change may have been carried out.
#[test]
fn changes_are_not_repeated_after_errors_of_a_gateway() {
    for status in [502, 504] {
        let server = refusing(status, 1000, "Retry-After: 0\r\n", "no answer of netmaster");
        for words in [["tenant", "create", "t"], ["tenant", "rm", "t"]] {
            let (_, stderr, code) = run(&server, &words);
            assert_eq!((stderr.as_str(), code), ("netctl: no answer of netmaster\n", 3), "{words:?}");
            assert_eq!(server.take().len(), 1, "{status} {words:?}");
        }
    }
}

/// A change would become a GET, and a token would go wherever the redirection points.
#[test]
fn redirections_are_not_followed() {
    let other = Server::start(|_| Reply::json(&json!([])));
    let to = format!("{}/api/v1/tenants/", other.url());
    for status in [301, 302, 303, 307, 308] {
        let (header, body) = (format!("Location: {to}\r\n"), "moved\n");
        let server = Server::start(move |_| Reply::new(status, &header, body));
        for words in [&["tenant", "create", "t"][..], &["tenant", "rm", "t"], &["tenant", "ls"]] {
            let (stdout, stderr, code) = run(&server, words);
            assert_eq!((stdout.as_str(), code), ("", 3), "{status} {words:?}: {stderr}");
            assert!(
                stderr.contains(&format!("redirected to {to}, which netctl does not follow")),
                "{stderr}"
            );
        }
        assert_eq!(server.take().len(), 3);
    }
    assert!(other.take().is_empty());
}
