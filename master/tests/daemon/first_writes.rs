//! What a leader writes before it answers requests.

use serde_json::json;
use testkit::etcd::Etcd;
use testkit::{wait_until, write_secret};

use crate::client::{get, make_network, post};
use crate::master::{Master, WAIT_TIMEOUT};

/// An etcd user that may take the leader lock, and write nothing else.
fn restricted_etcd() -> Etcd {
    let etcd = Etcd::start().unwrap();
    let commands: [&[&str]; 9] = [
        &["user", "add", "root:root-secret"],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "contiv:s3cret"],
        &["role", "add", "netmaster"],
        &["role", "grant-permission", "netmaster", "--prefix", "read", "/contiv.io/"],
        &["role", "grant-permission", "netmaster", "--prefix", "readwrite", "/contiv.io/lock/"],
        &["user", "grant-role", "contiv", "netmaster"],
        &["auth", "enable"],
    ];
    for command in commands {
        etcd.ctl(command).unwrap();
    }
    etcd
}

/// A netmaster whose first writes have failed.
fn start(etcd: &Etcd) -> Master {
    let dir = testkit::scratch_dir("first-writes").unwrap();
    let password = dir.path().join("password");
    write_secret(&password, "s3cret\n").unwrap();
    let flags = ["--etcd", &etcd.endpoint(), "--etcd-user", "contiv", "--etcd-password-file"];
    let flags = flags.into_iter().chain([password.to_str().unwrap()]).map(str::to_owned).collect();
    Master::wait_word(flags, "write what a term begins with: failed; retrying")
}

/// It would answer without settings and identity, and give addresses again that other endpoints have.
#[test]
fn a_leader_whose_first_writes_fail_is_not_ready_before_they_succeed() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = restricted_etcd();
    let mut master = start(&etcd);
    assert_eq!(get(master.address, "/readyz").unwrap().status, 503);
    assert!(!master.process.log().contains("leading; ready"), "{}", master.process.tail());

    let root = |command: &[&str]| etcd.ctl(&[&["--user=root:root-secret"], command].concat()).unwrap();
    root(&["role", "grant-permission", "netmaster", "--prefix", "readwrite", "/contiv.io/"]);
    let ready = || Ok((get(master.address, "/readyz")?.status == 200).then_some(()));
    wait_until(WAIT_TIMEOUT, "it to lead", ready).unwrap();
    for key in ["/contiv.io/master/config/global", "/contiv.io/master/config/cluster"] {
        assert!(root(&["get", key]).contains(key), "{key}");
    }
    master.stop();
}

#[test]
fn a_leader_that_retries_its_first_writes_can_be_stopped() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = restricted_etcd();
    start(&etcd).stop();
}

/// A newer release may have written it, and a newer netmaster could lead. What is derived besides is restored.
#[test]
fn a_record_that_cannot_be_decoded_keeps_no_netmaster_from_leading() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    const INVALID: &str = "/contiv.io/state/serviceLB/s:default";
    const DELETED: &str = "/contiv.io/state/provider/t:default";
    let etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "net", "10.0.0.0/24");
    for name in ["s", "t"] {
        let body = json!({"tenantName": "default", "serviceName": name, "networkName": "net",
            "selectors": ["a=b"], "ports": ["80:80:TCP"]});
        post(master.address, &format!("/api/v1/serviceLBs/default:{name}/"), &body).unwrap().good();
    }
    master.stop();
    etcd.ctl(&["put", INVALID, "{"]).unwrap();
    let providers = etcd.ctl(&["get", DELETED]).unwrap();
    etcd.ctl(&["del", DELETED]).unwrap();
    master.restart();
    wait_until(WAIT_TIMEOUT, "it to lead", || {
        Ok((get(master.address, "/readyz")?.status == 200).then_some(()))
    })
    .unwrap();
    let log = master.process.log();
    let is_reported = |line: &str| line.contains("restore a record of the store") && line.contains(INVALID);
    assert!(log.lines().any(is_reported), "{}", master.process.tail());
    assert!(!log.contains("restore derived keys in the store: failed"), "{}", master.process.tail());
    assert_eq!(etcd.ctl(&["get", INVALID]).unwrap().lines().last(), Some("{"));
    assert_eq!(etcd.ctl(&["get", DELETED]).unwrap(), providers);
    assert!(providers.contains(DELETED), "{providers}");
}
