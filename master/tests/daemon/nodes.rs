//! Nodes that are gone, and requests to nodes to remove interfaces.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::thread;

use contiv_store::{Config, Store, Txn};
use serde_json::{Value, json};

use crate::client::{address, call, create_endpoint, delete, get, make_network, post};
use crate::master::{Master, WAIT_TIMEOUT};

/// Writes keys as an agent does; an empty value deletes the key.
pub(crate) fn write(master: &Master, keys: &[(String, String)]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::connect(&Config::new([master.store()])).await.unwrap();
        let mut txn = Txn::new();
        for (key, value) in keys {
            let key = format!("/contiv.io/{key}");
            txn = if value.is_empty() { txn.delete(key) } else { txn.put(key, value.clone()) };
        }
        let _committed = store.commit(txn).await.unwrap();
    });
}

fn status(host: &str, vtep: &str) -> (String, String) {
    let body = json!({"host": host, "vtepIP": vtep, "vxlanPort": 4789, "ready": true});
    (format!("oper/node/{host}"), body.to_string())
}

pub(crate) fn registration(host: &str, vtep: &str) -> (String, String) {
    let body =
        json!({"ServiceName": "netplugin.vtep", "HostAddr": vtep, "Port": 4789, "Hostname": host, "TTL": 10});
    (format!("service/netplugin.vtep/{vtep}:4789"), body.to_string())
}

pub(crate) fn create(to: SocketAddr, id: &str, host: &str) {
    let config = json!({"Container": id, "Host": host});
    let body = json!({"TenantName": "default", "NetworkName": "net", "EndpointID": id, "ConfigEP": config});
    post(to, "/plugin/createEndpoint", &body).unwrap().good();
}

fn endpoints(to: SocketAddr) -> Vec<String> {
    let oper = get(to, "/api/v1/inspect/networks/default:net/").unwrap().good()["Oper"].clone();
    let list = oper["endpoints"].as_array().cloned().unwrap_or_default();
    list.iter().map(|endpoint| endpoint["endpointID"].as_str().unwrap().to_owned()).collect()
}

fn states(to: SocketAddr) -> Vec<Value> {
    let nodes = get(to, "/api/v1/inspect/nodes/").unwrap().good();
    nodes.as_array().unwrap().iter().map(|node| node["host"].clone()).collect()
}

fn metric(to: SocketAddr, name: &str) -> u64 {
    let text = get(to, "/metrics").unwrap().body;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    value.ok_or_else(|| format!("no {name} in {text}")).unwrap()
}

#[test]
fn endpoints_of_a_gone_node_are_released_also_by_the_next_leader() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::start_unprobed(store.path(), &["--node-gone-after", "8s", "--lease-ttl", "2"]);
    let to = master.address;
    make_network(to, "net", "10.0.0.0/24");
    let keys = [
        status("here", "10.9.0.1"),
        registration("here", "10.9.0.1"),
        status("away", "10.9.0.2"),
        registration("away", "10.9.0.2"),
        status("back", "10.9.0.3"),
        registration("back", "10.9.0.3"),
    ];
    write(&master, &keys);
    for n in 0..40 {
        create(to, &format!("away{n}"), "away");
    }
    for host in ["here", "back", "never-an-agent"] {
        create(to, host, host);
    }
    write(&master, &[(keys[3].0.clone(), String::new()), (keys[5].0.clone(), String::new())]);
    let gone = |n: u64| {
        let found = || Ok((metric(to, "contiv_netmaster_nodes_gone") == n).then_some(()));
        testkit::wait_until(WAIT_TIMEOUT, "nodes that are gone", found).unwrap();
    };
    gone(2);
    master.restart();
    write(&master, &[keys[5].clone()]);
    gone(1);
    testkit::wait_until(WAIT_TIMEOUT, "release of the endpoints", || {
        Ok((endpoints(to).len() == 3).then_some(()))
    })
    .unwrap();
    gone(0);
    assert_eq!(endpoints(to), ["back", "here", "never-an-agent"]);
    assert_eq!(states(to), ["back", "here"]);
    assert_eq!(metric(to, "contiv_netmaster_endpoints_released_total"), 40);
    // The addresses are free again.
    assert_eq!(address(create_endpoint(to, "net", "new", "").unwrap()), "10.0.0.1");
}

