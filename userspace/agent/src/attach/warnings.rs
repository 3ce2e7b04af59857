use std::{collections::BTreeMap, net::IpAddr};

use contiv_model::name::{EndpointId, HostName, NetworkId};

/// Conditions of this node that keep endpoints from communicating, or the agent from its next start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeWarnings {
    /// Infra networks that the node could not join or leave, with the reason.
    pub(super) infra: BTreeMap<NetworkId, String>,
    /// Endpoints whose interface is here, and that are on another node by their records; each with that node.
    pub(super) foreign: BTreeMap<EndpointId, HostName>,
    /// Local VTEP address, if no interface has it.
    pub(super) missing_vtep: Option<IpAddr>,
    /// Why the datapath that an operator has chosen does not forward.
    pub(super) refused_datapath: Option<String>,
    /// That the global settings have another forward mode than the flags.
    pub(super) other_forward_mode: Option<String>,
}

impl NodeWarnings {
    /// Formats one line per condition for operators.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let infra =
            self.infra.iter().map(|(network, why)| format!("network {network}: infra endpoint: {why}"));
        let run = self.refused_datapath.iter().chain(&self.other_forward_mode).cloned();
        run.chain(self.missing_vtep_line()).chain(self.foreign_line()).chain(infra)
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

    pub(super) fn missing_vtep_line(&self) -> Option<String> {
        self.missing_vtep.map(|vtep| {
            format!(
                "VTEP address {vtep}: no interface of this node has it, so VXLAN networks do not reach other nodes; set --vtep-ip, or \
                 give the address to an interface"
            )
        })
    }
}
