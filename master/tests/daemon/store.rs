//! Content of the store, which other programs read and operators edit.

use contiv_model::{endpoint, network};
use serde_json::{Value, json};
use testkit::etcd::Etcd;

use crate::client::{Answer, address, create_endpoint, delete, delete_endpoint, get, make_network, post};
use crate::master::Master;

const NETWORK: &str = "/contiv.io/state/nets/net.default";

fn value(etcd: &Etcd, key: &str) -> String {
    etcd.ctl(&["get", "--print-value-only", key]).unwrap().trim_end().to_owned()
}

fn keys(etcd: &Etcd, prefix: &str) -> Vec<String> {
    let listed = etcd.ctl(&["get", "--prefix", "--keys-only", prefix]).unwrap();
    listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn records_have_the_originals_format() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    let to = master.address;
    make_network(to, "net", "41.1.0.0/24");
    let group = json!({"tenantName": "default", "groupName": "eg", "networkName": "net", "ipPool": "41.1.0.100-41.1.0.101"});
    post(to, "/api/v1/endpointGroups/default:eg/", &group).unwrap().good();
    let config = json!({"Container": "c3", "Host": "h1", "ServiceName": "eg"});
    let body =
        json!({"TenantName": "default", "NetworkName": "net", "EPCommonName": "cn-c3", "ConfigEP": config});
    post(to, "/plugin/createEndpoint", &body).unwrap().good();
    let expected = include_str!("../golden/store.txt");
    let mut found = String::new();
    // Keys of processes, and the random identity of the cluster.
    let other = ["/service/", "/lock/", "/master/config/cluster"];
    for key in keys(&etcd, "/contiv.io/").iter().filter(|key| !other.iter().any(|part| key.contains(part))) {
        found += &format!("{key}\n    {}\n", value(&etcd, key));
    }
    assert_eq!(found, expected);

    delete(to, "/api/v1/networks/default:net/").unwrap().bad();
    master.stop();
    assert_eq!(
        keys(&etcd, "/contiv.io/service/"),
        Vec::<String>::new(),
        "registrations end with the process"
    );
    assert_eq!(keys(&etcd, "/contiv.io/lock/"), Vec::<String>::new(), "a master that stops resigns");
}

#[test]
fn idle_journals_are_merged() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "net", "10.0.0.0/12");
    for n in 0..5 {
        address(create_endpoint(master.address, "net", &format!("c{n}"), "").unwrap());
    }
    // A killed master leaves a record and a journal; the next master merges them.
    master.restart();
    let record = |etcd: &Etcd| serde_json::from_str::<network::State>(&value(etcd, NETWORK)).unwrap();
    testkit::wait_until(crate::master::WAIT_TIMEOUT, "the journal to be gone", || {
        Ok(keys(&etcd, "/contiv.io/state/ipam/").is_empty().then_some(()))
    })
    .unwrap();
    let state = record(&etcd);
    assert_eq!((state.ep_count, state.ep_addr_count, state.ip_alloc_map.next_clear(0)), (5, 5, Some(6)));
    // An idle journal is merged, and so is one at shutdown, or by the next leader if that takes too long.
    address(create_endpoint(master.address, "net", "c5", "").unwrap());
    testkit::wait_until(crate::master::WAIT_TIMEOUT, "the record to be whole", || {
        Ok((record(&etcd).ep_count == 6 && keys(&etcd, "/contiv.io/state/ipam/").is_empty()).then_some(()))
    })
    .unwrap();
    address(create_endpoint(master.address, "net", "c6", "").unwrap());
    master.stop();
    let _next = Master::on_etcd(&etcd.endpoint());
    testkit::wait_until(crate::master::WAIT_TIMEOUT, "the last record to be whole", || {
        Ok((record(&etcd).ep_count == 7 && keys(&etcd, "/contiv.io/state/ipam/").is_empty()).then_some(()))
    })
    .unwrap();
    // The state of the endpoints does not depend on the size of the network.
    let endpoints = keys(&etcd, "/contiv.io/state/eps/");
    let addresses = endpoints
        .iter()
        .map(|key| serde_json::from_str::<endpoint::State>(&value(&etcd, key)).unwrap().ip_address);
    assert_eq!(addresses.collect::<Vec<_>>(), (1..=7).map(|n| format!("10.0.0.{n}")).collect::<Vec<_>>());
}