/// While most nodes are gone nothing is released, not even when a node is gone for long.
#[test]
fn nodes_that_will_not_return_are_deleted_on_request() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::start_unprobed(store.path(), &["--node-gone-after", "8s", "--lease-ttl", "2"]);
    let to = master.address;
    make_network(to, "net", "10.0.0.0/24");
    for n in 0..40 {
        create(to, &format!("removed{n}"), "removed");
    }
    for host in ["away", "here"] {
        create(to, host, host);
    }
    let keys = [
        status("away", "10.9.0.1"),
        status("empty", "10.9.0.2"),
        status("here", "10.9.0.3"),
        registration("here", "10.9.0.3"),
        status("removed", "10.9.0.4"),
    ];
    write(&master, &keys);
    let is_stopped = |stopped: u64| {
        let found = || Ok((metric(to, "contiv_netmaster_node_gc_stopped") == stopped).then_some(()));
        testkit::wait_until(WAIT_TIMEOUT, "begin or end of the stop", found).unwrap();
    };
    is_stopped(1);

    let node = |host: &str| format!("/api/v1/nodes/{host}/");
    let registered =
        call(to, "DELETE", &node("here"), &[("Accept", "application/problem+json")], "").unwrap();
    assert_eq!(registered.status, 409, "{registered:?}");
    assert_eq!(delete(to, &node("never")).unwrap().bad(), "node not found");
    let dry_run = delete(to, &format!("{}?dryRun=All", node("removed"))).unwrap().bad();
    assert_eq!(dry_run, "dryRun: only changes of objects below /api/v1/ have it");
    assert_eq!((endpoints(to).len(), states(to).len()), (42, 4), "nothing has been deleted");

    for (host, released) in [("removed", 40), ("empty", 0)] {
        let deleted = delete(to, &node(host)).unwrap().good();
        assert_eq!(deleted, json!({"host": host, "releasedEndpoints": released}));
        assert_eq!(delete(to, &node(host)).unwrap().bad(), "node not found");
    }
    assert_eq!(states(to), ["away", "here"]);
    is_stopped(0);
    let released = || Ok((endpoints(to) == ["here"]).then_some(()));
    testkit::wait_until(WAIT_TIMEOUT, "release of the endpoint of the other node", released).unwrap();
}

/// The mark of an earlier leader whose clock was wrong.
#[test]
fn clocks_of_netmasters_are_not_compared() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::start_unprobed(store.path(), &["--node-gone-after", "1h", "--lease-ttl", "2"]);
    make_network(master.address, "net", "10.0.0.0/24");
    create(master.address, "a", "away");
    let mark = json!({"host": "away", "since": "2001-01-01T00:00:00Z"}).to_string();
    write(&master, &[status("away", "10.9.0.2"), ("state/gone-nodes/away".into(), mark)]);
    master.restart();
    // The leader checks at once.
    let leads = || Ok((get(master.address, "/info")?.json()["current-state"] == "leader").then_some(()));
    testkit::wait_until(WAIT_TIMEOUT, "it leads", leads).unwrap();
    thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(endpoints(master.address), ["a"]);
}

/// The agent of an earlier release writes its VTEP to the node status only. The record stays when the
/// agent has stopped.
#[test]
fn the_vtep_of_an_earlier_agent_becomes_a_record() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::start_unprobed(store.path(), &["--lease-ttl", "2"]);
    write(&master, &[status("old", "10.9.0.2"), registration("old", "10.9.0.2")]);
    let stored = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let value = runtime.block_on(async {
            let store = Store::connect(&Config::new([master.store()])).await?;
            store.get("/contiv.io/oper/vtep/old").await
        })?;
        Ok(value.map(|kv| String::from_utf8_lossy(&kv.value).into_owned()))
    };
    let record = testkit::wait_until(WAIT_TIMEOUT, "the record", stored).unwrap();
    assert_eq!(record, r#"{"host":"old","vtepIP":"10.9.0.2","vxlanPort":4789}"#);
}

/// A fake agent that knows one endpoint and records its requests.
pub(crate) fn agent(ip: IpAddr, knows: &'static str) -> Arc<Mutex<Vec<String>>> {
    let listener = TcpListener::bind((ip, 9090)).unwrap();
    let asked = Arc::new(Mutex::new(vec![]));
    let log = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let body = match line.contains(knows) {
                true => "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nnull".to_owned(),
                false if line.contains("broken") => {
                    "HTTP/1.1 500 X\r\nContent-Length: 13\r\nConnection: close\r\n\r\nunplug: busy\n"
                        .to_owned()
                }
                false => {
                    let why = "endpoint x has no interface on this node\n";
                    format!(
                        "HTTP/1.1 500 X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{why}",
                        why.len()
                    )
                }
            };
            log.lock().unwrap().push(line.trim().to_owned());
            stream.write_all(body.as_bytes()).unwrap();
        }
    });
    asked
}

/// Loopback address of this process, because the port of agents is fixed.
pub(crate) fn agent_address(last: u8) -> IpAddr {
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    IpAddr::from([127, high, low, last])
}

