//! What an agent with the other datapath has left on the node: it would have packets that are ours now.

use anyhow::{Result, bail};

use crate::{
    config::DatapathFlags,
    datapath::{
        Kind,
        ebpf::{Ebpf, Options},
        ovs::Ovs,
    },
};

/// Fails where there is something, and says how to be rid of it.
pub(super) async fn none_left(flags: &DatapathFlags) -> Result<()> {
    match flags.datapath {
        Kind::Ovs => {
            let ebpf = Ebpf::new(flags.ebpf(None, Options::VXLAN_PORT));
            if let Some(root) = ebpf.left_behind()? {
                let root = root.display();
                bail!(
                    "the eBPF programs of another agent have the frames of this node's pods (stop it if it runs, then: \
                     netplugin cleanup --datapath ebpf --bpf-root {root})"
                );
            }
        }
        Kind::Ebpf => {
            let left = Ovs::new(flags.ovs(None)).left_behind().await;
            if !left.is_empty() {
                bail!(
                    "the switch of this node has {} of another agent (stop it if it runs, then: netplugin cleanup \
                     --datapath ovs --ovsdb unix:{})",
                    left.join(" and "),
                    flags.ovsdb.display()
                );
            }
        }
        Kind::Fake => {}
    }
    Ok(())
}
