//! Policies with more rules than fit into one store transaction.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use contiv_model::event::Event;
use contiv_model::key::{POLICIES, POLICY_RULES};
use contiv_model::policy::PolicyState;
use contiv_store::{Config, KeyValue, Store};
use futures::StreamExt as _;
use serde_json::{Value, json};
use testkit::etcd::Etcd;

use crate::client::{Answer, delete, get, make_network, post};
use crate::master::{Master, WAIT_TIMEOUT};

const CLIENTS: usize = 32;
const PENDING: &str = "/contiv.io/master/pending/";
const RULES: usize = 1500;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Content of the store below `prefix`, read directly.
fn stored(master: &Master, prefix: &str) -> Vec<KeyValue> {
    runtime().block_on(async {
        let store = Store::connect(&Config::new([master.store()])).await.unwrap();
        store.list(prefix).await.unwrap().items
    })
}

fn group(to: SocketAddr, name: &str, policies: &[&str]) -> std::io::Result<Answer> {
    let body =
        json!({"tenantName": "default", "groupName": name, "networkName": "net", "policies": policies});
    post(to, &format!("/api/v1/endpointGroups/default:{name}/"), &body)
}

fn policy(to: SocketAddr, name: &str) {
    let body = json!({"tenantName": "default", "policyName": name});
    post(to, &format!("/api/v1/policys/default:{name}/"), &body).unwrap().good();
}

fn rule(policy: &str, n: usize) -> (String, Value) {
    let body = json!({"tenantName": "default", "policyName": policy, "ruleId": n.to_string(), "direction": "in",
        "action": "allow", "priority": 1 + n % 100, "fromIpAddress": format!("10.{}.{}.0/24", n / 256, n % 256)});
    (format!("/api/v1/rules/default:{policy}:{n}/"), body)
}

/// Creates the rules with several concurrent clients.
fn make_rules(to: SocketAddr, rules: &[(String, Value)]) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while let Some((path, body)) = rules.get(next.fetch_add(1, Ordering::Relaxed)) {
                    post(to, path, body).unwrap().good();
                }
            });
        }
    });
}

fn big_policy(to: SocketAddr) {
    make_network(to, "net", "10.200.0.0/16");
    policy(to, "big");
    make_rules(to, &(0..RULES).map(|n| rule("big", n)).collect::<Vec<_>>());
    for name in ["web", "db"] {
        group(to, name, &[]).unwrap().good();
    }
}

/// Groups that have the complete policy.
fn complete_groups(master: &Master) -> Vec<String> {
    let attached = stored(master, POLICIES);
    for kv in &attached {
        let state: PolicyState = serde_json::from_slice(&kv.value).unwrap();
        assert_eq!(state.rules.len(), RULES, "{}", kv.key);
    }
    let name = |kv: &KeyValue| kv.key.strip_prefix(POLICIES).unwrap().split(':').nth(1).unwrap().to_owned();
    attached.iter().map(name).collect()
}

/// Checks the derived keys as well.
fn settled(master: &Master) -> Vec<String> {
    let groups = complete_groups(master);
    assert_eq!(stored(master, POLICY_RULES).len(), groups.len() * RULES);
    assert_eq!(stored(master, PENDING), []);
    let object = get(master.address, "/api/v1/policys/default:big/").unwrap().good();
    let linked = object["link-sets"]["EndpointGroups"].as_object().map_or(0, serde_json::Map::len);
    assert_eq!(linked, groups.len());
    groups
}

fn create_and_delete_a_large_policy(master: &Master) {
    let to = master.address;
    big_policy(to);
    assert!(settled(master).is_empty());
    group(to, "web", &["big"]).unwrap().good();
    assert_eq!(settled(master), ["web"]);
    group(to, "db", &["big"]).unwrap().good();
    assert_eq!(settled(master), ["db", "web"]);
    assert_eq!(delete(to, "/api/v1/policys/default:big/").unwrap().bad(), "Policy is being used");
    group(to, "web", &[]).unwrap().good();
    assert_eq!(settled(master), ["db"]);
    delete(to, "/api/v1/endpointGroups/default:db/").unwrap().good();
    assert!(settled(master).is_empty());
    delete(to, "/api/v1/policys/default:big/").unwrap().good();
    assert_eq!(stored(master, "/contiv.io/obj/modeldb/rule/"), []);
    // The next change is planned on the actual content of the store.
    policy(to, "big");
    make_rules(to, &(0..10).map(|n| rule("big", n)).collect::<Vec<_>>());
    group(to, "web", &["big"]).unwrap().good();
    assert_eq!(stored(master, POLICY_RULES).len(), 10);
}

#[test]
fn a_large_policy_is_created_and_deleted_on_etcd() {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start().unwrap();
    create_and_delete_a_large_policy(&Master::on_etcd(&etcd.endpoint()));
}

#[test]
fn a_large_policy_is_created_and_deleted_in_the_embedded_store() {
    let store = testkit::scratch_dir("store").unwrap();
    create_and_delete_a_large_policy(&Master::embedded(store.path()));
}

/// Kills the master after `changes` changes below `prefix` that `ask` causes.
fn kill_after(master: &mut Master, prefix: &str, changes: usize, ask: impl FnOnce() + Send + 'static) {
    runtime().block_on(async {
        let store = Store::connect(&Config::new([master.store()])).await.unwrap();
        let mut watch = store.watch(prefix);
        while !matches!(watch.next().await.unwrap().event, Event::InitDone) {}
        let asked = thread::spawn(ask);
        for _ in 0..changes {
            tokio::time::timeout(WAIT_TIMEOUT, watch.next()).await.unwrap().unwrap();
        }
        master.kill();
        asked.join().unwrap();
    });
}

