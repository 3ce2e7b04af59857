//! The agent as a process that starts before its store.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};
use contiv_model::key::{Key, LEADER};
use contiv_store::{Config, Store, Txn, embedded};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{BpfDir, Netns, Process, needs, wait_until};

use crate::world::{Call, HOST, Refusal, VTEP, master::Master, put};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A node with a store and a scripted netmaster.
struct Site {
    node: Netns,
    store: Store,
    /// `None` while the store is stopped.
    server: Option<embedded::Server>,
    listen: SocketAddr,
    _master: Master,
    directory: TempDir,
    rest: String,
}

impl Site {
    /// Runs `test` in the namespace of the node.
    fn run(test: impl AsyncFnOnce(Site) -> Result<()> + Send) -> Result<()> {
        let node = Netns::new("node")?;
        let namespace = node.clone();
        node.run(|| {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { test(Site::new(namespace).await?).await })
        })
    }

    async fn new(node: Netns) -> Result<Site> {
        let directory = testkit::scratch_dir("late")?;
        let listen = ([127, 0, 0, 1], testkit::free_port()?).into();
        let server = Some(embedded::Server::open(&directory.path().join("store"), listen).await?);
        let store = Store::connect(&Config::new([format!("http://{listen}")])).await?;
        let master = Master::start(store.clone()).await;
        let _committed = store.commit(Txn::new().put(LEADER, master.address().to_owned())).await?;
        let config = json!({ "id": "", "nw-infra-type": "default", "fwd-mode": "bridge", "arp-mode": "proxy",
                             "pvt-subnet": "172.19.0.0/16" });
        put(&store, &Key::MasterConfig, &config).await;
        let rest = format!("127.0.0.1:{}", testkit::free_port()?);
        Ok(Site { node, store, server, listen, _master: master, directory, rest })
    }

    async fn stop_store(&mut self) -> Result<()> {
        let server = self.server.take().context("the store runs")?;
        server.shutdown().await.map_err(Into::into)
    }

    async fn start_store(&mut self) -> Result<()> {
        self.server = Some(embedded::Server::open(&self.file("store"), self.listen).await?);
        Ok(())
    }

    fn spawn_agent(&self) -> Result<Process> {
        self.spawn_agent_with(&[])
    }

    fn spawn_agent_with(&self, flags: &[&str]) -> Result<Process> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_netplugin"));
        command.args(["--mode", "test", "--datapath", "fake", "--netmode", "vxlan", "--fwdmode", "bridge"]);
        command.args(["--host", HOST, "--vtep-ip", VTEP, "--ctrl-ip", VTEP, "--rest-address", &self.rest]);
        command.args(["--etcd", &self.endpoint()]).arg("--cni-socket").arg(self.file("cni.sock"));
        command.args(flags);
        Process::spawn_in(&self.node, "netplugin", command)
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.listen)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Status code and body of `/readyz`.
    fn readiness(&self) -> Result<(u16, Value)> {
        let mut stream = TcpStream::connect(&self.rest)?;
        write!(stream, "GET /readyz HTTP/1.0\r\nHost: node\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("a head")?;
        let code = head.split(' ').nth(1).context("a status code")?.parse()?;
        Ok((code, serde_json::from_str(body)?))
    }

    fn wait_ready(&self, agent: &Process) -> Result<()> {
        wait_until(TIMEOUT, "the agent to be ready", || {
            Ok(self.readiness().is_ok_and(|(code, _)| code == 200).then_some(()))
        })
        .with_context(|| agent.tail())
    }

    async fn call(&self, command: &str, container: &str, pod: &Netns) -> Result<Value, Refusal> {
        let netns = pod.path().display().to_string();
        Call { container, netns: &netns, ..Call::new(command) }.send(&self.file("cni.sock")).await
    }

    async fn check(&self, container: &str, pod: &Netns, added: &Value) -> Result<Value, Refusal> {
        let (netns, fields) = (pod.path().display().to_string(), format!(r#""prevResult":{added},"#));
        let call = Call { fields: &fields, container, netns: &netns, ..Call::new("CHECK") };
        call.send(&self.file("cni.sock")).await
    }

    async fn status(&self) -> Result<Value, Refusal> {
        Call::new("STATUS").send(&self.file("cni.sock")).await
    }

    async fn collect_garbage(&self) -> Result<Value, Refusal> {
        let fields = r#""cni.dev/valid-attachments":[],"#;
        Call { fields, ..Call::new("GC") }.send(&self.file("cni.sock")).await
    }

    async fn endpoints(&self) -> Result<usize> {
        Ok(self.store.list("/contiv.io/state/eps/").await?.items.len())
    }

    /// Asserts that a request is refused for now because the store does not answer.
    fn assert_refused(&self, result: Result<Value, Refusal>, code: u32) {
        let refused = result.unwrap_err();
        assert_eq!(refused.code, code, "{refused:?}");
        assert!(refused.details.contains(&self.endpoint()), "{refused:?}");
        assert!(!refused.details.contains("the datapath did not"), "{refused:?}");
    }
}

#[test]
fn an_agent_without_its_store_answers_and_finishes_what_it_was_asked() -> Result<()> {
    needs!(root());
    let (gone, new) = (Netns::new("pod")?, Netns::new("pod")?);
    Site::run(async |mut site| {
        let mut agent = site.spawn_agent()?;
        site.wait_ready(&agent)?;
        let added = site.call("ADD", "c1", &gone).await.unwrap();
        assert!(agent.terminate(TIMEOUT)?.success(), "{}", agent.tail());
        site.stop_store().await?;

        let mut agent = site.spawn_agent()?;
        let reason = || {
            let Ok((code, body)) = site.readiness() else { return Ok(None) };
            assert_eq!(code, 503, "{body}");
            let pending = body["pending"].to_string();
            assert!(pending.contains("global configuration"), "{body}");
            Ok(body["store"].as_str().is_some_and(|why| why.contains(&site.endpoint())).then_some(()))
        };
        wait_until(TIMEOUT, "the reason in /readyz", reason).with_context(|| agent.tail())?;
        site.assert_refused(site.status().await, 50);
        site.assert_refused(site.call("ADD", "c2", &new).await, 11);
        assert!(new.links()?.is_empty());
        site.assert_refused(site.check("c1", &gone, &added).await, 11);
        site.assert_refused(site.collect_garbage().await, 11);
        assert!(!gone.links()?.is_empty());
        // The pod is detached, and the rest is remembered.
        site.assert_refused(site.call("DEL", "c1", &gone).await, 11);
        assert!(gone.links()?.is_empty());

        site.start_store().await?;
        site.wait_ready(&agent)?;
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        while site.endpoints().await? > 0 {
            assert!(tokio::time::Instant::now() < deadline, "{}", agent.tail());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        site.call("ADD", "c2", &new).await.unwrap();
        assert_eq!(site.endpoints().await?, 1);
        site.call("DEL", "c2", &new).await.unwrap();
        assert!(agent.terminate(TIMEOUT)?.success(), "{}", agent.tail());
        Ok(())
    })
}

/// The agent has not known it, and must not build the datapath of its flags.
#[test]
fn a_choice_of_the_datapath_is_read_when_the_store_answers() -> Result<()> {
    needs!(root());
    let pins = BpfDir::new("pins")?;
    let root = pins.path().display().to_string();
    Site::run(async |mut site| {
        let choice = json!({ "host": HOST, "datapath": "ebpf" });
        put(&site.store, &Key::NodeDatapath(HOST.into()), &choice).await;
        site.stop_store().await?;
        let absent = format!("unix:{}", site.file("none.sock").display());
        let mut agent = site.spawn_agent_with(&["--bpf-root", &root, "--ovsdb", &absent])?;
        let is_away = || Ok(agent.log().contains("until the store answers").then_some(()));
        wait_until(TIMEOUT, "the store is away", is_away)?;
        site.start_store().await?;
        site.wait_ready(&agent)?;
        let log = agent.log();
        assert!(log.contains("the ebpf datapath was chosen while the store was away"), "{log}");
        assert!(log.contains("datapath=ebpf"), "{log}");
        assert!(agent.terminate(TIMEOUT)?.success(), "{}", agent.tail());
        Ok(())
    })
}
