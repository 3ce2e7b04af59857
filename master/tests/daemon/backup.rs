//! `netmaster backup` and `netmaster restore`.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testkit::etcd::Etcd;

use crate::client::{address, create_endpoint, get, make_network};
use crate::master::{Master, program};

const IDENTITY: &str = "/contiv.io/master/config/cluster";

fn run(command: &str, file: &Path, etcd: &Etcd, more: &[&str]) -> Output {
    let mut process = Command::new(program());
    process.arg(command).arg(file).args(["--etcd", &etcd.endpoint()]).args(more);
    process.output().unwrap()
}

fn good(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

fn bad(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn number_of_endpoints(master: &Master, network: &str) -> u64 {
    let path = format!("/api/v1/inspect/networks/default:{network}/");
    get(master.address, &path).unwrap().good()["Oper"]["numEndpoints"].as_u64().unwrap_or_default()
}

/// The backup is taken while endpoints are created, in a network with a journal too.
#[test]
fn a_backup_is_consistent_and_restores_a_cluster_of_its_own() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let folder = testkit::scratch_dir("backup").unwrap();
    let file = folder.path().join("contiv.backup");
    let (old, new) = (Etcd::start().unwrap(), Etcd::start().unwrap());
    let mut master = Master::on_etcd(&old.endpoint());
    let to = master.address;
    make_network(to, "small", "10.0.0.0/22");
    make_network(to, "large", "10.16.0.0/12");
    for n in 0..100 {
        address(create_endpoint(to, "small", &format!("s{n}"), "").unwrap());
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let create = || {
            for n in (0..2000).take_while(|_| !stop.load(Ordering::Relaxed)) {
                for network in ["small", "large"] {
                    let id = format!("{network}-{n}");
                    address(create_endpoint(to, network, &id, "").unwrap());
                }
            }
        };
        let creating = scope.spawn(create);
        let taken = (0..3).map(|_| run("backup", &file, &old, &[])).collect::<Vec<_>>();
        stop.store(true, Ordering::Relaxed);
        creating.join().unwrap();
        taken.iter().for_each(good);
    });
    let endpoints =
        old.ctl(&["get", "--prefix", "--count-only", "--write-out=fields", "/contiv.io/state/eps/"]);
    assert!(endpoints.unwrap().contains("Count"));
    let refused = bad(&run("restore", &file, &old, &[]));
    assert!(refused.contains("leads this store"), "{refused}");
    master.stop();

    good(&run("restore", &file, &new, &[]));
    let restored = Master::on_etcd(&new.endpoint());
    let log = restored.process.log();
    for wrong in ["inconsistent", "restored derived keys", "repaired"] {
        assert!(!log.contains(wrong), "{log}");
    }
    assert!(number_of_endpoints(&restored, "small") >= 100);
    address(create_endpoint(restored.address, "small", "new", "").unwrap());
    address(create_endpoint(restored.address, "large", "new", "").unwrap());
    let identity = |etcd: &Etcd| etcd.ctl(&["get", "--print-value-only", IDENTITY]).unwrap();
    assert_ne!(identity(&old), identity(&new));
    assert!(!identity(&new).trim().is_empty());
    drop(restored);
}

#[test]
fn a_store_with_other_state_is_replaced_on_request_only() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let folder = testkit::scratch_dir("backup").unwrap();
    let file = folder.path().join("contiv.backup");
    let etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "before", "10.0.0.0/24");
    good(&run("backup", &file, &etcd, &[]));
    make_network(master.address, "after", "10.1.0.0/24");
    master.stop();
    let refused = bad(&run("restore", &file, &etcd, &[]));
    assert!(refused.contains("--replace"), "{refused}");

    let mut damaged = std::fs::read(&file).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let broken = folder.path().join("broken.backup");
    std::fs::write(&broken, damaged).unwrap();
    let refused = bad(&run("restore", &broken, &etcd, &["--replace"]));
    assert!(refused.contains("damaged"), "{refused}");
    let names = |master: &Master| -> Vec<String> {
        let networks = get(master.address, "/api/v1/networks/").unwrap().good();
        let name = |network: &serde_json::Value| network["networkName"].as_str().unwrap().to_owned();
        networks.as_array().unwrap().iter().map(name).collect()
    };
    let mut master = Master::on_etcd(&etcd.endpoint());
    assert_eq!(names(&master), ["after", "before"], "a damaged backup deletes nothing");
    master.stop();
    good(&run("restore", &file, &etcd, &["--replace"]));
    let master = Master::on_etcd(&etcd.endpoint());
    assert_eq!(names(&master), ["before"]);
    make_network(master.address, "after", "10.1.0.0/24");
}
