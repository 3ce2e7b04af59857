//! After kill -9 all acknowledged changes exist, and no address is allocated twice.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

use crate::client::{address, create_endpoint, delete_endpoint, get, make_network};
use crate::master::{Master, WAIT_TIMEOUT};

const CLIENTS: usize = 8;

/// Acknowledged endpoints with their addresses, and requests without a response.
#[derive(Default)]
struct Acknowledged {
    addresses: BTreeMap<String, String>,
    unknown: BTreeSet<String>,
}

/// Creates and deletes endpoints until `stop`.
fn client(to: SocketAddr, n: usize, stop: &AtomicBool, acknowledged: &Mutex<Acknowledged>) {
    for i in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let id = format!("c{n}-{i}");
        match create_endpoint(to, "net", &id, "") {
            Ok(answer) if answer.status == 200 => {
                acknowledged.lock().unwrap().addresses.insert(id.clone(), address(answer));
            }
            Ok(_) | Err(_) => {
                acknowledged.lock().unwrap().unknown.insert(id);
                continue;
            }
        }
        if i % 3 == 0 {
            acknowledged.lock().unwrap().addresses.remove(&id);
            if !delete_endpoint(to, "net", &id).is_ok_and(|answer| answer.status == 200) {
                acknowledged.lock().unwrap().unknown.insert(id);
            }
        }
    }
}

fn endpoints(oper: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let endpoints = oper["endpoints"].as_array().unwrap();
    endpoints.iter().map(|e| (text(&e["endpointID"]), text(&e["ipAddress"][0]))).collect()
}

/// Expands address ranges such as `10.0.0.1-10.0.0.3, 10.0.0.7`.
fn listed(oper: &Value) -> BTreeSet<String> {
    let number = |ip: &str| u32::from(ip.parse::<std::net::Ipv4Addr>().unwrap());
    let runs = oper["allocatedIPAddresses"].as_str().unwrap().split(", ");
    runs.flat_map(|run| {
        let (a, b) = run.split_once('-').unwrap_or((run, run));
        (number(a)..=number(b)).map(|ip| std::net::Ipv4Addr::from(ip).to_string())
    })
    .collect()
}

fn check_no_address_twice(subnet: &str) {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded(store.path());
    make_network(master.address, "net", subnet);
    let (stop, acknowledged) =
        (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Acknowledged::default())));
    let to = master.address;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (stop, acknowledged) = (stop.clone(), acknowledged.clone());
            thread::spawn(move || client(to, n, &stop, &acknowledged))
        })
        .collect();
    for kills in 1..=2 {
        let enough = kills * 150;
        testkit::wait_until(WAIT_TIMEOUT, "endpoints", || {
            Ok((acknowledged.lock().unwrap().addresses.len() >= enough).then_some(()))
        })
        .unwrap();
        master.restart();
    }
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().unwrap());

    let acknowledged = acknowledged.lock().unwrap();
    let oper = get(to, "/api/v1/inspect/networks/default:net/").unwrap().good()["Oper"].clone();
    let there = endpoints(&oper);
    for (id, ip) in &acknowledged.addresses {
        assert_eq!(there.get(id), Some(ip), "{id} was answered and is not there");
    }
    let unexpected = there
        .keys()
        .find(|id| !acknowledged.addresses.contains_key(*id) && !acknowledged.unknown.contains(*id));
    assert_eq!(unexpected, None, "not requested, or deleted");
    let addresses: BTreeSet<String> = there.values().cloned().collect();
    assert_eq!(addresses.len(), there.len(), "an address was allocated twice");
    assert_eq!(listed(&oper), addresses, "the bitmap and the endpoints differ");
    assert_eq!(oper["numEndpoints"], there.len());
    assert_eq!(oper["allocatedAddressesCount"], there.len());

    // At the end the store has exactly the acknowledged endpoints.
    master.stop();
    master.restart();
    let again = get(to, "/api/v1/inspect/networks/default:net/").unwrap().good()["Oper"].clone();
    assert_eq!(again, oper);
}

#[test]
fn a_killed_master_allocates_no_address_twice() {
    check_no_address_twice("10.0.0.0/16");
}

/// The record of a large network is journaled.
#[test]
fn a_killed_master_allocates_no_address_twice_in_a_large_network() {
    check_no_address_twice("10.0.0.0/12");
}

/// The lock of the killed master would expire after five minutes.
#[test]
fn a_restarted_master_releases_its_own_lock() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded_with(store.path(), "300");
    make_network(master.address, "net", "10.0.0.0/24");
    master.restart();
    assert_eq!(address(create_endpoint(master.address, "net", "a", "").unwrap()), "10.0.0.1");
}
