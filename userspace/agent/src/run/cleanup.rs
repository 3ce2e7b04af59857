use anyhow::Context as _;

use super::{choice::ChosenFile, interruption::StoppedFile};
use crate::{
    attach::link::Links,
    bgp::SpeakerFile,
    config::{Cleanup, DatapathFlags},
    continuity::MemoryFile,
    datapath::{
        Datapath as _, Kind, Owner,
        ebpf::{Ebpf, Options},
        ovs::Ovs,
    },
    router,
};

/// Removes everything that the datapath created on this node.
pub async fn cleanup(flags: &Cleanup) -> anyhow::Result<()> {
    let DatapathFlags { datapath, .. } = flags.datapath;
    match datapath {
        Kind::Ovs => Ovs::new(flags.datapath.ovs(None)).cleanup().await?,
        Kind::Ebpf => Ebpf::new(flags.datapath.ebpf(None, Options::VXLAN_PORT)).cleanup().await?,
        Kind::Fake => {}
    }
    let routes = router::remove().await;
    StoppedFile::beside(&flags.cni_socket).remove();
    let memory = MemoryFile::beside(&flags.cni_socket);
    memory.remove().with_context(|| format!("remove {}", memory.path().display()))?;
    // The next start announces nothing of it, because no datapath forwards to these addresses.
    let speaker = SpeakerFile::beside(&flags.cni_socket);
    speaker.remove().with_context(|| format!("remove {}", speaker.path().display()))?;
    // The next start uses the datapath of its flag, unless the store has a choice.
    ChosenFile::beside(&flags.cni_socket).remove()?;
    let links = Links::open().await?;
    for port in links.attachments().await? {
        // Infra endpoints are useless without a datapath, and no CNI request deletes them.
        if flags.ports || port.owner == Owner::Node {
            links.detach(&port.port).await?;
        }
    }
    // A parameter of the kernel that is read-only does not keep the rest from being removed.
    Ok(routes?)
}
