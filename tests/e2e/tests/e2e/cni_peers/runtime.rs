//! A containerd with all of its files, mounts and processes to itself.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    process::Command,
};

use e2e::cluster::{Network, Node};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;
use tempfile::TempDir;
use testkit::{Process, scratch_dir, wait_until};

use super::{
    DEADLINE, configuration,
    cri::{Client, Metadata},
    tools,
};

const IMAGE: &str = "test.invalid/pause:1";
/// Control group of the sandboxes, without the id of this process.
const CGROUP: &str = "/contiv-test-";

/// A containerd in the network namespace of a node, in a PID namespace and with mounts of its own. The folder is a mount that both
/// sides share: the agent has to see the network namespaces that containerd mounts.
pub(super) struct Containerd {
    /// The first process of the PID namespace; all others end with it.
    pub(super) init: Process,
    pub(super) client: Client,
    pub(super) folder: TempDir,
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
    pub(super) fn start(node: &Node) -> Containerd {
        sweep_cgroups();
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
        let mut containerd = Containerd { init, client, folder };
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

    pub(super) fn run(&self, name: &str) -> Result<String, tonic::Status> {
        let metadata =
            Metadata { name: name.to_owned(), uid: format!("uid-{name}"), namespace: "default".to_owned() };
        self.client.run(metadata, &cgroup())
    }

    /// Waits until the runtime says that the network is ready, or is not; returns the message.
    #[track_caller]
    pub(super) fn wait_for_the_network(&mut self, ready: bool) -> String {
        let client = &self.client;
        let asked = || match client.network() {
            Ok(network) if network.status == ready => Ok(Some(network.message)),
            Ok(network) => anyhow::bail!("NetworkReady is {}: {}", network.status, network.message),
            Err(status) => Err(status.into()),
        };
        self.init.wait_ready(DEADLINE, &format!("NetworkReady is {ready}"), asked).unwrap()
    }

    /// Ends containerd; the init starts it again.
    pub(super) fn restart(&mut self) {
        let file = self.folder.path().join("pid");
        let before = fs::read_to_string(&file).unwrap();
        self.signal("TERM", before.trim());
        let again = || Ok((fs::read_to_string(&file)? != before).then_some(()));
        self.init.wait_ready(DEADLINE, "containerd is started again", again).unwrap();
        self.wait_for_the_network(true);
    }

    /// Sends a signal to a process by its id in containerd's PID namespace.
    pub(super) fn signal(&self, signal: &str, inside: &str) {
        let pid = self.init.pid();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let mut command = Command::new("nsenter");
        command.args(["--target", children.trim(), "--pid", "--mount", "--", "kill", "-s", signal, inside]);
        assert!(command.status().unwrap().success(), "kill {inside}");
    }

    /// State, addresses and network namespace of a sandbox.
    pub(super) fn sandbox(&self, id: &str) -> Sandbox {
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
    pub(super) fn calls(&self) -> Vec<String> {
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
        remove_cgroup(&cgroup());
    }
}

/// Name of the control group of this process's sandboxes.
pub(super) fn cgroup() -> String {
    format!("{CGROUP}{}", std::process::id())
}

/// The hierarchies of control groups: one in version 2, several in version 1.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let entries = fs::read_dir(root).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    [root.to_owned()].into_iter().chain(entries).collect()
}

/// Removes a group of all hierarchies; runc does not if it is killed. Its processes may still be ending.
fn remove_cgroup(name: &str) {
    let groups: Vec<_> = hierarchies().iter().map(|path| path.join(&name[1..])).collect();
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

/// Removes the groups of test processes that were killed.
fn sweep_cgroups() {
    for entry in
        hierarchies().iter().filter_map(|path| fs::read_dir(path).ok()).flatten().filter_map(Result::ok)
    {
        let name = format!("/{}", entry.file_name().display());
        if let Some(pid) = name.strip_prefix(CGROUP)
            && !Path::new("/proc").join(pid).exists()
        {
            remove_cgroup(&name);
        }
    }
}

pub(super) struct Sandbox {
    pub(super) ready: bool,
    /// In containerd's PID namespace.
    pub(super) pid: String,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) netns: PathBuf,
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
