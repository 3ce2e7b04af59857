//! Watches of objects.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::{Value, json};
use testkit::etcd::Etcd;

use crate::client::{connect, delete, get, make_network, post};
use crate::master::Master;

#[derive(Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) name: String,
    /// Key of the object; empty for other events.
    pub(crate) key: String,
    pub(crate) data: Value,
    id: Option<String>,
}

/// A stream of server-sent events.
pub(crate) struct Events(BufReader<TcpStream>);

impl Events {
    pub(crate) fn open(to: SocketAddr, path: &str, headers: &str) -> Events {
        let mut stream = connect(to).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {to}\r\nConnection: keep-alive\r\n{headers}\r\n")
            .unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(reader.read_line(&mut head).unwrap(), 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.to_ascii_lowercase().contains("content-type: text/event-stream"), "{head}");
        Events(reader)
    }

    /// The next event; none at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let (mut name, mut data, mut id) = (String::new(), Value::Null, None);
        loop {
            let mut line = String::new();
            // The last chunk of the response is empty. The connection may stay open, or end within an event.
            self.0.read_line(&mut line).unwrap();
            if !line.ends_with('\n') || line == "0\r\n" {
                return None;
            }
            // Lines that end with CR belong to the transfer encoding, others with a colon are comments.
            match line.trim_end_matches('\n').split_once(": ") {
                Some(("event", value)) => name = value.to_owned(),
                Some(("data", value)) => data = serde_json::from_str(value).unwrap(),
                Some(("id", value)) => id = Some(value.to_owned()),
                _ if line == "\n" && !name.is_empty() => {
                    let key = data["key"].as_str().unwrap_or_default().to_owned();
                    return Some(Event { name, key, data, id });
                }
                _ => {}
            }
        }
    }

    /// Name and key of the next event.
    pub(crate) fn seen(&mut self) -> (String, String) {
        let event = self.next().unwrap();
        (event.name, event.key)
    }
}

fn put(to: SocketAddr, name: &str, burst: i64) {
    let body = json!({"tenantName": "default", "profileName": name, "burst": 10 * burst});
    post(to, &format!("/api/v1/netprofiles/default:{name}/"), &body).unwrap().good();
}

fn remove(to: SocketAddr, name: &str) {
    delete(to, &format!("/api/v1/netprofiles/default:{name}/")).unwrap().good();
}

/// The number of a revision, which has the tag of its history.
fn number(revision: &str) -> i64 {
    revision.split_once('-').unwrap().0.parse().unwrap()
}

fn event(name: &str, key: &str) -> (String, String) {
    (name.to_owned(), key.to_owned())
}

#[test]
fn changes_after_a_list_are_sent_once_and_in_order() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded(store.path());
    let to = master.address;
    put(to, "old", 1);
    let revision = get(to, "/api/v1/netprofiles/").unwrap().header("netmaster-revision").unwrap().to_owned();
    put(to, "a", 1);
    let mut events = Events::open(to, &format!("/api/v1/netprofiles/?watch=1&revision={revision}"), "");
    // The revision may be earlier than that of the last change in the list.
    let mut first = events.next().unwrap();
    if first.key == "default:old" {
        first = events.next().unwrap();
    }
    assert_eq!((first.name.as_str(), first.key.as_str()), ("put", "default:a"));
    assert_eq!(first.data, get(to, "/api/v1/netprofiles/default:a/").unwrap().good());
    put(to, "a", 2);
    remove(to, "a");
    put(to, "b", 1);
    let changed = events.next().unwrap();
    assert_eq!((changed.name.as_str(), &changed.data["burst"]), ("put", &json!(20)));
    assert_eq!(events.seen(), event("delete", "default:a"));
    assert_eq!(events.seen(), event("put", "default:b"));

    // A client that lost its connection.
    let mut again = Events::open(
        to,
        "/api/v1/netprofiles/?watch=1",
        &format!("Last-Event-ID: {}\r\n", changed.id.unwrap()),
    );
    assert_eq!(again.seen(), event("delete", "default:a"));
    assert_eq!(again.seen(), event("put", "default:b"));

    let mut selected = Events::open(to, "/api/v1/netprofiles/?watch=1&fieldSelector=burst=10", "");
    assert_eq!(selected.seen(), event("put", "default:b"));
    assert_eq!(selected.seen(), event("put", "default:old"));
    assert_eq!(selected.next().unwrap().name, "synced");
    put(to, "b", 9);
    assert_eq!(selected.seen(), event("delete", "default:b"), "it is not selected any more");
    put(to, "b", 1);
    assert_eq!(selected.seen(), event("put", "default:b"));

    // The end of the leader ends the streams.
    master.stop();
    while again.next().is_some() {}
}

