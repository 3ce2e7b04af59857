//! Staged changes of allocation records.

use contiv_model::{api::Netprofile, group};

use crate::ipam::{HostsChange, PoolChange};

/// Staged change of an allocation record.
#[derive(Clone, Debug, Default)]
pub struct AllocationChange {
    pub pool: PoolChange,
    pub hosts: HostsChange,
    /// Change of the number of allocated addresses.
    pub addresses: i64,
    /// Change of the number of endpoints.
    pub endpoints: i64,
    /// Write the whole record, whatever its size.
    pub checkpoint: bool,
    /// New traffic settings; groups only.
    pub traffic: Option<Traffic>,
}

/// Traffic settings that a network profile gives to a group. The default means no profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub dscp: i64,
    pub bandwidth: String,
    pub burst: i64,
}

impl Traffic {
    pub fn of(profile: &Netprofile) -> Traffic {
        Traffic { dscp: profile.dscp, bandwidth: profile.bandwidth.clone(), burst: profile.burst }
    }

    /// Settings stored in the group's state.
    pub fn of_group(group: &group::State) -> Traffic {
        Traffic { dscp: group.dscp, bandwidth: group.bandwidth.clone(), burst: group.burst }
    }
}

impl AllocationChange {
    pub(super) fn is_empty(&self) -> bool {
        self.pool.is_empty()
            && self.hosts.is_empty()
            && self.addresses == 0
            && self.endpoints == 0
            && !self.checkpoint
            && self.traffic.is_none()
    }
}