/// `store_stays`: the store keeps running when the master is killed.
fn killed_master_leaves_no_partial_policy(mut master: Master, store_stays: bool) {
    let to = master.address;
    big_policy(to);
    for (n, (prefix, changes)) in
        [(PENDING, 1), (PENDING, 3), (POLICY_RULES, 1), (POLICY_RULES, 400), (POLICY_RULES, 1000)]
            .into_iter()
            .enumerate()
    {
        let wanted: &[&str] = if n % 2 == 0 { &["big"] } else { &[] };
        kill_after(&mut master, prefix, changes, move || drop(group(to, "web", wanted)));
        if store_stays {
            complete_groups(&master);
        }
        master.restart();
        let now = settled(&master);
        // The rules change only after the commit record is written. Then the next master applies
        // the change.
        assert!(prefix == PENDING || now.is_empty() == wanted.is_empty(), "{prefix} {changes}: {now:?}");
        group(to, "web", wanted).unwrap().good();
        assert_eq!(settled(&master).is_empty(), wanted.is_empty());
    }
}

#[test]
fn a_killed_master_leaves_no_partial_policy_on_etcd() {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start().unwrap();
    killed_master_leaves_no_partial_policy(Master::on_etcd(&etcd.endpoint()), true);
}

#[test]
fn a_killed_master_leaves_no_partial_policy_in_the_embedded_store() {
    let store = testkit::scratch_dir("store").unwrap();
    killed_master_leaves_no_partial_policy(Master::embedded(store.path()), false);
}

#[test]
fn a_policy_too_large_for_the_store_is_rejected_and_a_profile_updates_many_groups() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let to = master.address;
    make_network(to, "net", "10.200.0.0/16");
    policy(to, "huge");
    let dry_run = || {
        let body =
            json!({"tenantName": "default", "groupName": "web", "networkName": "net", "policies": ["huge"]});
        post(to, "/api/v1/endpointGroups/default:web/?dryRun=All", &body).unwrap()
    };
    // More than a step of the redo log has, and less than the limit of the store.
    make_rules(to, &(0..1800).map(|n| rule("huge", n)).collect::<Vec<_>>());
    dry_run().good();
    make_rules(to, &(1800..2600).map(|n| rule("huge", n)).collect::<Vec<_>>());
    let tried = dry_run().bad();
    let line = group(to, "web", &["huge"]).unwrap().bad();
    assert_eq!(tried, line);
    assert!(line.starts_with("commit /contiv.io/state/policy/default:web:default:huge: 1"), "{line}");
    assert!(line.ends_with("distribute the rules over several policies"), "{line}");
    for prefix in ["/contiv.io/obj/modeldb/endpointGroup/", POLICIES, POLICY_RULES, PENDING] {
        assert_eq!(stored(&master, prefix), [], "nothing was written");
    }

    let profile = |dscp: usize| {
        let body = json!({"tenantName": "default", "profileName": "gold", "DSCP": dscp});
        post(to, "/api/v1/netprofiles/default:gold/", &body).unwrap().good();
    };
    profile(10);
    for n in 0..150 {
        let name = format!("g{n}");
        let body =
            json!({"tenantName": "default", "groupName": name, "networkName": "net", "netProfile": "gold"});
        post(to, &format!("/api/v1/endpointGroups/default:{name}/"), &body).unwrap().good();
    }
    profile(46);
    let groups = stored(&master, "/contiv.io/state/endpointGroups/");
    let dscp = |kv: &KeyValue| serde_json::from_slice::<Value>(&kv.value).unwrap()["DSCP"].clone();
    assert_eq!(groups.iter().filter(|kv| dscp(kv) == 46).count(), 150);
}

#[test]
fn fifteen_thousand_rules_on_one_group() {
    const POLICIES: usize = 15;
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start().unwrap();
    let master = Master::on_etcd(&etcd.endpoint());
    let to = master.address;
    make_network(to, "net", "10.200.0.0/16");
    let names: Vec<String> = (0..POLICIES).map(|n| format!("p{n}")).collect();
    names.iter().for_each(|name| policy(to, name));
    let rules: Vec<_> = names.iter().flat_map(|name| (0..1000).map(|n| rule(name, n))).collect();
    let start = Instant::now();
    make_rules(to, &rules);
    let made = start.elapsed();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let start = Instant::now();
    group(to, "web", &names).unwrap().good();
    let attached = start.elapsed();
    assert_eq!(stored(&master, POLICY_RULES).len(), rules.len());
    let start = Instant::now();
    let (path, body) = rule("p0", 1000);
    post(to, &path, &body).unwrap().good();
    let one_more = start.elapsed();
    assert_eq!(stored(&master, POLICY_RULES).len(), rules.len() + 1);
    let start = Instant::now();
    delete(to, "/api/v1/endpointGroups/default:web/").unwrap().good();
    let deleted = start.elapsed();
    assert_eq!(stored(&master, "/contiv.io/state/policy").len(), 0);
    eprintln!(
        "{} rules made in {made:?}, put on a group in {attached:?}, one more {one_more:?}, group deleted {deleted:?}",
        rules.len()
    );
}
