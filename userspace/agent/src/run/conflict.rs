//! Forwarding state of an agent with the other datapath, which would process this agent's packets. The agent refuses to
//! start, or replaces that datapath.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use contiv_model::name::HostName;
use contiv_store::Store;
use tokio_util::sync::CancellationToken;

use super::interruption::StoppedFile;
use crate::{
    attach::link::Links,
    config::{DatapathFlags, Flags},
    datapath::{
        Datapath, Desired, Error, Kind, Object, TrackedConnection,
        ebpf::{Ebpf, Options},
        host_end,
        ovs::Ovs,
    },
    error::one_line,
    fail_point::reach,
    reconcile::Reconciler,
    state::Reader,
};

/// Interval between attempts to reach a switch that has not responded yet.
const SWITCH_INTERVAL: Duration = Duration::from_secs(5);

/// Returns the other datapath of this node, to be replaced. `present` is the datapath that the node has, as far as it is
/// known.
///
/// Fails if there is another datapath and `replace` is not set, or if it is unknown whether OVS forwards. The error
/// contains advice.
pub(super) async fn check(
    flags: &DatapathFlags,
    replace: bool,
    present: Kind,
) -> Result<Option<Predecessor>> {
    match flags.datapath {
        Kind::Ovs => {
            let ebpf = Box::new(Ebpf::new(flags.ebpf(None, Options::VXLAN_PORT)));
            let Some(root) = ebpf.left_behind().await? else { return Ok(None) };
            let root = root.display().to_string();
            let forwards = !ebpf.is_passive().await?;
            if forwards && !replace {
                bail!(
                    "eBPF programs of another agent are attached to this node's pods; stop that agent if it runs, then use \
                     --replace-datapath, or run: netplugin cleanup --datapath ebpf --bpf-root {root}"
                );
            }
            Ok(Some(Predecessor { other: Other::Ebpf(ebpf), forwards }))
        }
        Kind::Ebpf => check_ovs(flags, replace, present).await,
        Kind::Fake => Ok(None),
    }
}

/// [`check`] for an agent with the eBPF datapath.
async fn check_ovs(flags: &DatapathFlags, replace: bool, present: Kind) -> Result<Option<Predecessor>> {
    let ovs = Box::new(Ovs::new(flags.ovs(None)));
    let ebpf = Ebpf::new(flags.ebpf(None, Options::VXLAN_PORT));
    // If programs forward, bridges do not: they are in standby, or have been stopped.
    let forwards = ebpf.left_behind().await?.is_none() || ebpf.is_passive().await?;
    let Some(left) = ovs.left_behind().await else {
        if forwards && may_forward(&ovs, present).await? {
            bail!(
                "Open vSwitch does not respond at unix:{}, and may forward for the interfaces of this node, which stay with it; \
                 start ovsdb-server, so that its bridges can be replaced, or remove the pods from the node and stop ovs-vswitchd",
                flags.ovsdb.display()
            );
        }
        // `watch` checks a switch that does not respond yet.
        return Ok(None);
    };
    if left.is_empty() {
        return Ok(None);
    }
    if forwards && !replace {
        return Err(bridges_of_another_agent(flags, &left));
    }
    Ok(Some(Predecessor { other: Other::Ovs(ovs), forwards }))
}

/// Reports whether OVS may forward while its database does not respond: ovs-vswitchd keeps its bridges, and the kernel
/// datapath forwards without both. A change of the flags alone does not appear in the chosen datapath, so the switch
/// itself is checked.
async fn may_forward(ovs: &Ovs, present: Kind) -> Result<bool> {
    let links = Links::open().await?;
    let is_left = present == Kind::Ovs && !links.attachments().await?.is_empty();
    Ok(is_left || ovs.has_bridges().await || links.are_switched().await?)
}

/// The datapath that forwards for this node's pods until it is replaced.
pub(super) struct Predecessor {
    other: Other,
    /// False if it has been stopped before, or was in standby to replace this one.
    forwards: bool,
}

/// Returns the eBPF datapath of an agent that replaces `predecessor`, if there is one.
pub(super) async fn ebpf(flags: &Flags, vtep: IpAddr, predecessor: Option<&Predecessor>) -> Ebpf {
    let mut ebpf = Ebpf::new(flags.ebpf(vtep));
    if let Some(Predecessor { other: Other::Ovs(ovs), .. }) = predecessor
        && ovs.frees_tunnel_port(flags.vxlan_port).await
    {
        ebpf.yield_tunnel_port();
    }
    ebpf
}

enum Other {
    Ovs(Box<Ovs>),
    Ebpf(Box<Ebpf>),
}

/// Maximum number of records that an error names.
const LISTED: usize = 5;

impl Predecessor {
    /// Waits until the state is complete, and stores the records that an agent without a store needs to complete the
    /// successor.
    ///
    /// Fails if this datapath forwards and records are unreadable: the successor would lack the objects that this
    /// datapath of `host` has for these records.
    pub(super) async fn prepare(
        &self,
        (store, reader): (&Store, &Reader),
        host: &HostName,
        stopped: &StoppedFile,
    ) -> Result<()> {
        reader.synced().await;
        self.check_records(reader, host)?;
        if self.forwards && self.kind() == Kind::Ebpf {
            stopped.save_records((store, reader), host).await;
        }
        Ok(())
    }

    fn check_records(&self, reader: &Reader, host: &HostName) -> Result<()> {
        let unreadable = reader.with(|state| state.unreadable_on(host));
        let unreadable: Vec<String> = unreadable.iter().map(ToString::to_string).take(LISTED).collect();
        if self.forwards && !unreadable.is_empty() {
            bail!(
                "the other datapath forwards for objects whose records are invalid: {}; repair or delete the \
                 records",
                unreadable.join(", ")
            );
        }
        Ok(())
    }

