//! kill -9 loses nothing that was answered, and gives no address twice.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::client::{address, create_endpoint, delete_endpoint, get, make_network};
use crate::master::{Master, PATIENCE};

const CLIENTS: usize = 8;

/// What clients were told: endpoint to address; and what they asked for without an answer.
#[derive(Default)]
struct Told {
    addresses: BTreeMap<String, String>,
    unknown: BTreeSet<String>,
}

/// Creates and deletes until told to stop.
fn client(to: SocketAddr, n: usize, stop: &AtomicBool, told: &Mutex<Told>) {
    for i in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let id = format!("c{n}-{i}");
        match create_endpoint(to, "net", &id, "") {
            Ok(answer) if answer.status == 200 => {
                told.lock().unwrap().addresses.insert(id.clone(), address(answer));
            }
            Ok(_) | Err(_) => {
                told.lock().unwrap().unknown.insert(id);
                continue;
            }
        }
        if i % 3 == 0 {
            told.lock().unwrap().addresses.remove(&id);
            if !delete_endpoint(to, "net", &id).is_ok_and(|answer| answer.status == 200) {
                told.lock().unwrap().unknown.insert(id);
            }
        }
    }
}

fn endpoints(oper: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let endpoints = oper["endpoints"].as_array().unwrap();
    endpoints.iter().map(|e| (text(&e["endpointID"]), text(&e["ipAddress"][0]))).collect()
}

/// The addresses of `10.0.0.1-10.0.0.3, 10.0.0.7`.
fn listed(oper: &Value) -> BTreeSet<String> {
    let number = |ip: &str| u32::from(ip.parse::<std::net::Ipv4Addr>().unwrap());
    let runs = oper["allocatedIPAddresses"].as_str().unwrap().split(", ");
    runs.flat_map(|run| {
        let (a, b) = run.split_once('-').unwrap_or((run, run));
        (number(a)..=number(b)).map(|ip| std::net::Ipv4Addr::from(ip).to_string())
    })
    .collect()
}

fn no_address_twice(subnet: &str) {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded(store.path());
    make_network(master.address, "net", subnet);
    let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Told::default())));
    let to = master.address;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (stop, told) = (stop.clone(), told.clone());
            thread::spawn(move || client(to, n, &stop, &told))
        })
        .collect();
    for kills in 1..=2 {
        let enough = kills * 150;
        testkit::wait_until(PATIENCE, "endpoints", || {
            Ok((told.lock().unwrap().addresses.len() >= enough).then_some(()))
        })
        .unwrap();
        master.restart();
    }
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());

    let told = told.lock().unwrap();
    let oper = get(to, "/api/v1/inspect/networks/default:net/").unwrap().good()["Oper"].clone();
    let there = endpoints(&oper);
    for (id, ip) in &told.addresses {
        assert_eq!(there.get(id), Some(ip), "{id} was answered and is not there");
    }
    let unexpected = there.keys().find(|id| !told.addresses.contains_key(*id) && !told.unknown.contains(*id));
    assert_eq!(unexpected, None, "nobody asked for it, or it was deleted");
    let addresses: BTreeSet<String> = there.values().cloned().collect();
    assert_eq!(addresses.len(), there.len(), "an address was given twice");
    assert_eq!(listed(&oper), addresses, "the bitmap and the endpoints differ");
    assert_eq!(oper["numEndpoints"], there.len());
    assert_eq!(oper["allocatedAddressesCount"], there.len());

    // And at rest, what the store has is what was told before.
    master.stop();
    master.restart();
    let again = get(to, "/api/v1/inspect/networks/default:net/").unwrap().good()["Oper"].clone();
    assert_eq!(again, oper);
}

#[test]
fn a_killed_master_gives_no_address_twice() {
    no_address_twice("10.0.0.0/16");
}

/// Its record is journaled.
#[test]
fn a_killed_master_gives_no_address_twice_in_a_large_network() {
    no_address_twice("10.0.0.0/12");
}

/// Its own lock would stay for five minutes.
#[test]
fn a_killed_master_does_not_wait_for_itself() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded_with(store.path(), "300");
    make_network(master.address, "net", "10.0.0.0/24");
    master.restart();
    assert_eq!(address(create_endpoint(master.address, "net", "a", "").unwrap()), "10.0.0.1");
}
