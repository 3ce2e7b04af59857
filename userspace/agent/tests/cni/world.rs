//! A node with a fake datapath and a scripted netmaster.

mod call;
pub(crate) mod master;
mod records;
mod store;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub(crate) use call::{Call, Refusal, begin_add};
use contiv_store::{Config, Store, embedded};
use master::Master;
use netplugin::{
    attach::{self, Journal, Pods, RequestMetrics, link::Links},
    continuity::{Guard, MemoryFile, Regression},
    datapath::fake::{Fake, Switch},
    datapath::{Datapath as _, ObjectId},
    plan::Node,
    reconcile::{Handle, Reconciler},
    source::{Batch, BatchKind, Sources, prefixes},
    state::{self, Attachment, Source},
};
pub(crate) use records::put;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

const TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for running requests when the agent stops; shorter than any of theirs.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const HOST: &str = "node-under-test";
pub(crate) const VTEP: &str = "192.168.0.1";

pub(crate) struct World {
    pub(crate) master: Master,
    pub(crate) switch: Switch,
    pub(crate) pods: Pods,
    links: Arc<Links>,
    handle: Handle,
    store: Store,
    server: Option<embedded::Server>,
    directory: TempDir,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    regression: watch::Receiver<Option<Regression>>,
    /// Why the agent does not follow the store as this node.
    refusal: watch::Receiver<Option<String>>,
    reader: state::Reader,
    attacher: state::Attacher,
    deliver: watch::Sender<bool>,
}

impl World {
    /// Runs `test` in a network namespace that represents the node.
    pub(crate) fn run(test: impl AsyncFnOnce(World) + Send) {
        World::run_delaying(None, test);
    }

