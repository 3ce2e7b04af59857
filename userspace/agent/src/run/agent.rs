//! One run of the agent with one datapath: the order in which its tasks start.

use anyhow::Context as _;
use contiv_store::Store;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{
    choice::{self, ChosenFile, NextDatapath, Refused},
    conflict::{self, Predecessor},
    interfaces,
    interruption::{self, StoppedFile},
    packet_log, readiness,
    settings::{self, LocalMode},
    speaker::Speaker,
    start::Start,
    tasks::Tasks,
};
use crate::{
    api::{self, Monitor},
    attach::{self, Pods, RequestMetrics, link::TrafficReader},
    bgp,
    config::Flags,
    continuity::{Continuity, Regression},
    datapath::{Datapath, Kind},
    plan::{self, Node},
    ready::{Pending, Ready},
    reconcile::{Inspection, Reconciler, Status},
    registration::{self, Identity},
    router,
    state::Reader,
};

/// Parts that only the API exposes.
pub(super) struct Exposed {
    pub(super) ready: Ready,
    pub(super) continuity: Continuity,
    pub(super) routing: watch::Receiver<Vec<String>>,
    pub(super) inspect: mpsc::Sender<Inspection>,
    pub(super) recorded: api::Recorded,
    pub(super) traffic: TrafficReader,
}

/// A run whose tasks have started.
pub(super) struct Agent {
    pub(super) flags: Flags,
    pub(super) node: Node,
    pub(super) identity: Identity,
    pub(super) reader: Reader,
    pub(super) store: Store,
    pub(super) pods: Pods,
    pub(super) status: watch::Receiver<Status>,
    pub(super) monitor: Monitor,
    pub(super) sessions: watch::Receiver<bgp::Report>,
    pub(super) router: router::Task,
    /// A chosen datapath that is not possible.
    pub(super) refused: Option<Kind>,
    pub(super) start: Start,
    pub(super) registered: Pending,
    pub(super) configured: Pending,
    pub(super) tasks: Tasks,
    pub(super) stop: CancellationToken,
}

impl Agent {
    pub(super) fn serve_http(&mut self, http: api::Server, exposed: Exposed) {
        let parts = api::Parts {
            datapath: self.identity.datapath,
            ready: exposed.ready,
            reader: self.reader.clone(),
            status: self.status.clone(),
            continuity: exposed.continuity,
            bgp: self.sessions.clone(),
            routing: exposed.routing,
            inspect: exposed.inspect,
            recorded: exposed.recorded,
            monitor: self.monitor.clone(),
            pods: self.pods.clone(),
            traffic: exposed.traffic,
        };
        self.tasks.spawn("service manager", readiness::notify(parts.clone(), self.stop.clone()));
        let stop = self.stop.clone();
        self.tasks.spawn("http", async move { http.run(parts, stop).await.context("serve HTTP requests") });
    }

    pub(super) fn publish_status(
        &mut self,
        regression: watch::Receiver<Option<Regression>>,
        routing: watch::Receiver<Vec<String>>,
    ) {
        let published = registration::Published {
            status: self.status.clone(),
            warnings: self.pods.warnings(),
            regression,
            bgp: self.sessions.clone(),
            routing,
        };
        let (identity, store) = (self.identity.clone(), self.store.clone());
        let (reader, halt) = (self.reader.clone(), self.tasks.halt());
        self.tasks.spawn("node status", async move {
            registration::publish_status(&identity, &store, published, reader, halt).await
        });
    }

