//! Address allocation under load while netmaster is killed.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Result;
use contiv_model::{endpoint, network};
use e2e::{
    http::{Client, JSON, Response},
    master::{Master, Options, Store},
};
use serde_json::json;
use testkit::{
    etcd::{Etcd, etcdctl},
    free_port, needs, scratch_dir, wait_until,
};

const ENDPOINTS: usize = 10_000;
const CLIENTS: usize = 64;
/// netmaster is killed at these numbers of endpoints.
const KILLS: [usize; 2] = [3_000, 6_500];
/// The lease of a killed leader expires after 10 s.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(60);
const SUBNET: Ipv4Addr = Ipv4Addr::new(10, 32, 0, 0);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 32, 255, 254);

#[test]
fn no_address_is_lost_when_netmaster_is_killed_on_etcd() {
    needs!(binary("etcd"), binary("etcdctl"));
    let _machine = testkit::shared();
    let etcd = Etcd::start().unwrap();
    ten_thousand_endpoints(Store::Etcd { endpoint: etcd.endpoint() });
}

#[test]
fn no_address_is_lost_when_netmaster_is_killed_on_the_embedded_store() {
    needs!(binary("etcdctl"));
    let _machine = testkit::shared();
    let folder = scratch_dir("store").unwrap();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    ten_thousand_endpoints(Store::Embedded { folder: folder.path().join("state"), listen });
}

fn ten_thousand_endpoints(store: Store) {
    let mut master = Master::start(Options::alone(store).unwrap()).unwrap();
    let network = json!({
        "tenantName": "default", "networkName": "big", "encap": "vlan",
        "subnet": format!("{SUBNET}/16"), "gateway": GATEWAY,
    });
    master.client().post_json("/api/v1/networks/default:big/", &network).unwrap();
    let empty = State::read(&master);

    let created = create_all(&mut master);
    let addresses: BTreeSet<_> = created.values().collect();
    assert_eq!((created.len(), addresses.len()), (ENDPOINTS, ENDPOINTS), "an address was allocated twice");
    let state = State::read(&master);
    assert_eq!(state.endpoints, created, "stored endpoints differ from the responses");
    assert_eq!(
        state.taken,
        empty.taken.iter().copied().chain(hosts(&created)).collect(),
        "allocation map and endpoints"
    );
    assert_eq!(state.count, 10_000);

    for_each_in_parallel(|number| {
        retry(&master.client().clone(), "/plugin/deleteEndpoint", number).map(drop)
    });
    let state = State::read(&master);
    assert_eq!((state.endpoints.len(), state.count), (0, 0));
    assert_eq!(state.taken, empty.taken, "addresses leaked");
}

/// Creates all endpoints; clients retry until they have a response. netmaster is killed twice meanwhile.
fn create_all(master: &mut Master) -> BTreeMap<String, Ipv4Addr> {
    let client = master.client().clone();
    let (done, created) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    thread::scope(|scope| {
        let clients = scope.spawn(|| {
            for_each_in_parallel(|number| {
                let response = retry(&client, "/plugin/createEndpoint", number)?;
                let endpoint: endpoint::State =
                    serde_json::from_value(response.json()?["EndpointConfig"].clone())?;
                created.lock().unwrap().insert(endpoint.endpoint_id, endpoint.ip_address.parse()?);
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            });
        });
        for count in KILLS {
            wait_until(RECOVERY_TIMEOUT, "endpoints before the kill", || {
                Ok((done.load(Ordering::SeqCst) >= count).then_some(()))
            })
            .unwrap();
            master.kill().unwrap();
            assert!(done.load(Ordering::SeqCst) < ENDPOINTS, "killed after the last endpoint");
            master.restart().unwrap();
        }
        clients.join().unwrap();
    });
    created.into_inner().unwrap()
}

fn for_each_in_parallel(work: impl Fn(usize) -> Result<()> + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    if number >= ENDPOINTS {
                        break;
                    }
                    work(number).unwrap();
                }
            });
        }
    });
}

/// Retries while there is no leader, like an agent. Both operations are idempotent, so a lost response is harmless.
fn retry(client: &Client, path: &str, number: usize) -> Result<Response> {
    let id = format!("e{number}");
    let body = json!({
        "TenantName": "default", "NetworkName": "big", "EndpointID": id,
        "ConfigEP": { "Container": id, "Host": "h1" },
    })
    .to_string();
    wait_until(RECOVERY_TIMEOUT, &format!("{path} of {id}"), || {
        let response = client.send("POST", path, Some(JSON), Some(&body))?;
        match response.status {
            200 => Ok(Some(response)),
            _ => anyhow::bail!("{} {}", response.status, response.first_line()),
        }
    })
}

/// Records of the store.
struct State {
    endpoints: BTreeMap<String, Ipv4Addr>,
    taken: BTreeSet<u32>,
    count: i64,
}

impl State {
    fn read(master: &Master) -> State {
        let store = master.store().endpoint();
        let values = |prefix: &str| -> Vec<String> {
            let text = etcdctl(&store, &["get", "--prefix", prefix, "--print-value-only"]).unwrap();
            text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
        };
        // netmaster writes the complete record of a large network after the journal.
        wait_until(RECOVERY_TIMEOUT, "the journals to be merged", || {
            Ok(values("/contiv.io/state/ipam/").is_empty().then_some(()))
        })
        .unwrap();
        let network: network::State = serde_json::from_str(&values("/contiv.io/state/nets/")[0]).unwrap();
        let endpoints = values("/contiv.io/state/eps/").into_iter().map(|value| {
            let endpoint: endpoint::State = serde_json::from_str(&value).unwrap();
            (endpoint.endpoint_id, endpoint.ip_address.parse().unwrap())
        });
        State {
            endpoints: endpoints.collect(),
            taken: network.ip_alloc_map.iter().map(|bit| u32::try_from(bit).unwrap()).collect(),
            count: network.ep_count,
        }
    }
}

fn hosts(endpoints: &BTreeMap<String, Ipv4Addr>) -> impl Iterator<Item = u32> {
    endpoints.values().map(|address| address.to_bits() - SUBNET.to_bits())
}
