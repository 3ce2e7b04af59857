//! Check for the forwarding state of an agent with the other datapath: it would process this agent's packets.

use anyhow::{Result, bail};

use crate::{
    config::DatapathFlags,
    datapath::{
        Kind,
        ebpf::{Ebpf, Options},
        ovs::Ovs,
    },
};

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
            let left = Ovs::new(flags.ovs(None)).left_behind().await;
            if !left.is_empty() {
                bail!(
                    "the switch of this node has {} of another agent; stop that agent if it runs, then run: netplugin cleanup \
                     --datapath ovs --ovsdb unix:{}",
                    left.join(" and "),
                    flags.ovsdb.display()
                );
            }
        }
        Kind::Fake => {}
    }
    Ok(())
}
