//! The program as operators start it, mostly wrongly.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    net::Ipv4Addr,
    process::Command,
    time::{Duration, Instant},
};

use testkit::{Netns, Process, etcd::Etcd, needs, scratch_dir, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);
const GOOD: [&str; 6] = ["--netmode", "vxlan", "--fwdmode", "bridge", "--host", "node-of-the-test"];
const CNI: [&str; 2] = ["--mode", "cni"];
const FAKE: [&str; 4] = ["--mode", "test", "--datapath", "fake"];

fn netplugin(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netplugin"));
    command.args(words);
    command
}

/// What it says before it ends with `status`.
fn refusal(command: &mut Command, status: i32) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{said}");
    said
}

#[test]
fn bad_flags_end_it_with_the_originals_status_and_one_line() {
    for (words, what) in [
        (&["--frobnicate"][..], "--frobnicate"),
        (&["--mode", "kubernetes", "--netmode", "vxlan", "--fwdmode", "bridge"], "not built yet"),
        (&["--mode", "cni", "--netmode", "vlan", "--fwdmode", "bridge"], "--vlan-uplinks"),
    ] {
        let said = refusal(&mut netplugin(words), 22);
        assert!(said.contains(what) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn flags_come_from_the_environment_too() {
    let mut command = netplugin(&[]);
    command.env("CONTIV_NETPLUGIN_MODE", "cni").env("CONTIV_NETPLUGIN_NET_MODE", "vxlan");
    command.env("CONTIV_NETPLUGIN_FORWARD_MODE", "routing");
    assert!(refusal(&mut command, 22).contains("--fwdmode routing"));
}

/// Everything that it makes on the way goes into this directory.
fn places(directory: &std::path::Path) -> Vec<String> {
    let path = |name: &str| directory.join(name).display().to_string();
    let rest = format!("127.0.0.1:{}", testkit::free_port().unwrap());
    ["--cni-socket".into(), path("cni.sock"), "--rest-address".into(), rest].into()
}

#[test]
fn a_store_that_is_away_is_named() {
    needs!(root());
    let directory = scratch_dir("agent").unwrap();
    let store = format!("http://127.0.0.1:{}", testkit::free_port().unwrap());
    let start = Instant::now();
    let said = refusal(netplugin(&GOOD).args(CNI).args(places(directory.path())).args(["--etcd", &store]), 1);
    let last = said.lines().last().unwrap();
    assert!(last.contains(&store) && last.contains("is etcd running"), "{said}");
    assert!(start.elapsed() < PATIENCE);
}

#[test]
fn an_address_in_use_is_named() {
    needs!(root());
    let directory = scratch_dir("agent").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut places = places(directory.path());
    places[3] = address.clone();
    let said = refusal(netplugin(&GOOD).args(CNI).args(places), 1);
    assert!(said.contains(&address) && said.contains("--rest-address"), "{said}");
}

/// A node with an etcd in it that says what netmaster would.
struct Node {
    directory: tempfile::TempDir,
    etcd: Etcd,
    netns: Netns,
}

impl Node {
    fn with_settings(settings: &str) -> Node {
        let netns = Netns::new("node").unwrap();
        let etcd = Etcd::options().in_netns(&netns, Ipv4Addr::LOCALHOST).start().unwrap();
        etcd.ctl(&["put", "/contiv.io/master/config/global", settings]).unwrap();
        Node { directory: scratch_dir("agent").unwrap(), etcd, netns }
    }

    fn start(&self, words: &[&str]) -> Process {
        let mut command = netplugin(&GOOD);
        command.args(places(self.directory.path())).args(["--etcd", &self.etcd.endpoint()]).args(words);
        Process::spawn_in(&self.netns, "netplugin", command).unwrap()
    }
}

const BRIDGE: &str = r#"{"id":"","nw-infra-type":"default","fwd-mode":"bridge","arp-mode":"proxy","pvt-subnet":"172.19.0.0/16"}"#;

#[test]
fn a_switch_that_is_away_is_named_at_once_and_given_up_later() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(BRIDGE);
    let mut agent = node.start(&[&CNI[..], &["--ovsdb", "unix:/nonexistent/db.sock"]].concat());
    let told = |log: String| log.contains("/nonexistent/db.sock").then_some(());
    wait_until(PATIENCE, "the switch to be named", || Ok(told(agent.log()))).unwrap();
    assert_eq!(agent.wait(PATIENCE).unwrap().code(), Some(1));
    let log = agent.log();
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("netplugin: ovs datapath") && last.contains("/nonexistent/db.sock"), "{log}");
}

#[test]
fn settings_that_contradict_it_are_fatal_in_the_originals_words() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(&BRIDGE.replace("\"bridge\"", "\"routing\""));
    let mut agent = node.start(&FAKE);
    assert_eq!(agent.wait(PATIENCE).unwrap().code(), Some(1));
    let expected = r#"netplugin's local forward mode "bridge" doesn't match global settings "routing""#;
    assert!(agent.log().contains(expected), "{}", agent.log());
}

