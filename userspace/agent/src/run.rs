//! Assembles the agent: creates its parts, runs their tasks, and stops them.

mod choice;
mod cleanup;
mod conflict;
mod interfaces;
mod interruption;
mod leader;
mod packet_log;
mod readiness;
mod settings;
mod speaker;
mod start;
mod surroundings;
mod tasks;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::Context as _;
use contiv_store::Store;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    api::{self, Monitor},
    attach::{
        self, Journal, Pods, RequestMetrics,
        link::{Links, TrafficReader},
    },
    bgp,
    config::Flags,
    continuity::{Guard, MemoryFile},
    datapath::{Datapath, Kind, fake::Fake, ovs::Ovs},
    error::one_line,
    master::{Access, Master},
    plan,
    ready::Ready,
    reconcile::{Handle, Reconciler},
    registration::{self, Identity},
    router,
    source::prefixes,
    state::{self, Writer},
};
use choice::{ChosenFile, NextDatapath, Refused};
pub use cleanup::cleanup;
use conflict::Predecessor;
use interfaces::recover;
use interruption::StoppedFile;
use settings::LocalMode;
use speaker::Speaker;
use start::Start;
use tasks::Tasks;

/// Interval between periodic full resyncs.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);
/// Time for pods to come back with their container ids after a reboot, before their addresses are released.
const RETURN_TIMEOUT: Duration = Duration::from_secs(300);

/// Runs the agent until `stop` is cancelled. Forwarding continues afterwards.
///
/// The store may be away: the agent serves requests, and refuses those that need the store, until it answers.
pub async fn run(flags: Flags, stop: CancellationToken) -> anyhow::Result<()> {
    // Cancelled if the speaker ends, too.
    let runs = stop.child_token();
    let speaker = Speaker::start(&flags, runs.clone().drop_guard())?;
    let mode = LocalMode::new(flags.fwdmode);
    let ended = run_chosen(flags, (&speaker, &mode), runs).await;
    speaker.stop(ended).await
}

/// Runs the agent with one datapath after the other until `stop` is cancelled.
///
/// When an operator chooses another datapath, the agent ends its run, and begins one with that datapath. If that cannot come
/// up, the next run has the earlier datapath again, and reports why. Any other error ends the agent: its next process
/// finds the choice in the store.
async fn run_chosen(
    mut flags: Flags,
    (speaker, mode): (&Speaker, &LocalMode),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // The store may be away.
    interruption::resume(&flags).await;
    let file = ChosenFile::beside(&flags.cni_socket);
    // What the node has, and whether by choice.
    let mut present = match file.read()? {
        Some(kind) => (kind, true),
        None => (flags.datapath.datapath, false),
    };
    // The store may be away, or have lost its data: then the node keeps the datapath that it has.
    let stored = choice::stored(&flags).await;
    // What an earlier run has prepared, and not put in place, is in the way of none.
    flags.replace_datapath |= present.1 || stored.is_some();
    let mut wanted = match stored {
        Some(kind) if kind != present.0 => (kind, true),
        _ => present,
    };
    let mut refused = None;
    loop {
        let (own, is_chosen) = wanted;
        flags.datapath.datapath = own;
        let next = NextDatapath::default();
        let choice = Choice {
            present: present.0,
            file: is_chosen.then_some(&file),
            refused: refused.take(),
            next: next.clone(),
        };
        let ended = run_once(flags.clone(), choice, (speaker, mode.clone()), stop.child_token()).await;
        if is_chosen && file.read()? == Some(own) {
            present = wanted;
        }
        match (ended, next.get()) {
            (Ok(()), Some(chosen)) if !stop.is_cancelled() => {
                (wanted, flags.replace_datapath) = ((chosen, true), true);
            }
            // The other datapath still forwards.
            (Err(error), _) if own != present.0 && error.is::<Refused>() => {
                let why =
                    format!("datapath {own}, which was chosen, is not possible here: {}", one_line(&*error));
                tracing::error!("{why}; keeping the {} datapath", present.0);
                (wanted, refused) = (present, Some((own, why)));
            }
            (ended, _) => return ended,
        }
    }
}

/// What a run knows of the choice of the datapath.
struct Choice<'a> {
    /// The datapath that the node has: by an earlier choice, or by the flag.
    present: Kind,
    /// To be written before the other datapath is removed; `None` if the datapath is that of the flag.
    file: Option<&'a ChosenFile>,
    /// A datapath that was chosen and is not possible, and why.
    refused: Option<(Kind, String)>,
    /// Takes the choice that ends the run.
    next: NextDatapath,
}

