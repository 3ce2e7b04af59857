//! The agent as a whole: which parts there are, how they hang together, and how they end.

mod leader;
mod other;
mod settings;
mod tasks;

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use contiv_daemon::notify;
use contiv_store::Store;
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    cni::{self, Pods},
    config::{Cleanup, DatapathFlags, Flags},
    datapath::{Datapath, Kind, Owner, ebpf::Ebpf, fake::Fake, ovs::Ovs},
    error::one_line,
    link::Links,
    master::{Access, Master},
    metrics::Metrics,
    monitor::Monitor,
    ready::Ready,
    reconcile::{Handle, Reconciler, Status},
    register::{self, Identity},
    rest,
    source::{PREFIXES, Sources},
    state::{self, Attacher, Attachment, Reader, Writer},
};
use tasks::Tasks;

/// How often everything is measured without a reason.
const PERIOD: Duration = Duration::from_secs(60);
/// How long the datapath may fail at the start, as the original waited for its switch.
const FIRST_PATIENCE: Duration = Duration::from_secs(20);

/// Runs the agent until told to stop. Forwarding goes on afterwards.
pub async fn run(flags: Flags, stop: CancellationToken) -> anyhow::Result<()> {
    let vtep = flags.node()?.vtep;
    other::none_left(&flags.datapath).await?;
    match flags.datapath.datapath {
        Kind::Ovs => with(Ovs::new(flags.datapath.ovs(Some(vtep))), flags, stop).await,
        Kind::Ebpf => with(Ebpf::new(flags.ebpf(vtep)), flags, stop).await,
        Kind::Fake => with(Fake::new(), flags, stop).await,
    }
}

async fn with<D: Datapath + 'static>(
    datapath: D,
    flags: Flags,
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
    let (registering, settling) = (ready.wait_for("registration"), ready.wait_for("global configuration"));

    // What can be missing is looked for before anything is done.
    let rest = rest::Server::bind(flags.rest_address).await?;
    let server = cni::Server::bind(&flags.cni_socket)?;
    let store = Store::connect(&flags.access.access().config(flags.store())?).await?;
    let (access, following) = Access::read(flags.master.clone())?;
    let links = Arc::new(Links::open().await?);

    let (writer, attacher, reader, changes) = state::new(PREFIXES);
    recover(&links, &attacher).await?;
    let needs = datapath.port_requirements();
    let monitor = Monitor::new(datapath.telemetry(), node.host.clone(), reader.clone());
    let (reconciler, Handle { settled, status, inspect }) =
        Reconciler::new(datapath, node.clone(), reader.clone(), changes, PERIOD);
    let mut tasks = Tasks::new(stop.clone());
    let sources = Sources::new(&store);
    let connections = sources.statuses();
    tasks.spawn("state", follow(sources, writer, stop.clone()));
    let leader = tasks.leader(&store);
    let _following = AbortOnDropHandle::new(tokio::spawn(following));

    let metrics = Metrics::default();
    let pods = Pods::new(cni::Parts {
        node: node.clone(),
        master: Master::new(leader, access),
        links: Arc::clone(&links),
        store: store.clone(),
        attacher,
        reader: reader.clone(),
        settled,
        status: status.clone(),
        needs,
    });
    let parts = rest::Parts {
        datapath: identity.datapath,
        ready,
        reader: reader.clone(),
        status: status.clone(),
        store: connections,
        inspect,
        metrics: metrics.clone(),
        monitor: monitor.clone(),
        pods: pods.clone(),
        links: Arc::clone(&links),
    };
    tasks.spawn("service manager", notify_ready(parts.clone(), stop.clone()));
    let stopping = stop.clone();
    tasks.spawn("rest", async move { rest.run(parts, stopping).await.context("serve REST requests") });

    // Nothing is touched while the cluster's settings may contradict this node's.
    tokio::select! {
        () = stop.cancelled() => return tasks.end().await,
        failed = tasks.first_end() => return failed,
        settled = settings::wait(&reader, flags.fwdmode) => settled?,
    }
    settling.done();
    let (mode, watched) = (flags.fwdmode, reader.clone());
    let stopping = stop.clone();
    tasks.spawn("settings", async move { settings::guard(&watched, mode, stopping).await });
    let stopping = stop.clone();
    tasks.spawn("datapath", async move {
        reconciler.run(stopping).await;
        Ok(())
    });
    if flags.datapath.bpf_log {
        let known = status.clone();
        tasks.spawn("bpf log", log_packets(monitor, known, stop.clone()));
    }
    tasks.spawn("start", first_measure(status.clone(), stop.clone()));
    let (stopping, requests) = (stop.clone(), pods.clone());
    tasks.spawn(
        "cni",
        async move { server.run(requests, metrics, stopping).await.context("serve CNI requests") },
    );
    let (natives, troubles, stopping) = (pods.clone(), pods.troubles(), stop.clone());
    tasks.spawn("infra", async move { natives.keep_node(stopping).await });
    tasks.spawn("links", look_after(pods, reader.clone(), stop.clone()));
    let (kept, told) = (identity.clone(), identity);
    let (keeping, telling) = (store.clone(), store);
    let stopping = stop.clone();
    tasks.spawn("registration", async move {
        register::keep(&kept, &keeping, || registering.done(), stopping).await
    });
    tasks.spawn(
        "status",
        async move { register::tell(&told, &telling, (status, troubles), reader, stop).await },
    );
    tasks.supervise().await
}

