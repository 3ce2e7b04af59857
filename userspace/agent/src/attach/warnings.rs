use std::{collections::BTreeMap, net::IpAddr};

use contiv_model::name::{EndpointId, HostName, NetworkId};

use crate::sysctl::Tracking;

/// Usage in percent at which the kernel's connection tracking table counts as nearly full.
const NEARLY_FULL: u64 = 90;
/// Usage in percent below which the table no longer counts as nearly full. The gap prevents alternation, because the
/// usage varies.
const FREE_AGAIN: u64 = 80;

/// Conditions of this node that prevent endpoints from communicating, or the next start of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeWarnings {
    /// Infra networks that the node could not join or leave, with the reason.
    pub(super) infra: BTreeMap<NetworkId, String>,
    /// Endpoints whose interface is on this node but which are on another node according to their records, each with that
    /// node.
    pub(super) foreign: BTreeMap<EndpointId, HostName>,
    /// VTEP addresses of endpoints without an interface on this node that a machine with this node's name but another
    /// VTEP address has recorded.
    pub(super) other_vteps: BTreeMap<EndpointId, String>,
    /// Local VTEP address, if no interface has it.
    pub(super) missing_vtep: Option<IpAddr>,
    /// Reason why the datapath that an operator has chosen does not forward.
    pub(super) refused_datapath: Option<String>,
    /// The global settings have another forward mode than the flags.
    pub(super) other_forward_mode: Option<String>,
    /// Maximum number of connections that the kernel tracks, if the table is nearly full.
    pub(super) nearly_full: Option<u32>,
}

impl NodeWarnings {
    /// Formats one line per condition for operators.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let infra =
            self.infra.iter().map(|(network, why)| format!("network {network}: infra endpoint: {why}"));
        let run = self.refused_datapath.iter().chain(&self.other_forward_mode).cloned();
        run.chain(self.missing_vtep_line())
            .chain(self.nearly_full_line())
            .chain(self.foreign_line())
            .chain(self.other_vteps_line())
            .chain(infra)
    }

    /// Compares the usage of the kernel's connection tracking table with its size.
    pub(super) fn set_tracking(&mut self, tracking: Tracking) {
        let Tracking { used, max } = tracking;
        let limit = if self.nearly_full.is_some() { FREE_AGAIN } else { NEARLY_FULL };
        let is_full = max > 0 && u64::from(used) * 100 >= u64::from(max) * limit;
        self.nearly_full = is_full.then_some(max);
    }

    pub(super) fn nearly_full_line(&self) -> Option<String> {
        self.nearly_full.map(|max| {
            format!(
                "connection tracking of the kernel: nearly full (nf_conntrack_max {max}), and without room, new connections of this \
                 node and of its pods are dropped; find who has the connections (conntrack -L), or increase \
                 net.netfilter.nf_conntrack_max"
            )
        })
    }

    pub(super) fn foreign_line(&self) -> Option<String> {
        self.foreign.first_key_value().map(|(id, host)| {
            format!(
                "interfaces: {} of endpoints that are on other nodes by their records, so the node does not forward for them; first: \
                 endpoint {id} on {host}; delete their pods",
                self.foreign.len()
            )
        })
    }

    pub(super) fn other_vteps_line(&self) -> Option<String> {
        self.other_vteps.first_key_value().map(|(id, vtep)| {
            format!(
                "records: {} endpoints of this node have no interface here, and were recorded with another VTEP address, so their \
                 addresses stay in use; first: endpoint {id} with VTEP address {vtep}; unless another machine has this node's name, \
                 delete them at netmaster (DELETE /debug/epcleanup/tenant/TENANT/ep/ID)",
                self.other_vteps.len()
            )
        })
    }

    pub(super) fn missing_vtep_line(&self) -> Option<String> {
        self.missing_vtep.map(|vtep| {
            format!(
                "VTEP address {vtep}: no interface of this node has it, so VXLAN networks do not reach other nodes; set --vtep-ip, or \
                 give the address to an interface"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_nearly_full_is_reported_until_it_has_room() {
        let mut warnings = NodeWarnings::default();
        let mut reported = |used, max| {
            warnings.set_tracking(Tracking { used, max });
            warnings.lines().count()
        };
        let seen = [89, 90, 85, 100, 79, 85].map(|used| reported(used, 100));
        assert_eq!(seen, [0, 1, 1, 1, 0, 0]);
        assert_eq!([reported(u32::MAX, u32::MAX), reported(0, 100), reported(100, 0)], [1, 0, 0]);
        warnings.set_tracking(Tracking { used: 262_144, max: 262_144 });
        let line = warnings.nearly_full_line().unwrap();
        assert!(line.contains("nf_conntrack_max 262144"), "{line}");
    }
}
