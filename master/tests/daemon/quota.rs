//! Upkeep of etcd: compaction by the leader, and a database that has reached its quota.

use serde_json::json;
use testkit::etcd::Etcd;
use testkit::wait_until;

use crate::client::{get, make_network, post};
use crate::master::{Master, WAIT_TIMEOUT};

fn wait_for_line(master: &Master, path: &str, line: &str) {
    let found = || {
        let body = get(master.address, path)?.body;
        Ok(body.lines().any(|l| l.starts_with(line)).then_some(()))
    };
    wait_until(WAIT_TIMEOUT, line, found).unwrap();
}

#[test]
fn the_leader_compacts_the_history() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let etcd_flags = || ["--etcd", &etcd.endpoint(), "--etcd-compact", "1s"].map(str::to_owned).to_vec();
    let leader = Master::wait_leading(etcd_flags());
    let follower = Master::follow(etcd_flags());
    make_network(leader.address, "net", "10.0.0.0/24");
    let compacted = || {
        let old = etcd.ctl(&["get", "--rev=2", "k"]);
        Ok(old.is_err_and(|error| error.to_string().contains("compacted")).then_some(()))
    };
    wait_until(WAIT_TIMEOUT, "the history to be compacted", compacted).unwrap();
    let compactions = |master: &Master| {
        let metrics = get(master.address, "/metrics").unwrap().body;
        let name = "contiv_netmaster_store_compactions_total ";
        metrics.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok()).unwrap()
    };
    assert!(compactions(&leader) > 0);
    assert_eq!(compactions(&follower), 0, "a follower leaves it to the leader");
    make_network(leader.address, "other", "10.1.0.0/24");
}

#[test]
fn a_full_etcd_is_reported_and_recovers() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::options().argument("--quota-backend-bytes=4194304").start().unwrap();
    let flags = ["--etcd", &etcd.endpoint(), "--etcd-compact", "2s"].map(str::to_owned).to_vec();
    let master = Master::wait_leading(flags);
    let to = master.address;
    make_network(to, "net", "10.0.0.0/24");
    let value = "v".repeat(100 << 10);
    // A key each: of one key, a compaction meanwhile would free what was written before.
    let full = (0..100).find_map(|number| etcd.ctl(&["put", &format!("junk/{number}"), &value]).err());
    assert!(full.unwrap().to_string().contains("database space exceeded"));

    let network = |name: &str, subnet: &str| {
        let body = json!({"tenantName": "default", "networkName": name, "encap": "vlan", "subnet": subnet,
            "gateway": ""});
        post(to, &format!("/api/v1/networks/default:{name}/"), &body).unwrap()
    };
    let refused = network("late", "10.1.0.0/24");
    assert!(refused.status == 503 && refused.body.contains("NOSPACE"), "{refused:?}");
    wait_for_line(&master, "/readyz", "degraded: etcd alarm NOSPACE");
    assert_eq!(get(to, "/readyz").unwrap().status, 200, "it answers reads");
    assert_eq!(get(to, "/api/v1/networks/").unwrap().good().as_array().unwrap().len(), 1);
    wait_for_line(&master, "/metrics", "contiv_netmaster_store_alarm{alarm=\"NOSPACE\"} 1");
    wait_for_line(&master, "/metrics", "contiv_netmaster_store_alarm{alarm=\"CORRUPT\"} 0");

    // Deletions are accepted, and netmaster goes on compacting.
    etcd.ctl(&["del", "junk/", "--prefix"]).unwrap();
    let freed = || {
        etcd.ctl(&["defrag"])?;
        etcd.ctl(&["alarm", "disarm"])?;
        Ok((network("late", "10.1.0.0/24").status == 200).then_some(()))
    };
    wait_until(WAIT_TIMEOUT, "changes to be accepted", freed).unwrap();
    wait_for_line(&master, "/metrics", "contiv_netmaster_store_alarm{alarm=\"NOSPACE\"} 0");
}
