//! Invalid input and missing prerequisites: one error line with cause and remedy, and no leftover resources.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    io::Write as _,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process::{Command, Output, Stdio},
    time::Duration,
};

use e2e::{
    binaries::Binary,
    cluster::{Call, Cluster, Datapath, Encap, Network, Shape, StoreKind},
    http::JSON,
    master::{Master, Options, Store},
};
use serde_json::{Value, json};
use testkit::{BpfDir, Netns, Process, etcd::Etcd, free_port, needs, scratch_dir};

/// Daemons report errors within this time.
const DEADLINE: Duration = Duration::from_secs(20);

/// Asserts that the process fails with one error line that contains all `words`.
#[track_caller]
fn fails_with(process: &mut Process, words: &[&str]) {
    let status = process.wait(DEADLINE).unwrap();
    let log = process.log();
    // The error is the last line, and the only one that starts with the name of the daemon; the others are log lines.
    let lines: Vec<_> = log.lines().filter(|line| line.starts_with(process.label())).collect();
    assert!(!status.success(), "{log}");
    assert_eq!(lines.len(), 1, "{log}");
    assert_eq!(log.lines().last(), Some(lines[0]), "{log}");
    for word in words {
        assert!(lines[0].contains(word), "{word:?} is not in: {}", lines[0]);
    }
}

/// Asserts that the process keeps running and logs one line that contains all `words`.
#[track_caller]
fn waits_for(process: &mut Process, words: &[&str]) {
    let log = process.log_path().to_owned();
    let logged = || {
        let log = std::fs::read_to_string(&log)?;
        Ok(log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(()))
    };
    process.wait_ready(DEADLINE, &format!("a line with {words:?}"), logged).unwrap();
    assert!(process.terminate(DEADLINE).unwrap().success());
}

fn netmaster(arguments: &[&str]) -> Process {
    let mut command = Binary::Netmaster.command().unwrap();
    command.args(arguments);
    Process::spawn("netmaster", command).unwrap()
}

const MASTER: [&str; 6] = ["--mode", "test", "--netmode", "vlan", "--fwdmode", "bridge"];

#[test]
fn netmaster_names_the_invalid_flag() {
    let _machine = testkit::shared();
    fails_with(&mut netmaster(&["--nonsense"]), &["--nonsense"]);
    fails_with(&mut netmaster(&[]), &["--mode"]);
    let mut docker = netmaster(&["--mode", "docker", "--netmode", "vlan", "--fwdmode", "bridge"]);
    fails_with(&mut docker, &["docker", "not built yet"]);
    assert_eq!(docker.ended().unwrap().and_then(|status| status.code()), Some(22));
    fails_with(
        &mut netmaster(&[&MASTER[..], &["--consul", "127.0.0.1:8500"]].concat()),
        &["consul", "not built yet"],
    );
}

#[test]
fn netmaster_names_an_unreachable_store() {
    let _machine = testkit::shared();
    let endpoint = format!("http://127.0.0.1:{}", free_port().unwrap());
    let own = format!("127.0.0.1:{}", free_port().unwrap());
    let arguments = ["--etcd", &endpoint, "--store-wait", "1s", "--external-address", &own];
    fails_with(&mut netmaster(&[&MASTER[..], &arguments].concat()), &[&endpoint, "etcd running"]);
    fails_with(&mut netmaster(&[&MASTER[..], &["--etcd", "ftp://x"]].concat()), &["ftp", "http://HOST:PORT"]);
    fails_with(
        &mut netmaster(&[&MASTER[..], &["--store", "embedded:/proc/nowhere"]].concat()),
        &["/proc/nowhere"],
    );
}

#[test]
fn netmaster_names_an_address_in_use() {
    let _machine = testkit::shared();
    let folder = scratch_dir("store").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (taken, store) =
        (listener.local_addr().unwrap().to_string(), format!("embedded:{}", folder.path().display()));
    let listen = format!("127.0.0.1:{}", free_port().unwrap());
    let arguments = ["--store", &store, "--store-listen", &listen, "--external-address", &taken];
    fails_with(&mut netmaster(&[&MASTER[..], &arguments].concat()), &[&taken]);
}

fn netplugin(namespace: &Netns, words: &[&str]) -> Process {
    let mut command = Binary::Netplugin.command().unwrap();
    command.args(["--mode", "cni", "--netmode", "vxlan", "--fwdmode", "bridge", "--host", "node1"]);
    command.args(["--ctrl-ip", "127.0.0.1", "--vtep-ip", "127.0.0.1"]).args(words);
    Process::spawn_in(namespace, "netplugin", command).unwrap()
}

