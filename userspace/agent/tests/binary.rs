//! The program's command line, start-up errors and shutdown.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    io::{Read as _, Write as _},
    net::Ipv4Addr,
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    process::Command,
    time::Duration,
};

use testkit::{BpfDir, Netns, Process, etcd::Etcd, needs, scratch_dir, wait_until};

const TIMEOUT: Duration = Duration::from_secs(60);
const GOOD: [&str; 6] = ["--netmode", "vxlan", "--fwdmode", "bridge", "--host", "node-of-the-test"];
const CNI: [&str; 2] = ["--mode", "cni"];
const FAKE: [&str; 4] = ["--mode", "test", "--datapath", "fake"];

fn netplugin(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_netplugin"));
    command.args(words);
    command
}

/// Standard error of a command that exits with `status`.
fn exit_error(command: &mut Command, status: i32) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{stderr}");
    stderr
}

#[test]
fn invalid_flags_exit_with_the_originals_status_and_one_line() {
    for (words, what) in [
        (&["--frobnicate"][..], "--frobnicate"),
        (&["--mode", "kubernetes", "--netmode", "vxlan", "--fwdmode", "bridge"], "not built yet"),
        (&["--mode", "cni", "--netmode", "vlan", "--fwdmode", "bridge"], "--vlan-uplinks"),
    ] {
        let stderr = exit_error(&mut netplugin(words), 22);
        assert!(stderr.contains(what) && stderr.lines().count() == 1, "{stderr}");
    }
}

#[test]
fn flags_are_read_from_the_environment() {
    let mut command = netplugin(&[]);
    command.env("CONTIV_NETPLUGIN_MODE", "cni").env("CONTIV_NETPLUGIN_NET_MODE", "vlan");
    command.env("CONTIV_NETPLUGIN_FORWARD_MODE", "bridge").env("CONTIV_NETPLUGIN_DATAPATH", "ebpf");
    assert!(exit_error(&mut command, 22).contains("--vlan-uplinks"));
    let stderr = exit_error(command.env("CONTIV_NETPLUGIN_DATAPATH", "frobnicate"), 22);
    assert!(stderr.contains("--datapath") && stderr.contains("frobnicate"), "{stderr}");
}

/// Flags for a socket in `directory` and a free HTTP port.
fn listen_flags(directory: &std::path::Path) -> Vec<String> {
    let path = |name: &str| directory.join(name).display().to_string();
    let rest = format!("127.0.0.1:{}", testkit::free_port().unwrap());
    ["--cni-socket".into(), path("cni.sock"), "--rest-address".into(), rest].into()
}

/// The agent waits for it, and can be stopped.
#[test]
fn unreachable_store_is_reported() {
    needs!(root());
    let (directory, netns) = (scratch_dir("agent").unwrap(), Netns::new("node").unwrap());
    let store = format!("http://127.0.0.1:{}", testkit::free_port().unwrap());
    let mut command = netplugin(&GOOD);
    command.args(FAKE).args(listen_flags(directory.path())).args(["--etcd", &store]);
    let mut agent = Process::spawn_in(&netns, "netplugin", command).unwrap();
    let reported = || {
        let log = agent.log();
        let is_reported = |line: &str| line.contains(&store) && line.contains("until the store answers");
        Ok(log.lines().any(is_reported).then_some(()))
    };
    wait_until(TIMEOUT, "the store in the log", reported).unwrap();
    assert!(agent.log().contains("is etcd running"), "{}", agent.log());
    assert!(agent.terminate(TIMEOUT).unwrap().success(), "{}", agent.log());
}

#[test]
fn address_in_use_is_reported() {
    needs!(root());
    let directory = scratch_dir("agent").unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut flags = listen_flags(directory.path());
    flags[3] = address.clone();
    let stderr = exit_error(netplugin(&GOOD).args(CNI).args(flags), 1);
    assert!(stderr.contains(&address) && stderr.contains("--rest-address"), "{stderr}");
}

/// A node with an etcd that contains netmaster's records.
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
        command.args(listen_flags(self.directory.path())).args(["--etcd", &self.etcd.endpoint()]).args(words);
        Process::spawn_in(&self.netns, "netplugin", command).unwrap()
    }
}

