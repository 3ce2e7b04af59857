//! Whether a new connection may be.

use contiv_abi::{Address, Flow, Segment};

use crate::packet::Packet;

/// Which of an endpoint's rules are asked.
#[derive(Clone, Copy)]
pub(crate) enum Direction {
    /// The source's, for what it begins.
    Out,
    /// The destination's, for what is begun with it.
    In,
}

/// A new connection, seen from one of its ends, which is a pod here.
pub(crate) struct Request<'a> {
    pub(crate) direction: Direction,
    pub(crate) segment: Segment,
    /// The group of this end; zero for none.
    pub(crate) group: u32,
    /// The address of this end.
    pub(crate) own: &'a Address,
    /// The address of the other end, beyond the translation of services.
    pub(crate) peer: &'a Address,
    /// Its group; zero for none, and for an end outside of the cluster.
    pub(crate) peer_group: u32,
    pub(crate) protocol: u8,
    /// The destination port, in the machine's order; zero where the protocol has none.
    pub(crate) port: u16,
}

/// What the rules of one end say.
pub(crate) struct Decision {
    pub(crate) allow: bool,
    /// What the flow remembers, for counting and to notice that the rules have changed.
    pub(crate) judged: contiv_abi::Judged,
}

/// Asked once for a new connection and each of its ends that is here.
#[inline(always)]
pub(crate) fn decide(_request: &Request<'_>) -> Decision {
    Decision { allow: true, judged: contiv_abi::Judged { generation: 0, rule: 0 } }
}

/// Asked for each packet of a flow that is known: whether what was decided still stands. `original` is true
/// of packets in the flow's first direction.
#[inline(always)]
pub(crate) fn stands(_packet: &Packet, _flow: &mut Flow, _original: bool) -> bool {
    true
}
