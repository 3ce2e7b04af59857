//! Runs the agent: with one datapath after the other, as operators choose.

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
    tracing::info!(host = %node.host, vtep = %node.vtep, datapath = %flags.datapath.datapath, "starting");
    let prepared = Prepared::new(flags, speaker).await?;
    if predecessor.is_some() {
        // What can be done before the predecessor is removed, and what would fail then. A switch that is away takes time.
        let Some(prepared) = stop.run_until_cancelled(datapath.prepare()).await else { return Ok(()) };
        prepared.context("prepare the datapath").map_err(Refused)?;
    }
    let Choice { file, refused, next, .. } = choice;
    let (agent, reconciler) = prepared.start(datapath, refused, speaker, stop);
    agent.run(reconciler, mode, (predecessor, file), next, speaker).await
}
