//! Limits of what is in flight: the requests of one client, from its authentication until its response
//! has been taken, and the bytes of large responses and of events of watches, which are in memory until
//! then.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::gauge::Gauge;

use super::authentication::Authenticated;
use super::authorization;
use super::peer::Peer;
use super::route::Route;
use crate::access::Role;
use crate::problem::Problem;

/// Responses up to this size in bytes are limited by their number only.
const SMALL_RESPONSE: u64 = 64 << 10;

/// Counts the requests in flight of each client, and the bytes of their responses.
#[derive(Clone, Debug)]
pub struct InFlight {
    limits: Limits,
    loads: Arc<Mutex<Loads>>,
    /// Bytes of large responses to all clients.
    bytes: Gauge,
}

/// Limits of what is in flight.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests of one client.
    pub requests: usize,
    /// Bytes of large responses to one client. A single one may be larger.
    pub client_bytes: u64,
    /// Bytes of large responses to all clients. A single one may be larger.
    pub bytes: u64,
}

/// What is in flight.
#[derive(Debug, Default)]
struct Loads {
    /// Clients with requests in flight.
    clients: HashMap<Client, Load>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    requests: usize,
    bytes: u64,
}

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
    in_flight: InFlight,
    client: Client,
    /// Bytes of its response, if it is large.
    bytes: u64,
}

/// The client of a request, and the count of what streams to it keep in memory. It is in the extensions of
/// the request.
#[derive(Clone, Debug)]
pub(super) struct StreamMemory {
    in_flight: InFlight,
    client: Client,
}

/// Counted bytes of a stream.
#[derive(Debug)]
pub(super) struct StreamBytes {
    memory: StreamMemory,
    bytes: u64,
}

/// Whether requests of a client with this role for the route are counted. Agents share a token, and their calls are short;
/// without tokens and certificates they are administrators. Probes need no credentials.
pub(super) fn is_counted(route: &Route, role: &Role) -> bool {
    let is_of_agent = matches!(route, Route::Call(_)) && matches!(role, Role::Admin | Role::Agent(_));
    !is_of_agent && !authorization::is_open(route)
}

impl Client {
    /// None for a request that another netmaster forwards without the identity of its client. That
    /// netmaster has counted it. `forwarded`: the request is from a netmaster.
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
    /// `bytes` reports the bytes of large responses in flight.
    pub fn new(limits: Limits, bytes: Gauge) -> InFlight {
        InFlight { limits, loads: Arc::default(), bytes }
    }

    /// Counts a request until the slot is dropped.
    pub(super) fn begin(&self, client: Client) -> Result<Slot, Problem> {
        let mut loads = self.lock();
        let count = loads.clients.get(&client).map_or(0, |load| load.requests);
        if count >= self.limits.requests {
            return Err(Problem::too_many(format!(
                "{client} has {count} requests in flight (--max-requests-per-client); retry when one of them is answered"
            )));
        }
        loads.clients.entry(client.clone()).or_default().requests += 1;
        Ok(Slot { in_flight: self.clone(), client, bytes: 0 })
    }

    fn lock(&self) -> MutexGuard<'_, Loads> {
        self.loads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes of a response to the client. Fails if they exceed a limit together with others.
    fn count(&self, client: &Client, bytes: u64) -> Result<(), Problem> {
        let Limits { client_bytes, bytes: all_bytes, .. } = self.limits;
        let mut loads = self.lock();
        let of_client = loads.clients.get(client).map_or(0, |load| load.bytes);
        let exceeds = |counted: u64, limit: u64| counted > 0 && counted.saturating_add(bytes) > limit;
        let (whose, counted, flag) = if exceeds(of_client, client_bytes) {
            (format!("{client} has responses"), of_client, "--max-response-memory-per-client")
        } else if exceeds(loads.bytes, all_bytes) {
            ("netmaster has responses".to_owned(), loads.bytes, "--max-response-memory")
        } else {
            loads.clients.entry(client.clone()).or_default().bytes += bytes;
            loads.bytes += bytes;
            self.bytes.inc_by(bytes.cast_signed());
            return Ok(());
        };
        Err(Problem::too_many(format!(
            "{whose} of {counted} bytes in flight, and this one has {bytes} ({flag}); retry when they are taken, or request pages"
        )))
    }

    /// Ends the count of so many requests and bytes of the client.
    fn end(&self, client: &Client, requests: usize, bytes: u64) {
        let mut loads = self.lock();
        loads.bytes -= bytes;
        self.bytes.dec_by(bytes.cast_signed());
        if let Entry::Occupied(mut load) = loads.clients.entry(client.clone()) {
            load.get_mut().requests -= requests;
            load.get_mut().bytes -= bytes;
            let Load { requests, bytes } = *load.get();
            if requests == 0 && bytes == 0 {
                load.remove();
            }
        }
    }
}

