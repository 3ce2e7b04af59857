use std::collections::BTreeMap;

use contiv_model::name::NetworkId;

/// Infra networks that the node could not join or leave, with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InfraWarnings(pub(super) BTreeMap<NetworkId, String>);

impl InfraWarnings {
    /// Formats one line per network for operators.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(network, why)| format!("network {network}: infra endpoint: {why}"))
    }
}