    /// Builds the reconciler's datapath, which has been prepared, while this one forwards. Returns false if this one must
    /// be removed first: it does not forward, or objects of the successor failed.
    ///
    /// Fails if the successor is not possible on this node; then nothing of it remains.
    pub(super) async fn build_successor<D: Datapath>(
        &self,
        successor: &mut Reconciler<D>,
        stopped: &StoppedFile,
    ) -> Result<bool> {
        if !self.forwards {
            return Ok(false);
        }
        let built = successor.stand_by().await;
        if built.is_err() {
            stopped.remove_records();
        }
        let is_built = built.context("build the datapath beside the other one")?;
        reach("the datapath is built beside the other one");
        Ok(is_built)
    }

    /// Replaces this datapath with that of the reconciler. The interfaces of pods are kept.
    ///
    /// If the successor `is_built`, this datapath stops and the successor takes over. Otherwise this datapath is removed,
    /// and the first full resync builds the successor. `stopped` contains this datapath from then on until that resync,
    /// before which the successor may drop all packets.
    pub(super) async fn replace<D: Datapath>(
        mut self,
        desired: &Desired,
        (successor, is_built): (&mut Reconciler<D>, bool),
        stopped: &StoppedFile,
    ) -> Result<()> {
        if !self.forwards {
            return self.remove().await;
        }
        self.close_orphans(desired).await?;
        let connections = self.connections(desired).await.unwrap_or_else(|error| {
            tracing::warn!("connections to services may break: {}", one_line(&error));
            vec![]
        });
        if !is_built {
            tracing::warn!("objects failed beside the {} datapath, which is removed first", self.kind());
            stopped.write(self.kind());
            successor.hold();
            self.remove().await?;
            successor.inherit(connections);
            return Ok(());
        }
        stopped.write(self.kind());
        if let Err(error) = self.stop().await {
            // OVS could not be removed either, so both would forward. The programs pass every frame on until the next
            // start.
            if !self.responds().await {
                let what =
                    "stop the ovs datapath, which keeps the pods; start ovsdb-server, then the agent again";
                return Err(anyhow::Error::from(error).context(what));
            }
            tracing::warn!("packets may arrive twice for a moment: {}", one_line(&error));
        }
        reach("the other datapath has stopped");
        successor.take_over(connections).await;
        reach("the datapath has taken over");
        // Programs are detached one after the other, which takes some time.
        if let Other::Ebpf(ebpf) = &self.other {
            ebpf.delete_devices().await.context("replace the ebpf datapath")?;
            successor.complete().await;
            stopped.remove_records();
            reach("the datapath is complete");
        }
        successor.hold();
        self.remove().await?;
        reach("the other datapath is removed");
        Ok(())
    }

    /// Sets the host ends of endpoints down that the successor does not have: without a datapath, frames of their pods
    /// would enter the network stack of the node.
    async fn close_orphans(&self, desired: &Desired) -> Result<()> {
        let wanted: BTreeSet<&str> = desired
            .iter()
            .filter_map(|(_, object)| match object {
                Object::Local(local) => Some(local.port.as_str()),
                _ => None,
            })
            .collect();
        let host_ends = match &self.other {
            Other::Ovs(ovs) => ovs.host_ends().await,
            Other::Ebpf(ebpf) => ebpf.host_ends().await,
        };
        let host_ends = host_ends.context("find the interfaces of deleted endpoints")?;
        for name in host_ends.iter().filter(|name| !wanted.contains(name.as_str())) {
            host_end::set_down(name)
                .with_context(|| format!("set {name} down, whose endpoint was deleted"))?;
        }
        Ok(())
    }

    fn kind(&self) -> Kind {
        match self.other {
            Other::Ovs(_) => Kind::Ovs,
            Other::Ebpf(_) => Kind::Ebpf,
        }
    }

    async fn connections(&self, desired: &Desired) -> Result<Vec<TrackedConnection>, Error> {
        match &self.other {
            Other::Ovs(ovs) => ovs.connections(desired).await,
            Other::Ebpf(ebpf) => ebpf.connections(desired),
        }
    }

    async fn stop(&mut self) -> Result<(), Error> {
        match &mut self.other {
            Other::Ovs(ovs) => ovs.stop().await,
            Other::Ebpf(ebpf) => ebpf.stop().await,
        }
    }

    /// Reports whether the datapath can be changed.
    async fn responds(&self) -> bool {
        match &self.other {
            Other::Ovs(ovs) => ovs.left_behind().await.is_some(),
            Other::Ebpf(_) => true,
        }
    }

    /// Removes the forwarding state of this datapath. Rules and routes of the node's kernel are kept for the successor,
    /// which has the same routing task: its BGP speaker has not learned the routes yet.
    async fn remove(self) -> Result<()> {
        let kind = self.kind();
        match self.other {
            Other::Ovs(mut ovs) => ovs.cleanup().await.context("replace the ovs datapath")?,
            Other::Ebpf(mut ebpf) => ebpf.cleanup().await.context("replace the ebpf datapath")?,
        }
        tracing::info!("replaced the {kind} datapath: removed its forwarding state");
        Ok(())
    }
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
    if left.is_empty() { Ok(true) } else { Err(bridges_of_another_agent(flags, &left)) }
}

fn bridges_of_another_agent(flags: &DatapathFlags, bridges: &[&str]) -> anyhow::Error {
    anyhow!(
        "the switch of this node has {} of another agent; stop that agent if it runs, then use --replace-datapath, or \
         run: netplugin cleanup --datapath ovs --ovsdb unix:{}",
        bridges.join(" and "),
        flags.ovsdb.display()
    )
}