/// How often readiness is looked at until the agent is ready.
const READY_INTERVAL: Duration = Duration::from_millis(200);

/// Tells the service manager once nothing is pending.
async fn notify_ready(parts: rest::Parts, stop: CancellationToken) -> anyhow::Result<()> {
    let ready = async {
        while !parts.pending().is_empty() {
            tokio::time::sleep(READY_INTERVAL).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = ready => notify::ready(),
    }
    stop.cancelled().await;
    Ok(())
}

/// The kernel remembers what an earlier run attached.
async fn recover(links: &Links, attacher: &Attacher) -> anyhow::Result<()> {
    let attachments = links.attachments().await?;
    if !attachments.is_empty() {
        tracing::info!(interfaces = attachments.len(), "found the interfaces of pods");
    }
    for attachment in attachments {
        attacher.attach(&attachment.endpoint, Attachment { port: attachment.port, owner: attachment.owner });
    }
    Ok(())
}

async fn follow(mut sources: Sources, mut writer: Writer, stop: CancellationToken) -> anyhow::Result<()> {
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            update = sources.next() => writer.apply(update.context("the store's watches ended")?),
        }
    }
}

/// A datapath that can not be had at the start is worth ending for; one that is lost later comes back.
async fn first_measure(
    mut status: tokio::sync::watch::Receiver<Status>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let work = async {
        if status.wait_for(|status| status.known || status.error.is_some()).await.is_err() {
            return Ok(());
        }
        let known =
            tokio::time::timeout(FIRST_PATIENCE, status.wait_for(|status| status.known)).await.is_ok();
        let error = status.borrow().error.clone();
        match error {
            Some(error) if !known => Err(anyhow::anyhow!(error)),
            _ => Ok(()),
        }
    };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        result = work => result?,
    }
    stop.cancelled().await;
    Ok(())
}

/// What the programs tell of packets, among what the agent says.
async fn log_packets(
    monitor: Monitor,
    mut status: tokio::sync::watch::Receiver<Status>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let work = async {
        // When the reconciler has ended, the agent ends.
        while status.wait_for(|status| status.known).await.is_ok() {
            let mut listener = match monitor.listen() {
                Ok(listener) => listener,
                Err(refused) => {
                    tracing::warn!("--bpf-log: {}", one_line(&refused));
                    return;
                }
            };
            while let Some(sight) = monitor.line(&mut listener).await {
                tracing::info!(target: "netplugin::bpf", "{sight}");
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = work => {}
    }
    stop.cancelled().await;
    Ok(())
}

async fn look_after(pods: Pods, reader: Reader, stop: CancellationToken) -> anyhow::Result<()> {
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = reader.synced() => {}
    }
    loop {
        if let Err(error) = pods.forget_vanished().await {
            tracing::warn!("look for vanished interfaces: {error:#}");
        }
        if let Err(error) = pods.refresh_mtu().await {
            tracing::warn!("look at the node's interfaces: {error:#}");
        }
        pods.report_unaccounted();
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Removes everything that the datapath made on this node.
pub async fn cleanup(flags: &Cleanup) -> anyhow::Result<()> {
    let DatapathFlags { datapath, .. } = flags.datapath;
    match datapath {
        Kind::Ovs => Ovs::new(flags.datapath.ovs(None)).cleanup().await?,
        Kind::Ebpf => {
            Ebpf::new(flags.datapath.ebpf(None, crate::datapath::ebpf::Options::VXLAN_PORT))
                .cleanup()
                .await?;
        }
        Kind::Fake => {}
    }
    let links = Links::open().await?;
    for attachment in links.attachments().await? {
        // Its own interfaces are of no use to the node without a datapath, and nobody else would remove them.
        if flags.ports || attachment.owner == Owner::Node {
            links.detach(&attachment.port).await?;
        }
    }
    Ok(())
}
