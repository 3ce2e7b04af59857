//! Runs the agent. It may change its datapath between runs, as operators choose.

mod agent;
mod choice;
mod cleanup;
mod conflict;
mod interfaces;
mod interruption;
mod leader;
mod packet_log;
mod prepared;
mod readiness;
mod settings;
mod speaker;
mod start;
mod surroundings;
mod tasks;

use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Flags,
    datapath::{Datapath, Kind, fake::Fake, ovs::Ovs},
    error::one_line,
};
use choice::{ChosenFile, NextDatapath, Refused};
pub use cleanup::cleanup;
use conflict::Predecessor;
use prepared::Prepared;
use settings::LocalMode;
use speaker::Speaker;

/// Interval between periodic full resyncs.
const RESYNC_INTERVAL: Duration = Duration::from_secs(60);

/// Runs the agent until `stop` is cancelled. Forwarding continues afterwards.
///
/// The store may be unavailable: until it answers, the agent serves requests and rejects those that need the store.
pub async fn run(flags: Flags, stop: CancellationToken) -> anyhow::Result<()> {
    // Also cancelled if the speaker ends.
    let runs = stop.child_token();
    let speaker = Speaker::start(&flags, runs.clone().drop_guard())?;
    let mode = LocalMode::new(flags.fwdmode);
    let ended = run_chosen(flags, (&speaker, &mode), runs).await;
    speaker.stop(ended).await
}

/// Runs the agent with the chosen datapath until `stop` is cancelled.
///
/// When an operator chooses another datapath, the agent ends its run and begins one with that datapath. If that datapath
/// cannot start, the next run uses the earlier datapath again and reports the reason. Any other error ends the agent: its
/// next process reads the choice from the store.
async fn run_chosen(
    mut flags: Flags,
    (speaker, mode): (&Speaker, &LocalMode),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    // The store may be unavailable.
    interruption::resume(&flags).await;
    let file = ChosenFile::beside(&flags.cni_socket);
    // The datapath that the node has, and whether it was chosen.
    let mut present = match file.read()? {
        Some(kind) => (kind, true),
        None => (flags.datapath.datapath, false),
    };
    // If the store is unavailable or has lost its data, the node keeps its datapath.
    let stored = choice::stored(&flags).await;
    // State that an earlier run has prepared but not put into operation may be replaced.
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

/// The choice of the datapath as a run needs it.
struct Choice<'a> {
    /// The datapath that the node has: chosen earlier, or from the flag.
    present: Kind,
    /// Written before the other datapath is removed; `None` if the datapath is that of the flag.
    file: Option<&'a ChosenFile>,
    /// A chosen datapath that is not possible, with the reason.
    refused: Option<(Kind, String)>,
    /// Receives the choice that ends the run.
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
    tracing::info!(host = %node.host, vtep = %node.vtep, datapath = %flags.datapath.datapath, "starting");
    let prepared = Prepared::new(flags, speaker).await?;
    if predecessor.is_some() {
        // Does everything that is possible before the predecessor is removed, and fails early. Waiting for a switch that
        // does not run takes time.
        let Some(prepared) = stop.run_until_cancelled(datapath.prepare()).await else { return Ok(()) };
        prepared.context("prepare the datapath").map_err(Refused)?;
    }
    let Choice { file, refused, next, .. } = choice;
    let (agent, reconciler) = prepared.start(datapath, refused, speaker, stop);
    agent.run(reconciler, mode, (predecessor, file), next, speaker).await
}
