//! A disk below the embedded store that cannot write.

use std::process::Command;

use serde_json::json;
use testkit::{Process, wait_until};

use crate::client::{Answer, get, make_network, post};
use crate::master::{Master, WAIT_TIMEOUT};

fn add_network(master: &Master, name: &str, subnet: &str) -> Answer {
    let body = json!({"tenantName": "default", "networkName": name, "encap": "vlan", "subnet": subnet,
        "gateway": ""});
    post(master.address, &format!("/api/v1/networks/default:{name}/"), &body).unwrap()
}

/// Lets every sync of the process fail until it is dropped.
fn fail_syncs(master: &Master) -> Process {
    let pid = master.process.pid();
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-p", &pid.to_string(), "-e", "trace=fsync,fdatasync"]);
    strace.args(["-e", "inject=fsync,fdatasync:error=EIO"]);
    let mut strace = Process::spawn("strace", strace).unwrap();
    let traced = || {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let status = std::fs::read_to_string(thread?.path().join("status"))?;
            if status.lines().any(|line| line == "TracerPid:\t0") {
                return Ok(None);
            }
        }
        Ok(Some(()))
    };
    strace.wait_ready(WAIT_TIMEOUT, "strace traces every thread", traced).unwrap();
    strace
}

#[test]
fn after_a_failed_sync_nothing_is_written_until_a_restart() {
    testkit::needs!(root(), binary("strace"));
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded(store.path());
    make_network(master.address, "before", "10.0.0.0/24");

    let mut strace = fail_syncs(&master);
    // The first sync may be another's: then there is no leader any more.
    let refused = add_network(&master, "failed", "10.1.0.0/24");
    assert_eq!(refused.status, 503, "{refused:?}");
    strace.terminate(WAIT_TIMEOUT).unwrap();

    // Syncs succeed again, and would say nothing about what was lost.
    let not_ready = || {
        let ready = get(master.address, "/readyz")?;
        let failed = ready.status == 503 && ready.body.contains("store failed: write ");
        Ok((failed && ready.body.contains("store.redb") && ready.body.contains("restarted")).then_some(()))
    };
    wait_until(WAIT_TIMEOUT, "/readyz to report the failure", not_ready).unwrap();
    let stepped_down = || {
        let log = master.process.log();
        Ok(log.contains("the embedded store takes no writes; resigned").then_some(()))
    };
    wait_until(WAIT_TIMEOUT, "the leader to resign", stepped_down).unwrap();
    let refused = add_network(&master, "late", "10.2.0.0/24");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert_eq!(get(master.address, "/healthz").unwrap().status, 200);

    master.restart();
    assert_eq!(get(master.address, "/api/v1/networks/default:before/").unwrap().status, 200);
    assert_ne!(get(master.address, "/api/v1/networks/default:late/").unwrap().status, 200);
    assert_eq!(add_network(&master, "after", "10.3.0.0/24").status, 200);
    master.stop();
}
