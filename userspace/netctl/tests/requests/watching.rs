//! `--watch` and `wait` where netmaster sends the changes.

use std::{
    fmt,
    io::{BufRead, BufReader, Lines},
    process::{Child, ChildStdout, Stdio},
    slice,
    sync::mpsc::{self, Receiver, Sender},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    netctl, run,
    server::{Reply, Request, Server},
};

fn tenant(name: &str) -> Value {
    json!({"key": name, "tenantName": name})
}

fn put(name: &str, id: u64) -> String {
    format!("event: put\ndata: {}\nid: {id}\n\n", tenant(name))
}

fn delete(name: &str, id: u64) -> String {
    format!("event: delete\ndata: {}\nid: {id}\n\n", json!({"key": name}))
}

const SYNCED: &str = "event: synced\ndata: {}\nid: 5\n\n";
const GONE: &str = "event: gone\ndata: {\"status\":410}\n\n";

/// A netmaster whose streams the test writes to: each that is opened arrives in the receiver.
fn sending(mut list: impl FnMut(&Request) -> Reply + Send + 'static) -> (Server, Receiver<Sender<String>>) {
    let (streams, opened) = mpsc::channel();
    let server = Server::start(move |request| match request.is_watch() {
        true => {
            let (events, reply) = Reply::events();
            // The test may have ended.
            let _ = streams.send(events);
            reply
        }
        false => list(request),
    });
    (server, opened)
}

/// A list with the revision that it was read at.
fn tenants(names: &[&str], revision: impl fmt::Display) -> Reply {
    let list: Value = names.iter().map(|name| tenant(name)).collect();
    Reply::json(&list).with("Netmaster-Revision", revision)
}