#[test]
fn netplugin_names_the_invalid_flag_and_the_unreachable_store() {
    needs!(root(), binary("ip"));
    let _machine = testkit::shared();
    let namespace = Netns::new("node").unwrap();
    fails_with(&mut netplugin(&namespace, &["--nonsense"]), &["--nonsense"]);
    let endpoint = format!("http://127.0.0.1:{}", free_port().unwrap());
    let waiting = [&endpoint[..], "until the store answers"];
    waits_for(&mut netplugin(&namespace, &["--etcd", &endpoint]), &waiting);
    assert_eq!(namespace.links().unwrap(), Vec::<String>::new());
}

/// A namespace with a store and a netmaster.
struct Site {
    _etcd: Etcd,
    _master: Master,
    namespace: Netns,
}

impl Site {
    const STORE: &str = "http://127.0.0.1:2379";

    fn new() -> Site {
        let namespace = Netns::new("site").unwrap();
        let options = Etcd::options().in_netns(&namespace, Ipv4Addr::LOCALHOST).client_port(2379);
        let etcd = options.start().unwrap();
        let master = Master::start(Options {
            mode: "cni",
            netmode: "vxlan",
            store: Store::Etcd { endpoint: Self::STORE.to_owned() },
            location: Some((namespace.clone(), Ipv4Addr::LOCALHOST)),
            port: 9999,
            failover_after: None,
        });
        Site { _etcd: etcd, _master: master.unwrap(), namespace }
    }
}

#[test]
fn netplugin_names_an_unreachable_switch() {
    needs!(root(), binary("ip"), binary("etcd"));
    let _machine = testkit::shared();
    let site = Site::new();
    let folder = scratch_dir("run").unwrap();
    let socket = folder.path().join("cni.sock").display().to_string();
    let database = format!("unix:{}/absent.sock", folder.path().display());
    let words = ["--etcd", Site::STORE, "--cni-socket", &socket, "--datapath", "ovs", "--ovsdb", &database];
    waits_for(&mut netplugin(&site.namespace, &words), &["absent.sock", "running"]);
    assert_eq!(site.namespace.links().unwrap(), Vec::<String>::new());
}

#[test]
fn netplugin_names_the_missing_capability() {
    needs!(root(), binary("ip"), binary("etcd"), binary("setpriv"));
    let _machine = testkit::shared();
    let site = Site::new();
    let (folder, pins) = (scratch_dir("run").unwrap(), BpfDir::new("pins").unwrap());
    let (socket, pins) =
        (folder.path().join("cni.sock").display().to_string(), pins.path().display().to_string());
    let mut command = Command::new("setpriv");
    // Root without these capabilities, as in an unprivileged container.
    command.arg("--bounding-set=-bpf,-perfmon,-sys_admin").arg(Binary::Netplugin.path().unwrap());
    command.args(["--mode", "cni", "--netmode", "vxlan", "--fwdmode", "bridge", "--host", "node1"]);
    command.args(["--ctrl-ip", "127.0.0.1", "--vtep-ip", "127.0.0.1", "--etcd", Site::STORE]);
    command.args(["--cni-socket", &socket, "--datapath", "ebpf", "--bpf-root", &pins]);
    let mut process = Process::spawn_in(&site.namespace, "netplugin", command).unwrap();
    waits_for(&mut process, &["CAP_BPF"]);
    assert_eq!(site.namespace.links().unwrap(), Vec::<String>::new());
}

/// Environment variables to change or, with none, to remove.
type Changes<'a> = &'a [(&'a str, Option<&'a str>)];

/// Runs the plugin as a runtime does, with changes to a valid call.
fn cni(changes: Changes<'_>, config: &str) -> Output {
    let mut command = Binary::Contivk8s.command().unwrap();
    command
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", "c0ffee")
        .env("CNI_NETNS", "/proc/self/ns/net")
        .env("CNI_IFNAME", "eth0")
        .env("CNI_PATH", "/opt/cni/bin")
        .env("CNI_ARGS", "K8S_POD_NAME=p;K8S_POD_NAMESPACE=n;K8S_POD_INFRA_CONTAINER_ID=c0ffee");
    for (name, value) in changes {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The plugin may fail before it reads its input.
    let _ = child.stdin.take().unwrap().write_all(config.as_bytes());
    child.wait_with_output().unwrap()
}

/// Parses the error object of the CNI specification; returns its code, and message and details as one text.
#[track_caller]
fn cni_error(output: &Output) -> (u64, String) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{stdout}");
    let error: Value = serde_json::from_str(&stdout).unwrap();
    assert!(error["cniVersion"].is_string(), "{error}");
    let text = [error["msg"].as_str().unwrap(), error["details"].as_str().unwrap_or_default()].join(": ");
    assert!(!text.contains('\n'), "{text}");
    (error["code"].as_u64().unwrap(), text)
}