const BRIDGE: &str = r#"{"id":"","nw-infra-type":"default","fwd-mode":"bridge","arp-mode":"proxy","pvt-subnet":"172.19.0.0/16"}"#;

#[test]
fn unreachable_switch_is_reported_and_ends_the_agent() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(BRIDGE);
    let mut agent = node.start(&[&CNI[..], &["--ovsdb", "unix:/nonexistent/db.sock"]].concat());
    let reported = |log: String| log.contains("/nonexistent/db.sock").then_some(());
    wait_until(TIMEOUT, "the switch in the log", || Ok(reported(agent.log()))).unwrap();
    assert_eq!(agent.wait(TIMEOUT).unwrap().code(), Some(1));
    let log = agent.log();
    let last = log.lines().last().unwrap();
    assert!(last.starts_with("netplugin: ovs datapath") && last.contains("/nonexistent/db.sock"), "{log}");
}

#[test]
fn bridges_of_a_switch_that_starts_later_end_the_agent() {
    needs!(root(), binary("etcd"), binary("etcdctl"), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::with_settings(BRIDGE);
    let pins = BpfDir::new("pins").unwrap();
    let (late, root) = (node.directory.path().join("late.sock"), pins.path().display().to_string());
    let database = format!("unix:{}", late.display());
    let ebpf = ["--datapath", "ebpf", "--bpf-root", &root, "--ovsdb", &database, "--ctrl-ip", "10.0.0.1"];
    let mut agent = node.start(&[&CNI[..], &ebpf].concat());
    let key = "/contiv.io/service/netplugin/10.0.0.1:9002";
    let registered = || Ok(node.etcd.ctl(&["get", key])?.contains("Hostname").then_some(()));
    wait_until(TIMEOUT, "the registration", registered).unwrap();

    let switch = testkit::ovs::Switch::start(&node.netns).unwrap();
    let bridge = "contivVxlanBridge";
    switch.vsctl(&["add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev"]).unwrap();
    std::os::unix::fs::symlink(switch.socket(), &late).unwrap();
    assert_eq!(agent.wait(TIMEOUT).unwrap().code(), Some(1), "{}", agent.log());
    let log = agent.log();
    let last = log.lines().last().unwrap();
    assert!(last.contains(bridge) && last.contains("netplugin cleanup --datapath ovs"), "{log}");
}

/// Loading the programs takes some 15 MiB that are not needed afterwards.
#[test]
fn ebpf_agent_without_pods_holds_little_memory() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(BRIDGE);
    let pins = BpfDir::new("pins").unwrap();
    let root = pins.path().display().to_string();
    let absent = format!("unix:{}", node.directory.path().join("none.sock").display());
    let ebpf = ["--datapath", "ebpf", "--bpf-root", &root, "--ovsdb", &absent, "--ctrl-ip", "10.0.0.1"];
    let agent = node.start(&[&CNI[..], &ebpf].concat());
    let key = "/contiv.io/oper/node/node-of-the-test";
    let ready = || Ok(node.etcd.ctl(&["get", key])?.contains(r#""ready":true"#).then_some(()));
    wait_until(TIMEOUT, "the datapath is ready", ready).unwrap();
    let status = std::fs::read_to_string(format!("/proc/{}/status", agent.pid())).unwrap();
    let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kilobytes: u32 = anonymous.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kilobytes < 16 << 10, "{kilobytes} kB");
}

#[test]
fn contradicting_settings_are_fatal_with_the_originals_text() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(&BRIDGE.replace("\"bridge\"", "\"routing\""));
    let mut agent = node.start(&FAKE);
    assert_eq!(agent.wait(TIMEOUT).unwrap().code(), Some(1));
    let expected = r#"netplugin's local forward mode "bridge" doesn't match global settings "routing""#;
    assert!(agent.log().contains(expected), "{}", agent.log());
}

