//! The parts of a run, created before anything changes.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::Context as _;
use contiv_store::Store;
use futures::{FutureExt as _, future::BoxFuture};
use tokio_util::sync::CancellationToken;

use super::{
    RESYNC_INTERVAL,
    agent::{Agent, Exposed},
    interfaces::recover,
    settings::configure,
    speaker::Speaker,
    start::Start,
    surroundings,
    tasks::Tasks,
};
use crate::{
    api::{self, Monitor},
    attach::{
        self, Journal, Pods, RequestMetrics,
        link::{Links, TrafficReader},
    },
    config::Flags,
    continuity::{Continuity, Guard, MemoryFile},
    datapath::{Datapath, Kind},
    master::{Access, Master},
    plan::Node,
    ready::Ready,
    reconcile::{Handle, Reconciler},
    registration::Identity,
    router,
    source::prefixes,
    state::{self, Attacher, Changes, Reader, Writer},
};

/// Time for pods to be attached again with their container ids after a reboot, before their addresses are released.
const RETURN_TIMEOUT: Duration = Duration::from_secs(300);

/// Parts whose creation can fail. Creating them does not change the node.
pub(super) struct Prepared {
    flags: Flags,
    node: Node,
    http: api::Server,
    cni: attach::Server,
    links: Arc<Links>,
    traffic: TrafficReader,
    writer: Writer,
    attacher: Attacher,
    reader: Reader,
    changes: Changes,
    store: Store,
    store_config: contiv_store::Config,
    access: Access,
    /// Reloads the credentials for netmaster when their files change.
    reload: BoxFuture<'static, ()>,
    guard: Guard,
    continuity: Continuity,
    journal: Journal,
}

impl Prepared {
    /// Creates the parts. The store may be unavailable.
    pub(super) async fn new(flags: Flags, speaker: &Speaker) -> anyhow::Result<Prepared> {
        let node = flags.node()?;
        let http = api::Server::bind(flags.rest_address, &flags.rest_socket()).await?;
        let cni = attach::Server::bind(&flags.cni_socket)?;
        let (links, traffic) = (Arc::new(Links::open().await?), TrafficReader::open()?);
        let (mut writer, attacher, reader, changes) = state::new(prefixes());
        configure(&mut writer, &flags);
        recover(&links, &attacher).await?;
        // The speaker does not need the store.
        speaker.follow(&reader, false);
        let store_config = flags.access.access().config(flags.store())?;
        writer.reserve(surroundings::addresses_of(&store_config.endpoints).await);
        // Must be set before the first endpoint.
        surroundings::update(&attacher, &BTreeSet::new());
        let store = Store::open(&store_config).await?;
        let (access, reload) = Access::read(flags.master.clone())?;

        let memory = MemoryFile::beside(&flags.cni_socket);
        let path = memory.path().to_owned();
        let (guard, continuity) = Guard::open(store.clone(), node.clone(), reader.clone(), memory)
            .with_context(|| format!("read {} (what this node knows of the store)", path.display()))?;
        guard.check_name()?;
        let journal = Journal::beside(&flags.cni_socket)
            .with_context(|| format!("read {}", flags.cni_socket.with_extension("attachments").display()))?;
        Ok(Prepared {
            flags,
            node,
            http,
            cni,
            links,
            traffic,
            writer,
            attacher,
            reader,
            changes,
            store,
            store_config,
            access,
            reload: reload.boxed(),
            guard,
            continuity,
            journal,
        })
    }

    /// Starts the tasks that need no global settings: the state, the API, and the status of the node. The datapath is not
    /// changed.
    pub(super) fn start<D: Datapath + 'static>(
        self,
        datapath: D,
        refused: Option<(Kind, String)>,
        speaker: &Speaker,
        stop: CancellationToken,
    ) -> (Agent, Reconciler<D>) {
        let Prepared { flags, node, links, reader, store, store_config, continuity, .. } = self;
        let identity = Identity {
            node: node.clone(),
            control: flags.control_address(),
            vxlan_port: flags.vxlan_port,
            datapath: flags.datapath.datapath,
        };
        let requirements = datapath.port_requirements();
        let monitor = Monitor::new(datapath.telemetry(), node.host.clone(), reader.clone());
        let (reconciler, Handle { waiters, status, inspect, metrics }) =
            Reconciler::new(datapath, node.clone(), reader.clone(), self.changes, RESYNC_INTERVAL);
        let mut tasks = Tasks::new(stop.clone(), Arc::clone(&links));
        // Requests of container runtimes are finished after `stop`, and need these tasks.
        let halt = tasks.halt();
        let start = Start::default();
        tasks.spawn("store", start.clone().reach(store.clone(), store_config.clone(), stop.clone()));
        tasks.spawn("state", follow(self.guard, self.writer, halt.clone()));
        let leader = tasks.leader(&store);
        let (reload, halting) = (self.reload, halt.clone());
        tasks.spawn("credentials for netmaster", async move {
            halting.run_until_cancelled(reload).await;
            Ok(())
        });
        tasks.spawn("surroundings", surroundings::follow(self.attacher.clone(), leader.clone(), halt));
        let pods = Pods::new(attach::Parts {
            node: node.clone(),
            master: Master::new(leader, self.access),
            links,
            store: store.clone(),
            attacher: self.attacher,
            reader: reader.clone(),
            waiters,
            status: status.clone(),
            regression: continuity.regression.clone(),
            unsettled: start.unsettled(),
            journal: self.journal,
            return_timeout: RETURN_TIMEOUT,
            uplinks: flags.datapath.uplinks().map(str::to_owned).collect(),
            requirements,
        });
        let refused = refused.map(|(kind, why)| {
            pods.report_refused_datapath(why);
            kind
        });
        let sessions = speaker.sessions();
        let (router, routing) =
            router::Task::new(node.host.clone(), flags.vxlan_port, reader.clone(), sessions.clone());
        let ready = Ready::default();
        let mut agent = Agent {
            registered: ready.wait_for("registration"),
            configured: ready.wait_for("global configuration"),
            flags,
            node,
            identity,
            reader,
            store,
            pods,
            status,
            monitor,
            sessions,
            router,
            refused,
            start,
            tasks,
            stop,
        };
        let recorded = api::Recorded {
            requests: RequestMetrics::default(),
            reconciler: metrics,
            store: store_config.metrics,
            series: api::SeriesTables::default(),
        };
        agent.publish_status(continuity.regression.clone(), routing.clone());
        agent.serve_cni(self.cni, recorded.requests.clone(), continuity.regression.clone());
        agent.serve_http(
            self.http,
            Exposed { ready, continuity, routing, inspect, recorded, traffic: self.traffic },
        );
        (agent, reconciler)
    }
}

async fn follow(mut guard: Guard, mut writer: Writer, stop: CancellationToken) -> anyhow::Result<()> {
    let ended = stop.run_until_cancelled(guard.follow(&mut writer)).await;
    guard.save();
    match ended {
        None => Ok(()),
        Some(Err(renamed)) => Err(renamed.into()),
        Some(Ok(())) => anyhow::bail!("watches of the store ended"),
    }
}
