//! libcni by its own command-line tool.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use e2e::cluster::{Cluster, Encap, Network, Node, Pod};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{Netns, needs, scratch_dir, skip};

use super::{DEADLINE, allocated, assert_nothing_left, configuration, reaches, tools};

/// A runtime on the first node: configurations, plugins, and libcni's cache of results.
struct Runtime {
    folder: TempDir,
    node: Netns,
}

impl Runtime {
    fn new(node: &Node) -> Runtime {
        let folder = scratch_dir("cnitool").unwrap();
        for name in ["net.d", "lib/cni"] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        tools::link_plugins(&folder.path().join("plugins"), &folder.path().join("calls"));
        Runtime { folder, node: node.netns().clone() }
    }

    fn configure(&self, configuration: &Value) {
        let file = format!("net.d/{}.conflist", configuration["name"].as_str().unwrap());
        fs::write(self.folder.path().join(file), configuration.to_string()).unwrap();
    }

    fn call(&self, verb: &str, network: &str, ifname: &str, netns: &Netns) -> Output {
        call(&self.node, self.folder.path(), verb, network, ifname, netns.path())
    }

    /// Output of a call that succeeds.
    #[track_caller]
    fn succeed(&self, verb: &str, network: &str, ifname: &str, netns: &Netns) -> String {
        let Output { status, stdout, stderr } = self.call(verb, network, ifname, netns);
        assert!(status.success(), "cnitool {verb} {network}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }

    /// Error of a call that fails.
    #[track_caller]
    fn fail(&self, verb: &str, network: &str, ifname: &str, netns: &Netns) -> String {
        let Output { status, stdout, stderr } = self.call(verb, network, ifname, netns);
        assert!(!status.success(), "cnitool {verb} {network}: {}", String::from_utf8_lossy(&stdout));
        String::from_utf8(stderr).unwrap()
    }

    fn add(&self, network: &str, ifname: &str, netns: &Netns) -> Added {
        let text = self.succeed("add", network, ifname, netns);
        Added(serde_json::from_str(&text).unwrap())
    }

    /// Files in which libcni keeps the results of ADD.
    fn cached(&self) -> Vec<PathBuf> {
        let results = self.folder.path().join("lib/cni/results");
        fs::read_dir(results).map_or_else(|_| vec![], |all| all.map(|file| file.unwrap().path()).collect())
    }
}

/// Runs the tool with the configurations (`net.d`), plugins (`plugins`) and cache (`lib/cni`) in `folder`. libcni's cache is always below
/// `/var/lib/cni`: the tool gets another `/var/lib`.
pub(super) fn call(
    node: &Netns,
    folder: &Path,
    verb: &str,
    network: &str,
    ifname: &str,
    netns: &Path,
) -> Output {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--", "sh", "-c", "mount --bind \"$0\" /var/lib && exec \"$@\""])
        .arg(folder.join("lib"))
        .arg(tools::program("cnitool"))
        .args([verb, network])
        .arg(netns)
        .env("CNI_PATH", folder.join("plugins"))
        .env("NETCONFPATH", folder.join("net.d"))
        .env("CNI_IFNAME", ifname);
    node.run(move || Ok(command.output()?)).unwrap()
}

/// A result as libcni prints it.
struct Added(Value);

impl Added {
    /// The IPv4 address.
    fn address(&self) -> IpAddr {
        let text = self.0["ips"][0]["address"].as_str().unwrap();
        text.split_once('/').unwrap().0.parse().unwrap()
    }

    fn interfaces(&self) -> Vec<&str> {
        let all = self.0["interfaces"].as_array().unwrap();
        all.iter().map(|interface| interface["name"].as_str().unwrap()).collect()
    }
}

fn arp_ignore(netns: &Netns, link: &str) -> String {
    let file = format!("/proc/sys/net/ipv4/conf/{link}/arp_ignore");
    netns.run(|| Ok(fs::read_to_string(file)?)).unwrap().trim().to_owned()
}

/// Network of second interfaces, of another tenant.
fn storage() -> Network {
    Network {
        tenant: "green".to_owned(),
        name: "storage".to_owned(),
        subnet: "10.2.0.0/16".to_owned(),
        gateway: "10.2.255.254".to_owned(),
        ipv6_subnet: "2001:db8:2::/64".to_owned(),
        ipv6_gateway: "2001:db8:2::ffff".to_owned(),
    }
}

