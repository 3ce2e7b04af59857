//! Connections that a datapath tracks, for the one that replaces it on the node.

use std::net::SocketAddr;

use contiv_model::{name::NetworkId, service::Protocol, tag::Encap, vrf::Vrf};

/// A connection that rules have allowed, or one to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedConnection {
    /// Scope in which the addresses are unique.
    pub vrf: Vrf,
    /// A network in that scope.
    pub network: NetworkId,
    /// Tag of the network.
    pub encap: Encap,
    pub protocol: Protocol,
    /// Opener of the connection.
    pub client: SocketAddr,
    /// Destination to which the client sends.
    pub destination: SocketAddr,
    /// Receiver, if the destination is a service.
    pub backend: Option<SocketAddr>,
    /// One side has sent its FIN.
    pub is_closing: bool,
    /// Sequence numbers of client and receiver; `None` for UDP, and if the datapath does not report them.
    pub numbers: Option<[SequenceNumbers; 2]>,
}

/// The latest numbers that one end of a TCP connection has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceNumbers {
    /// Sequence number after its last byte.
    pub next: u32,
    /// Acknowledgement number.
    pub acknowledged: u32,
}