    pub(super) fn serve_cni(
        &mut self,
        server: attach::Server,
        requests: RequestMetrics,
        regression: watch::Receiver<Option<Regression>>,
    ) {
        let (followed, stop) = (self.pods.clone(), self.stop.clone());
        self.tasks.spawn("conditions of ADD", async move { followed.follow_conditions(stop).await });
        let (start, pods, stop) = (self.start.clone(), self.pods.clone(), self.stop.clone());
        self.tasks.spawn_requests(async move {
            let served = async {
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = start.until_served(regression) => {}
                }
                server.run(pods.clone(), requests, stop).await.context("serve CNI requests")
            };
            let ended = served.await;
            // They need the datapath, as requests do.
            pods.finish_reclaims().await;
            ended
        });
    }

    /// Runs until `stop` is cancelled, another datapath is chosen, or a task ends. Replaces the predecessor when the
    /// global settings are known.
    pub(super) async fn run<D: Datapath + 'static>(
        mut self,
        mut reconciler: Reconciler<D>,
        mode: LocalMode,
        (predecessor, chosen): (Option<Predecessor>, Option<&ChosenFile>),
        next: NextDatapath,
        speaker: &Speaker,
    ) -> anyhow::Result<()> {
        if let Some(ended) = self.settle(&mode, next).await {
            return self.tasks.end(ended).await;
        }
        let stopped = StoppedFile::beside(&self.flags.cni_socket);
        if let Some(predecessor) = &predecessor
            && let Some(ended) = self.prepare(predecessor, &stopped).await
        {
            return self.tasks.end(ended).await;
        }
        if let Err(error) = self.take_over(predecessor, &mut reconciler, chosen, &stopped).await {
            return self.tasks.end(Err(error)).await;
        }
        self.spawn_followers(reconciler, mode, stopped, speaker).supervise().await
    }

    /// Waits for the global settings, and watches the choice of the datapath from then on. The datapath is not changed
    /// while the settings are unknown or contradict this node's. Returns the result of the run if it ends here.
    async fn settle(&mut self, mode: &LocalMode, next: NextDatapath) -> Option<anyhow::Result<()>> {
        let settled = tokio::select! {
            () = self.stop.cancelled() => return Some(Ok(())),
            failed = self.tasks.first_end() => return Some(failed),
            settled = settings::wait(&self.reader, mode) => settled,
        };
        if settled.is_err() {
            return Some(settled);
        }
        let (own, present) = ((&self.store, &self.node.host), self.identity.datapath);
        if self.start.was_away() && choice::was_missed(own, present, self.refused, &next).await {
            return Some(Ok(()));
        }
        // Watched even while the state is incomplete, because the choice may be reverted.
        let own = (self.store.clone(), self.node.host.clone());
        let follow = choice::follow(own, present, self.refused, next, self.stop.clone());
        self.tasks.spawn("chosen datapath", follow);
        None
    }

    /// Prepares the replacement of the predecessor's datapath. Returns the result of the run if it ends here.
    async fn prepare(
        &mut self,
        predecessor: &Predecessor,
        stopped: &StoppedFile,
    ) -> Option<anyhow::Result<()>> {
        let own = (&self.store, &self.reader);
        tokio::select! {
            () = self.stop.cancelled() => Some(Ok(())),
            failed = self.tasks.first_end() => Some(failed),
            // The next run listens on the sockets of these tasks.
            prepared = predecessor.prepare(own, &self.node.host, stopped) => {
                prepared.err().map(|error| Err(Refused(error).into()))
            }
        }
    }

    /// Replaces the predecessor's datapath with this one.
    async fn take_over<D: Datapath + 'static>(
        &self,
        predecessor: Option<Predecessor>,
        reconciler: &mut Reconciler<D>,
        chosen: Option<&ChosenFile>,
        stopped: &StoppedFile,
    ) -> anyhow::Result<()> {
        let is_built = match &predecessor {
            Some(predecessor) => predecessor.build_successor(reconciler, stopped).await.map_err(Refused)?,
            None => false,
        };
        // The interfaces may have been created for another datapath, or another datapath type, than the flags select.
        self.pods.meet_requirements().await;
        // From this point on, an agent that starts after a crash uses this datapath.
        if let Some(file) = chosen {
            file.write(self.identity.datapath).map_err(Refused)?;
        }
        if let Some(predecessor) = predecessor {
            let desired = self.reader.with(|state| plan::full(state, &self.node));
            predecessor.replace(&desired, (reconciler, is_built), stopped).await?;
        }
        Ok(())
    }

    /// Spawns the tasks that change the datapath, and the tasks that depend on it. Returns all tasks of the run.
    fn spawn_followers<D: Datapath + 'static>(
        self,
        reconciler: Reconciler<D>,
        mode: LocalMode,
        stopped: StoppedFile,
        speaker: &Speaker,
    ) -> Tasks {
        let Agent { flags, node, identity, reader, store, pods, status, mut tasks, stop, .. } = self;
        let halt = tasks.halt();
        tasks.spawn("other datapath", conflict::watch(flags.datapath.clone(), stop.clone()));
        self.configured.done();
        self.start.done();
        let (watched, reported, stopping) = (reader.clone(), pods.clone(), stop.clone());
        tasks.spawn("settings", async move {
            settings::follow(&watched, &mode, |why| reported.report_forward_mode(why), stopping).await
        });
        let halting = halt.clone();
        tasks.spawn("datapath", async move {
            reconciler.run(halting).await;
            Ok(())
        });
        speaker.follow(&reader, true);
        if identity.datapath != Kind::Fake {
            tasks.spawn("router", self.router.run(halt.clone()));
        }
        tasks.spawn("bgp status", bgp::publish(node.host, store.clone(), self.sessions, halt));
        if flags.datapath.bpf_log {
            tasks.spawn("bpf log", packet_log::write(self.monitor, status.clone(), stop.clone()));
        }
        tasks.spawn("first resync", readiness::first_resync(status.clone(), stop.clone()));
        tasks.spawn("stopped datapath", interruption::settle(stopped, status, stop.clone()));
        let (infra, stopping) = (pods.clone(), stop.clone());
        tasks.spawn("infra", async move { infra.maintain_infra(stopping).await });
        let (finishing, stopping) = (pods.clone(), stop.clone());
        tasks.spawn("unfinished requests", async move { finishing.finish_requests(stopping).await });
        tasks.spawn("interfaces", interfaces::check(pods, reader, stop.clone()));
        let registered = self.registered;
        tasks.spawn("registration", async move {
            registration::maintain(&identity, &store, || registered.done(), stop).await
        });
        tasks
    }
}
