//! `netmaster backup` and `netmaster restore`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;
use testkit::etcd::Etcd;

use crate::client::{address, call, create_endpoint, get, make_network, post};
use crate::master::{Master, WAIT_TIMEOUT, program};

const IDENTITY: &str = "/contiv.io/master/config/cluster";

fn run(command: &str, file: &Path, etcd: &Etcd, more: &[&str]) -> Output {
    run_on(command, file, &[&["--etcd", &etcd.endpoint()], more].concat())
}

fn run_on(command: &str, file: &Path, flags: &[&str]) -> Output {
    Command::new(program()).arg(command).arg(file).args(flags).output().unwrap()
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

fn names(master: &Master) -> Vec<String> {
    let networks = get(master.address, "/api/v1/networks/").unwrap().good();
    let name = |network: &serde_json::Value| network["networkName"].as_str().unwrap().to_owned();
    networks.as_array().unwrap().iter().map(name).collect()
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
    let endpoints = old.ctl(&["get", "--prefix", "--keys-only", "/contiv.io/state/eps/"]).unwrap();
    assert!(endpoints.contains("/contiv.io/state/eps/"));
    let refused = bad(&run("restore", &file, &old, &[]));
    assert!(refused.contains("leads this store"), "{refused}");
    master.stop();

    good(&run("restore", &file, &new, &[]));
    let restored = Master::on_etcd(&new.endpoint());
    let log = || restored.process.log();
    testkit::wait_until(WAIT_TIMEOUT, "the comparison of policies", || {
        Ok(log().contains("compared the policies on groups").then_some(()))
    })
    .unwrap();
    let log = log();
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

    let mut damaged = fs::read(&file).unwrap();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let broken = folder.path().join("broken.backup");
    fs::write(&broken, damaged).unwrap();
    let refused = bad(&run("restore", &broken, &etcd, &["--replace"]));
    assert!(refused.contains("damaged"), "{refused}");
    let mut master = Master::on_etcd(&etcd.endpoint());
    assert_eq!(names(&master), ["after", "before"], "a damaged backup deletes nothing");
    master.stop();
    good(&run("restore", &file, &etcd, &["--replace"]));
    let master = Master::on_etcd(&etcd.endpoint());
    assert_eq!(names(&master), ["before"]);
    make_network(master.address, "after", "10.1.0.0/24");
}

/// The target does not accept the largest value of the backup.
#[test]
fn no_netmaster_leads_a_half_restored_store() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let folder = testkit::scratch_dir("backup").unwrap();
    let (small, large) = (folder.path().join("small.backup"), folder.path().join("large.backup"));
    let source = Etcd::start().unwrap();
    let target = Etcd::options().argument("--max-request-bytes=65536").start().unwrap();
    let mut master = Master::on_etcd(&source.endpoint());
    make_network(master.address, "restored", "10.0.0.0/24");
    good(&run("backup", &small, &source, &[]));
    source.ctl(&["put", "/contiv.io/obj/zz", &"v".repeat(100 << 10)]).unwrap();
    good(&run("backup", &large, &source, &[]));
    master.stop();
    let mut master = Master::on_etcd(&target.endpoint());
    make_network(master.address, "before", "10.1.0.0/24");
    master.stop();

    let failed = bad(&run("restore", &large, &target, &["--replace"]));
    assert!(failed.contains("request is too large"), "{failed}");
    let flags = vec!["--etcd".into(), target.endpoint()];
    let master = Master::wait_word(flags, "the store holds an unfinished restoration");
    let leads = || get(master.address, "/info").unwrap().json()["current-state"] == "leader";
    assert!(!leads(), "{}", master.process.tail());
    assert!(bad(&run("backup", &large, &target, &[])).contains("unfinished restoration"));
    let refused = bad(&run("restore", &small, &target, &[]));
    assert!(refused.contains("--replace"), "{refused}");
    // The netmaster leads when the restoration is repeated.
    good(&run("restore", &small, &target, &["--replace"]));
    testkit::wait_until(WAIT_TIMEOUT, "it to lead", || Ok(leads().then_some(()))).unwrap();
    assert_eq!(names(&master), ["restored"]);
}

