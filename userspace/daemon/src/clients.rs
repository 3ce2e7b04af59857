//! Open connections of each client address, so that one client does not lock out others.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
};

/// How many connections a client may have.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Of one address.
    pub per_address: usize,
    /// Of all loopback addresses together: a process on this machine may use any of them.
    pub loopback: usize,
}

/// Number of open connections of each client address; those of loopback are one.
#[derive(Clone, Debug, Default)]
pub struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection that is counted until it is dropped.
#[derive(Debug)]
pub struct ClientConnection {
    clients: Clients,
    address: IpAddr,
}

impl Clients {
    /// Counts a connection; `None` if the client has as many as the limit allows.
    pub fn enter(&self, peer: IpAddr, limits: ClientLimits) -> Option<ClientConnection> {
        let (address, limit) = match peer.to_canonical() {
            address if address.is_loopback() => (IpAddr::V4(Ipv4Addr::LOCALHOST), limits.loopback),
            address => (address, limits.per_address),
        };
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(address).or_default();
        if *count >= limit {
            return None;
        }
        *count += 1;
        Some(ClientConnection { clients: self.clone(), address })
    }
}

impl Drop for ClientConnection {
    fn drop(&mut self) {
        let mut counts = self.clients.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_limited_number_of_connections() {
        let clients = Clients::default();
        let limits = ClientLimits { per_address: 2, loopback: 3 };
        let enter = |address: &str| clients.enter(address.parse().unwrap(), limits);
        let mut open: Vec<_> = ["192.0.2.1", "::ffff:192.0.2.1"].map(|from| enter(from).unwrap()).into();
        assert!(enter("192.0.2.1").is_none());
        // Another address is served.
        assert!(enter("192.0.2.2").is_some());
        drop(open.pop());
        assert!(enter("192.0.2.1").is_some());
        let _local = ["127.0.0.1", "127.9.9.9", "::1"].map(|from| enter(from).unwrap());
        assert!(enter("::ffff:127.0.0.2").is_none());
    }
}