#[test]
fn a_watch_begins_with_a_snapshot_or_ends_when_its_history_is_compacted() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let first = Master::on_etcd(&etcd.endpoint());
    let follower = Master::on_etcd(&etcd.endpoint());
    let to = follower.address;
    put(to, "a", 1);
    let revision = get(to, "/api/v1/netprofiles/").unwrap().header("netmaster-revision").unwrap().to_owned();
    let mut events = Events::open(to, "/api/v1/netprofiles/?watch=1", "");
    assert_eq!(events.seen(), event("put", "default:a"));
    assert_eq!(events.next().unwrap().name, "synced");
    put(first.address, "b", 1);
    let last = events.next().unwrap();
    assert_eq!((last.name.as_str(), last.key.as_str()), ("put", "default:b"));

    put(to, "c", 1);
    etcd.ctl(&["compact", &(number(&last.id.unwrap()) + 1).to_string()]).unwrap();
    let mut late = Events::open(to, &format!("/api/v1/netprofiles/?watch=1&revision={revision}"), "");
    let gone = late.next().unwrap();
    assert_eq!((gone.name.as_str(), &gone.data["status"]), ("gone", &json!(410)));
    assert_eq!(late.next(), None);
    // An open watch is not affected.
    assert_eq!(events.seen(), event("put", "default:c"));
}

/// A client may have the revision of another store, or of a later state of one that was restored.
#[test]
fn a_watch_after_a_revision_that_the_store_has_not_reached_is_gone() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded(store.path());
    let to = master.address;
    put(to, "a", 1);
    let list = get(to, "/api/v1/netprofiles/").unwrap();
    let revision = number(list.header("netmaster-revision").unwrap());
    for after in [revision + 1_000_000, i64::MAX] {
        let mut late = Events::open(to, &format!("/api/v1/netprofiles/?watch=1&revision={after}"), "");
        let gone = late.next().unwrap();
        assert_eq!((gone.name.as_str(), &gone.data["status"]), ("gone", &json!(410)));
        assert_eq!(late.next(), None);
    }
    master.stop();
    let log = master.process.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// The store was replaced, and the new one has passed the revision that the client has.
#[test]
fn a_watch_after_a_revision_of_another_history_is_gone() {
    testkit::needs!(binary("etcd"));
    let mut etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    let to = master.address;
    put(to, "a", 1);
    let revision =
        || get(to, "/api/v1/netprofiles/").unwrap().header("netmaster-revision").unwrap().to_owned();
    let old = revision();
    master.restart();
    let mut events = Events::open(to, "/api/v1/netprofiles/?watch=1", &format!("Last-Event-ID: {old}\r\n"));
    assert_eq!(events.seen().0, "put", "another leader has the same history");
    master.kill();
    etcd.kill().unwrap();
    std::fs::remove_dir_all(etcd.data_dir()).unwrap();
    etcd.restart().unwrap();
    master.restart();
    for burst in (1..=2).cycle() {
        put(to, "b", burst);
        if number(&revision()) > number(&old) {
            break;
        }
    }
    for (path, header) in [
        ("/api/v1/netprofiles/?watch=1".to_owned(), format!("Last-Event-ID: {old}\r\n")),
        (format!("/api/v1/netprofiles/?watch=1&revision={old}"), String::new()),
    ] {
        let mut late = Events::open(to, &path, &header);
        let gone = late.next().unwrap();
        assert_eq!((gone.name.as_str(), &gone.data["status"]), ("gone", &json!(410)));
        assert_eq!(late.next(), None);
    }
    // A client that keeps numbers cannot be told.
    let path = format!("/api/v1/netprofiles/?watch=1&revision={}", number(&old));
    let mut numbered = Events::open(to, &path, "");
    put(to, "c", 1);
    while numbered.seen() != event("put", "default:c") {}
}

