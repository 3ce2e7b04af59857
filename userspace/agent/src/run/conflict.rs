//! Forwarding state of an agent with the other datapath: it would process this agent's packets. The agent refuses to start, or
//! replaces that datapath.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio_util::sync::CancellationToken;

use crate::{
    config::DatapathFlags,
    datapath::{
        Datapath as _, Desired, Kind, TrackedConnection,
        ebpf::{Ebpf, Options},
        ovs::Ovs,
    },
    error::one_line,
    router,
};

/// Interval between attempts to reach a switch that did not respond yet.
const SWITCH_INTERVAL: Duration = Duration::from_secs(5);

/// The other datapath of this node, to be replaced. Fails if there is one and `replace` is not set; the error names what helps.
pub(super) async fn check(flags: &DatapathFlags, replace: bool) -> Result<Option<Predecessor>> {
    match flags.datapath {
        Kind::Ovs => {
            let ebpf = Ebpf::new(flags.ebpf(None, Options::VXLAN_PORT));
            match ebpf.left_behind()? {
                None => Ok(None),
                Some(_) if replace => Ok(Some(Predecessor::Ebpf(Box::new(ebpf)))),
                Some(root) => bail!(
                    "eBPF programs of another agent are attached to this node's pods; stop that agent if it runs, then use \
                     --replace-datapath, or run: netplugin cleanup --datapath ebpf --bpf-root {}",
                    root.display()
                ),
            }
        }
        Kind::Ebpf if replace => {
            let ovs = Ovs::new(flags.ovs(None));
            let left = ovs.left_behind().await.unwrap_or_default();
            Ok((!left.is_empty()).then(|| Predecessor::Ovs(Box::new(ovs))))
        }
        // A switch that does not respond yet is checked by `watch`.
        Kind::Ebpf => check_switch(flags).await.map(|_responds| None),
        Kind::Fake => Ok(None),
    }
}

/// The datapath that forwards for this node's pods until it is replaced.
pub(super) enum Predecessor {
    Ovs(Box<Ovs>),
    Ebpf(Box<Ebpf>),
}

impl Predecessor {
    /// Removes its forwarding state, and returns the connections of `desired` that it has tracked. The interfaces of pods stay.
    pub(super) async fn remove(self, desired: &Desired) -> Result<Vec<TrackedConnection>> {
        let (kind, connections) = match self {
            Predecessor::Ovs(mut ovs) => {
                let connections = known(ovs.connections(desired).await);
                ovs.cleanup().await.context("replace the ovs datapath")?;
                router::remove().await?;
                (Kind::Ovs, connections)
            }
            Predecessor::Ebpf(mut ebpf) => {
                let connections = known(ebpf.connections(desired));
                ebpf.cleanup().await.context("replace the ebpf datapath")?;
                (Kind::Ebpf, connections)
            }
        };
        tracing::info!("replacing the {kind} datapath: removed its forwarding state");
        Ok(connections)
    }
}

/// The connections, or none with a warning.
fn known(connections: Result<Vec<TrackedConnection>, crate::datapath::Error>) -> Vec<TrackedConnection> {
    connections.unwrap_or_else(|error| {
        tracing::warn!("connections to services may break: {}", one_line(&error));
        vec![]
    })
}

/// Repeats the check of the switch until it responds, then waits for `stop`: ovsdb-server may start after the agent, and
/// ovs-vswitchd restores the bridges of its database.
pub(super) async fn watch(flags: DatapathFlags, stop: CancellationToken) -> Result<()> {
    let responded = async {
        while !check_switch(&flags).await? {
            tokio::time::sleep(SWITCH_INTERVAL).await;
        }
        Ok::<_, anyhow::Error>(())
    };
    if flags.datapath == Kind::Ebpf {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            result = responded => result?,
        }
    }
    stop.cancelled().await;
    Ok(())
}

/// Fails if the switch has bridges of another agent; false if it does not respond.
async fn check_switch(flags: &DatapathFlags) -> Result<bool> {
    let Some(left) = Ovs::new(flags.ovs(None)).left_behind().await else { return Ok(false) };
    if !left.is_empty() {
        bail!(
            "the switch of this node has {} of another agent; stop that agent if it runs, then use --replace-datapath, or \
             run: netplugin cleanup --datapath ovs --ovsdb unix:{}",
            left.join(" and "),
            flags.ovsdb.display()
        );
    }
    Ok(true)
}
