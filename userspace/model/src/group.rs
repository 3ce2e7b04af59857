//! An endpoint group's body under `state/endpointGroups`.

use serde::{Deserialize, Serialize};

use crate::bitset::Bitset;

/// `/contiv.io/state/endpointGroups/<group>:<tenant>`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct State {
    /// `<group>:<tenant>`.
    pub id: String,
    /// The group's name.
    pub group_name: String,
    /// The tenant's name.
    pub tenant_name: String,
    /// The network that the group's endpoints are on.
    pub network_name: String,
    /// The number that stands for the group in policies.
    pub endpoint_group_id: i64,
    /// The network's `pktTagType`.
    pub pkt_tag_type: String,
    /// The network's `pktTag`.
    pub pkt_tag: i64,
    /// The network's `extPktTag`.
    pub ext_pkt_tag: i64,
    /// Endpoints in the group.
    pub ep_count: i64,
    /// The class for the group's packets, 0 for none.
    #[serde(rename = "DSCP")]
    pub dscp: i64,
    /// The rate limit as the user wrote it, or empty.
    #[serde(rename = "Bandwidth")]
    pub bandwidth: String,
    /// The burst of the rate limit in kilobits.
    #[serde(rename = "Burst")]
    pub burst: i64,
    /// `a-b`, or empty when the group allocates from its network.
    #[serde(rename = "IPPool")]
    pub ip_pool: String,
    /// The network's addresses with everything outside the pool set; empty without a pool.
    pub epg_ip_alloc_map: Bitset,
    /// The tag given by the user, or `<group>.<tenant>`.
    pub group_tag: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_the_originals_to_the_byte() {
        let body = include_str!("../tests/golden/group-gp.json");
        let state: State = serde_json::from_str(body).unwrap();
        assert_eq!(state.epg_ip_alloc_map.next_clear(0), Some(10));
        assert_eq!(serde_json::to_string(&state).unwrap(), body.trim_end());
    }
}