/// The record of an object does not change with links to objects that refer to it.
#[test]
fn changes_of_links_are_sent() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded(store.path());
    let to = master.address;
    put(to, "a", 1);
    make_network(to, "net", "10.1.0.0/24");
    let list = || get(to, "/api/v1/netprofiles/").unwrap();
    let revision = list().header("netmaster-revision").unwrap().to_owned();
    let tag = || get(to, "/api/v1/netprofiles/default:a/").unwrap().header("etag").unwrap().to_owned();
    let before = tag();
    let mut events = Events::open(to, "/api/v1/netprofiles/?watch=1", "");
    assert_eq!(events.seen(), event("put", "default:a"));
    assert_eq!(events.next().unwrap().name, "synced");

    let group = json!({"tenantName": "default", "groupName": "g", "networkName": "net", "netProfile": "a"});
    post(to, "/api/v1/endpointGroups/default:g/", &group).unwrap().good();
    let linked = events.next().unwrap();
    assert_eq!((linked.name.as_str(), linked.key.as_str(), &linked.id), ("put", "default:a", &None));
    assert_eq!(linked.data, list().good()[0]);
    assert!(linked.data["link-sets"]["EndpointGroups"]["default:g"].is_object(), "{linked:?}");
    assert_ne!(tag(), before);
    // A client that lost its connection.
    let mut again = Events::open(to, &format!("/api/v1/netprofiles/?watch=1&revision={revision}"), "");
    loop {
        let next = again.next().unwrap();
        assert_eq!(next.key, "default:a");
        if next.data == linked.data {
            break;
        }
    }
    delete(to, "/api/v1/endpointGroups/default:g/").unwrap().good();
    assert_eq!(events.next().unwrap().data["link-sets"], json!({}));
    assert_eq!(tag(), before);
    // Another process does not know which links changed before it started.
    put(to, "b", 1);
    master.restart();
    let mut late = Events::open(to, &format!("/api/v1/netprofiles/?watch=1&revision={revision}"), "");
    let mut seen = BTreeSet::new();
    while seen.len() < 2 {
        seen.insert(late.seen());
    }
    assert_eq!(seen, [event("put", "default:a"), event("put", "default:b")].into());
}

/// The objects of a type may be many: they are sent in parts, and changes meanwhile are not lost.
#[test]
fn a_snapshot_of_many_objects_is_whole_and_its_changes_follow() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    let name = |n: usize| format!("p{n:04}");
    // More than two pages.
    (0..600).for_each(|n| put(to, &name(n), 1));
    let mut events = Events::open(to, "/api/v1/netprofiles/?watch=1", "");
    assert_eq!(events.seen(), event("put", "default:p0000"));
    put(to, &name(599), 2);
    remove(to, &name(300));
    // Whether a part of the snapshot was read before a change or after it, the client ends with the same objects, and sees no
    // object in an earlier state than before.
    let (mut bursts, mut known, mut synced) = (vec![], BTreeSet::from(["default:p0000".to_owned()]), false);
    while !(synced && bursts.last() == Some(&20) && !known.contains("default:p0300")) {
        let seen = events.next().unwrap();
        match seen.name.as_str() {
            "synced" => synced = true,
            "put" => {
                assert!(synced || known.last() < Some(&seen.key), "the snapshot is in the order of the keys");
                if seen.key == "default:p0599" {
                    bursts.push(seen.data["burst"].as_i64().unwrap());
                }
                known.insert(seen.key);
            }
            _ => assert_eq!((seen.key.as_str(), known.remove(&seen.key) || !synced), ("default:p0300", true)),
        }
    }
    assert!(bursts == [10, 20] || bursts == [20], "{bursts:?}");
    assert_eq!(known.len(), 599);
}

