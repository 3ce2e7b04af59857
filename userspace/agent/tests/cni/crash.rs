//! The agent is killed after every step of every request. Its successor, and the next DEL or GC, leave nothing behind.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use contiv_model::key::{Key, LEADER};
use contiv_store::{Config, Store, Txn, embedded};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{BpfDir, Netns, Process, needs, ovs::Switch};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::world::{Call, HOST, Refusal, begin_add, master::Master, put};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// What follows the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    Del,
    Gc,
    /// The runtime sends nothing.
    Restart,
    /// The node loses its power: interfaces and files are gone. The runtime sends a GC.
    PowerFailure,
}

/// A node with a store and a netmaster; the agents are processes.
pub(crate) struct Site {
    pub(crate) node: Netns,
    directory: TempDir,
    server: embedded::Server,
    store: Store,
    master: Master,
    /// Datapath's flags.
    flags: Vec<String>,
    rest: String,
}

impl Site {
    /// Runs `test` on a node with a datapath.
    pub(crate) fn run(
        datapath: impl FnOnce(&Netns, &Path) -> Vec<String>,
        test: impl AsyncFnOnce(Site) + Send,
    ) {
        let node = Netns::new("node").unwrap();
        node.up("lo").unwrap();
        let directory = testkit::scratch_dir("crash").unwrap();
        let flags = datapath(&node, directory.path());
        let work = || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { test(Site::begin(node.clone(), directory, flags).await).await });
            Ok(())
        };
        node.run(work).unwrap();
    }

    async fn begin(node: Netns, directory: TempDir, flags: Vec<String>) -> Site {
        let listen = ([127, 0, 0, 1], testkit::free_port().unwrap()).into();
        let server = embedded::Server::open(&directory.path().join("store"), listen).await.unwrap();
        let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
        let master = Master::start(store.clone()).await;
        let settings = json!({ "nw-infra-type": "default", "fwd-mode": "bridge", "arp-mode": "proxy",
                               "pvt-subnet": "172.19.0.0/16" });
        put(&store, &Key::MasterConfig, &settings).await;
        let leader = Txn::new().put(LEADER, master.address().as_bytes().to_vec());
        let _committed = store.commit(leader).await.unwrap();
        let rest = format!("127.0.0.1:{}", testkit::free_port().unwrap());
        Site { node, directory, server, store, master, flags, rest }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("cni.sock")
    }

    /// Starts an agent and waits until it can serve an ADD.
    pub(crate) async fn agent(&self, kill_at: Option<usize>) -> Process {
        let mut agent = self.spawn(kill_at);
        self.until_available(&mut agent).await;
        agent
    }

    fn spawn(&self, kill_at: Option<usize>) -> Process {
        let mut command = self.command(HOST);
        if let Some(step) = kill_at {
            command.env("CONTIV_KILL_AT_STEP", step.to_string());
        }
        Process::spawn_in(&self.node, "netplugin", command).unwrap()
    }

    /// Starts an agent that takes the node for this host.
    pub(crate) fn spawn_as(&self, host: &str) -> Process {
        Process::spawn_in(&self.node, "netplugin", self.command(host)).unwrap()
    }

    fn command(&self, host: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netplugin"));
        command.args(["--netmode", "vxlan", "--fwdmode", "bridge", "--host", host]);
        command.args(["--ctrl-ip", "127.0.0.1", "--vtep-ip", "192.168.0.1", "--rest-address", &self.rest]);
        command.args(["--etcd", &self.server.endpoint()]);
        command.arg("--cni-socket").arg(self.socket()).args(&self.flags);
        command
    }

    async fn until_available(&self, agent: &mut Process) {
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let Err(refused) = self.send(&Call::new("STATUS")).await else { return };
            assert_eq!(agent.ended().unwrap(), None, "{}", agent.log());
            assert!(tokio::time::Instant::now() < deadline, "{refused:?}: {}", agent.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn send(&self, call: &Call<'_>) -> Result<Value, Refusal> {
        call.send(&self.socket()).await
    }

    pub(crate) async fn request(
        &self,
        command: &str,
        container: &str,
        netns: &str,
    ) -> Result<Value, Refusal> {
        let fields = if command == "GC" { r#""cni.dev/valid-attachments":[],"# } else { "" };
        self.send(&Call { container, netns, fields, ..Call::new(command) }).await
    }

    /// State of the datapath, as its agent reads it, without what packets and time change.
    async fn datapath(&self) -> Value {
        let mut stream = tokio::net::TcpStream::connect(&self.rest).await.unwrap();
        stream.write_all(b"GET /inspect/driver HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = vec![];
        stream.read_to_end(&mut answer).await.unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let mut dump: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        for changing in ["announced", "drops", "entriesOfPackets", "flows", "relayed", "status", "writes"] {
            dump.as_object_mut().unwrap().remove(changing);
        }
        dump
    }

    /// What is left of endpoints: interfaces of node and pod, records of netmaster and of the agent, and entries.
    async fn left(&self, pod: &Netns) -> Vec<String> {
        let mut left: Vec<_> =
            self.node.links().unwrap().into_iter().filter(|name| name.starts_with("vvport")).collect();
        left.extend(pod.links().unwrap());
        for prefix in ["/contiv.io/state/eps/", "/contiv.io/oper/eps/"] {
            left.extend(self.store.list(prefix).await.unwrap().items.into_iter().map(|kv| kv.key));
        }
        let entries = std::fs::read_dir(self.socket().with_extension("attachments")).unwrap();
        let entries = entries.map(|entry| entry.unwrap().path().display().to_string());
        // For some time, the agent looks for endpoints that netmaster may create later.
        left.extend(entries.filter(|path| !path.ends_with(".unanswered")));
        left
    }

    async fn until_nothing_is_left(&self, pod: &Netns, datapath: &Value, when: &str) {
        let wait = async {
            while !self.left(pod).await.is_empty() || self.datapath().await != *datapath {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(Duration::from_secs(20), wait).await.is_err() {
            assert_eq!(self.left(pod).await, Vec::<String>::new(), "{when}");
            assert_eq!(self.datapath().await, *datapath, "{when}");
        }
    }

    /// Deletes what does not outlive a reboot.
    fn lose_power(&self) {
        for port in self.node.links().unwrap().iter().filter(|name| name.starts_with("vvport")) {
            self.node.ip(&format!("link del {port}")).unwrap();
        }
        std::fs::remove_dir_all(self.socket().with_extension("attachments")).unwrap();
        for file in ["boot", "store.json"] {
            // A killed agent may not have written them.
            let _ = std::fs::remove_file(self.socket().with_extension(file));
        }
    }

    /// Kills an agent at each step of `command`, and recovers in one way after the other; returns the steps.
    async fn kill_at_each_step(&self, command: &str, clean: &Value, recoveries: &[Recovery]) -> Vec<String> {
        let mut steps = vec![];
        loop {
            let step = steps.len() + 1;
            let pod = Netns::new("pod").unwrap();
            let netns = pod.path().display().to_string();
            let container = format!("{}{step}", command.to_lowercase());
            if command != "ADD" {
                let mut agent = self.agent(None).await;
                self.request("ADD", &container, &netns).await.unwrap();
                agent.terminate(TIMEOUT).unwrap();
            }
            let mut agent = self.agent(Some(step)).await;
            if self.request(command, &container, &netns).await.is_ok() {
                // There are no more steps of this request.
                agent.terminate(TIMEOUT).unwrap();
                let mut agent = self.agent(None).await;
                self.request("DEL", &container, &netns).await.unwrap();
                self.until_nothing_is_left(&pod, clean, command).await;
                agent.terminate(TIMEOUT).unwrap();
                return steps;
            }
            agent.wait(TIMEOUT).unwrap();
            let log = agent.log();
            let reached = log.rsplit_once(&format!("killed after step {step}: "));
            let name = reached.and_then(|(_, name)| name.lines().next()).ok_or(&log).unwrap();
            let name = name.to_owned();

            let recovery = match recoveries[step % recoveries.len()] {
                // The pod is attached, though its runtime has not heard of it.
                Recovery::Restart if name.contains("entry of the attachment") => Recovery::Gc,
                recovery => recovery,
            };
            if recovery == Recovery::PowerFailure {
                self.lose_power();
            }
            let mut agent = self.agent(None).await;
            match recovery {
                Recovery::Del => drop(self.request("DEL", &container, "").await.unwrap()),
                Recovery::Gc | Recovery::PowerFailure => drop(self.request("GC", "", "").await.unwrap()),
                Recovery::Restart => {}
            }
            let when = format!("{command}, {name}, then {recovery:?}: {}", agent.log());
            self.until_nothing_is_left(&pod, clean, &when).await;
            // No lock and no name is left, either.
            self.request("ADD", &container, &netns)
                .await
                .map_err(|error| format!("{when}: {error:?}"))
                .unwrap();
            self.request("DEL", &container, &netns)
                .await
                .map_err(|error| format!("{when}: {error:?}"))
                .unwrap();
            self.until_nothing_is_left(&pod, clean, &when).await;
            agent.terminate(TIMEOUT).unwrap();
            steps.push(name);
        }
    }

    /// The datapath after an endpoint came and went.
    async fn clean(&self) -> Value {
        let pod = Netns::new("pod").unwrap();
        let mut agent = self.agent(None).await;
        self.request("ADD", "first", &pod.path().display().to_string()).await.unwrap();
        self.request("DEL", "first", "").await.unwrap();
        agent.terminate(TIMEOUT).unwrap();
        let mut agent = self.agent(None).await;
        let clean = self.datapath().await;
        agent.terminate(TIMEOUT).unwrap();
        clean
    }
}

async fn kill_everywhere(site: Site, recoveries: &[Recovery]) {
    let clean = site.clean().await;
    for (command, some) in [
        // The order of the record and of the datapath varies.
        ("ADD", &["preliminary record", "endpoint at netmaster", "interface", "interface up"][..]),
        ("DEL", &["deletion in the datapath", "deletion of the interface", "deletion at netmaster"]),
        ("GC", &["deletion in the datapath", "deletion of the interface", "deletion at netmaster"]),
    ] {
        let steps = site.kill_at_each_step(command, &clean, recoveries).await;
        for expected in some {
            assert!(steps.iter().any(|step| step.contains(expected)), "{expected}: {steps:?}");
        }
    }
}

#[test]
fn agent_killed_at_each_step_leaves_nothing() {
    needs!(root());
    let flags = ["--mode", "test", "--datapath", "fake"].map(str::to_owned).to_vec();
    let recoveries = [Recovery::Del, Recovery::Gc, Recovery::Restart];
    Site::run(|_, _| flags, async |site| kill_everywhere(site, &recoveries).await);
}

#[test]
fn power_failure_at_each_step_leaves_nothing() {
    needs!(root());
    let flags = ["--mode", "test", "--datapath", "fake"].map(str::to_owned).to_vec();
    Site::run(|_, _| flags, async |site| kill_everywhere(site, &[Recovery::PowerFailure]).await);
}

#[test]
fn agent_killed_at_each_step_leaves_no_flow() {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let mut switch = None;
    let start = |node: &Netns, _: &Path| {
        let started = switch.insert(Switch::start(node).unwrap());
        let ovsdb = format!("unix:{}", started.socket().display());
        ["--mode", "cni", "--ovs-datapath-type", "netdev", "--ovsdb", &ovsdb].map(str::to_owned).to_vec()
    };
    let recoveries = [Recovery::Gc, Recovery::Restart, Recovery::Del];
    Site::run(start, async |site| kill_everywhere(site, &recoveries).await);
    switch.unwrap().stop().unwrap();
}

#[test]
fn agent_killed_at_each_step_leaves_no_map_entry() {
    needs!(root());
    let pins = BpfDir::new("pins").unwrap();
    let flags = |_: &Netns, directory: &Path| {
        let (root, ovsdb) = (pins.path().display().to_string(), directory.join("none.sock"));
        let ovsdb = format!("unix:{}", ovsdb.display());
        let flags = ["--mode", "cni", "--datapath", "ebpf", "--bpf-root", &root, "--ovsdb", &ovsdb];
        flags.map(str::to_owned).to_vec()
    };
    let recoveries = [Recovery::Restart, Recovery::Del, Recovery::Gc];
    Site::run(flags, async |site| kill_everywhere(site, &recoveries).await);
}

#[test]
fn agent_stopped_during_parallel_adds_leaves_whole_attachments() {
    needs!(root());
    let flags = ["--mode", "test", "--datapath", "fake"].map(str::to_owned).to_vec();
    let pods: Vec<_> = (0..50).map(|_| Netns::new("pod").unwrap()).collect();
    Site::run(
        |_, _| flags,
        async |site| {
            let clean = site.clean().await;
            let before = site.master.created();
            let mut agent = site.agent(None).await;
            let named: Vec<_> = (0..)
                .zip(&pods)
                .map(|(n, pod)| (format!("c{n}"), pod.path().display().to_string()))
                .collect();
            let adds = named.iter().map(|(container, netns)| site.request("ADD", container, netns));
            let stop = async {
                while site.master.created() < before + 10 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                agent.signal(Signal::SIGTERM).unwrap();
            };
            let (results, ()) = tokio::join!(futures::future::join_all(adds), stop);
            assert!(agent.wait(TIMEOUT).unwrap().success(), "{}", agent.log());
            let added = results.iter().filter(|result| result.is_ok()).count();
            assert!(added > 0);
            for refused in results.into_iter().filter_map(Result::err) {
                assert_eq!(refused.code, 11, "{refused:?}");
            }
            assert_eq!(site.store.list("/contiv.io/state/eps/").await.unwrap().items.len(), added);
            assert_eq!(site.store.list("/contiv.io/oper/eps/").await.unwrap().items.len(), added);

            let mut agent = site.agent(None).await;
            for (container, netns) in &named {
                site.request("DEL", container, netns).await.unwrap();
            }
            for pod in &pods {
                assert_eq!(pod.links().unwrap(), Vec::<String>::new());
            }
            site.until_nothing_is_left(&pods[0], &clean, "stopped during ADDs").await;
            agent.terminate(TIMEOUT).unwrap();
        },
    );
}

#[test]
fn request_of_a_client_that_has_given_up_is_not_carried_out() {
    needs!(root());
    let flags = ["--mode", "test", "--datapath", "fake"].map(str::to_owned).to_vec();
    let pod = Netns::new("pod").unwrap();
    Site::run(
        |_, _| flags,
        async |site| {
            // Without the settings, the agent listens but does not serve requests.
            let settings = Key::MasterConfig.to_string();
            let value = site.store.get(&settings).await.unwrap().unwrap().value;
            site.store.commit(Txn::new().delete(&*settings)).await.map(drop).unwrap();
            let mut agent = site.spawn(None);
            let deadline = tokio::time::Instant::now() + TIMEOUT;
            while tokio::net::UnixStream::connect(site.socket()).await.is_err() {
                assert_eq!(agent.ended().unwrap(), None, "{}", agent.log());
                assert!(tokio::time::Instant::now() < deadline, "{}", agent.log());
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            drop(begin_add(&site.socket(), "given-up", pod.path()).await);
            site.store.commit(Txn::new().put(settings, value)).await.map(drop).unwrap();
            site.until_available(&mut agent).await;

            // Later requests are served.
            site.request("ADD", "c1", &pod.path().display().to_string()).await.unwrap();
            site.request("DEL", "c1", "").await.unwrap();
            assert_eq!(site.master.created(), 1, "{}", agent.log());
            assert_eq!(site.left(&pod).await, Vec::<String>::new());
            agent.terminate(TIMEOUT).unwrap();
        },
    );
}
