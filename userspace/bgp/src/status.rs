use std::{
    net::{IpAddr, Ipv4Addr},
    time::Instant,
};

use crate::{Failure, Negotiated, State};

/// Status of a speaker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// State of the session.
    pub state: State,
    /// When the session was established; `None` in other states.
    pub established: Option<Instant>,
    /// Why there is no session; `None` in the state Established, and before the first failure.
    pub failure: Option<Failure>,
    /// AS number of the speaker.
    pub local_as: u32,
    /// BGP identifier of the speaker.
    pub router_id: Ipv4Addr,
    /// Address of the neighbor.
    pub neighbor: IpAddr,
    /// AS number that the neighbor must have.
    pub neighbor_as: u32,
    /// What both sides agreed on.
    pub negotiated: Option<Negotiated>,
    /// Routes in Adj-RIB-In.
    pub received: usize,
    /// Routes in Adj-RIB-In that are only kept while the neighbor restarts.
    pub stale: usize,
    /// Prefixes that the neighbor has been told of.
    pub advertised: usize,
    /// Counters since the start.
    pub counters: Counters,
}

/// Counters of a speaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Sessions that were established.
    pub established: u64,
    /// Messages that were sent.
    pub sent: u64,
    /// Messages that arrived.
    pub received: u64,
    /// UPDATE messages that were sent.
    pub updates_sent: u64,
    /// UPDATE messages that arrived.
    pub updates_received: u64,
    /// UPDATE messages with malformed attributes, whose routes were treated as withdrawn (RFC 7606).
    pub updates_malformed: u64,
    /// Announced prefixes that were ignored: of loopback, link-local, multicast or broadcast addresses (RFC 4271 section 6.3).
    pub prefixes_ignored: u64,
}