#[test]
fn cnitool_drives_every_command_of_a_chain() {
    needs!(root(), binary("ethtool"));
    if let Some(reason) = tools::missing() {
        skip!("{reason}");
    }
    let _machine = testkit::shared();
    let mut cluster = Cluster::ebpf(Encap::Vxlan, &Network::pods()).unwrap();
    cluster.create_network(&storage()).unwrap();
    let runtime = Runtime::new(&cluster.nodes[0]);
    let peers =
        [Network::pods(), storage()].map(|network| Pod::add(&cluster.nodes[1], &network, "peer").unwrap());
    for version in ["0.3.1", "1.0.0", "1.1.0"] {
        runtime.configure(&configuration(&cluster.nodes[0], &Network::pods(), "chain", version));
        runtime.configure(&configuration(&cluster.nodes[0], &storage(), "second", version));
        attach_twice(&runtime, version, &peers);
    }
    for peer in peers {
        peer.remove(&cluster.nodes[1]).unwrap();
    }
    assert_nothing_left(&cluster);
    status_follows_the_agent(&runtime, &mut cluster);
    collect_garbage(&runtime, &cluster);
    assert_nothing_left(&cluster);
    drop(runtime);
    cluster.shut_down().unwrap();
}

/// Two interfaces of a pod, each in a network, that both work and of which each is deleted alone.
fn attach_twice(runtime: &Runtime, version: &str, peers: &[Pod; 2]) {
    let pod = Netns::new("tooled").unwrap();
    let first = runtime.add("chain", "eth0", &pod);
    assert_eq!(first.0["cniVersion"], version);
    assert_eq!(first.interfaces()[1..], ["eth0"], "{}", first.0);
    assert_eq!(arp_ignore(&pod, "eth0"), "1", "the second plugin of the chain");
    let second = runtime.add("second", "net1", &pod);
    assert_eq!(second.interfaces()[1..], ["net1"], "{}", second.0);
    for (added, peer) in [&first, &second].into_iter().zip(peers) {
        reaches(peer.netns(), added.address());
        reaches(&pod, peer.ip.into());
    }
    check(runtime, version, &pod);
    runtime.succeed("del", "second", "net1", &pod);
    assert_eq!(pod.links().unwrap(), ["eth0"]);
    reaches(peers[0].netns(), first.address());
    runtime.succeed("del", "chain", "eth0", &pod);
    assert!(pod.links().unwrap().is_empty());
    // A runtime repeats DEL.
    runtime.succeed("del", "chain", "eth0", &pod);
    assert_eq!(runtime.cached(), Vec::<PathBuf>::new());
}

fn check(runtime: &Runtime, version: &str, pod: &Netns) {
    if version == "0.3.1" {
        // libcni itself refuses.
        let refused = runtime.fail("check", "chain", "eth0", pod);
        assert!(refused.contains("does not support the CHECK command"), "{refused}");
        return;
    }
    runtime.succeed("check", "chain", "eth0", pod);
    runtime.succeed("check", "second", "net1", pod);
    pod.ip("link set net1 down").unwrap();
    let changed = runtime.fail("check", "second", "net1", pod);
    assert!(changed.contains("is down"), "{changed}");
}

fn status_follows_the_agent(runtime: &Runtime, cluster: &mut Cluster) {
    // It concerns no container, but the tool takes a namespace.
    let none = Netns::new("none").unwrap();
    runtime.succeed("status", "chain", "eth0", &none);
    cluster.nodes[0].kill_agent().unwrap();
    let down = runtime.fail("status", "chain", "eth0", &none);
    assert!(down.contains("connect to the agent at"), "{down}");
    let refused = runtime.fail("add", "chain", "eth0", &none);
    assert!(refused.contains("check that netplugin runs on this node"), "{refused}");
    cluster.nodes[0].restart_agent().unwrap();
    runtime.succeed("status", "chain", "eth0", &none);
    // libcni repeats DEL after an ADD that failed.
    runtime.succeed("del", "chain", "eth0", &none);
}

/// The tool's GC keeps no attachment: libcni deletes those that it knows, and the plugin those that libcni has lost.
fn collect_garbage(runtime: &Runtime, cluster: &Cluster) {
    runtime.configure(&configuration(&cluster.nodes[0], &Network::pods(), "other", "1.1.0"));
    let pods = ["known", "lost", "other"].map(|name| Netns::new(name).unwrap());
    let lost = runtime.add("chain", "eth0", &pods[1]);
    for file in runtime.cached() {
        fs::remove_file(file).unwrap();
    }
    let known = runtime.add("chain", "eth0", &pods[0]);
    let other = runtime.add("other", "eth0", &pods[2]);
    assert_eq!(cluster.nodes[0].pod_links().unwrap().len(), 3);
    runtime.succeed("gc", "chain", "eth0", &pods[0]);
    let released = || {
        let left = allocated(cluster);
        let gone = |added: &Added| !left.contains(&format!("{}", added.address()));
        Ok((gone(&known) && gone(&lost)).then_some(()))
    };
    testkit::wait_until(DEADLINE, "the addresses are released", released).unwrap();
    assert_eq!(cluster.nodes[0].pod_links().unwrap().len(), 1, "that of the other configuration");
    assert!(pods[0].links().unwrap().is_empty() && pods[1].links().unwrap().is_empty());
    runtime.succeed("check", "other", "eth0", &pods[2]);
    assert!(allocated(cluster).contains(&other.address().to_string()));
    runtime.succeed("del", "other", "eth0", &pods[2]);
}