#[test]
fn it_registers_tells_its_status_and_stops_when_asked() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(BRIDGE);
    let addresses = ["--ctrl-ip", "10.0.0.1", "--vtep-ip", "10.0.0.2"];
    let mut agent = node.start(&[&FAKE[..], &addresses].concat());
    for (key, what) in [
        ("/contiv.io/service/netplugin/10.0.0.1:9002", r#""Hostname":"node-of-the-test""#),
        ("/contiv.io/service/netplugin/10.0.0.1:9003", r#""Port":9003"#),
        ("/contiv.io/service/netplugin.vtep/10.0.0.2:4789", r#""HostAddr":"10.0.0.2""#),
        ("/contiv.io/oper/node/node-of-the-test", r#""datapath":"fake""#),
    ] {
        wait_until(PATIENCE, key, || Ok(node.etcd.ctl(&["get", key])?.contains(what).then_some(()))).unwrap();
    }
    let status = agent.terminate(PATIENCE).unwrap();
    assert!(status.success(), "{}", agent.log());
    // Others must go on sending to this node.
    let kept = node.etcd.ctl(&["get", "/contiv.io/oper/node/node-of-the-test"]).unwrap();
    assert!(kept.contains("10.0.0.2"));
}

const NETWORK: &str = include_str!("../../model/tests/golden/network-vx2.json");
const ENDPOINT: &str = r#"{"id":"vx2.default-c1","netID":"vx2.default","endpointID":"c1","endpointGroupId":5,
    "endpointGroupKey":"gp:default","ipAddress":"20.1.2.7","macAddress":"02:02:14:01:02:07","homingHost":"node-of-the-test"}"#;
const GROUP: &str = include_str!("../../model/tests/golden/group-gp.json");
const SERVICE: &str = r#"{"id":"web:default","servicename":"web","tenantname":"default","subnet":"vx2",
    "ports":["80:8080:TCP"],"ipaddress":"20.1.2.9"}"#;

/// A switch without flows for policies and services: the node is ready, and says what it does not do, until there is no
/// more of it.
#[test]
fn what_the_switch_cannot_do_is_told() {
    needs!(
        root(),
        binary("etcd"),
        binary("etcdctl"),
        binary("ovs-vswitchd"),
        binary("ovsdb-server"),
        binary("curl")
    );
    let node = Node::with_settings(BRIDGE);
    let switch = testkit::ovs::Switch::start(&node.netns).unwrap();
    let put = |key: &str, body: &str| {
        node.etcd.ctl(&["put", &format!("/contiv.io/state/{key}"), body]).unwrap();
    };
    put("nets/vx2.default", NETWORK);
    put("eps/vx2.default-c1", ENDPOINT);
    put("endpointGroups/gp:default", &GROUP.replace(r#""DSCP":0"#, r#""DSCP":46"#));
    put("serviceLB/web:default", SERVICE);
    let ovsdb = format!("unix:{}", switch.socket().display());
    let rest = format!("127.0.0.1:{}", testkit::free_port().unwrap());
    let socket = node.directory.path().join("cni.sock").display().to_string();
    let mut command = netplugin(&GOOD);
    command.args(["--mode", "test", "--vtep-ip", "10.0.0.2", "--ctrl-ip", "10.0.0.2", "--ovsdb", &ovsdb]);
    command.args(["--ovs-datapath-type", "netdev", "--cni-socket", &socket, "--rest-address", &rest]);
    command.args(["--etcd", &node.etcd.endpoint()]);
    node.netns.up("lo").unwrap();
    let agent = Process::spawn_in(&node.netns, "netplugin", command).unwrap();
    let says = |what: &[&str]| {
        let ready = node.netns.output("curl", &["--silent", "--fail", &format!("http://{rest}/readyz")]);
        let ready = ready.unwrap_or_default();
        let status = node.etcd.ctl(&["get", "/contiv.io/oper/node/node-of-the-test"])?;
        Ok(what.iter().all(|what| ready.contains(what) && status.contains(what)).then_some(()))
    };
    let all = [
        r#""groups with policies, DSCP or bandwidth: 1 not supported by this datapath yet""#,
        r#""services: 1 not supported by this datapath yet""#,
        r#""failed":2"#,
        r#""ready":true"#,
    ];
    let waited = wait_until(PATIENCE, "the node to say what it does not do", || says(&all));
    assert!(waited.is_ok(), "{waited:?}: {}", agent.log());
    assert_eq!(agent.log().matches("the node continues without them").count(), 2, "{}", agent.log());
    node.etcd.ctl(&["del", "/contiv.io/state/serviceLB/web:default"]).unwrap();
    put("endpointGroups/gp:default", GROUP);
    wait_until(PATIENCE, "nothing to be left", || says(&[r#""degraded":[]"#, r#""failed":0"#])).unwrap();
}
