//! containerd 2, which asks for STATUS itself.

use std::{
    collections::BTreeSet,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use e2e::cluster::{Cluster, Encap, Network, Node, Pod};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{Process, needs, scratch_dir, skip, wait_until};

use super::{
    DEADLINE, allocated, assert_nothing_left, cnitool, configuration,
    cri::{Client, Metadata},
    reaches, tools,
};

const IMAGE: &str = "test.invalid/pause:1";
/// Number that run at the same time.
const SANDBOXES: usize = 8;

/// A containerd in the network namespace of a node, in a PID namespace and with mounts of its own. The folder is a mount that both
/// sides share: the agent has to see the network namespaces that containerd mounts.
struct Containerd {
    /// The first process of the PID namespace; all others end with it.
    init: Process,
    client: Client,
    folder: TempDir,
    cgroup: String,
}

/// Starts containerd again whenever it ends; sandboxes survive, as they do on a node. `/run`, and libcni's cache below `/var/lib`, are not
/// the machine's.
const INIT: &str = r#"
set -e
for folder in /run /var/lib; do
    mount --make-private "$(stat -c %m $folder)"
done
mount -t tmpfs tmpfs /run
mount --bind "$1/lib" /var/lib
while :; do
    containerd --config "$1/config.toml" &
    echo $! >"$1/pid.new" && mv "$1/pid.new" "$1/pid"
    wait $! || :
done
"#;

impl Containerd {
    fn start(node: &Node) -> Containerd {
        let folder = scratch_dir("containerd").unwrap();
        mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        mount(None::<&str>, folder.path(), None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
        let path = folder.path();
        tools::link_plugins(&path.join("plugins"), &path.join("calls"));
        for name in ["net.d", "lib"] {
            fs::create_dir(path.join(name)).unwrap();
        }
        let network = configuration(node, &Network::pods(), "contiv-net", "1.1.0");
        fs::write(path.join("net.d/10-contiv.conflist"), network.to_string()).unwrap();
        fs::write(path.join("config.toml"), settings(path)).unwrap();
        let mut command = Command::new("unshare");
        let paths = std::env::var("PATH").unwrap_or_default();
        command
            .args([
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "--propagation",
                "unchanged",
            ])
            .args(["--", "sh", "-c", INIT, "sh"])
            .arg(path)
            // containerd starts its shim from the PATH.
            .env("PATH", format!("{}:{paths}", tools::programs().display()));
        let init = Process::spawn_in(node.netns(), "containerd", command).unwrap();
        let client = Client::connect(&path.join("containerd.sock"));
        let cgroup = format!("/contiv-test-{}", std::process::id());
        let mut containerd = Containerd { init, client, folder, cgroup };
        containerd.wait_for_the_network(true);
        containerd.import();
        containerd
    }

    /// Makes an image of one static program, and imports it: there is no registry.
    fn import(&self) {
        const BUILD: &str = r#"
            cd "$1" && mkdir root && cp "$2" root/busybox && tar -C root -cf layer.tar busybox
            digest=$(sha256sum layer.tar | cut -d' ' -f1)
            echo '{"architecture":"amd64","os":"linux","config":{"Entrypoint":["/busybox","sleep","1000000"]},
                   "rootfs":{"type":"layers","diff_ids":["sha256:'$digest'"]}}' >config.json
            echo '[{"Config":"config.json","RepoTags":["'$3'"],"Layers":["layer.tar"]}]' >manifest.json
            tar -cf image.tar manifest.json config.json layer.tar
            "$4" --address "$1/../containerd.sock" --namespace k8s.io images import --local --snapshotter native image.tar"#;
        let folder = self.folder.path().join("image");
        fs::create_dir(&folder).unwrap();
        let output = Command::new("sh")
            .args(["-ec", BUILD, "sh"])
            .arg(&folder)
            .arg(tools::program("busybox"))
            .arg(IMAGE)
            .arg(tools::program("ctr"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn run(&self, name: &str) -> Result<String, tonic::Status> {
        let metadata =
            Metadata { name: name.to_owned(), uid: format!("uid-{name}"), namespace: "default".to_owned() };
        self.client.run(metadata, &self.cgroup)
    }

    /// Waits until the runtime says that the network is ready, or is not; returns the message.
    #[track_caller]
    fn wait_for_the_network(&mut self, ready: bool) -> String {
        let client = &self.client;
        let asked = || match client.network() {
            Ok(network) if network.status == ready => Ok(Some(network.message)),
            Ok(network) => anyhow::bail!("NetworkReady is {}: {}", network.status, network.message),
            Err(status) => Err(status.into()),
        };
        self.init.wait_ready(DEADLINE, &format!("NetworkReady is {ready}"), asked).unwrap()
    }

    /// Ends containerd; the init starts it again.
    fn restart(&mut self) {
        let file = self.folder.path().join("pid");
        let before = fs::read_to_string(&file).unwrap();
        self.signal("TERM", before.trim());
        let again = || Ok((fs::read_to_string(&file)? != before).then_some(()));
        self.init.wait_ready(DEADLINE, "containerd is started again", again).unwrap();
        self.wait_for_the_network(true);
    }

    /// Sends a signal to a process by its id in containerd's PID namespace.
    fn signal(&self, signal: &str, inside: &str) {
        let pid = self.init.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let mut command = Command::new("nsenter");
        command.args(["--target", children.trim(), "--pid", "--mount", "--", "kill", "-s", signal, inside]);
        assert!(command.status().unwrap().success(), "kill {inside}");
    }

    /// State, addresses and network namespace of a sandbox.
    fn sandbox(&self, id: &str) -> Sandbox {
        let answer = self.client.sandbox(id).unwrap();
        let status = answer.status.unwrap();
        let network = status.network.unwrap();
        let info: Value = serde_json::from_str(&answer.info["info"]).unwrap();
        let namespaces = info["runtimeSpec"]["linux"]["namespaces"].as_array().unwrap();
        let netns = namespaces.iter().find(|namespace| namespace["type"] == "network").unwrap();
        let others = network.additional.iter().map(|other| other.ip.parse().unwrap());
        Sandbox {
            ready: status.state == 0,
            pid: info["pid"].to_string(),
            addresses: [network.ip.parse().unwrap()].into_iter().chain(others).collect(),
            netns: netns["path"].as_str().unwrap().into(),
        }
    }

    /// Commands of CNI that containerd has issued, in their order.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.path().join("calls")).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if let Err(error) = self.init.kill() {
            eprintln!("{error:#}");
        }
        // The mounts of sandboxes are below it.
        if let Err(error) = umount2(self.folder.path(), MntFlags::MNT_DETACH) {
            eprintln!("unmount {}: {error}", self.folder.path().display());
        }
        remove_cgroup(&self.cgroup);
    }
}

/// Removes the group from all hierarchies; runc does not if it is killed. Its processes may still be ending.
fn remove_cgroup(name: &str) {
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies =
        fs::read_dir(root).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let groups: Vec<_> =
        [root.to_owned()].into_iter().chain(hierarchies).map(|path| path.join(&name[1..])).collect();
    let removed = || {
        for group in &groups {
            for child in fs::read_dir(group).into_iter().flatten().filter_map(Result::ok) {
                // Files of the group cannot be removed, and need not be.
                let _ = fs::remove_dir(child.path());
            }
            let _ = fs::remove_dir(group);
        }
        Ok((!groups.iter().any(|group| group.exists())).then_some(()))
    };
    if let Err(error) = wait_until(DEADLINE, &format!("the cgroup {name} is removed"), removed) {
        eprintln!("{error:#}");
    }
}

struct Sandbox {
    ready: bool,
    /// In containerd's PID namespace.
    pid: String,
    addresses: Vec<IpAddr>,
    netns: PathBuf,
}

/// Configuration of containerd with all of its files in `folder`.
fn settings(folder: &Path) -> String {
    let (path, runc) = (folder.display(), tools::program("runc"));
    format!(
        r#"version = 3
root = "{path}/root"
state = "{path}/state"
# The second makes a folder below /opt.
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt"]
[grpc]
address = "{path}/containerd.sock"
[ttrpc]
address = "{path}/ttrpc.sock"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{path}/plugins"]
conf_dir = "{path}/net.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
snapshotter = "native"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{}"
Root = "{path}/runc"
"#,
        runc.display()
    )
}

fn ping_from(node: &Node, sandbox: &Sandbox, to: IpAddr) {
    let netns = format!("--net={}", sandbox.netns.display());
    let ping = || node.netns().output("nsenter", &[&netns, "ping", "-c1", "-W1", &to.to_string()]).map(Some);
    wait_until(DEADLINE, &format!("a sandbox reaches {to}"), ping).unwrap();
}

#[test]
fn containerd_runs_sandboxes_and_asks_for_the_status() {
    needs!(root(), binary("ethtool"));
    if let Some(reason) = tools::missing() {
        skip!("{reason}");
    }
    let _machine = testkit::shared();
    let mut cluster = Cluster::ebpf(Encap::Vxlan, &Network::pods()).unwrap();
    let mut containerd = Containerd::start(&cluster.nodes[0]);
    let peer = Pod::add(&cluster.nodes[1], &Network::pods(), "peer").unwrap();

    let ids = ["web", "db"].map(|name| containerd.run(name).unwrap());
    let [web, db] = ids.each_ref().map(|id| containerd.sandbox(id));
    assert!(web.addresses[0].is_ipv4() && web.addresses[1].is_ipv6(), "{:?}", web.addresses);
    for to in web.addresses.iter().chain(&db.addresses) {
        reaches(peer.netns(), *to);
    }
    ping_from(&cluster.nodes[0], &web, db.addresses[0]);
    ping_from(&cluster.nodes[0], &db, peer.ip.into());

    run_at_a_time(&containerd, &cluster);
    not_ready_without_the_agent(&mut containerd, &mut cluster);

    // Sandboxes outlive the runtime, which still knows them.
    containerd.restart();
    let again = containerd.sandbox(&ids[0]);
    assert!(again.ready && again.addresses == web.addresses);
    reaches(peer.netns(), web.addresses[0]);
    assert_eq!(cluster.nodes[0].pod_links().unwrap().len(), 2);

    // A sandbox without its process and its namespace, as after a reboot.
    containerd.signal("KILL", &db.pid);
    umount2(&db.netns, MntFlags::MNT_DETACH).unwrap();
    fs::remove_file(&db.netns).unwrap();
    for (id, sandbox) in ids.iter().zip([&web, &db]) {
        containerd.client.remove(id).unwrap();
        let address = sandbox.addresses[0].to_string();
        assert!(!allocated(&cluster).contains(&address), "{address} in {}", allocated(&cluster));
    }
    peer.remove(&cluster.nodes[1]).unwrap();
    assert_nothing_left(&cluster);
    let calls = containerd.calls();
    for command in ["STATUS", "ADD", "DEL"] {
        assert!(calls.iter().any(|call| call == command), "{calls:?}");
    }
    release_what_is_lost(&mut containerd, &cluster);
    drop(containerd);
    cluster.shut_down().unwrap();
}

/// containerd ends and does not come back, as when its data are lost: GC, which it never issues itself, releases its sandboxes.
fn release_what_is_lost(containerd: &mut Containerd, cluster: &Cluster) {
    let ids = ["left", "lost"].map(|name| containerd.run(name).unwrap());
    containerd.init.kill().unwrap();
    assert_eq!(cluster.nodes[0].pod_links().unwrap().len(), 2);
    let folder = containerd.folder.path();
    // libcni knows one of them, the agent both.
    fs::remove_file(folder.join(format!("lib/cni/results/contiv-net-{}-eth0", ids[1]))).unwrap();
    let none = Path::new("/proc/self/ns/net");
    let done = cnitool::call(cluster.nodes[0].netns(), folder, "gc", "contiv-net", "eth0", none);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_nothing_left(cluster);
}

/// Sandboxes that start and stop at the same time, as those of a node that boots do.
fn run_at_a_time(containerd: &Containerd, cluster: &Cluster) {
    let (socket, cgroup) = (containerd.folder.path().join("containerd.sock"), &containerd.cgroup);
    let before = allocated(cluster);
    let start = |number: usize| {
        let client = Client::connect(&socket);
        let name = format!("many-{number}");
        let id = client
            .run(Metadata { uid: name.clone(), name, namespace: "default".to_owned() }, cgroup)
            .unwrap();
        let network = client.sandbox(&id).unwrap().status.unwrap().network.unwrap();
        (client, id, network.ip)
    };
    let start = &start;
    let parallel = || {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..SANDBOXES).map(|number| scope.spawn(move || start(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let running = parallel();
    let addresses: BTreeSet<_> = running.iter().map(|(_, _, address)| address).collect();
    assert_eq!(addresses.len(), SANDBOXES);
    thread::scope(|scope| {
        for (client, id, _) in &running {
            scope.spawn(move || client.remove(id).unwrap());
        }
    });
    assert_eq!(allocated(cluster), before);
}

fn not_ready_without_the_agent(containerd: &mut Containerd, cluster: &mut Cluster) {
    let (links, addresses) = (cluster.nodes[0].pod_links().unwrap(), allocated(cluster));
    cluster.nodes[0].kill_agent().unwrap();
    let why = containerd.wait_for_the_network(false);
    assert!(why.contains("connect to the agent at"), "{why}");
    let refused = containerd.run("early").unwrap_err();
    assert!(refused.message().contains("check that netplugin runs on this node"), "{refused}");
    cluster.nodes[0].restart_agent().unwrap();
    containerd.wait_for_the_network(true);
    assert_eq!((cluster.nodes[0].pod_links().unwrap(), allocated(cluster)), (links, addresses));
}