/// netctl that runs until the test ends.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(server: &Server, words: &[&str]) -> Running {
        Running::at(&server.url(), words)
    }

    fn at(master: &str, words: &[&str]) -> Running {
        let mut command = netctl(master, words);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines }
    }

    fn read(&mut self, count: usize) -> Vec<String> {
        self.lines.by_ref().take(count).map(Result::unwrap).collect()
    }

    /// Reads until the last lines are these.
    fn read_until(&mut self, last: &[&str]) {
        let mut read: Vec<String> = vec![];
        let last: Vec<String> = last.iter().map(|line| (*line).to_owned()).collect();
        while !read.ends_with(&last) {
            read.push(self.lines.next().unwrap().unwrap());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Method, path, query and `Last-Event-ID` of the requests.
fn asked(server: &Server) -> Vec<(String, Option<String>)> {
    let requests = server.take().into_iter();
    let parts =
        |it: Request| (format!("{}?{}", it.line, it.query), it.header("last-event-id").map(str::to_owned));
    requests.map(parts).collect()
}

fn request(query: &str, last_event: Option<&str>) -> (String, Option<String>) {
    (format!("GET /api/v1/tenants/?{query}"), last_event.map(str::to_owned))
}

#[test]
fn changes_are_shown_as_netmaster_sends_them() {
    let (server, opened) = sending(|_| tenants(&["a"], 3));
    let mut netctl = Running::start(&server, &["tenant", "ls", "-q", "-w"]);
    assert_eq!(netctl.read(1), ["a"]);
    let events = opened.recv().unwrap();
    events.send(put("b", 4)).unwrap();
    assert_eq!(netctl.read(3), ["", "a", "b"]);
    // The same object again, comments, and events that are not known change nothing.
    events.send(format!("{}:\n\nevent: news\ndata: x\n\n", put("b", 4))).unwrap();
    events.send(delete("a", 5)).unwrap();
    assert_eq!(netctl.read(2), ["", "b"]);
    // Changes that come together.
    events.send(put("c", 6) + &put("d", 7) + &delete("c", 8)).unwrap();
    netctl.read_until(&["", "b", "d"]);
    // An event may come in pieces.
    let event = put("日本", 9);
    let (half, rest) = event.split_at(event.find('日').unwrap());
    events.send(half.to_owned()).unwrap();
    events.send(rest.to_owned()).unwrap();
    assert_eq!(netctl.read(4), ["", "b", "d", "日本"]);
    assert_eq!(asked(&server), [request("limit=500", None), request("watch=1&revision=3", None)]);
}

#[test]
fn broken_stream_is_continued_after_its_last_event() {
    let (server, opened) = sending(|_| tenants(&["a"], 3));
    let mut netctl = Running::start(&server, &["get", "tenants", "-o", "name", "-w"]);
    assert_eq!(netctl.read(1), ["tenant/a"]);
    // Before the first event: after the list.
    drop(opened.recv().unwrap());
    let events = opened.recv().unwrap();
    // The second event belongs to a revision of which not all events have come.
    events.send(put("b", 4) + &put("c", 5).replace("id: 5\n", "")).unwrap();
    netctl.read_until(&["", "tenant/a", "tenant/b", "tenant/c"]);
    drop(events);
    let events = opened.recv().unwrap();
    events.send(put("c", 5) + &delete("b", 5)).unwrap();
    assert_eq!(netctl.read(3), ["", "tenant/a", "tenant/c"]);
    let stream = "watch=1&revision=3";
    assert_eq!(
        asked(&server),
        [
            request("limit=500", None),
            request(stream, None),
            request(stream, None),
            request("watch=1", Some("4")),
        ]
    );
}

/// netmaster adds a tag of the history that they are of.
#[test]
fn revisions_are_sent_back_as_they_came() {
    let (server, opened) = sending(|_| tenants(&["a"], "3-1f2e3d4c"));
    let mut netctl = Running::start(&server, &["tenant", "ls", "-q", "-w"]);
    assert_eq!(netctl.read(1), ["a"]);
    let events = opened.recv().unwrap();
    events.send(put("b", 4).replace("id: 4", "id: 4-1f2e3d4c")).unwrap();
    assert_eq!(netctl.read(3), ["", "a", "b"]);
    drop(events);
    let _again = opened.recv().unwrap();
    assert_eq!(
        asked(&server),
        [
            request("limit=500", None),
            request("watch=1&revision=3-1f2e3d4c", None),
            request("watch=1", Some("4-1f2e3d4c")),
        ]
    );
}

#[test]
fn objects_are_listed_again_if_the_changes_are_gone() {
    let mut count = 0;
    let (server, opened) = sending(move |_| {
        count += 1;
        if count == 1 { tenants(&["a", "b"], 3) } else { tenants(&["b", "c"], 90) }
    });
    let mut netctl = Running::start(&server, &["tenant", "ls", "-q", "-w"]);
    assert_eq!(netctl.read(2), ["a", "b"]);
    let events = opened.recv().unwrap();
    events.send(GONE.to_owned()).unwrap();
    assert_eq!(netctl.read(3), ["", "b", "c"]);
    // What the old stream still sends is not used.
    let _ = events.send(put("x", 4));
    let _old = events;
    let events = opened.recv().unwrap();
    events.send(put("d", 91)).unwrap();
    assert_eq!(netctl.read(4), ["", "b", "c", "d"]);
    assert_eq!(
        asked(&server),
        [
            request("limit=500", None),
            request("watch=1&revision=3", None),
            request("limit=500", None),
            request("watch=1&revision=90", None),
        ]
    );
}

/// A change between the first and the last page may be on none of them.
#[test]
fn watch_begins_at_the_first_page() {
    let (server, opened) = sending(|request| match request.query.contains("continue") {
        false => tenants(&["a"], 3).with("Link", "</api/v1/tenants/?limit=500&continue=a>; rel=\"next\""),
        true => tenants(&["b"], 9),
    });
    let mut netctl = Running::start(&server, &["tenant", "ls", "-q", "-w"]);
    assert_eq!(netctl.read(2), ["a", "b"]);
    let events = opened.recv().unwrap();
    events.send(put("aa", 4)).unwrap();
    assert_eq!(netctl.read(4), ["", "a", "aa", "b"]);
    assert_eq!(asked(&server).pop(), Some(request("watch=1&revision=3", None)));
}

#[test]
fn only_what_is_shown_is_watched() {
    let object = |name: &str| json!({"key": format!("t:{name}"), "tenantName": "t", "networkName": name});
    let (server, opened) = sending(move |request| match request.line.as_str() {
        "GET /api/v1/networks/" => Reply::json(&json!([object("n")])).with("Netmaster-Revision", 3),
        _ => Reply::json(&json!([])).with("Netmaster-Revision", 3),
    });
    let watches = |server: &Server| -> Vec<String> {
        server
            .take()
            .into_iter()
            .filter(Request::is_watch)
            .map(|it| format!("{}?{}", it.line, it.query))
            .collect()
    };
    let event = |name: &str, tenant: &str| {
        let object = json!({"key": format!("{tenant}:{name}"), "tenantName": tenant, "networkName": name});
        format!("event: put\ndata: {object}\nid: 4\n\n")
    };
    let mut netctl = Running::start(&server, &["net", "ls", "-t", "t", "-q", "-w"]);
    assert_eq!(netctl.read(1), ["n"]);
    // A netmaster that does not know selectors sends all.
    let events = opened.recv().unwrap();
    events.send(event("x", "u") + &event("m", "t")).unwrap();
    assert_eq!(netctl.read(3), ["", "m", "n"]);
    assert_eq!(watches(&server), ["GET /api/v1/networks/?watch=1&revision=3&fieldSelector=tenantName=t"]);

    drop(netctl);
    let mut netctl = Running::start(&server, &["get", "net", "n", "-t", "t", "-o", "jsonpath=.encap", "-w"]);
    let events = opened.recv().unwrap();
    let with_encap = event("n", "t").replace("\"tenantName\"", "\"encap\":\"vlan\",\"tenantName\"");
    events.send(with_encap).unwrap();
    assert_eq!(netctl.read(2), ["", "vlan"]);
    assert_eq!(watches(&server), ["GET /api/v1/networks/?watch=1&revision=3&fieldSelector=key=t:n"]);

    drop(netctl);
    // A kind in each stream.
    let mut netctl = Running::start(&server, &["get", "all", "-t", "t", "-o", "name", "-w"]);
    assert_eq!(netctl.read(1), ["network/t:n"]);
    let streams: Vec<Sender<String>> = (0..9).map(|_| opened.recv().unwrap()).collect();
    let (mut kinds, count) = (watches(&server), streams.len());
    kinds.sort();
    kinds.dedup();
    assert_eq!(kinds.len(), count);
}

#[test]
fn missing_object_is_not_watched() {
    let (server, _opened) = sending(|_| Reply::json(&json!([])).with("Netmaster-Revision", 3));
    let (_, stderr, code) = run(&server, &["get", "net", "n", "-w"]);
    assert_eq!((stderr.as_str(), code), ("netctl: network not found\n", 3));
}

#[test]
fn failures_to_continue_are_reported_once() {
    let mut count = 0;
    let (sender, opened) = mpsc::channel();
    let server = Server::start(move |request| {
        if !request.is_watch() {
            return tenants(&["a"], 3);
        }
        count += 1;
        match count {
            2 | 3 => Reply::new(503, "", "too many open watches"),
            _ => {
                let (events, reply) = Reply::events();
                let _ = sender.send(events);
                reply
            }
        }
    });
    let mut netctl = Running::start(&server, &["tenant", "ls", "-q", "-w"]);
    assert_eq!(netctl.read(1), ["a"]);
    drop(opened.recv().unwrap());
    let events = opened.recv().unwrap();
    events.send(put("b", 4)).unwrap();
    assert_eq!(netctl.read(3), ["", "a", "b"]);
    netctl.child.kill().unwrap();
    let mut stderr = String::new();
    std::io::Read::read_to_string(&mut netctl.child.stderr.take().unwrap(), &mut stderr).unwrap();
    assert_eq!(stderr, "netctl: too many open watches\n");
}

/// A netmaster that is cut off from the others does not learn who leads.
#[test]
fn another_netmaster_sends_the_changes_if_the_first_is_unavailable() {
    for status in [503, 429] {
        let cut_off = Server::start(move |request| match request.is_watch() {
            true => Reply::new(status, "", "Leader not found\n"),
            false => tenants(&["a"], 3),
        });
        let (other, opened) = sending(|_| tenants(&["a"], 3));
        let masters = format!("{},{}", cut_off.url(), other.url());
        let mut netctl = Running::at(&masters, &["tenant", "ls", "-q", "-w"]);
        assert_eq!(netctl.read(1), ["a"]);
        let events = opened.recv_timeout(Duration::from_secs(60)).unwrap();
        events.send(put("b", 4)).unwrap();
        assert_eq!(netctl.read(3), ["", "a", "b"]);
        assert_eq!(asked(&other), [request("watch=1&revision=3", None)]);
    }
}

/// Runs `netctl wait tenant a WORDS`; netmaster answers a look with `found`, and the watches with these events.
fn wait(words: &[&str], found: fn() -> Reply, streams: &[&[String]]) -> ((String, String, i32), Server) {
    let mut streams: Vec<Vec<String>> = streams.iter().rev().map(|events| events.to_vec()).collect();
    let server = Server::start(move |request| match request.is_watch() {
        true => Reply::stream(&streams.pop().unwrap_or_default()),
        false => found(),
    });
    (run(&server, &[&["wait", "tenant", "a"], words].concat()), server)
}

#[test]
fn wait_follows_the_changes() {
    let absent = || Reply::refused("tenant not found");
    let present = || Reply::json(&tenant("a"));
    let synced = SYNCED.to_owned();
    let changed = put("a", 6).replace("{\"key\"", "{\"defaultNetwork\":\"n\",\"key\"");
    let met = ("tenant a condition met\n".to_owned(), String::new(), 0);
    for (words, found, streams) in [
        (
            &["--for=create"][..],
            absent as fn() -> Reply,
            &[&[synced.clone(), put("b", 6), put("a", 7)][..]][..],
        ),
        (&["--for=create"], absent, &[&[put("a", 5), synced.clone()]]),
        (&["--for=delete"], present, &[&[put("a", 5), synced.clone(), delete("b", 6), delete("a", 7)]]),
        // It has been deleted since the look.
        (&["--for=delete"], present, &[slice::from_ref(&synced)]),
        (
            &["--for=jsonpath=.defaultNetwork=n"],
            present,
            &[&[put("a", 5), synced.clone(), delete("a", 6), put("a", 6), changed.clone()]],
        ),
        // Streams that end early tell nothing.
        (&["--for=delete"], present, &[&[], &[put("a", 5)], &[GONE.to_owned()], slice::from_ref(&synced)]),
        (&["--for=create"], absent, &[slice::from_ref(&synced), &[synced.clone(), put("a", 7)]]),
    ] {
        let (done, server) = wait(&[words, &["--timeout=1h"]].concat(), found, streams);
        assert_eq!(done, met, "{words:?} {streams:?}");
        let (watches, looks): (Vec<_>, Vec<_>) = server.take().into_iter().partition(Request::is_watch);
        assert_eq!((watches.len(), looks.len()), (streams.len(), streams.len()), "{words:?} {streams:?}");
        assert!(watches.iter().all(|it| it.query == "watch=1&fieldSelector=key=a"), "{watches:?}");
    }
}

#[test]
fn wait_on_a_silent_stream_ends_at_its_time_limit() {
    // The stream stays open as long as the receiver has its sender.
    let (server, _opened) = sending(|_| Reply::refused("tenant not found"));
    let ran = run(&server, &["wait", "tenant", "a", "--for=create", "--timeout=3s"]);
    let why = "netctl: wait for tenant a: condition not met within 3s: it does not exist\n";
    assert_eq!(ran, (String::new(), why.to_owned(), 5));
    assert!(server.take().iter().any(Request::is_watch));
}
