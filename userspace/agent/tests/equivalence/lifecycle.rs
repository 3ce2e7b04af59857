//! Services that are created and deleted, and what is sent to their addresses meanwhile.

use crate::{
    cluster::{Cluster, Stage},
    packet::Probe,
};

/// When a service is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifecycle {
    Always,
    FromChange,
    UntilChange,
    /// Deleted, and created again with the change.
    Recreated,
}

impl Lifecycle {
    pub(crate) fn is_installed(self, stage: Stage) -> bool {
        match self {
            Lifecycle::Always => true,
            Lifecycle::FromChange => stage == Stage::After,
            Lifecycle::UntilChange => stage == Stage::Before,
            Lifecycle::Recreated => stage != Stage::Between,
        }
    }
}

/// Whether a service is created again.
pub(crate) fn has_gap(cluster: &Cluster) -> bool {
    cluster.services.iter().any(|service| service.lifecycle == Lifecycle::Recreated)
}

/// Whether packets of a probe are sent in a stage. Those of a connection to a service are not while the service is deleted: eBPF and
/// the oracle go on to translate them, and OVS does not. Late probes begin in that time.
pub(crate) fn takes_part(cluster: &Cluster, stage: Stage, probe: &Probe) -> bool {
    let lifecycle = probe.service(cluster).map(|at| cluster.services[at].lifecycle);
    match (lifecycle, stage) {
        (Some(Lifecycle::UntilChange | Lifecycle::Recreated), Stage::Before) => !probe.is_late,
        (Some(Lifecycle::Recreated), Stage::Between) => probe.is_late,
        (Some(Lifecycle::UntilChange), Stage::After) => probe.is_late,
        (_, stage) => stage != Stage::Between,
    }
}

/// Whether a service is created between two stages, to whose address a probe has sent without it.
pub(crate) fn begins_again(cluster: &Cluster, [from, to]: [Stage; 2], probe: &Probe) -> bool {
    let Some(at) = probe.service(cluster) else { return false };
    let is_created = !cluster.is_installed(from, at) && cluster.is_installed(to, at);
    is_created && (probe.is_late || cluster.services[at].lifecycle == Lifecycle::FromChange)
}