/// Such errors end the agent. The node keeps its datapath only if the chosen one is not possible.
#[test]
fn an_error_that_is_not_of_the_datapath_does_not_refuse_the_choice() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(&BRIDGE.replace("\"bridge\"", "\"routing\""));
    let choice = r#"{"host":"node-of-the-test","datapath":"ebpf"}"#;
    node.etcd.ctl(&["put", "/contiv.io/state/node-datapath/node-of-the-test", choice]).unwrap();
    let path = |name: &str| node.directory.path().join(name).display().to_string();
    let (absent, root) = (format!("unix:{}", path("none.sock")), path("bpf"));
    let elsewhere = ["--ovsdb", &absent, "--bpf-root", &root];
    let mut agent = node.start(&[&FAKE[..], &elsewhere].concat());
    assert_eq!(agent.wait(TIMEOUT).unwrap().code(), Some(1));
    let log = agent.log();
    assert!(log.contains("datapath=ebpf") && log.contains("doesn't match global settings"), "{log}");
    assert!(!log.contains("is not possible here") && !log.contains("datapath=fake"), "{log}");
}

/// Also by a later run of the process, with another datapath.
#[test]
fn a_change_of_the_forward_mode_is_followed_and_reported() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(BRIDGE);
    let pins = BpfDir::new("pins").unwrap();
    let root = pins.path().display().to_string();
    let absent = format!("unix:{}", node.directory.path().join("none.sock").display());
    let ebpf = ["--bpf-root", &root, "--ovsdb", &absent, "--ctrl-ip", "10.0.0.1"];
    let mut agent = node.start(&[&FAKE[..], &ebpf].concat());
    let key = "/contiv.io/oper/node/node-of-the-test";
    let until = |what: &[&str]| {
        wait_until(TIMEOUT, &format!("{what:?} in the status"), || {
            let status = node.etcd.ctl(&["get", key])?;
            Ok(what.iter().all(|what| status.contains(what)).then_some(()))
        })
    };
    until(&[r#""datapath":"fake""#, r#""ready":true"#]).unwrap();
    let routing = BRIDGE.replace("\"bridge\"", "\"routing\"");
    node.etcd.ctl(&["put", "/contiv.io/master/config/global", &routing]).unwrap();
    let reported = "the next start needs --fwdmode routing";
    until(&[reported, r#""ready":true"#]).unwrap();
    let choice = r#"{"host":"node-of-the-test","datapath":"ebpf"}"#;
    node.etcd.ctl(&["put", "/contiv.io/state/node-datapath/node-of-the-test", choice]).unwrap();
    let run = until(&[reported, r#""datapath":"ebpf""#, r#""ready":true"#]);
    assert!(run.is_ok(), "{run:?}: {}", agent.log());
    node.etcd.ctl(&["put", "/contiv.io/master/config/global", BRIDGE]).unwrap();
    let ended = || Ok((!node.etcd.ctl(&["get", key])?.contains(reported)).then_some(()));
    wait_until(TIMEOUT, "the contradiction to end", ended).unwrap();
    assert!(agent.terminate(TIMEOUT).unwrap().success(), "{}", agent.log());
}

#[test]
fn registers_publishes_its_status_and_stops_on_sigterm() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(BRIDGE);
    let addresses = ["--ctrl-ip", "10.0.0.1", "--vtep-ip", "10.0.0.2"];
    let mut agent = node.start(&[&FAKE[..], &addresses].concat());
    for (key, what) in [
        ("/contiv.io/service/netplugin/10.0.0.1:9002", r#""Hostname":"node-of-the-test""#),
        ("/contiv.io/service/netplugin/10.0.0.1:9003", r#""Port":9003"#),
        ("/contiv.io/service/netplugin.vtep/10.0.0.2:4789", r#""HostAddr":"10.0.0.2""#),
        ("/contiv.io/oper/node/node-of-the-test", r#""datapath":"fake""#),
        (
            "/contiv.io/oper/vtep/node-of-the-test",
            r#"{"host":"node-of-the-test","vtepIP":"10.0.0.2","vxlanPort":4789}"#,
        ),
    ] {
        wait_until(TIMEOUT, key, || Ok(node.etcd.ctl(&["get", key])?.contains(what).then_some(()))).unwrap();
    }
    let leases = node.etcd.ctl(&["lease", "list"]).unwrap();
    assert_eq!(
        leases.lines().filter(|line| !line.contains("found")).count(),
        1,
        "one for all registrations: {leases}"
    );
    // Deleted as a netmaster does for a node that is gone, the record returns with the next status.
    let vtep = "/contiv.io/oper/vtep/node-of-the-test";
    node.etcd.ctl(&["del", vtep]).unwrap();
    node.etcd.ctl(&["put", "/contiv.io/state/nets/vx2.default", NETWORK]).unwrap();
    wait_until(TIMEOUT, vtep, || Ok(node.etcd.ctl(&["get", vtep])?.contains("10.0.0.2").then_some(())))
        .unwrap();
    let status = agent.terminate(TIMEOUT).unwrap();
    assert!(status.success(), "{}", agent.log());
    // Other nodes continue to send to this node.
    assert!(node.etcd.ctl(&["get", vtep]).unwrap().contains("10.0.0.2"));
}

/// The role of all agents on the page on security.
#[test]
fn the_documented_etcd_role_is_enough() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    check_etcd_role("contiv-agent");
}

/// The role of one node on the page on security.
#[test]
fn the_documented_etcd_role_of_a_node_is_enough() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = check_etcd_role("contiv-HOST");
    for kind in ["node", "vtep", "bgp", "accepted-store"] {
        let of_another = format!("/contiv.io/oper/{kind}/node-of-the-test-2");
        let refused = node.etcd.ctl(&["--user", "agent:agent-secret", "put", &of_another, "{}"]).unwrap_err();
        assert!(format!("{refused:#}").contains("permission denied"), "{refused:#}");
    }
}

/// Runs an agent with a role of the page on security.
fn check_etcd_role(role: &str) -> Node {
    let node = Node::with_settings(BRIDGE);
    const CLUSTER: &str = "/contiv.io/master/config/cluster";
    node.etcd.ctl(&["put", CLUSTER, r#"{"id":"ours"}"#]).unwrap();
    node.etcd.ctl(&["role", "add", "contiv-agent"]).unwrap();
    let page = include_str!("../../../docs/src/security.md");
    let command = format!("etcdctl role grant-permission {role} ");
    for grant in page.lines().filter_map(|line| line.strip_prefix(&command)) {
        let grant = grant.replace("HOST", "node-of-the-test");
        let words: Vec<&str> = grant.split_whitespace().collect();
        node.etcd.ctl(&[&["role", "grant-permission", "contiv-agent"], &words[..]].concat()).unwrap();
    }
    for command in [
        &["user", "add", "root:root-secret"][..],
        &["role", "add", "root"],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "agent:agent-secret"],
        &["user", "grant-role", "agent", "contiv-agent"],
        &["auth", "enable"],
    ] {
        node.etcd.ctl(command).unwrap();
    }
    let password = node.directory.path().join("password");
    testkit::write_secret(&password, "agent-secret\n").unwrap();
    let password = password.display().to_string();
    let user = ["--etcd-user", "agent", "--etcd-password-file", &password];
    let mut agent =
        node.start(&[&FAKE[..], &["--ctrl-ip", "10.0.0.1", "--vtep-ip", "10.0.0.2"], &user].concat());
    let ctl = |words: &[&str]| node.etcd.ctl(&[&["--user", "root:root-secret"], words].concat());
    for key in [
        "/contiv.io/service/netplugin/10.0.0.1:9002",
        "/contiv.io/service/netplugin.vtep/10.0.0.2:4789",
        "/contiv.io/oper/node/node-of-the-test",
        "/contiv.io/oper/vtep/node-of-the-test",
    ] {
        wait_until(TIMEOUT, key, || Ok(ctl(&["get", key])?.contains("10.0.0.").then_some(()))).unwrap();
    }
    // The agent notices another identity, and deletes the operator's acceptance.
    let status = || ctl(&["get", "/contiv.io/oper/node/node-of-the-test"]);
    let ready = || Ok(status()?.contains(r#""ready":true"#).then_some(()));
    wait_until(TIMEOUT, "the store to be followed", ready).unwrap();
    ctl(&["put", CLUSTER, r#"{"id":"another"}"#]).unwrap();
    let reported = || {
        let status = status()?;
        let id = status.split_once(r#""regressionId":""#).and_then(|(_, rest)| rest.split_once('"'));
        Ok(id.map(|(id, _)| id.to_owned()))
    };
    let regression = wait_until(TIMEOUT, "the other identity to be noticed", reported).unwrap();
    let accepted = "/contiv.io/oper/accepted-store/node-of-the-test";
    let body = format!(r#"{{"host":"node-of-the-test","regressionId":"{regression}"}}"#);
    ctl(&["put", accepted, &body]).unwrap();
    wait_until(TIMEOUT, accepted, || Ok(ctl(&["get", accepted])?.is_empty().then_some(()))).unwrap();
    assert!(agent.terminate(TIMEOUT).unwrap().success(), "{}", agent.log());
    assert!(!agent.log().contains("permission denied"), "{}", agent.log());
    node
}

#[test]
fn the_api_is_served_on_a_socket_that_only_the_owner_opens() {
    needs!(root(), binary("etcd"), binary("etcdctl"));
    let node = Node::with_settings(BRIDGE);
    let mut agent = node.start(&[&FAKE[..], &["--ctrl-ip", "10.0.0.1", "--vtep-ip", "10.0.0.2"]].concat());
    let path = node.directory.path().join("cni.rest.sock");
    let ask = || {
        let Ok(mut stream) = UnixStream::connect(&path) else { return Ok(None) };
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.contains("appliedRevision").then_some(()))
    };
    wait_until(TIMEOUT, "an answer on the socket", ask).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!agent.log().contains("without authentication"), "{}", agent.log());
    assert!(agent.terminate(TIMEOUT).unwrap().success(), "{}", agent.log());
}

/// Until the settings are known, the agent does not know the addresses of pods.
#[test]
fn the_api_is_open_to_the_node_alone_until_the_settings_are_known() {
    needs!(root(), binary("etcd"), binary("etcdctl"), binary("curl"));
    let node = Node::with_settings(&BRIDGE.replace("\"bridge\"", "\"\""));
    let (outside, pod) = (Netns::new("outside").unwrap(), Netns::new("pod").unwrap());
    // The port of host access is that of an earlier process.
    for (link, own, other, address) in [
        ("eth0", "192.0.2.1/24", &outside, "192.0.2.2/24"),
        ("contivh0", "172.19.255.254/16", &pod, "172.19.0.7/16"),
    ] {
        node.netns.veth(link, other, "eth0").unwrap();
        for (netns, link, address) in [(&node.netns, link, own), (other, "eth0", address)] {
            netns.address(link, address).unwrap();
            netns.up(link).unwrap();
        }
    }
    let port = testkit::free_port().unwrap();
    let (socket, rest) = (node.directory.path().join("cni.sock"), format!("0.0.0.0:{port}"));
    let mut command = netplugin(&GOOD);
    command.args(FAKE).args([
        "--etcd",
        &node.etcd.endpoint(),
        "--rest-address",
        &rest,
        "--ctrl-ip",
        "192.0.2.1",
    ]);
    command.arg("--cni-socket").arg(socket);
    let _agent = Process::spawn_in(&node.netns, "netplugin", command).unwrap();
    let status = |from: &Netns, to: &str, path: &str| {
        let url = format!("http://{to}:{port}{path}");
        from.output("curl", &["--silent", "--output", "/dev/null", "--write-out", "%{http_code}", &url])
    };
    let is = |from, to, path, code: &str| anyhow::Ok((status(from, to, path)?.trim() == code).then_some(()));
    wait_until(TIMEOUT, "the API", || is(&pod, "172.19.255.254", "/healthz", "200")).unwrap();
    let refused = |from, to, is_refused| {
        // Status 500 without a BGP speaker.
        assert_eq!(status(from, to, "/inspect/bgp").unwrap().trim() == "403", is_refused, "{to}");
    };
    refused(&node.netns, "127.0.0.1", false);
    refused(&node.netns, "192.0.2.1", false);
    refused(&outside, "192.0.2.1", true);
    refused(&pod, "172.19.255.254", true);
    node.etcd.ctl(&["put", "/contiv.io/master/config/global", BRIDGE]).unwrap();
    wait_until(TIMEOUT, "an answer to another host", || is(&outside, "192.0.2.1", "/inspect/bgp", "500"))
        .unwrap();
    refused(&pod, "172.19.255.254", true);
}

const NETWORK: &str = include_str!("../../model/tests/golden/network-vx2.json");
const ENDPOINT: &str = r#"{"id":"vx2.default-c1","netID":"vx2.default","endpointID":"c1","endpointGroupId":5,
    "endpointGroupKey":"gp:default","ipAddress":"20.1.2.7","macAddress":"02:02:14:01:02:07","homingHost":"node-of-the-test"}"#;
const GROUP: &str = include_str!("../../model/tests/golden/group-gp.json");
const SERVICE: &str = r#"{"id":"web:default","servicename":"web","tenantname":"default","subnet":"vx2",
    "ports":["80:8080:TCP"],"ipaddress":"20.1.2.9"}"#;

/// With a service of more backends than the OVS datapath supports, the node is ready and reports it as degraded until it is
/// deleted.
#[test]
fn unsupported_objects_are_reported() {
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
    let subnet = (r#""subnetIP":"20.1.2.0","subnetLen":24"#, r#""subnetIP":"20.1.0.0","subnetLen":16"#);
    put("nets/vx2.default", &NETWORK.replace(subnet.0, subnet.1));
    put("eps/vx2.default-c1", ENDPOINT);
    put("endpointGroups/gp:default", &GROUP.replace(r#""DSCP":0"#, r#""DSCP":46"#));
    let backends = (0..1001u16).map(|n| format!(r#""20.1.{}.{}""#, 3 + n / 250, n % 250)).collect::<Vec<_>>();
    let providers = r#"{"id":"web:default","ServiceName":"web:default","Providers":["#;
    put("provider/web:default", &format!("{providers}{}]}}", backends.join(",")));
    put("serviceLB/web:default", SERVICE);
    let ovsdb = format!("unix:{}", switch.socket().display());
    let rest = format!("127.0.0.1:{}", testkit::free_port().unwrap());
    let socket = node.directory.path().join("cni.sock").display().to_string();
    let mut command = netplugin(&GOOD);
    command.args(["--mode", "test", "--vtep-ip", "10.0.0.2", "--ctrl-ip", "10.0.0.2", "--ovsdb", &ovsdb]);
    command.args(["--ovs-datapath-type", "netdev", "--cni-socket", &socket, "--rest-address", &rest]);
    command.args(["--etcd", &node.etcd.endpoint()]);
    node.netns.up("lo").unwrap();
    node.netns.output("ip", &["address", "add", "10.0.0.2/32", "dev", "lo"]).unwrap();
    let agent = Process::spawn_in(&node.netns, "netplugin", command).unwrap();
    let reports = |what: &[&str]| {
        let ready = node.netns.output("curl", &["--silent", "--fail", &format!("http://{rest}/readyz")]);
        let ready = ready.unwrap_or_default();
        let status = node.etcd.ctl(&["get", "/contiv.io/oper/node/node-of-the-test"])?;
        Ok(what.iter().all(|what| ready.contains(what) && status.contains(what)).then_some(()))
    };
    let all = [r#""services: 1 not supported by this datapath yet""#, r#""failed":1"#, r#""ready":true"#];
    let waited = wait_until(TIMEOUT, "the unsupported objects in the status", || reports(&all));
    assert!(waited.is_ok(), "{waited:?}: {}", agent.log());
    assert_eq!(agent.log().matches("the node continues without them").count(), 1, "{}", agent.log());
    node.etcd.ctl(&["del", "/contiv.io/state/serviceLB/web:default"]).unwrap();
    wait_until(TIMEOUT, "no degraded conditions", || reports(&[r#""degraded":[]"#, r#""failed":0"#]))
        .unwrap();
}