/// A netmaster that starts does not know which links changed before. It sends all objects, in parts,
/// and the changes that come meanwhile follow.
#[test]
fn many_objects_whose_links_may_have_changed_are_sent_before_later_changes() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded(store.path());
    let to = master.address;
    let name = |n: usize| format!("p{n:04}");
    // More than one page.
    (0..300).for_each(|n| put(to, &name(n), 1));
    let revision = get(to, "/api/v1/netprofiles/").unwrap().header("netmaster-revision").unwrap().to_owned();
    remove(to, &name(150));
    put(to, &name(299), 3);
    master.restart();
    let mut events = Events::open(to, &format!("/api/v1/netprofiles/?watch=1&revision={revision}"), "");
    put(to, &name(0), 2);
    let (mut seen, mut changed, mut removed) = (BTreeSet::new(), false, false);
    while !(changed && removed && seen.len() == 299) {
        let next = events.next().unwrap();
        if next.name == "delete" {
            assert_eq!((next.key.as_str(), seen.contains(&next.key)), ("default:p0150", false));
            removed = true;
            continue;
        }
        assert_eq!(next.name, "put", "a watch after a revision has no snapshot whose end is reported");
        changed |= next.key == "default:p0000" && next.data["burst"] == 20;
        // Objects that are sent because of their links have no revision.
        if next.id.is_none() {
            seen.insert(next.key);
        }
    }
}

/// A client that does not read holds up no other, and misses nothing: it connects again after the last event that it has received.
#[test]
fn a_client_that_does_not_read_loses_its_connection_and_no_change() {
    const CHANGES: usize = 1000;
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    make_network(to, "net", "10.1.0.0/16");
    let change = |n: usize| {
        let selectors: Vec<String> = (0..1000).map(|m| format!("label-{m}=value-{n}")).collect();
        let body = json!({
            "tenantName": "default", "serviceName": "s", "networkName": "net", "ports": ["80:8080:TCP"],
            "selectors": selectors,
        });
        post(to, "/api/v1/serviceLBs/default:s/", &body).unwrap().good();
    };
    change(0);
    let mut slow = Events::open(to, "/api/v1/serviceLBs/?watch=1", "");
    let mut quick = Events::open(to, "/api/v1/serviceLBs/?watch=1", "");
    assert_eq!(slow.seen(), event("put", "default:s"));
    let synced = slow.next().unwrap();
    assert_eq!((synced.name.as_str(), quick.seen()), ("synced", event("put", "default:s")));
    assert_eq!(quick.next().unwrap().name, "synced");
    for n in 1..CHANGES {
        change(n);
        let changed = quick.next().unwrap();
        assert_eq!(changed.data["selectors"][0], json!(format!("label-0=value-{n}")));
    }
    let (mut seen, mut last) = (1, synced.id);
    while let Some(changed) = slow.next() {
        assert_eq!(changed.data["selectors"][0], json!(format!("label-0=value-{seen}")));
        (seen, last) = (seen + 1, changed.id);
    }
    assert!(seen < CHANGES, "the buffers on the way have room for all of them");
    let path = format!("/api/v1/serviceLBs/?watch=1&revision={}", last.unwrap());
    let mut again = Events::open(to, &path, "");
    for n in seen..CHANGES {
        let changed = again.next().unwrap();
        assert_eq!(changed.data["selectors"][0], json!(format!("label-0=value-{n}")));
    }
}
