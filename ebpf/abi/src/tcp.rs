//! TCP states of a flow.
//!
//! Each direction records what it has sent. The state of the connection follows from the records of
//! both directions, as that of nf_conntrack follows from the sequence of packets. So two CPUs that
//! process both directions at once never overwrite each other's state.

/// What one direction of a flow has sent, as flags. TCP flags have their bits in the TCP header.
pub mod sent {
    /// A plausible FIN.
    pub const FIN: u8 = 0x01;
    /// A SYN.
    pub const SYN: u8 = 0x02;
    /// A plausible RST.
    pub const RST: u8 = 0x04;
    /// An ACK after a packet of the other direction: of the original direction, the end of the
    /// handshake.
    pub const ACK: u8 = 0x10;
    /// An ACK after a FIN of the other direction.
    pub const ACKED_FIN: u8 = 0x20;
    /// Any packet, of any protocol.
    pub const ANY: u8 = 0x80;
    /// FIN or RST: the connection is ending.
    pub const END: u8 = FIN | RST;
}

/// State of a TCP connection, named as in nf_conntrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// The original direction has sent packets, and got no reply.
    SynSent,
    /// A SYN was replied to with a SYN, which is not acknowledged yet.
    SynReceived,
    /// Both directions have sent packets.
    Established,
    /// One direction has sent a FIN, which is not acknowledged yet.
    FinWait,
    /// Half-closed: one direction has sent a FIN, which was acknowledged.
    CloseWait,
    /// Both directions have sent a FIN, not both of which were acknowledged.
    LastAck,
    /// Both directions have sent a FIN, and both were acknowledged.
    TimeWait,
    /// Reset.
    Close,
}

impl TcpState {
    /// The state from what the original and the reply direction have sent.
    #[inline(always)]
    pub const fn of(original: u8, reply: u8) -> TcpState {
        let (both, either) = (original & reply, original | reply);
        if either & sent::RST != 0 {
            TcpState::Close
        } else if both & sent::FIN != 0 {
            if both & sent::ACKED_FIN != 0 { TcpState::TimeWait } else { TcpState::LastAck }
        } else if either & sent::FIN != 0 {
            if either & sent::ACKED_FIN != 0 { TcpState::CloseWait } else { TcpState::FinWait }
        } else if reply & sent::ANY == 0 {
            TcpState::SynSent
        } else if both & sent::SYN != 0 && original & sent::ACK == 0 {
            TcpState::SynReceived
        } else {
            TcpState::Established
        }
    }
}

/// What a segment adds to the record of its direction.
///
/// `flags` are those of the segment, `other` is the record of the other direction, and `plausible` is true if its sequence number
/// is, see [`is_plausible`].
#[inline(always)]
pub const fn record(flags: u8, other: u8, plausible: bool) -> u8 {
    let mut sent = flags & sent::SYN;
    if plausible {
        sent |= flags & sent::END;
    }
    if flags & sent::ACK != 0 && other & sent::ANY != 0 {
        sent |= sent::ACK;
        if other & sent::FIN != 0 {
            sent |= sent::ACKED_FIN;
        }
    }
    // The first reply to a SYN may be a RST: the connection was refused and stays unreplied.
    if flags & sent::RST == 0 {
        sent |= sent::ANY;
    }
    sent
}

/// Bytes by which the sequence number of a FIN or RST may exceed what was seen of its direction:
/// segments may be reordered.
const REORDERING: u32 = 1 << 16;

/// Returns true if the receiver may accept a FIN or RST with this sequence number (RFC 5961,
/// section 3): it lies between what the receiver has acknowledged and what the sender has sent.
/// `end` is the sequence number after the last byte that the direction has sent.
#[inline(always)]
pub const fn is_plausible(sequence: u32, acknowledged: u32, end: u32) -> bool {
    let (after, before) =
        (sequence.wrapping_sub(acknowledged), end.wrapping_add(REORDERING).wrapping_sub(sequence));
    (after as i32) >= 0 && (before as i32) >= 0
}

/// The oldest sequence number of a direction that may be unacknowledged (SND.UNA of RFC 9293, section
/// 3.3.1): what the other direction has acknowledged.
///
/// If that has acknowledged nothing, or what was not sent, which the sender ignores (section
/// 3.10.7.4), what was sent last is the measure. `end` is as in [`is_plausible`].
#[inline(always)]
pub const fn unacknowledged(acknowledged: u32, has_acknowledged: bool, end: u32) -> u32 {
    let is_sent = end.wrapping_sub(acknowledged) as i32 >= 0;
    if has_acknowledged && is_sent { acknowledged } else { end.wrapping_sub(REORDERING) }
}

/// Returns true if a direction may acknowledge this number: one that the other direction has sent, see [`unacknowledged`].
/// `own` and `other` are the records of both, and `end` is that of the other one.
///
/// The first acknowledgement ends the handshake: it must be of all that was sent from `first` on, which is the sequence
/// number after the SYN, so that a sender that has not seen the reply to its SYN does not guess it. The SYN may have data
/// (RFC 7413), which fit into a window without scale. The first reply is sent before there is a `first`.
#[inline(always)]
pub const fn acknowledges(number: u32, own: u8, other: u8, first: u32, end: u32) -> bool {
    // The numbers of a flow from another datapath are not known.
    if other & (sent::SYN | sent::ACK) == 0 {
        return true;
    }
    let behind = end.wrapping_sub(number);
    if own & sent::ACK != 0 || other & sent::SYN == 0 {
        return behind as i32 >= 0;
    }
    let data = end.wrapping_sub(first);
    let most = if own & sent::SYN == 0 {
        REORDERING
    } else if data <= REORDERING {
        data
    } else {
        0
    };
    behind <= most
}

