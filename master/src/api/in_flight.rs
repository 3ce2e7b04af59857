//! Limit of the requests that one client has in flight, from its authentication until its response has
//! been taken.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use super::authentication::Authenticated;
use super::authorization;
use super::peer::Peer;
use super::route::Route;
use crate::problem::Problem;

/// Counts the requests in flight of each client.
#[derive(Clone)]
pub struct InFlight {
    limit: usize,
    counts: Counts,
}

/// Clients with requests in flight.
type Counts = Arc<Mutex<HashMap<Client, usize>>>;

/// Whose requests are counted together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Client {
    /// Name of a token, or subject of a certificate.
    Name(String),
    /// An IPv4 address, or the first 64 bits of an IPv6 address: a host chooses the others.
    Address(IpAddr),
}

/// A request in flight.
#[derive(Debug)]
pub(super) struct Slot {
    counts: Counts,
    client: Client,
}

/// Whether requests for the route are counted. Agents share a token, and their calls are short. Probes
/// need no credentials.
pub(super) fn is_counted(route: &Route) -> bool {
    !matches!(route, Route::Call(_)) && !authorization::is_open(route)
}

impl Client {
    /// None for a request that another netmaster forwards without the identity of its client. That
    /// netmaster has counted it.
    pub(super) fn of(sender: &Authenticated, peer: Option<&Peer>, forwarded: bool) -> Option<Client> {
        let name = || Client::Name(sender.principal.name.clone());
        if sender.is_identified {
            return Some(name());
        }
        if forwarded {
            return None;
        }
        Some(match peer {
            Some(Peer { address, subject: None }) => Client::Address(network(address.ip())),
            _ => name(),
        })
    }
}

fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(ip) => ip.into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Name(name) => f.write_str(name),
            Client::Address(address) => address.fmt(f),
        }
    }
}

impl InFlight {
    /// `limit`: requests of one client.
    pub fn new(limit: usize) -> InFlight {
        InFlight { limit, counts: Counts::default() }
    }

    /// Counts a request until the slot is dropped.
    pub(super) fn begin(&self, client: Client) -> Result<Slot, Problem> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.get(&client).copied().unwrap_or_default();
        if count >= self.limit {
            return Err(Problem::too_many(format!(
                "{client} has {count} requests in flight (--max-requests-per-client); retry when one of them is answered"
            )));
        }
        counts.insert(client.clone(), count + 1);
        Ok(Slot { counts: self.counts.clone(), client })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Occupied(mut count) = counts.entry(self.client.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::http::{Method, Uri};
    use contiv_daemon::subject::Subject;

    use super::*;
    use crate::access::{Principal, Role};

    fn client(name: &str) -> Client {
        Client::Name(name.to_owned())
    }

    #[test]
    fn each_client_has_a_limit_of_its_own() {
        let limit = InFlight::new(2);
        let (first, second) = (limit.begin(client("a")).unwrap(), limit.begin(client("a")).unwrap());
        let refused = limit.begin(client("a")).unwrap_err();
        assert_eq!(refused.kind.status(), 429);
        assert!(refused.text.starts_with("a has 2 requests in flight"), "{refused}");
        drop(limit.begin(client("b")).unwrap());
        drop(first);
        let third = limit.begin(client("a")).unwrap();
        assert!(limit.begin(client("a")).is_err());
        drop((second, third));
        assert!(limit.counts.lock().unwrap().is_empty(), "clients without requests are forgotten");
    }

    #[test]
    fn calls_of_agents_and_probes_are_not_counted() {
        for (method, path, counted) in [
            (Method::POST, "/plugin/createEndpoint", false),
            (Method::POST, "/plugin/deleteEndpoint", false),
            (Method::GET, "/healthz", false),
            (Method::GET, "/version", false),
            (Method::GET, "/metrics", true),
            (Method::GET, "/api/v1/networks/", true),
            (Method::POST, "/api/v1/networks/default:a/", true),
            (Method::GET, "/nowhere", true),
        ] {
            assert_eq!(is_counted(&Route::of(&method, &Uri::from_static(path))), counted, "{path}");
        }
    }

    #[test]
    fn clients_are_known_by_token_certificate_or_address() {
        let sender = |is_identified| Authenticated {
            principal: Principal { name: "ops".into(), role: Role::Admin },
            subject: None,
            is_identified,
        };
        let peer = |address: &str, subject: Option<Subject>| Peer {
            address: SocketAddr::new(address.parse().unwrap(), 1),
            subject: subject.map(Arc::new),
        };
        let anonymous = peer("10.0.0.7", None);
        for forwarded in [false, true] {
            assert_eq!(Client::of(&sender(true), Some(&anonymous), forwarded), Some(client("ops")));
        }
        assert_eq!(Client::of(&sender(false), Some(&anonymous), true), None);
        let certified = peer("10.0.0.7", Some(Subject::default()));
        assert_eq!(Client::of(&sender(false), Some(&certified), false), Some(client("ops")));
        for (address, network) in [
            ("10.0.0.7", "10.0.0.7"),
            ("::ffff:10.0.0.7", "10.0.0.7"),
            ("2001:db8:1:2:3::4", "2001:db8:1:2::"),
            ("2001:db8:1:2:ffff::", "2001:db8:1:2::"),
        ] {
            let of = Client::of(&sender(false), Some(&peer(address, None)), false);
            assert_eq!(of, Some(Client::Address(network.parse().unwrap())));
        }
    }
}
