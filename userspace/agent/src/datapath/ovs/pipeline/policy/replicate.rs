//! Evaluation for each receiver of a broadcast, a multicast or a frame to an unknown address.

use std::net::{Ipv4Addr, Ipv6Addr};

use contiv_model::policy::Identity;
use openflow_rs::{Action, Bucket, Flow, Group, GroupKind, Match, ct_state};

use super::{
    DESTINATION_FLAGS, DESTINATION_IDENTITY, DESTINATION_V4, DESTINATION_V6, FAR, HERE, IS_RECEIVER,
    RECEIVER, evaluated,
};
use crate::datapath::{
    Local,
    ovs::pipeline::{
        group::MAX_BUCKETS,
        metadata::{OUTSIDE, network_match, network_match_from},
        table::{self, priority, priority::policy as rank},
    },
};

/// A local endpoint that a replicated frame can reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiver {
    port: u32,
    identity: Option<Identity>,
    v4: Ipv4Addr,
    v6: Ipv6Addr,
}

impl Receiver {
    pub(crate) fn new(local: &Local, port: u32) -> Receiver {
        let v4 = local.addresses.v4().next().unwrap_or(Ipv4Addr::UNSPECIFIED);
        let v6 = local.addresses.v6().next().unwrap_or_else(|| local.mac.link_local());
        Receiver { port, identity: local.identity, v4, v6 }
    }

    fn bucket(self) -> Bucket {
        let here = if self.identity.is_some() { HERE } else { 0 };
        Bucket::new([
            Action::set(RECEIVER, IS_RECEIVER | self.port),
            Action::set(DESTINATION_FLAGS, here),
            Action::set(DESTINATION_IDENTITY, self.identity.map_or(0, Identity::get)),
            Action::set(DESTINATION_V4, self.v4.to_bits()),
            Action::set(DESTINATION_V6.0, self.v6.to_bits()),
            Action::resubmit(table::POLICY),
        ])
    }
}

/// Returns a group that evaluates a copy for each receiver.
pub(crate) fn receivers(id: u32, receivers: &[Receiver]) -> Group {
    debug_assert!(receivers.len() <= MAX_BUCKETS);
    Group { id, kind: GroupKind::All, buckets: receivers.iter().map(|one| one.bucket()).collect() }
}

/// Returns the port that a bucket of [`receivers`] is for; `None` for a bucket of another group.
pub(crate) fn receiver_port(bucket: &Bucket) -> Option<u32> {
    match bucket.actions.first()? {
        Action::SetField { field, value } if *field == RECEIVER => {
            u32::try_from(*value).ok().map(|value| value & !IS_RECEIVER)
        }
        _ => None,
    }
}

/// Returns the flows that replicate frames of a network to groups of receivers. If the bridge learns the ports of unknown
/// stations, only multicast frames are replicated. Replies and ICMP errors to unknown addresses have no copies for pods:
/// they are evaluated as the packet that opened their connection, whose ends are not the receivers of copies, and an
/// unknown address does not belong to a pod.
///
/// The switches flood a frame to each uplink of a bond without LACP. `NORMAL` drops the copies at the standby uplinks;
/// these flows do the same. They accept nothing else from these uplinks: if a standby uplink becomes active while no
/// agent runs, only frames that are replicated from outside are lost.
pub(crate) fn flood(is_learning: bool, tag: u32, groups: &[u32], standby: &[u32]) -> Vec<Flow> {
    let flow = |m| Flow::new(table::DESTINATION, priority::FLOOD + 10, evaluated(m));
    let connected = |m: Match, state: u32| {
        Flow::new(table::DESTINATION, priority::FLOOD + 11, evaluated(m.ct_state(state, state)))
    };
    let to_pods = || groups.iter().map(|group| Action::Group(*group));
    let leave = [Action::set(DESTINATION_FLAGS, FAR), Action::resubmit(table::POLICY)];
    let (here, outside) = (network_match_from(tag, 0), network_match_from(tag, OUTSIDE));
    match is_learning {
        false => vec![
            connected(here.clone(), ct_state::REPLY).apply(leave.clone()),
            connected(here.clone(), ct_state::RELATED).apply(leave.clone()),
            connected(outside.clone(), ct_state::REPLY),
            connected(outside.clone(), ct_state::RELATED),
            flow(here).apply(to_pods().chain(leave)),
            flow(outside).apply(to_pods()),
        ],
        true => {
            let copy = |port: &u32| {
                let m = outside.clone().multicast_dst().in_port((*port).into());
                Flow::new(table::DESTINATION, priority::FLOOD + 11, evaluated(m))
            };
            let mut flows: Vec<Flow> = standby.iter().map(copy).collect();
            flows.push(flow(here.multicast_dst()).apply(to_pods().chain(leave)));
            flows.push(flow(outside.multicast_dst().any_vlan()).apply([Action::PopVlan]).apply(to_pods()));
            flows
        }
    }
}

/// Returns the flow of the copy that leaves the node.
pub(crate) fn far(tag: u32, actions: impl IntoIterator<Item = Action>) -> Flow {
    let m = network_match(tag).field(DESTINATION_FLAGS, FAR).masked(RECEIVER, 0u8, IS_RECEIVER);
    Flow::new(table::ACCEPT, rank::FAR, m).apply(actions)
}