    /// As [`World::run`], but the watch of the prefix delivers its changes when [`World::deliver`] is called.
    pub(crate) fn run_delaying(prefix: Option<&'static str>, test: impl AsyncFnOnce(World) + Send) {
        let node = testkit::Netns::new("node").unwrap();
        let run = || {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async { test(World::begin(prefix).await).await });
            Ok(())
        };
        node.run(run).unwrap();
    }

    async fn begin(delayed: Option<&'static str>) -> World {
        let directory = testkit::scratch_dir("cni").unwrap();
        let listen = ([127, 0, 0, 1], testkit::free_port().unwrap()).into();
        let server = embedded::Server::open(&directory.path().join("store"), listen).await.unwrap();
        let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
        let master = Master::start(store.clone()).await;
        World::start(master, Fake::new(), Some(server), store, (directory, HOST), delayed).await
    }

    async fn start(
        master: Master,
        fake: Fake,
        server: Option<embedded::Server>,
        store: Store,
        (directory, host): (TempDir, &str),
        delayed: Option<&'static str>,
    ) -> World {
        let node = Node { host: host.into(), vtep: VTEP.parse().unwrap() };
        let links = Arc::new(Links::open().await.unwrap());
        let (mut writer, attacher, reader, changes) = state::new(prefixes());
        for port in links.attachments().await.unwrap() {
            attacher.attach(&port.endpoint, Attachment { port: port.port, owner: port.owner });
        }
        let (switch, requirements) = (fake.switch().clone(), fake.port_requirements());
        let (reconciler, handle) =
            Reconciler::new(fake, node.clone(), reader.clone(), changes, Duration::from_secs(3600));
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let memory = MemoryFile::beside(&directory.path().join("cni.sock"));
        let (mut guard, continuity) =
            Guard::open(store.clone(), node.clone(), reader.clone(), memory).unwrap();
        let stopping = stop.clone();
        let (deliver, mut delivered) = watch::channel(false);
        let (refused, refusal) = watch::channel(None);
        let mut sources = Sources::new(&store, node.host.clone(), reader.clone());
        match delayed {
            None => tasks.spawn(async move {
                let ended = stopping.run_until_cancelled(guard.follow(&mut writer)).await;
                guard.save();
                if let Some(Err(renamed)) = ended {
                    refused.send_replace(Some(renamed.to_string()));
                }
            }),
            Some(delayed) => tasks.spawn(async move {
                let mut pending = vec![];
                loop {
                    let batch = tokio::select! {
                        () = stopping.cancelled() => return,
                        Ok(_) = delivered.wait_for(|now| *now), if !pending.is_empty() => None,
                        batch = sources.next() => batch,
                    };
                    // The first listings are there at once, except for those of what a pod needs.
                    let is_late = |batch: &Batch| {
                        let is_of_pod = matches!(batch.source, Source::Policies(_));
                        batch.source.prefix() == delayed
                            && batch.kind == BatchKind::Updates
                            && (batch.relisted.is_none() || is_of_pod)
                    };
                    match batch {
                        Some(batch) if is_late(&batch) => pending.push(batch),
                        Some(batch) => batch.apply(&mut writer),
                        None => pending.drain(..).for_each(|batch| batch.apply(&mut writer)),
                    }
                }
            }),
        };
        let regression = continuity.regression.clone();
        tasks.spawn(reconciler.run(stop.clone()));
        let pods = Pods::new(attach::Parts {
            node,
            master: netplugin::master::Master::new(
                master.leader(),
                netplugin::master::Access::plain().unwrap(),
            ),
            links: links.clone(),
            store: store.clone(),
            attacher: attacher.clone(),
            reader: reader.clone(),
            waiters: handle.waiters.clone(),
            status: handle.status.clone(),
            regression: continuity.regression,
            unsettled: watch::channel(None).1,
            journal: Journal::beside(&directory.path().join("cni.sock")).unwrap(),
            return_timeout: Duration::ZERO,
            uplinks: vec![],
            requirements,
        });
        let (followed, stopping) = (pods.clone(), stop.clone());
        tasks.spawn(async move { followed.follow_conditions(stopping).await.unwrap() });
        let forget = attacher;
        let listener = attach::Server::bind(&directory.path().join("cni.sock")).unwrap();
        let listener = listener.drain_timeout(DRAIN_TIMEOUT);
        let (served, stopping) = (pods.clone(), stop.clone());
        tasks.spawn(async move { listener.run(served, RequestMetrics::default(), stopping).await.unwrap() });
        World {
            master,
            switch,
            pods,
            links,
            handle,
            store,
            server,
            directory,
            stop,
            tasks,
            regression,
            refusal,
            reader,
            attacher: forget,
            deliver,
        }
    }

    /// Removes the record of an endpoint's interface, as a DEL that fails to remove the interface.
    pub(crate) fn forget(&self, endpoint: &str) {
        self.attacher.detach(&endpoint.into());
    }

    /// Delivers the delayed changes.
    pub(crate) fn deliver(&self) {
        self.deliver.send_replace(true);
    }

    pub(crate) fn reader(&self) -> &state::Reader {
        &self.reader
    }

    /// Why the store is regressed, if it is.
    pub(crate) fn regression(&self) -> Option<String> {
        self.regression.borrow().as_ref().map(ToString::to_string)
    }

    /// Id of the regression; empty if the store is not regressed.
    pub(crate) fn regression_id(&self) -> String {
        self.regression.borrow().as_ref().map(|regression| regression.id.clone()).unwrap_or_default()
    }

    /// Waits until the agent refuses to be this node, and returns why.
    pub(crate) async fn until_refused(&self) -> String {
        self.until("the node is refused", || self.refusal.borrow().is_some()).await;
        self.refusal.borrow().clone().unwrap()
    }

    pub(crate) async fn until_regressed(&self) -> String {
        self.until("the store is regressed", || self.regression().is_some()).await;
        self.regression().unwrap()
    }

    /// Stops the agent; its node and switch remain.
    pub(crate) async fn stop_agent(&mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    /// A new agent on the same node and switch.
    pub(crate) async fn restart(self) -> World {
        self.restart_as(HOST).await
    }

    /// As [`World::restart`], with this host name.
    pub(crate) async fn restart_as(mut self, host: &str) -> World {
        self.stop_agent().await;
        let fake = Fake::reopen(&self.switch);
        World::start(self.master, fake, self.server, self.store, (self.directory, host), None).await
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("cni.sock")
    }

    /// Files of the agent's journal, without those of requests that netmaster may carry out later.
    pub(crate) fn entries(&self) -> Vec<PathBuf> {
        let files = std::fs::read_dir(self.socket().with_extension("attachments")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        files.filter(|path| path.extension().is_none_or(|extension| extension != "unanswered")).collect()
    }

    /// Lets the agent delete what requests have left, until it has no entry.
    pub(crate) async fn finish_requests(&self) {
        let stop = CancellationToken::new();
        let finished = async {
            self.until("no entry is left", || self.entries().is_empty()).await;
            stop.cancel();
        };
        let (result, ()) = tokio::join!(self.pods.finish_requests(stop.clone()), finished);
        result.unwrap();
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) async fn add(&self, container: &str, netns: &Path) -> Result<Value, Refusal> {
        self.add_to("n", container, netns).await
    }

    pub(crate) async fn add_owned(&self, container: String, netns: &Path) -> Result<Value, Refusal> {
        self.add(&container, netns).await
    }

    pub(crate) async fn add_to(
        &self,
        network: &str,
        container: &str,
        netns: &Path,
    ) -> Result<Value, Refusal> {
        self.call("ADD", network, container, Some(netns)).await
    }

    pub(crate) async fn add_to_group(
        &self,
        group: &str,
        container: &str,
        netns: &Path,
    ) -> Result<Value, Refusal> {
        self.call("ADD", &format!("n;GROUP={group}"), container, Some(netns)).await
    }

    pub(crate) async fn del(&self, container: &str, netns: Option<&Path>) -> Result<Value, Refusal> {
        self.del_from("n", container, netns).await
    }

    pub(crate) async fn del_from(
        &self,
        network: &str,
        container: &str,
        netns: Option<&Path>,
    ) -> Result<Value, Refusal> {
        self.call("DEL", network, container, netns).await
    }

    async fn call(
        &self,
        command: &str,
        network: &str,
        container: &str,
        netns: Option<&Path>,
    ) -> Result<Value, Refusal> {
        let netns = netns.map(|path| path.display().to_string()).unwrap_or_default();
        let call = Call { network, container, netns: &netns, ..Call::new(command) };
        self.invoke(&call).await
    }

    pub(crate) async fn invoke(&self, call: &Call<'_>) -> Result<Value, Refusal> {
        call.send(&self.socket()).await
    }

    /// Sends an ADD and disconnects without reading the response.
    pub(crate) async fn call_and_disconnect(&self, container: &str, netns: &Path) {
        let stream = begin_add(&self.socket(), container, netns).await;
        self.master.request_received().await;
        drop(stream);
    }

    /// Local endpoints in the datapath.
    pub(crate) fn local_endpoints(&self) -> Vec<String> {
        let name = |id: &ObjectId| match id {
            ObjectId::Local(id) => Some(id.to_string()),
            _ => None,
        };
        self.switch.objects().iter().filter_map(|(id, _)| name(id)).collect()
    }

    pub(crate) fn writes(&self) -> u64 {
        self.handle.status.borrow().writes
    }

    pub(crate) fn in_sync(&self) -> bool {
        self.handle.status.borrow().in_sync
    }

    /// Why the datapath is not changed, if it is that of another version.
    pub(crate) fn postponed(&self) -> Option<String> {
        self.handle.status.borrow().postponed.clone()
    }

    pub(crate) async fn ports(&self) -> Vec<String> {
        self.links.attachments().await.unwrap().into_iter().map(|attached| attached.port).collect()
    }

    /// Waits until the kernel has deleted the interfaces of deleted namespaces.
    pub(crate) async fn until_no_port(&self) {
        let gone = async {
            while !self.ports().await.is_empty() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(tokio::time::timeout(TIMEOUT, gone).await.is_ok(), "timeout: {:?}", self.ports().await);
    }

    /// Asserts that no interface, endpoint or record remains.
    pub(crate) async fn assert_nothing_left(&self) {
        assert_eq!(self.ports().await, Vec::<String>::new());
        for prefix in ["/contiv.io/state/eps/", "/contiv.io/oper/eps/"] {
            assert_eq!(self.store.list(prefix).await.unwrap().items, []);
        }
        self.until("the datapath has no local endpoint", || self.local_endpoints().is_empty()).await;
    }

    pub(crate) async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let wait = async {
            while !condition() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        assert!(tokio::time::timeout(TIMEOUT, wait).await.is_ok(), "timeout: {what}");
    }
}