impl Slot {
    /// Counts the bytes of the response until the slot is dropped. Fails if the response is large and
    /// exceeds a limit together with others.
    pub(super) fn count_response(&mut self, bytes: u64) -> Result<(), Problem> {
        if bytes <= SMALL_RESPONSE {
            return Ok(());
        }
        self.in_flight.count(&self.client, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts what the response keeps in memory if it is a stream.
    pub(super) fn stream_memory(&self) -> StreamMemory {
        StreamMemory { in_flight: self.in_flight.clone(), client: self.client.clone() }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.in_flight.end(&self.client, 1, self.bytes);
    }
}

impl StreamMemory {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Counts bytes until they are released, or the result is dropped. Fails if they exceed a limit
    /// together with others.
    pub(super) fn count(&self, bytes: u64) -> Result<StreamBytes, Problem> {
        self.in_flight.count(&self.client, bytes)?;
        Ok(StreamBytes { memory: self.clone(), bytes })
    }
}

impl StreamBytes {
    /// Ends the count of some of the bytes.
    pub(super) fn release(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.memory.in_flight.end(&self.memory.client, 0, bytes);
    }
}

impl Drop for StreamBytes {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::http::{Method, Uri};
    use contiv_daemon::subject::Subject;

    use super::*;
    use crate::access::{Nodes, Principal};

    fn client(name: &str) -> Client {
        Client::Name(name.to_owned())
    }

    fn limited(requests: usize, client_bytes: u64, bytes: u64) -> InFlight {
        InFlight::new(Limits { requests, client_bytes, bytes }, Gauge::default())
    }

    #[test]
    fn each_client_has_a_limit_of_its_own() {
        let limit = limited(2, 0, 0);
        let (first, second) = (limit.begin(client("a")).unwrap(), limit.begin(client("a")).unwrap());
        let refused = limit.begin(client("a")).unwrap_err();
        assert_eq!(refused.kind.status(), 429);
        assert!(refused.text.starts_with("a has 2 requests in flight"), "{refused}");
        drop(limit.begin(client("b")).unwrap());
        drop(first);
        let third = limit.begin(client("a")).unwrap();
        assert!(limit.begin(client("a")).is_err());
        drop((second, third));
        assert!(limit.lock().clients.is_empty(), "clients without requests are forgotten");
    }

    #[test]
    fn large_responses_are_limited_by_their_sizes() {
        const MIB: u64 = 1 << 20;
        let limit = limited(100, 4 * MIB, 6 * MIB);
        let respond = |name: &str, bytes: u64| {
            let mut slot = limit.begin(client(name)).unwrap();
            slot.count_response(bytes).map(|()| slot)
        };
        let first = respond("a", 3 * MIB).unwrap();
        let refused = respond("a", MIB + 1).unwrap_err();
        assert_eq!(refused.kind.status(), 429);
        let text = "a has responses of 3145728 bytes in flight, and this one has 1048577 (--max-response-memory-per-client)";
        assert!(refused.text.starts_with(text), "{refused}");
        let second = respond("a", MIB).unwrap();
        let small: Vec<_> = (0..50).map(|_| respond("a", SMALL_RESPONSE).unwrap()).collect();
        let other = respond("b", 2 * MIB).unwrap();
        let refused = respond("c", SMALL_RESPONSE + 1).unwrap_err();
        let text = "netmaster has responses of 6291456 bytes in flight, and this one has 65537 (--max-response-memory)";
        assert!(refused.text.starts_with(text), "{refused}");
        assert_eq!(limit.bytes.get(), 6 << 20);
        drop((first, second));
        respond("c", 5 * MIB).unwrap_err();
        drop(other);
        // A response alone may have any size.
        drop(respond("c", 100 * MIB).unwrap());
        drop(small);
        let loads = limit.lock();
        assert_eq!((loads.clients.len(), loads.bytes, limit.bytes.get()), (0, 0, 0));
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
            let route = Route::of(&method, &Uri::from_static(path));
            for role in [Role::Admin, Role::Agent(Nodes::All), Role::Agent(Nodes::One("h1".into()))] {
                assert_eq!(is_counted(&route, &role), counted, "{path} {role}");
            }
            // Their calls are refused.
            for role in [Role::ReadOnly, Role::TenantOperator(["blue".to_owned()].into())] {
                let counted = counted || path.starts_with("/plugin/");
                assert_eq!(is_counted(&route, &role), counted, "{path} {role}");
            }
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