fn config() -> Value {
    json!({ "cniVersion": "1.0.0", "name": "contiv-net", "type": "contivk8s", "socket": "/nowhere/contiv-cni.sock" })
}

#[test]
fn plugin_reports_errors_as_the_specification_says() {
    let _machine = testkit::shared();
    let cases: [(Changes<'_>, String, u64, &str); 6] = [
        (&[], "{broken".to_owned(), 6, "JSON"),
        (&[], json!({ "cniVersion": "9.9.9", "name": "n", "type": "contivk8s" }).to_string(), 1, "9.9.9"),
        (&[("CNI_CONTAINERID", None)], config().to_string(), 4, "CNI_CONTAINERID"),
        (&[("CNI_NETNS", None)], config().to_string(), 4, "CNI_NETNS"),
        (&[("CNI_NETNS", Some("/run/netns/absent"))], config().to_string(), 4, "/run/netns/absent"),
        (&[("CNI_IFNAME", Some("a/b"))], config().to_string(), 4, "CNI_IFNAME"),
    ];
    for (changes, config, code, word) in cases {
        let (found, text) = cni_error(&cni(changes, &config));
        assert_eq!(found, code, "{text}");
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
}

#[test]
fn plugin_names_an_unreachable_agent() {
    let _machine = testkit::shared();
    let (_, text) = cni_error(&cni(&[], &config().to_string()));
    assert!(text.contains("/nowhere/contiv-cni.sock"), "{text}");
}

#[test]
fn failed_add_leaves_no_resources() {
    needs!(root(), binary("ovs-vswitchd"), binary("ethtool"));
    let _machine = testkit::shared();
    for datapath in [Datapath::Ovs, Datapath::Ebpf] {
        let shape = Shape { datapaths: [datapath; 2], encap: Encap::Vxlan, store: StoreKind::Embedded };
        let mut cluster = Cluster::build(shape).unwrap();
        cluster.start_agents().unwrap();
        let network = Network::pods();
        cluster.create_network(&network).unwrap();
        let node = &cluster.nodes[0];
        let pod = Netns::new("pod").unwrap();
        // The interface name of the pod is in use.
        pod.ip("link add eth0 type bridge").unwrap();
        let call = Call::new(node, &network, "failing", &pod);
        let (_, text) = cni_error(&call.run(node, "ADD").unwrap());
        assert!(text.contains("eth0"), "{text}");
        // The network does not exist.
        let other = Network { name: "nowhere".to_owned(), ..network.clone() };
        let (_, text) = cni_error(&Call::new(node, &other, "missing", &pod).run(node, "ADD").unwrap());
        assert!(text.contains("nowhere"), "{text}");
        assert_eq!(node.pod_links().unwrap(), Vec::<String>::new());
        assert_eq!(pod.links().unwrap(), ["eth0"]);
        let state = cluster.client().get_json("/api/v1/inspect/networks/blue:pods/").unwrap();
        assert_eq!(state["Oper"]["numEndpoints"], Value::Null, "{state}");
        // DEL of a pod that was never added succeeds, also without the namespace.
        drop(pod);
        call.expect(node, "DEL").unwrap();
        cluster.delete_network(&network).unwrap();
        cluster.shut_down().unwrap();
    }
}

#[test]
fn netmaster_reports_invalid_requests_in_one_line() {
    let _machine = testkit::shared();
    let folder = scratch_dir("store").unwrap();
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap()));
    let store = Store::Embedded { folder: folder.path().join("state"), listen };
    let master = Master::start(Options::alone(store).unwrap()).unwrap();
    for (path, body, words) in [
        ("/api/v1/tenants/t/", "{", "unexpected EOF"),
        ("/api/v1/tenants/t/", r#"{"tenantName":"x"}"#, "Invalid Key"),
        ("/api/v1/networks/default:n/", r#"{"tenantName":"default","networkName":"n"}"#, "encap"),
        ("/plugin/createEndpoint", r#"{"TenantName":"default","NetworkName":"none"}"#, "key not found"),
    ] {
        let answer = master.client().send("POST", path, Some(JSON), Some(body)).unwrap();
        assert_eq!(answer.status, 500, "{answer:?}");
        assert!(answer.body.contains(words) && answer.body.trim_end().lines().count() == 1, "{answer:?}");
    }
}
