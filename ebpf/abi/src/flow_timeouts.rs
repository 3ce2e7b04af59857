//! How long flows without packets stay.

use crate::{
    TCP, UDP,
    tcp::{TcpState, sent},
};

/// Seconds since `seen`. Zero if `seen` is in the future: another CPU has written it after this one
/// has read the clock.
#[inline(always)]
pub const fn idle(now: u32, seen: u32) -> u32 {
    let idle = now.wrapping_sub(seen);
    if (idle as i32) < 0 { 0 } else { idle }
}

/// Timeouts of flows without packets, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Timeouts {
    /// TCP, established.
    pub tcp: u32,
    /// TCP, unreplied, or the handshake is incomplete.
    pub tcp_opening: u32,
    /// TCP, after a FIN of one side that the other side has acknowledged.
    pub tcp_half_closed: u32,
    /// TCP, after a RST or the FINs of both sides, or a FIN that is not acknowledged.
    pub tcp_closing: u32,
    /// UDP, established.
    pub udp: u32,
    /// Other protocols, established.
    pub other: u32,
    /// All protocols but TCP, unreplied.
    pub unanswered: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        // TCP keepalives begin after two hours (RFC 9293 3.8.4); packets of a closed connection may
        // be in transit for two segment lifetimes of 30 s; RFC 4787 requires two minutes for UDP.
        // kube-proxy sets an hour for half-closed connections, which may be idle on purpose.
        Timeouts {
            tcp: 8000,
            tcp_opening: 60,
            tcp_half_closed: 3600,
            tcp_closing: 60,
            udp: 180,
            other: 180,
            unanswered: 30,
        }
    }
}

impl Timeouts {
    /// The timeout of an established flow, in seconds.
    #[inline(always)]
    pub const fn established(&self, protocol: u8) -> u32 {
        match protocol {
            TCP => self.tcp,
            UDP => self.udp,
            _ => self.other,
        }
    }

    /// The timeout of a flow, in seconds, by what both directions have sent.
    #[inline(always)]
    pub const fn of(&self, protocol: u8, original: u8, reply: u8) -> u32 {
        let replied = reply & sent::ANY != 0;
        match protocol {
            TCP => match TcpState::of(original, reply) {
                TcpState::Established => self.tcp,
                TcpState::SynSent | TcpState::SynReceived => self.tcp_opening,
                TcpState::CloseWait => self.tcp_half_closed,
                TcpState::FinWait | TcpState::LastAck | TcpState::TimeWait | TcpState::Close => {
                    self.tcp_closing
                }
            },
            _ if !replied => self.unanswered,
            UDP => self.udp,
            _ => self.other,
        }
    }
}

/// Seconds without a packet after which a flow of a protocol without connections may be evicted: a
/// request and its reply cost a sender two packets, and would hold a record for minutes.
const QUIET: u32 = 10;

/// Returns true if a flow may be evicted for another one after these seconds without a packet: it is
/// unreplied, ended, or quiet and of a protocol without connections. An established connection is not.
#[inline(always)]
pub const fn is_evictable(protocol: u8, original: u8, reply: u8, idle: u32) -> bool {
    if protocol != TCP {
        return reply & sent::ANY == 0 || idle >= QUIET;
    }
    matches!(
        TcpState::of(original, reply),
        TcpState::SynSent | TcpState::SynReceived | TcpState::TimeWait | TcpState::Close
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_follow_the_state() {
        let timeouts = Timeouts::default();
        let (syn, ack, fin, any) = (sent::SYN | sent::ANY, sent::ACK | sent::ANY, sent::FIN, sent::ANY);
        assert_eq!(timeouts.of(TCP, syn, 0), timeouts.tcp_opening);
        assert_eq!(timeouts.of(TCP, syn, syn), timeouts.tcp_opening);
        assert_eq!(timeouts.of(TCP, syn | ack, syn | ack), timeouts.tcp);
        assert_eq!(timeouts.of(TCP, ack | fin, ack), timeouts.tcp_closing);
        assert_eq!(timeouts.of(TCP, ack | fin, ack | sent::ACKED_FIN), timeouts.tcp_half_closed);
        assert_eq!(timeouts.of(TCP, ack | fin, ack | fin), timeouts.tcp_closing);
        assert_eq!(timeouts.of(TCP, ack, ack | sent::RST), timeouts.tcp_closing);
        assert_eq!(timeouts.of(UDP, any, any), timeouts.udp);
        assert_eq!(timeouts.of(132, any, any), timeouts.other);
        assert_eq!(timeouts.of(UDP, any, 0), timeouts.unanswered);
    }

    #[test]
    fn established_flows_are_not_evictable() {
        let (syn, ack, fin, any) = (sent::SYN | sent::ANY, sent::ACK | sent::ANY, sent::FIN, sent::ANY);
        assert!(is_evictable(TCP, syn, 0, 0) && is_evictable(TCP, syn, syn, 0));
        assert!(is_evictable(TCP, ack | sent::RST, ack, 0) && is_evictable(UDP, any, 0, 0));
        for (original, reply) in [(ack | syn, syn), (ack, ack), (ack | fin, ack), (ack | fin, ack | fin)] {
            assert!(!is_evictable(TCP, original, reply, u32::MAX));
        }
        assert!(!is_evictable(UDP, any, any, QUIET - 1) && is_evictable(UDP, any, any, QUIET));
    }

    #[test]
    fn a_clock_that_another_cpu_is_ahead_of_makes_nothing_old() {
        assert_eq!((idle(5, 5), idle(6, 5), idle(5, 6)), (0, 1, 0));
        assert_eq!((idle(2, u32::MAX), idle(u32::MAX, 2)), (3, 0));
    }
}
