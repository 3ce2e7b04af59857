//! Connections that a datapath tracks, for the one that replaces it on the node.

use std::net::SocketAddr;

use contiv_model::{service::Protocol, tag::Encap, vrf::Vrf};

/// A connection that rules have allowed, or one to a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackedConnection {
    /// Where its addresses are unique.
    pub vrf: Vrf,
    /// A network there.
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
}