/// The journal is replaced, and no address is allocated twice.
#[test]
fn an_unreadable_journal_stops_no_allocation() {
    const JOURNAL: &str = "/contiv.io/state/ipam/nets/net.default";
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "net", "10.0.0.0/12");
    let mut expected = 0;
    for restart in [false, true, false] {
        for _ in 0..3 {
            expected += 1;
            let created = create_endpoint(master.address, "net", &format!("c{expected}"), "").unwrap();
            assert_eq!(address(created), format!("10.0.0.{expected}"));
        }
        if restart {
            master.kill();
        }
        etcd.ctl(&["put", JOURNAL, "{"]).unwrap();
        if restart {
            master.restart();
        }
    }
    let created = create_endpoint(master.address, "net", "last", "").unwrap();
    assert_eq!(address(created), format!("10.0.0.{}", expected + 1));
    master.stop();
    let state: network::State = serde_json::from_str(&value(&etcd, NETWORK)).unwrap();
    assert_eq!(
        (state.ep_count, state.ip_alloc_map.next_clear(0)),
        (expected + 1, Some(expected as usize + 2))
    );
    assert_eq!(keys(&etcd, "/contiv.io/state/ipam/"), Vec::<String>::new());
}

/// Another program changes the record, while netmaster runs or before it starts.
#[test]
fn an_endpoint_with_an_invalid_record_is_deleted() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "net", "10.0.0.0/24");
    let newer = r#"{"netID":"net.default","ipAddress":"10.0.0.1","labels":["of a newer form"]}"#;
    for (record, restart, next, words) in [
        ("{", false, "10.0.0.1", "released 10.0.0.1"),
        (newer, true, "10.0.0.1", "released 10.0.0.1"),
        ("{", true, "10.0.0.2", "no address is known to be its own"),
    ] {
        assert_eq!(address(create_endpoint(master.address, "net", "a", "").unwrap()), "10.0.0.1");
        etcd.ctl(&["put", "/contiv.io/state/eps/net.default-a", record]).unwrap();
        if restart {
            master.restart();
        }
        delete_endpoint(master.address, "net", "a").unwrap().good();
        assert_eq!(keys(&etcd, "/contiv.io/state/eps/"), Vec::<String>::new());
        let log = master.process.log();
        assert!(log.contains("deleted endpoint net.default-a on") && log.contains(words), "{log}");
        assert_eq!(address(create_endpoint(master.address, "net", "b", "").unwrap()), next);
        delete_endpoint(master.address, "net", "b").unwrap().good();
    }
}

/// The store is replaced by an older copy of itself while netmasters run.
#[test]
fn a_restored_store_leaves_nothing_of_the_newer_one() {
    testkit::needs!(binary("etcd"));
    let mut etcd = Etcd::start().unwrap();
    let masters = [Master::on_etcd(&etcd.endpoint()), Master::on_etcd(&etcd.endpoint())];
    make_network(masters[0].address, "net", "10.0.0.0/24");
    let copy = testkit::scratch_dir("copy").unwrap();
    etcd.kill().unwrap();
    testkit::copy_folder(&etcd.data_dir(), copy.path()).unwrap();
    etcd.restart().unwrap();
    let to = masters[1].address;
    let networks = |expected: usize| {
        let listed = || {
            let answer = get(to, "/api/v1/networks/").ok().filter(|answer| answer.status == 200);
            Ok(answer.filter(|answer| answer.json().as_array().unwrap().len() == expected).map(drop))
        };
        testkit::wait_until(crate::master::WAIT_TIMEOUT, "the networks", listed).unwrap();
    };
    networks(1);
    make_network(to, "lost", "10.1.0.0/24");
    for name in ["a", "b"] {
        address(create_endpoint(to, "net", name, "").unwrap());
    }
    etcd.kill().unwrap();
    std::fs::remove_dir_all(etcd.data_dir()).unwrap();
    testkit::copy_folder(copy.path(), &etcd.data_dir()).unwrap();
    etcd.restart().unwrap();
    networks(1);
    make_network(to, "lost", "10.1.0.0/24");
    assert_eq!(address(create_endpoint(to, "net", "c", "").unwrap()), "10.0.0.1");
    assert_eq!(address(create_endpoint(to, "lost", "d", "").unwrap()), "10.1.0.1");
    let info = get(to, "/api/v1/inspect/networks/default:net/").unwrap().good();
    assert_eq!(info["Oper"]["numEndpoints"], 1, "{info}");
}