#[test]
fn nodes_are_requested_to_remove_interfaces() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    make_network(to, "net", "10.0.0.0/24");
    let there = agent_address(7);
    let dead = agent_address(8).to_string();
    let asked = agent(there, "net%2Edefault%2Dc1");
    let keys = [
        registration("there", &there.to_string()),
        registration("dead", &dead),
        ("oper/eps/net.default-c1".into(), json!({"id": "net.default-c1"}).to_string()),
    ];
    write(&master, &keys);
    for (id, host) in [("c1", "there"), ("c2", "there"), ("c3", "gone"), ("broken", "there"), ("c4", "dead")]
    {
        create(to, id, host);
    }
    let clean = |id: &str| delete(to, &format!("/debug/epcleanup/tenant/default/ep/{id}")).unwrap();
    let done = |id: &str| format!("Received request to cleanup Endpoint with ID: {id}\n");
    assert_eq!(clean("c1").body, done("c1"));
    assert_eq!(*asked.lock().unwrap(), ["DELETE /debug/reclaimEndpoint/net%2Edefault%2Dc1 HTTP/1.1"]);
    let oper = get(to, "/api/v1/inspect/endpoints/c1/").unwrap();
    assert_eq!(oper.bad(), "endpoint not found");
    // A node without the interface and a node without registration are no errors.
    assert_eq!((clean("c2").body, clean("c3").body), (done("c2"), done("c3")));
    assert_eq!(asked.lock().unwrap().len(), 2);
    let line = clean("broken").unavailable();
    assert!(line.contains("net.default-broken on there") && line.contains("unplug: busy"), "{line}");
    let line = clean("c4").unavailable();
    assert!(line.contains(&format!("net.default-c4 on dead ({dead}:9090")), "{line}");
    assert!(endpoints(to).is_empty(), "endpoints are deleted in any case");
}

/// The value of a key below `/contiv.io/`.
fn stored(master: &Master, key: &str) -> Option<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = runtime.block_on(async {
        let store = Store::connect(&Config::new([master.store()])).await.unwrap();
        store.get(&format!("/contiv.io/{key}")).await.unwrap()
    });
    found.map(|kv| serde_json::from_slice(&kv.value).unwrap())
}

#[test]
fn an_acceptance_of_the_store_names_the_reported_regression() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    let status = |host: &str, more: &Value| {
        let mut body = json!({"host": host, "vtepIP": "10.9.0.1", "vxlanPort": 4789});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        (format!("oper/node/{host}"), body.to_string())
    };
    let line = "store-regressed: the store's revision went back from 9 to 4";
    let keys = [
        status("new", &json!({"degraded": [line], "regressionId": "5eed"})),
        status("old", &json!({"degraded": [line]})),
        status("good", &json!({"degraded": ["1 networks: not supported"]})),
    ];
    write(&master, &keys);
    testkit::wait_until(WAIT_TIMEOUT, "the nodes", || Ok((states(to).len() == 3).then_some(()))).unwrap();
    let accept =
        |host: &str| call(to, "POST", &format!("/api/v1/nodes/{host}/acceptedStore/"), &[], "").unwrap();
    let accepted = |host: &str| stored(&master, &format!("oper/accepted-store/{host}"));

    assert_eq!(accept("new").good(), json!({"host": "new"}));
    assert_eq!(accepted("new"), Some(json!({"host": "new", "regressionId": "5eed"})));
    // An agent of an earlier release reports no id, and compares none.
    assert_eq!(accept("old").good(), json!({"host": "old"}));
    assert_eq!(accepted("old"), Some(json!({"host": "old"})));
    assert_eq!(accept("good").bad(), "node good has not reported store-regressed");
    assert_eq!(accept("none").bad(), "node not found");
    assert_eq!((accepted("good"), accepted("none")), (None, None));
}

/// The answer names the interfaces, although the agent does not respond within the time limit.
#[test]
fn a_cleanup_is_answered_within_its_time_limit() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::start_unprobed(store.path(), &["--request-timeout", "4"]);
    let to = master.address;
    make_network(to, "net", "10.0.0.0/24");
    let silent = agent_address(9);
    let _agent = TcpListener::bind((silent, 9090)).unwrap();
    write(&master, &[registration("silent", &silent.to_string())]);
    for id in ["a", "b", "c"] {
        create(to, id, "silent");
    }
    let line = delete(to, "/debug/epcleanup/tenant/default/net/net").unwrap().unavailable();
    let start = "endpoints and addresses are deleted, but 3 of 3 interfaces may remain; ";
    let end = "net.default-c on silent (no response within the time limit of the request)";
    assert!(line.starts_with(start) && line.ends_with(end), "{line}");
}