/// The later one of two sequence numbers (RFC 9293, section 3.4).
#[inline(always)]
pub const fn later(a: u32, b: u32) -> u32 {
    if (a.wrapping_sub(b) as i32) > 0 { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYN: u8 = sent::SYN;
    const ACK: u8 = sent::ACK;
    const FIN: u8 = sent::FIN | sent::ACK;
    const RST: u8 = sent::RST;

    /// A connection after segments with these directions and flags.
    fn after(segments: &[(usize, u8)]) -> TcpState {
        let mut both = [0; 2];
        for (direction, flags) in segments {
            both[*direction] |= record(*flags, both[1 - *direction], true);
        }
        TcpState::of(both[0], both[1])
    }

    #[test]
    fn states_are_those_of_nf_conntrack() {
        let open = [(0, SYN), (1, SYN | ACK), (0, ACK)];
        let then = |more: &[(usize, u8)]| after(&[&open, more].concat());
        assert_eq!(after(&open[..1]), TcpState::SynSent);
        assert_eq!(after(&open[..2]), TcpState::SynReceived);
        assert_eq!(after(&open), TcpState::Established);
        for side in [0, 1] {
            let other = 1 - side;
            assert_eq!(then(&[(side, FIN)]), TcpState::FinWait);
            assert_eq!(then(&[(side, FIN), (other, ACK)]), TcpState::CloseWait);
            assert_eq!(then(&[(side, FIN), (other, ACK), (other, ACK)]), TcpState::CloseWait);
            assert_eq!(then(&[(side, FIN), (other, FIN)]), TcpState::LastAck);
            assert_eq!(then(&[(side, FIN), (other, FIN), (side, ACK)]), TcpState::TimeWait);
            assert_eq!(then(&[(side, RST)]), TcpState::Close);
        }
        // A connection that is older than the table, and one that was refused.
        assert_eq!(after(&[(0, ACK)]), TcpState::SynSent);
        assert_eq!(after(&[(0, ACK), (1, ACK)]), TcpState::Established);
        assert_eq!(after(&[(0, SYN), (1, RST | ACK)]), TcpState::Close);
    }

    #[test]
    fn an_implausible_segment_ends_nothing() {
        let established = sent::ANY | sent::ACK;
        assert_eq!(record(RST, established, false), 0);
        assert_eq!(record(FIN, established, false) & sent::END, 0);
    }

    #[test]
    fn sequence_numbers_are_compared_modulo_their_range() {
        for base in [0, 1, u32::MAX, 1 << 31] {
            let at = |offset: i64| base.wrapping_add(offset as u32);
            assert!(is_plausible(at(0), at(0), at(0)) && is_plausible(at(500), at(0), at(1000)));
            assert!(is_plausible(at(1000 + i64::from(REORDERING)), at(0), at(1000)));
            assert!(!is_plausible(at(1001 + i64::from(REORDERING)), at(0), at(1000)));
            assert!(!is_plausible(at(-1), at(0), at(1000)) && !is_plausible(at(1 << 30), at(0), at(1000)));
            assert_eq!((later(at(1), at(0)), later(at(0), at(1))), (at(1), at(1)));
        }
    }

    #[test]
    fn the_end_of_the_handshake_is_not_guessed() {
        const OPEN: u8 = sent::ANY | sent::SYN;
        for base in [0, 1, u32::MAX, 1 << 31] {
            let at = |offset: i64| base.wrapping_add(offset as u32);
            let is = |own, other, number| acknowledges(number, own, other, at(0), at(0));
            // The reply to a SYN, and what is acknowledged first.
            assert!(is(0, OPEN, at(0)) && is(OPEN, OPEN | sent::ACK, at(0)));
            for wrong in [1, -1, 77, 1 << 20, 1 << 31, -(1 << 20)] {
                assert!(!is(OPEN, OPEN | sent::ACK, at(wrong)), "{base}, {wrong}");
            }
            // Data with the SYN. A number that is not that after the SYN is none.
            let early = |number, first| acknowledges(number, OPEN, OPEN | sent::ACK, first, at(100));
            assert!(early(at(0), at(0)) && early(at(50), at(0)) && early(at(100), at(0)));
            assert!(!early(at(-1), at(0)) && !early(at(101), at(0)));
            assert!(early(at(100), at(1 << 20)) && !early(at(99), at(1 << 20)));
            // Later: old ones, but none of what was not sent.
            let later = |number| is(OPEN | sent::ACK, OPEN | sent::ACK, number);
            assert!(later(at(0)) && later(at(-(1 << 20))) && !later(at(1)));
            // A flow that comes from another datapath.
            assert!(is(sent::ANY, sent::ANY, at(77)));
        }
    }

    #[test]
    fn an_acknowledgement_of_what_was_not_sent_is_no_measure() {
        for base in [0, 1, u32::MAX, 1 << 31] {
            let at = |offset: i64| base.wrapping_add(offset as u32);
            for offset in [0, 400, 1000] {
                assert_eq!(unacknowledged(at(offset), true, at(1000)), at(offset));
            }
            let lowest = at(1000 - i64::from(REORDERING));
            assert_eq!(unacknowledged(at(400), false, at(1000)), lowest);
            for ahead in [1, 1 << 15, 1 << 30, (1 << 31) - 1] {
                assert_eq!(unacknowledged(at(1000 + ahead), true, at(1000)), lowest, "{ahead}");
            }
            assert!(is_plausible(at(1000), lowest, at(1000)));
        }
    }
}