#[test]
fn changes_by_operators_are_applied() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "net", "10.0.0.0/24");
    assert_eq!(address(create_endpoint(master.address, "net", "a", "").unwrap()), "10.0.0.1");
    let mut state: network::State = serde_json::from_str(&value(&etcd, NETWORK)).unwrap();
    state.ip_alloc_map.insert_range(2..50);
    etcd.ctl(&["put", NETWORK, &serde_json::to_string(&state).unwrap()]).unwrap();
    assert_eq!(address(create_endpoint(master.address, "net", "b", "").unwrap()), "10.0.0.50");

    let tenant = "/contiv.io/obj/modeldb/tenant/default";
    let mut object: Value = serde_json::from_str(&value(&etcd, tenant)).unwrap();
    object["defaultNetwork"] = "net".into();
    etcd.ctl(&["put", tenant, &object.to_string()]).unwrap();
    make_network(master.address, "other", "10.1.0.0/24");
    let now = get(master.address, "/api/v1/tenants/default/").unwrap().good();
    assert_eq!(
        (&now["defaultNetwork"], now["link-sets"]["Networks"].as_object().unwrap().len()),
        (&"net".into(), 2)
    );

    // An invalid value affects no other key, and the last valid value stays in use.
    etcd.ctl(&["put", tenant, "{"]).unwrap();
    assert_eq!(get(master.address, "/api/v1/tenants/default/").unwrap().good(), now);
}

/// A newer release has written them.
#[test]
fn unknown_fields_survive_changes_by_this_release() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    let to = master.address;
    make_network(to, "net", "10.0.0.0/24");
    let profile = "/contiv.io/obj/modeldb/netprofile/default:gold";
    let update = |dscp: i64| {
        let body = json!({"tenantName": "default", "profileName": "gold", "DSCP": dscp});
        post(to, "/api/v1/netprofiles/default:gold/", &body).unwrap().good();
    };
    update(1);
    let stored = |key: &str| serde_json::from_str::<Value>(&value(&etcd, key)).unwrap();
    let link = "/links/Tenant";
    let extend = |key: &str, pointer: &str| {
        let mut object = stored(key);
        object.pointer_mut(pointer).unwrap()["newer"] = json!({"x": [1]});
        etcd.ctl(&["put", key, &object.to_string()]).unwrap();
    };
    let kept = |key: &str, pointer: &str| stored(key).pointer(pointer).unwrap()["newer"] == json!({"x": [1]});
    extend(profile, "");
    extend(profile, link);
    extend(NETWORK, "");
    update(2);
    address(create_endpoint(to, "net", "a", "").unwrap());
    master.restart();
    update(3);
    address(create_endpoint(to, "net", "b", "").unwrap());
    assert_eq!(stored(profile)["DSCP"], 3);
    assert_eq!(stored(NETWORK)["epCount"], 2);
    assert!(kept(profile, "") && kept(profile, link) && kept(NETWORK, ""));
    assert!(get(to, "/api/v1/netprofiles/default:gold/").unwrap().good().get("newer").is_none());
}