async fn run_once(
    flags: Flags,
    choice: Choice<'_>,
    (speaker, mode): (&Speaker, LocalMode),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let vtep = flags.node()?.vtep;
    let predecessor = conflict::check(&flags.datapath, flags.replace_datapath, choice.present).await;
    let predecessor = predecessor.map_err(Refused)?;
    let past = (predecessor, choice, mode);
    match flags.datapath.datapath {
        Kind::Ovs => run_with(Ovs::new(flags.ovs(vtep)), past, flags, speaker, stop).await,
        Kind::Ebpf => {
            let ebpf = conflict::ebpf(&flags, vtep, past.0.as_ref()).await;
            run_with(ebpf, past, flags, speaker, stop).await
        }
        Kind::Fake => run_with(Fake::new(), past, flags, speaker, stop).await,
    }
}

async fn run_with<D: Datapath + 'static>(
    mut datapath: D,
    (predecessor, choice, mode): (Option<Predecessor>, Choice<'_>, LocalMode),
    flags: Flags,
    speaker: &Speaker,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let node = flags.node()?;
    let identity = Identity {
        node: node.clone(),
        control: flags.control_address(),
        vxlan_port: flags.vxlan_port,
        datapath: flags.datapath.datapath,
    };
    tracing::info!(host = %node.host, vtep = %node.vtep, datapath = %identity.datapath, "starting");
    let ready = Ready::default();
    let (registered, configured) = (ready.wait_for("registration"), ready.wait_for("global configuration"));

    // Fallible preparations come before the first change.
    let http = api::Server::bind(flags.rest_address, &flags.rest_socket()).await?;
    let server = attach::Server::bind(&flags.cni_socket)?;
    let (links, traffic) = (Arc::new(Links::open().await?), TrafficReader::open()?);
    let (mut writer, attacher, reader, changes) = state::new(prefixes());
    configure(&mut writer, &flags);
    recover(&links, &attacher).await?;
    // It needs no store.
    speaker.follow(&reader, false);
    let store_config = flags.access.access().config(flags.store())?;
    writer.reserve(surroundings::addresses_of(&store_config.endpoints).await);
    // Before the first endpoint.
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
    let requirements = datapath.port_requirements();
    if predecessor.is_some() {
        // What can be done before the predecessor is removed, and what would fail then. A switch that is away takes time.
        let Some(prepared) = stop.run_until_cancelled(datapath.prepare()).await else { return Ok(()) };
        prepared.context("prepare the datapath").map_err(Refused)?;
    }
    let monitor = Monitor::new(datapath.telemetry(), node.host.clone(), reader.clone());
    let (mut reconciler, Handle { waiters, status, inspect, metrics }) =
        Reconciler::new(datapath, node.clone(), reader.clone(), changes, RESYNC_INTERVAL);
    let mut tasks = Tasks::new(stop.clone(), Arc::clone(&links));
    // Requests of container runtimes are finished after `stop`, and need these tasks.
    let halt = tasks.halt();
    let start = Start::default();
    tasks.spawn("store", start.clone().reach(store.clone(), store_config.clone(), stop.clone()));
    tasks.spawn("state", follow(guard, writer, halt.clone()));
    let leader = tasks.leader(&store);
    tasks.spawn("surroundings", surroundings::follow(attacher.clone(), leader.clone(), halt.clone()));
    let _reload = AbortOnDropHandle::new(tokio::spawn(reload));

    let requests = RequestMetrics::default();
    let pods = Pods::new(attach::Parts {
        node: node.clone(),
        master: Master::new(leader, access),
        links: Arc::clone(&links),
        store: store.clone(),
        attacher,
        reader: reader.clone(),
        waiters,
        status: status.clone(),
        regression: continuity.regression.clone(),
        unsettled: start.unsettled(),
        journal,
        return_timeout: RETURN_TIMEOUT,
        uplinks: flags.datapath.uplinks().map(str::to_owned).collect(),
        requirements,
    });
    let Choice { file: chosen, refused, next, .. } = choice;
    let refused = refused.map(|(kind, why)| {
        pods.report_refused_datapath(why);
        kind
    });
    let sessions = speaker.sessions();
    let (router, routing) =
        router::Task::new(node.host.clone(), flags.vxlan_port, reader.clone(), sessions.clone());
    let parts = api::Parts {
        datapath: identity.datapath,
        ready,
        reader: reader.clone(),
        status: status.clone(),
        continuity: continuity.clone(),
        bgp: sessions.clone(),
        routing: routing.clone(),
        inspect,
        recorded: api::Recorded {
            requests: requests.clone(),
            reconciler: metrics,
            store: store_config.metrics,
            series: api::SeriesTables::default(),
        },
        monitor: monitor.clone(),
        pods: pods.clone(),
        traffic,
    };
    tasks.spawn("service manager", readiness::notify(parts.clone(), stop.clone()));
    let stopping = stop.clone();
    tasks.spawn("http", async move { http.run(parts, stopping).await.context("serve HTTP requests") });

    let published = registration::Published {
        status: status.clone(),
        warnings: pods.warnings(),
        regression: continuity.regression.clone(),
        bgp: sessions.clone(),
        routing,
    };
    let (status_identity, status_store) = (identity.clone(), store.clone());
    let (status_reader, halting) = (reader.clone(), halt.clone());
    tasks.spawn("node status", async move {
        registration::publish_status(&status_identity, &status_store, published, status_reader, halting).await
    });
    let (followed, stopping) = (pods.clone(), stop.clone());
    tasks.spawn("conditions of ADD", async move { followed.follow_conditions(stopping).await });
    let (starting, regression) = (start.clone(), continuity.regression);
    let (stopping, cni_pods) = (stop.clone(), pods.clone());
    tasks.spawn_requests(async move {
        tokio::select! {
            () = stopping.cancelled() => return Ok(()),
            () = starting.until_served(regression) => {}
        }
        server.run(cni_pods, requests, stopping).await.context("serve CNI requests")
    });

    // The datapath is not changed while the global settings are unknown or contradict this node's.
    let settled = tokio::select! {
        () = stop.cancelled() => return tasks.end(Ok(())).await,
        failed = tasks.first_end() => return tasks.end(failed).await,
        settled = settings::wait(&reader, &mode) => settled,
    };
    if settled.is_err() {
        return tasks.end(settled).await;
    }
    let own = (&store, &node.host);
    if start.was_away() && choice::was_missed(own, identity.datapath, refused, &next).await {
        return tasks.end(Ok(())).await;
    }
    // Also while the state is not complete: the choice may be taken back.
    let own = (store.clone(), node.host.clone());
    let follow = choice::follow(own, identity.datapath, refused, next, stop.clone());
    tasks.spawn("chosen datapath", follow);
    let stopped = StoppedFile::beside(&flags.cni_socket);
    if let Some(predecessor) = &predecessor {
        let prepared = tokio::select! {
            () = stop.cancelled() => return tasks.end(Ok(())).await,
            failed = tasks.first_end() => return tasks.end(failed).await,
            prepared = predecessor.prepare((&store, &reader), &node.host, &stopped) => prepared,
        };
        if let Err(error) = prepared {
            // The next run listens where these tasks do.
            return tasks.end(Err(Refused(error).into())).await;
        }
    }
    let taken_over = async {
        let is_built = match &predecessor {
            Some(predecessor) => {
                predecessor.build_successor(&mut reconciler, &stopped).await.map_err(Refused)?
            }
            None => false,
        };
        // The flags may name another datapath, or another type of it, than the interfaces were made for.
        pods.meet_requirements().await;
        // From here on an agent that is killed is followed by one with this datapath.
        if let Some(file) = chosen {
            file.write(identity.datapath).map_err(Refused)?;
        }
        if let Some(predecessor) = predecessor {
            let desired = reader.with(|state| plan::full(state, &node));
            predecessor.replace(&desired, (&mut reconciler, is_built), &stopped).await?;
        }
        anyhow::Ok(())
    };
    if let Err(error) = taken_over.await {
        return tasks.end(Err(error)).await;
    }
    tasks.spawn("other datapath", conflict::watch(flags.datapath.clone(), stop.clone()));
    configured.done();
    start.done();
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
        tasks.spawn("router", router.run(halt.clone()));
    }
    tasks.spawn("bgp status", bgp::publish(node.host, store.clone(), sessions, halt));
    if flags.datapath.bpf_log {
        let bpf_status = status.clone();
        tasks.spawn("bpf log", packet_log::write(monitor, bpf_status, stop.clone()));
    }
    tasks.spawn("first resync", readiness::first_resync(status.clone(), stop.clone()));
    tasks.spawn("stopped datapath", interruption::settle(stopped, status, stop.clone()));
    let (infra, stopping) = (pods.clone(), stop.clone());
    tasks.spawn("infra", async move { infra.maintain_infra(stopping).await });
    let (finishing, stopping) = (pods.clone(), stop.clone());
    tasks.spawn("unfinished requests", async move { finishing.finish_requests(stopping).await });
    tasks.spawn("interfaces", interfaces::check(pods, reader.clone(), stop.clone()));
    tasks.spawn("registration", async move {
        registration::maintain(&identity, &store, || registered.done(), stop).await
    });
    tasks.supervise().await
}

/// Sets what the state takes from the flags. To be called before the first update.
fn configure(writer: &mut Writer, flags: &Flags) {
    if flags.routes_vlans() {
        writer.route_vlans();
    }
    if flags.has_host_access() {
        writer.allow_host_access();
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
