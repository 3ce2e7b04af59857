//! Metrics of a running netmaster.

use std::net::SocketAddr;

use serde_json::json;
use testkit::etcd::Etcd;
use testkit::{needs, wait_until};

use crate::client::{create_endpoint, delete, get, make_network, post};
use crate::master::{Master, WAIT_TIMEOUT};

/// Text of `/metrics`.
fn scrape(from: SocketAddr) -> String {
    get(from, "/metrics").unwrap().body
}

/// Value of a series; `series` includes its labels.
fn value(text: &str, series: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
}

fn requests(text: &str, route: &str, method: &str, code: u16) -> Option<f64> {
    let labels = format!("route=\"{route}\",method=\"{method}\",code=\"{code}\"");
    value(text, &format!("contiv_netmaster_request_duration_seconds_count{{{labels}}}"))
}

#[test]
fn requests_are_counted_by_route_and_commits_by_result() {
    let dir = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(dir.path());
    let to = master.address;
    let before = scrape(to);
    make_network(to, "secret-net", "10.1.1.0/24");
    create_endpoint(to, "secret-net", "secret-endpoint", "").unwrap().good();
    for key in ["default:secret-net", "default:secret-missing", "default:secret-missing"] {
        let _found = get(to, &format!("/api/v1/networks/{key}/")).unwrap();
    }
    post(to, "/plugin/secret-call", &json!({})).unwrap();
    delete(to, "/secret/path").unwrap();
    let text = scrape(to);
    let network = "/api/v1/networks/{key}/";
    assert_eq!(requests(&text, network, "POST", 200), Some(1.0), "{text}");
    assert_eq!(requests(&text, network, "GET", 200), Some(1.0), "{text}");
    assert_eq!(requests(&text, network, "GET", 500), Some(2.0), "{text}");
    assert_eq!(requests(&text, "/plugin/createEndpoint", "POST", 200), Some(1.0), "{text}");
    assert_eq!(requests(&text, "other", "POST", 404), Some(1.0), "{text}");
    assert_eq!(requests(&text, "other", "DELETE", 404), Some(1.0), "{text}");
    // Only pools are labelled with the names of users: those of networks and groups.
    let named = |line: &&str| line.contains("secret") && !line.contains("_pool_addresses");
    assert_eq!(text.lines().find(named), None);

    let grown = |series: &str| {
        let series = format!("contiv_netmaster_{series}");
        value(&text, &series).unwrap() - value(&before, &series).unwrap_or_default()
    };
    assert_eq!(grown("commit_duration_seconds_count{result=\"committed\"}"), 2.0);
    assert_eq!((grown("commit_batch_size_count"), grown("commit_batch_size_sum")), (2.0, 2.0));
    assert!(grown("store_request_duration_seconds_count{operation=\"commit\",result=\"ok\"}") >= 2.0);
    for (series, expected) in [
        ("store_connected", 1.0),
        ("leader_changes_total", 1.0),
        ("commit_queue_length", 0.0),
        // Without the addresses of the subnet and its broadcasts.
        ("pool_addresses{network=\"secret-net.default\",group=\"\"}", 254.0),
        ("pool_addresses_free{network=\"secret-net.default\",group=\"\"}", 253.0),
        ("pool_tags{kind=\"vlan\"}", 4094.0),
        ("pool_tags_free{kind=\"vlan\"}", 4093.0),
    ] {
        assert_eq!(value(&text, &format!("contiv_netmaster_{series}")), Some(expected), "{series}\n{text}");
    }
}

#[test]
fn pools_of_groups_are_no_part_of_the_network() {
    let dir = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(dir.path());
    let to = master.address;
    // One network has addresses outside of the pool of its group; the other has none.
    for (network, n, last) in [("part", 1, 250), ("whole", 2, 254)] {
        let body = json!({"tenantName": "default", "networkName": network, "encap": "vlan",
            "subnet": format!("10.1.{n}.0/24"), "gateway": format!("10.1.{n}.1")});
        post(to, &format!("/api/v1/networks/default:{network}/"), &body).unwrap().good();
        let group = format!("g-{network}");
        let body = json!({"tenantName": "default", "groupName": group, "networkName": network,
            "ipPool": format!("10.1.{n}.2-10.1.{n}.{last}")});
        post(to, &format!("/api/v1/endpointGroups/default:{group}/"), &body).unwrap().good();
    }
    create_endpoint(to, "part", "pod", "").unwrap().good();
    let text = scrape(to);
    for (network, group, size, free) in [
        ("part", "", 4.0, 3.0),
        ("part", "g-part:default", 249.0, 249.0),
        // The alert about exhausted pools leaves out what has no addresses.
        ("whole", "", 0.0, 0.0),
        ("whole", "g-whole:default", 253.0, 253.0),
    ] {
        let of = |series: &str| {
            let labels = format!("network=\"{network}.default\",group=\"{group}\"");
            value(&text, &format!("contiv_netmaster_{series}{{{labels}}}"))
        };
        let usage = (of("pool_addresses"), of("pool_addresses_free"));
        assert_eq!(usage, (Some(size), Some(free)), "{network} {group}\n{text}");
    }
}

#[test]
fn a_store_that_is_away_is_reported() {
    needs!(binary("etcd"));
    let mut etcd = Etcd::start().unwrap();
    let master = Master::on_etcd(&etcd.endpoint());
    let connected = |expected: f64| {
        wait_until(WAIT_TIMEOUT, "the state of the store", || {
            let text = scrape(master.address);
            Ok((value(&text, "contiv_netmaster_store_connected") == Some(expected)).then_some(()))
        })
        .unwrap();
    };
    connected(1.0);
    etcd.kill().unwrap();
    connected(0.0);
    let failed = || {
        let text = scrape(master.address);
        let series = "contiv_netmaster_store_request_duration_seconds_count";
        let failed = |line: &str| line.starts_with(series) && !line.contains("result=\"ok\"");
        Ok(text.lines().any(failed).then_some(()))
    };
    wait_until(WAIT_TIMEOUT, "failed requests to the store", failed).unwrap();
    etcd.restart().unwrap();
    connected(1.0);
}