/// Keys that are derived from others.
#[test]
fn derived_keys_are_restored_after_a_restart() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    let to = master.address;
    let make = |types: &str, name: &str, mut body: Value| {
        body["tenantName"] = "default".into();
        post(to, &format!("/api/v1/{types}/default:{name}/"), &body).unwrap().good();
    };
    make_network(to, "net", "10.0.0.0/24");
    make("policys", "p", json!({"policyName": "p"}));
    make("netprofiles", "gold", json!({"profileName": "gold", "DSCP": 46}));
    let web = json!({"groupName": "web", "networkName": "net", "policies": ["p"], "netProfile": "gold"});
    make("endpointGroups", "web", web);
    make("endpointGroups", "db", json!({"groupName": "db", "networkName": "net"}));
    for id in ["1", "2"] {
        let body = json!({"policyName": "p", "ruleId": id, "direction": "in", "action": "deny", "protocol": "tcp",
            "port": 80, "fromEndpointGroup": "db"});
        make("rules", &format!("p:{id}"), body);
    }
    let everything = || -> Vec<(String, String)> {
        let of_processes = |key: &String| key.contains("/service/") || key.contains("/lock/");
        let keys = keys(&etcd, "/contiv.io/").into_iter().filter(|key| !of_processes(key));
        keys.map(|key| (key.clone(), value(&etcd, &key))).collect()
    };
    let before = everything();
    let delete = |key: &str| drop(etcd.ctl(&["del", &format!("/contiv.io/{key}")]).unwrap());
    let put = |key: &str, value: &str| drop(etcd.ctl(&["put", &format!("/contiv.io/{key}"), value]).unwrap());
    master.kill();
    delete("state/policy/default:web:default:p");
    let rules = keys(&etcd, "/contiv.io/state/policyRule/");
    delete(rules[0].strip_prefix("/contiv.io/").unwrap());
    put(rules[1].strip_prefix("/contiv.io/").unwrap(), &value(&etcd, &rules[2]));
    put("state/policyRule/default:web:default:p:default:p:9:inRx", &value(&etcd, &rules[3]));
    for (key, part) in [
        ("endpointGroup/default:web", "link-sets"),
        ("rule/default:p:1", "links"),
        ("netprofile/default:gold", "links"),
    ] {
        let key = format!("obj/modeldb/{key}");
        let mut object: Value = serde_json::from_str(&value(&etcd, &format!("/contiv.io/{key}"))).unwrap();
        object[part] = json!({});
        put(&key, &object.to_string());
    }
    assert_ne!(everything(), before);
    master.restart();
    testkit::wait_until(crate::master::WAIT_TIMEOUT, "the restoration of policies", || {
        Ok(master.process.log().contains("compared the policies on groups").then_some(()))
    })
    .unwrap();
    assert_eq!(everything(), before);
    let metrics = get(to, "/metrics").unwrap().body;
    assert!(metrics.contains("contiv_netmaster_restored_keys_total 7\n"), "{metrics}");
}

/// Keys may be of another tenant, and clients need not know where etcd is.
#[test]
fn failures_of_the_store_name_no_key_and_no_address() {
    testkit::needs!(binary("etcd"));
    let mut etcd = Etcd::start().unwrap();
    let master = Master::on_etcd(&etcd.endpoint());
    let to = master.address;
    make_network(to, "net", "10.0.0.0/24");
    let secrets = ["/contiv.io/".to_owned(), "http:".to_owned(), etcd.address().to_string()];
    let checked = |answer: Answer| {
        let line = answer.unavailable();
        assert!(!secrets.iter().any(|secret| line.contains(secret)), "{line}");
        line
    };
    etcd.process().freeze().unwrap();
    std::thread::scope(|scope| {
        let read = scope.spawn(|| checked(get(to, "/api/v1/networks/").unwrap()));
        let write = checked(create_endpoint(to, "net", "a", "").unwrap());
        assert_eq!(write, "store: no answer; the request may have been carried out");
        read.join().unwrap();
    });
    etcd.kill().unwrap();
    testkit::wait_until(crate::master::WAIT_TIMEOUT, "the end of readiness", || {
        let ready = get(to, "/readyz")?;
        Ok((ready.status == 503).then(|| checked(ready)))
    })
    .unwrap();
    checked(get(to, "/api/v1/networks/").unwrap());
    checked(create_endpoint(to, "net", "a", "").unwrap());
}
