//! Start of the process, and errors at start.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::json;
use testkit::Process;

use crate::client::{call, delete, get, post};
use crate::master::{Master, WAIT_TIMEOUT, loopback, program};

/// Exit code and output.
fn run(args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(program());
    command.args(["--mode", "test", "--netmode", "vlan", "--fwdmode", "bridge"]).args(args);
    let mut process = Process::spawn("netmaster", command).unwrap();
    let status = process.wait(WAIT_TIMEOUT).unwrap();
    (status.code(), process.log())
}

#[test]
fn invalid_flags_exit_with_22_and_one_line() {
    for (args, part) in [
        (&["--frobnicate"][..], "--frobnicate"),
        (&["--consul", "http://127.0.0.1:1"], "--consul"),
        (&["--log-level", "loud"], "--log-level"),
    ] {
        let (code, said) = run(args);
        assert_eq!((code, said.lines().count()), (Some(22), 1), "{said}");
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn an_unreachable_store_is_reported() {
    let unreachable = loopback();
    let (code, said) = run(&[
        "--etcd",
        &format!("http://{unreachable}"),
        "--external-address",
        &loopback().to_string(),
        "--store-wait",
        "1s",
    ]);
    assert_eq!(code, Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("netmaster: ") && last.contains(&unreachable.to_string()), "{said}");
}

#[test]
fn a_late_store_is_awaited() {
    testkit::needs!(binary("etcd"));
    let place = loopback();
    let flags = vec!["--etcd".into(), format!("http://{place}")];
    let master = Master::wait_word(flags, "waiting for the store");
    let said = master.process.log();
    assert!(said.contains(&place.to_string()) && said.contains("--store-wait"), "{said}");
    assert_eq!(get(master.address, "/healthz").unwrap().status, 200);
    assert_eq!(get(master.address, "/readyz").unwrap().status, 503);
    let etcd = testkit::etcd::Etcd::options().client_port(place.port()).start().unwrap();
    let ready = || Ok((get(master.address, "/readyz")?.status == 200).then_some(()));
    testkit::wait_until(WAIT_TIMEOUT, "it to lead", ready).unwrap();
    drop((master, etcd));
}

#[test]
fn a_master_waiting_for_the_store_can_be_stopped() {
    let flags = vec!["--etcd".into(), format!("http://{}", loopback())];
    Master::wait_word(flags, "waiting for the store").stop();
}

#[test]
fn an_address_in_use_is_reported() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let other = testkit::scratch_dir("store").unwrap();
    let embedded = format!("embedded:{}", other.path().display());
    let (code, said) = run(&[
        "--store",
        &embedded,
        "--store-listen",
        &loopback().to_string(),
        "--external-address",
        &master.address.to_string(),
    ]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.lines().last().unwrap().contains(&format!("listen on {}", master.address)), "{said}");
}

#[test]
fn the_embedded_store_is_for_its_user_only() {
    testkit::needs!(root(), binary("setpriv"));
    let store = testkit::scratch_dir("store").unwrap();
    // A user who reaches the socket must still not open it.
    fs::set_permissions(store.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let embedded = format!("embedded:{}", store.path().display());
    let mut master = Master::wait_leading(vec!["--store".into(), embedded.clone()]);
    let socket = store.path().join("store.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let backup = |user: &[&str]| {
        let file = testkit::scratch_dir("backup").unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let (file, etcd) = (file.path().join("file"), format!("unix:{}", socket.display()));
        let mut command = Command::new("setpriv");
        command.args(user).arg(program()).arg("backup").arg(file).args(["--etcd", &etcd]).output().unwrap()
    };
    let own = backup(&["--nnp"]);
    assert!(own.status.success(), "{own:?}");
    let stranger = backup(&["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
    assert_eq!(stranger.status.code(), Some(1), "{stranger:?}");
    let said = String::from_utf8_lossy(&stranger.stderr);
    assert!(said.contains("store.sock"), "{said}");
    let (code, said) = run(&["--store", &embedded]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("store.sock") && said.contains("another process"), "{said}");
    master.restart();
    master.stop();
}

#[test]
fn the_users_settings_survive_a_restart() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::embedded(store.path());
    let to = master.address;
    let global = json!({
        "name": "global", "networkInfraType": "default", "vlans": "100-200", "vxlans": "1000-2000",
        "fwdMode": "routing", "arpMode": "flood", "pvtSubnet": "10.9.0.0/16",
    });
    let set = post(to, "/api/v1/globals/global/", &global).unwrap().good();
    delete(to, "/api/v1/tenants/default/").unwrap().good();
    master.restart();
    assert_eq!(get(to, "/api/v1/globals/global/").unwrap().good(), set);
    assert_eq!(get(to, "/api/v1/tenants/").unwrap().good(), json!([]));
}

#[test]
fn problem_details_are_returned_on_request() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::embedded(store.path());
    let accept = [("Accept", "application/problem+json")];
    for (path, status) in [("/api/v1/networks/default:no/", 404), ("/debug/ofnet", 404), ("/nowhere", 404)] {
        let answer = call(master.address, "GET", path, &accept, "").unwrap();
        assert_eq!(
            (answer.status, answer.content_type.as_str()),
            (status, "application/problem+json"),
            "{path}"
        );
        assert_eq!(answer.json()["status"], status);
    }
    let answer = call(master.address, "POST", "/api/v1/tenants/t/", &accept, "{").unwrap();
    assert_eq!((answer.status, &answer.json()["detail"]), (400, &"unexpected EOF".into()));
    let answer =
        call(master.address, "POST", "/api/v1/tenants/default/", &accept, r#"{"tenantName":"default"}"#)
            .unwrap();
    assert_eq!(answer.status, 409);
}
