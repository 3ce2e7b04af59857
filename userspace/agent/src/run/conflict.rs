//! Check for the forwarding state of an agent with the other datapath: it would process this agent's packets.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio_util::sync::CancellationToken;

use crate::{
    config::DatapathFlags,
    datapath::{
        Kind,
        ebpf::{Ebpf, Options},
        ovs::Ovs,
    },
};

/// Interval between attempts to reach a switch that did not respond yet.
const SWITCH_INTERVAL: Duration = Duration::from_secs(5);

/// Fails if such state exists; the error names the command that removes it.
pub(super) async fn check(flags: &DatapathFlags) -> Result<()> {
    match flags.datapath {
        Kind::Ovs => {
            let ebpf = Ebpf::new(flags.ebpf(None, Options::VXLAN_PORT));
            if let Some(root) = ebpf.left_behind()? {
                let root = root.display();
                bail!(
                    "eBPF programs of another agent are attached to this node's pods; stop that agent if it runs, then run: \
                     netplugin cleanup --datapath ebpf --bpf-root {root}"
                );
            }
        }
        Kind::Ebpf => {
            // A switch that does not respond yet is checked by `watch`.
            let _responds = check_switch(flags).await?;
        }
        Kind::Fake => {}
    }
    Ok(())
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
            "the switch of this node has {} of another agent; stop that agent if it runs, then run: netplugin cleanup \
             --datapath ovs --ovsdb unix:{}",
            left.join(" and "),
            flags.ovsdb.display()
        );
    }
    Ok(true)
}
