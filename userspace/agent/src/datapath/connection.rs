//! Connections that a datapath tracks, for the one that replaces it on the node.

use std::net::SocketAddr;

use contiv_model::{name::NetworkId, service::Protocol, tag::Encap, vrf::Vrf};

/// A connection that rules have allowed, or one to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedConnection {
    /// Where its addresses are unique.
    pub vrf: Vrf,
    /// A network there.
    pub network: NetworkId,
    /// Tag of the network.
    pub encap: Encap,
    pub protocol: Protocol,
    /// Who has opened it.
    pub client: SocketAddr,
    /// What the client sends to.
    pub destination: SocketAddr,
    /// Who gets it, if the destination is a service.
    pub backend: Option<SocketAddr>,
    /// One side has sent its FIN.
    pub is_closing: bool,
    /// Of client and receiver; `None` for UDP, and if the datapath does not tell.
    pub numbers: Option<[SequenceNumbers; 2]>,
}

/// What one end of a TCP connection has sent last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceNumbers {
    /// Sequence number after its last byte.
    pub next: u32,
    /// Acknowledgement number.
    pub acknowledged: u32,
}
