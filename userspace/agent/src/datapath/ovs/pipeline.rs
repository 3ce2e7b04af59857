//! What the flow tables do.
//!
//! The table numbers and the low 40 bits of the metadata are those that Contiv always had; policy,
//! services and routing have their tables already, which now only lead on. Bits 40 to 63 hold the
//! network's tag on the bridge (VLAN or VNI): a frame gets it where it comes in, and every flow that
//! could send it on asks for it, so a frame cannot leave its network. Nothing is pushed or popped.
//!
//! ```text
//!  0 input ─ 1 where from ─┬─ pods ─────── 3 ─ 4 ─ 5 ─ 6 ─ 9 destination: pod, VTEP, flood (vxlan)
//!                          │                │                             NORMAL (vlan)
//!                          ├─ VTEP, uplink ─│──────── 6 ─ 9
//!                          └─ else dropped  └─ ARP and ND requests ─ 10 known? ─ 11 answer ─ 12
//!                                                                              (ND, kernel: ask him: 9)
//! ```

mod forward;
mod neighbour;

use openflow_rs::{Action, Field, Flow, Group, GroupKind, Match, Port};

pub(crate) use self::forward::{local, network, peer, place, remote, uplink};
use super::tables::cookie::Cookie;

/// A flow table.
pub(crate) mod table {
    pub(crate) const INPUT: u8 = 0;
    /// Which network a frame is of.
    pub(crate) const ORIGIN: u8 = 1;
    // 2 HOST_DNAT is for routing mode.
    pub(crate) const SERVICE_DNAT: u8 = 3;
    pub(crate) const DESTINATION_GROUP: u8 = 4;
    pub(crate) const POLICY: u8 = 5;
    pub(crate) const SERVICE_SNAT: u8 = 6;
    // 7 IP and 8 HOST_SNAT are for routing mode.
    pub(crate) const DESTINATION: u8 = 9;
    /// Whose address an ARP or ND request asks for. Ours, as are the next two: the original asked its
    /// controller.
    pub(crate) const NEIGHBOUR: u8 = 10;
    pub(crate) const ANSWER: u8 = 11;
    /// The switch takes the last field of an ND answer only in a table of its own.
    pub(crate) const ND_OPTION: u8 = 12;
}

/// Priorities within the tables.
pub(crate) mod priority {
    pub(crate) const MISS: u16 = 1;
    pub(crate) const FLOOD: u16 = 10;
    pub(crate) const POD: u16 = 10;
    pub(crate) const MATCH: u16 = 100;
    /// A pod's own address, before the same address for all.
    pub(crate) const OWN: u16 = 110;
    /// Frames that no table should see, and requests that go to the answering tables.
    pub(crate) const FIRST: u16 = 300;
}

/// Bits of the metadata.
pub(crate) mod metadata {
    /// The frame came from another node.
    pub(crate) const FROM_VTEP: u64 = 1;
    // Bits 1-15: destination group; 16-30: source group; 32-39: tenant. For policy.
    pub(crate) const NETWORK_SHIFT: u32 = 40;
    pub(crate) const NETWORK: u64 = 0xff_ffff << NETWORK_SHIFT;
}

/// Which of the two bridges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Side {
    Vlan,
    Vxlan,
}

impl Side {
    pub(crate) const BOTH: [Side; 2] = [Side::Vlan, Side::Vxlan];

    /// The bridge's name.
    pub(crate) fn bridge(self) -> &'static str {
        match self {
            Side::Vlan => "contivVlanBridge",
            Side::Vxlan => "contivVxlanBridge",
        }
    }
}

/// What becomes of a pod's neighbour solicitation for an address that somebody is known to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Solicitations {
    /// It is turned into its answer.
    #[default]
    Answered,
    /// It goes to whoever has the address and to nobody else, and he answers. For the kernel's datapath, which
    /// cannot rewrite the flags and options of ND.
    Forwarded,
}

/// The group that sends to every other node.
pub(crate) const PEERS: u32 = 1;

/// How many buckets one group may have, with room to spare in the 64 KiB of a message.
pub(crate) const BUCKETS: usize = 1000;

/// The groups that send to the pods of a network; more than one when there are very many pods.
pub(crate) fn pods_group(vni: u32, part: usize) -> u32 {
    (part as u32) << 25 | vni << 1
}

/// The flows that are there whatever is desired.
pub(crate) fn scaffold(side: Side, solicitations: Solicitations) -> Vec<Flow> {
    let lead = |from: u8, to: u8| Flow::new(from, priority::MISS, Match::new()).goto(to);
    let mut flows = vec![
        Flow::new(table::INPUT, priority::FIRST, Match::new().multicast_src()),
        lead(table::INPUT, table::ORIGIN),
        // Explicit, so that what is dropped here is counted.
        Flow::new(table::ORIGIN, priority::MISS, Match::new()),
        lead(table::SERVICE_DNAT, table::DESTINATION_GROUP),
        lead(table::DESTINATION_GROUP, table::POLICY),
        lead(table::POLICY, table::SERVICE_SNAT),
        lead(table::SERVICE_SNAT, table::DESTINATION),
    ];
    let miss = |table: u8| Flow::new(table, priority::MISS, Match::new());
    flows.extend(match side {
        // Unknown stations are found and learned as any switch does.
        Side::Vlan => {
            [table::DESTINATION, table::NEIGHBOUR].map(|t| miss(t).apply([Action::output(Port::NORMAL)]))
        }
        Side::Vxlan => [table::DESTINATION, table::NEIGHBOUR].map(miss),
    });
    flows.push(neighbour::arp_answer());
    flows.extend(match solicitations {
        Solicitations::Answered => neighbour::nd_answers(),
        Solicitations::Forwarded => vec![neighbour::nd_to_owner()],
    });
    flows.into_iter().map(|flow| flow.cookie(Cookie::SCAFFOLD.0)).collect()
}

/// A group of buckets that each get a copy.
pub(crate) fn to_all(id: u32, ports: impl IntoIterator<Item = u32>) -> Group {
    let buckets = ports.into_iter().map(|port| openflow_rs::Bucket::new([Action::output(port)]));
    Group { id, kind: GroupKind::All, buckets: buckets.collect() }
}

/// Frames of a network on a bridge.
fn of_network(tag: u32) -> Match {
    Match::new().metadata(u64::from(tag) << metadata::NETWORK_SHIFT, metadata::NETWORK)
}

/// Frames of a network that came from a pod here, or from another node.
fn of_network_from(tag: u32, origin: u64) -> Match {
    let value = u64::from(tag) << metadata::NETWORK_SHIFT | origin;
    Match::new().metadata(value, metadata::NETWORK | metadata::FROM_VTEP)
}

/// The register that holds the Ethernet address of the answer.
const ANSWER_MAC: Field = Field::XReg0;

#[cfg(test)]
mod tests;