/// Agents report to the store before it is restored.
#[test]
fn records_of_running_agents_are_kept() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let folder = testkit::scratch_dir("backup").unwrap();
    let file = folder.path().join("contiv.backup");
    let (old, new) = (Etcd::start().unwrap(), Etcd::start().unwrap());
    let put = |etcd: &Etcd, host: &str, value: &str| {
        for kind in ["node", "vtep"] {
            etcd.ctl(&["put", &format!("/contiv.io/oper/{kind}/{host}"), value]).unwrap();
        }
    };
    put(&old, "running", "before");
    for n in 0..100 {
        put(&old, &format!("stopped{n}"), "before");
    }
    good(&run("backup", &file, &old, &[]));
    put(&new, "running", "now");
    good(&run("restore", &file, &new, &[]));
    for kind in ["node", "vtep"] {
        let prefix = format!("/contiv.io/oper/{kind}/");
        let values = new.ctl(&["get", "--prefix", "--print-value-only", &prefix]).unwrap();
        let count = |value: &str| values.lines().filter(|line| *line == value).count();
        assert_eq!((count("now"), count("before")), (1, 100), "{values}");
    }
}

#[test]
fn an_embedded_store_is_restored_while_no_netmaster_runs() {
    let folder = testkit::scratch_dir("backup").unwrap();
    let file = folder.path().join("contiv.backup");
    let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
    let mut master = Master::embedded(&old);
    make_network(master.address, "net", "10.0.0.0/24");
    let embedded = |folder: &Path| format!("embedded:{}", folder.display());
    good(&run_on("backup", &file, &["--etcd", &master.store()]));
    let used = bad(&run_on("restore", &file, &["--store", &embedded(&old), "--replace"]));
    assert!(used.contains("stop the netmaster"), "{used}");
    make_network(master.address, "later", "10.1.0.0/24");
    master.stop();

    good(&run_on("restore", &file, &["--store", &embedded(&new)]));
    let mut master = Master::embedded(&new);
    assert_eq!(names(&master), ["net"]);
    master.stop();
    good(&run_on("backup", &file, &["--store", &embedded(&old)]));
    let refused = bad(&run_on("restore", &file, &["--store", &embedded(&new)]));
    assert!(refused.contains("--replace"), "{refused}");
    good(&run_on("restore", &file, &["--store", &embedded(&new), "--replace"]));
    assert_eq!(names(&Master::embedded(&new)), ["later", "net"]);
}

#[test]
fn a_folder_without_an_embedded_store_is_not_backed_up() {
    let folder = testkit::scratch_dir("backup").unwrap();
    let file = folder.path().join("contiv.backup");
    let [empty, absent] = ["empty", "absent"].map(|name| folder.path().join(name));
    fs::create_dir(&empty).unwrap();
    for wrong in [&empty, &absent] {
        let refused = bad(&run_on("backup", &file, &["--store", &format!("embedded:{}", wrong.display())]));
        let expected = format!("back up the embedded store in {}: the folder has no store", wrong.display());
        assert!(refused.contains(&expected), "{refused}");
    }
    assert!(!file.exists() && !absent.exists(), "files were created");
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "a store was created");
}

/// Two backups are restored into new stores, where the object has the same revision.
#[test]
fn entity_tags_are_of_one_restoration() {
    const PATH: &str = "/api/v1/netprofiles/default:p/";
    let folder = testkit::scratch_dir("backup").unwrap();
    let profile = |burst: u64| json!({"tenantName": "default", "profileName": "p", "burst": burst});
    let mut source = Master::embedded(&folder.path().join("source"));
    let backups = [10, 20].map(|burst| {
        post(source.address, PATH, &profile(burst)).unwrap().good();
        let file = folder.path().join(format!("{burst}.backup"));
        good(&run_on("backup", &file, &["--etcd", &source.store()]));
        file
    });
    source.stop();
    let [mut first, second] = ["first", "second"].map(|name| folder.path().join(name)).map(|store| {
        let file = &backups[usize::from(store.ends_with("second"))];
        good(&run_on("restore", file, &["--store", &format!("embedded:{}", store.display())]));
        Master::embedded(&store)
    });
    let tag = |master: &Master| get(master.address, PATH).unwrap().header("etag").unwrap().to_owned();
    let (old, new) = (tag(&first), tag(&second));
    first.stop();
    let revision = |tag: &str| tag.rsplit('.').next().map(str::to_owned);
    assert_eq!(revision(&old), revision(&new), "the revision does not tell the stores apart");

    let body = profile(30).to_string();
    let stale = call(second.address, "POST", PATH, &[("If-Match", &old)], &body).unwrap();
    assert_eq!(stale.status, 412, "{stale:?}");
    let read = call(second.address, "GET", PATH, &[("If-None-Match", &old)], "").unwrap();
    assert_eq!(read.good()["burst"], 20);
    let known = call(second.address, "GET", PATH, &[("If-None-Match", &new)], "").unwrap();
    assert_eq!(known.status, 304, "{known:?}");
    call(second.address, "POST", PATH, &[("If-Match", &new)], &body).unwrap().good();
}
