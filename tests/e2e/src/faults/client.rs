//! Clients that create and delete, and know what they were told.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use contiv_model::endpoint;
use serde_json::{Value, json};

use super::random::Random;
use crate::http::{self, Answer, JSON};

/// The network that all clients have endpoints on.
pub(super) const SHARED: &str = "shared";
/// A client goes to another master when one does not answer for so long.
const PATIENCE: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(20);
const MOST_ENDPOINTS: usize = 30;
const MOST_NETWORKS: usize = 3;
const MOST_GROUPS: usize = 3;

/// A thing of one client; each name is used once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Thing {
    Network(String),
    Group { name: String, network: String },
    Endpoint { id: String, network: String, group: String },
}

/// What the client knows of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Created, and an endpoint's address.
    Present(Option<Ipv4Addr>),
    Absent,
    /// A request got no answer; it may still be carried out, even much later.
    Unknown,
}

pub(super) type History = BTreeMap<Thing, Known>;

/// When acknowledged writes began and ended, of all clients together.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Vec<(Instant, Instant)>>);

impl Log {
    fn note(&self, begin: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((begin, Instant::now()));
    }

    pub(super) fn take(self) -> Vec<(Instant, Instant)> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How one client fared.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) history: History,
    pub(super) unanswered: usize,
    pub(super) turned_away: usize,
    pub(super) refused: usize,
    /// Answers that cannot be.
    pub(super) wrong: Vec<String>,
}

pub(super) struct Client<'a> {
    number: usize,
    random: Random,
    masters: Vec<http::Client>,
    /// The one that is asked.
    at: usize,
    next: usize,
    log: &'a Log,
    outcome: Outcome,
}

enum Reply {
    Done(Answer),
    /// By a line of text: nothing was done.
    Refused(String),
    /// By everybody that was asked: nothing was done.
    TurnedAway,
    Nothing,
}

impl<'a> Client<'a> {
    pub(super) fn new(number: usize, seed: u64, servers: &[SocketAddr], log: &'a Log) -> Client<'a> {
        let masters = servers.iter().map(|server| http::Client::impatient(*server, PATIENCE)).collect();
        let outcome = Outcome::default();
        Client { number, random: Random::new(seed), masters, at: number, next: 0, log, outcome }
    }

    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<Outcome> {
        while !stop.load(Ordering::Relaxed) {
            match self.random.below(100) {
                0..8 => self.networks()?,
                8..16 => self.groups()?,
                16..22 => self.look()?,
                _ => self.endpoints()?,
            }
        }
        Ok(self.outcome)
    }

    fn networks(&mut self) -> Result<()> {
        let mine = self.present(|thing| matches!(thing, Thing::Network(_)));
        if mine.len() < MOST_NETWORKS && self.random.percent(60) {
            let number = self.number();
            let thing = Thing::Network(format!("n{}x{number}", self.number));
            // Sixteen addresses each, in a /12 of this client's own.
            let base = u32::from(Ipv4Addr::new(64 + u8::try_from(self.number)?, 0, 0, 0));
            let subnet = Ipv4Addr::from(base + (u32::try_from(number)? << 4));
            let encap = if self.random.percent(50) { "vlan" } else { "vxlan" };
            let body = json!({
                "tenantName": "default", "networkName": thing.name(), "encap": encap, "subnet": format!("{subnet}/28"),
            });
            return self.create(thing, &body);
        }
        let free = |network: &Thing| {
            self.outcome.history.iter().all(|(thing, known)| {
                *known == Known::Absent || thing == network || thing.network() != network.name()
            })
        };
        let free: Vec<_> = mine.into_iter().filter(free).collect();
        self.delete_one(&free)
    }

    fn groups(&mut self) -> Result<()> {
        let mine = self.present(|thing| matches!(thing, Thing::Group { .. }));
        if mine.len() < MOST_GROUPS && self.random.percent(60) {
            let number = self.number();
            let thing =
                Thing::Group { name: format!("g{}x{number}", self.number), network: self.some_network() };
            let body = json!({
                "tenantName": "default", "groupName": thing.name(), "networkName": thing.network(),
            });
            return self.create(thing, &body);
        }
        let in_group =
            |thing: &Thing, group: &str| matches!(thing, Thing::Endpoint { group: g, .. } if g == group);
        let free = |group: &Thing| {
            let members = self.outcome.history.iter().filter(|(thing, _)| in_group(thing, group.name()));
            members.into_iter().all(|(_, known)| *known == Known::Absent)
        };
        let free: Vec<_> = mine.into_iter().filter(free).collect();
        self.delete_one(&free)
    }

    fn endpoints(&mut self) -> Result<()> {
        let mine = self.present(|thing| matches!(thing, Thing::Endpoint { .. }));
        if mine.len() >= MOST_ENDPOINTS || !self.random.percent(55) {
            return self.delete_one(&mine);
        }
        let groups = self.present(|thing| matches!(thing, Thing::Group { .. }));
        let group = if self.random.percent(40) { self.random.pick(&groups).cloned() } else { None };
        let network = match &group {
            Some(group) => group.network().to_owned(),
            None => self.some_network(),
        };
        let number = self.number();
        let id = format!("e{}x{number}", self.number);
        let group = group.map(|group| group.name().to_owned()).unwrap_or_default();
        let body = json!({
            "TenantName": "default", "NetworkName": network, "EndpointID": id,
            "ConfigEP": { "Container": id, "Host": "h1", "ServiceName": group },
        });
        self.create(Thing::Endpoint { id, network, group }, &body)
    }

    /// What is there must be found, whoever is asked.
    fn look(&mut self) -> Result<()> {
        let mine = self.present(|_| true);
        let Some(thing) = self.random.pick(&mine).cloned() else { return Ok(()) };
        self.at += 1;
        let path = match &thing {
            Thing::Network(_) | Thing::Group { .. } => thing.path(),
            Thing::Endpoint { id, .. } => format!("/api/v1/inspect/endpoints/{id}/"),
        };
        if let Reply::Refused(line) = self.send("GET", &path, None) {
            self.outcome.wrong.push(format!("{thing} was there, and was not found: {line}"));
        }
        Ok(())
    }

    fn some_network(&mut self) -> String {
        let mine = self.present(|thing| matches!(thing, Thing::Network(_)));
        let mine = if self.random.percent(40) { self.random.pick(&mine) } else { None };
        mine.map_or_else(|| SHARED.to_owned(), |network| network.name().to_owned())
    }

    fn present(&self, kind: impl Fn(&Thing) -> bool) -> Vec<Thing> {
        let known = self.outcome.history.iter();
        let present = known.filter(|(thing, known)| matches!(known, Known::Present(_)) && kind(thing));
        present.map(|(thing, _)| thing.clone()).collect()
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn create(&mut self, thing: Thing, body: &Value) -> Result<()> {
        let path = match &thing {
            Thing::Endpoint { .. } => "/plugin/createEndpoint".to_owned(),
            Thing::Network(_) | Thing::Group { .. } => thing.path(),
        };
        let known = match self.send("POST", &path, Some(body)) {
            Reply::Done(answer) => Known::Present(address(&thing, &answer)?),
            Reply::Nothing => Known::Unknown,
            Reply::TurnedAway => Known::Absent,
            Reply::Refused(line) => {
                // A network of 16 addresses may be full. Whatever it builds on is there.
                if line.contains("not found") {
                    self.outcome.wrong.push(format!("create {thing}: {line}"));
                }
                self.outcome.refused += 1;
                Known::Absent
            }
        };
        self.outcome.history.insert(thing, known);
        Ok(())
    }

    fn delete_one(&mut self, of: &[Thing]) -> Result<()> {
        let Some(thing) = self.random.pick(of).cloned() else { return Ok(()) };
        let reply = match &thing {
            Thing::Endpoint { id, network, .. } => {
                let body = json!({"TenantName": "default", "NetworkName": network, "EndpointID": id});
                self.send("POST", "/plugin/deleteEndpoint", Some(&body))
            }
            Thing::Network(_) | Thing::Group { .. } => self.send("DELETE", &thing.path(), None),
        };
        match reply {
            Reply::Done(_) => drop(self.outcome.history.insert(thing, Known::Absent)),
            Reply::Nothing => drop(self.outcome.history.insert(thing, Known::Unknown)),
            Reply::TurnedAway => {}
            Reply::Refused(line) => {
                self.outcome.refused += 1;
                self.outcome.wrong.push(format!("delete {thing}: {line}"));
            }
        }
        Ok(())
    }

    /// Asks one master; the next request goes to another if this one is of no use.
    fn send(&mut self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        let begin = Instant::now();
        let master = &self.masters[self.at % self.masters.len()];
        let text = body.map(Value::to_string);
        match master.send(method, path, text.as_ref().map(|_| JSON), text.as_deref()) {
            Ok(answer) if answer.status == 200 => {
                if method != "GET" {
                    self.log.note(begin);
                }
                Reply::Done(answer)
            }
            Ok(answer) if answer.status == 503 => {
                self.elsewhere();
                if answer.body.contains("may have been carried out") {
                    self.outcome.unanswered += 1;
                    Reply::Nothing
                } else {
                    self.outcome.turned_away += 1;
                    Reply::TurnedAway
                }
            }
            Ok(answer) => Reply::Refused(answer.first_line().to_owned()),
            Err(error) => {
                self.elsewhere();
                let refused = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
                if refused.into_iter().any(|cause| cause.kind() == io::ErrorKind::ConnectionRefused) {
                    return Reply::TurnedAway;
                }
                self.outcome.unanswered += 1;
                Reply::Nothing
            }
        }
    }

    fn elsewhere(&mut self) {
        self.at += 1;
        thread::sleep(PAUSE);
    }
}

fn address(thing: &Thing, answer: &Answer) -> Result<Option<Ipv4Addr>> {
    if !matches!(thing, Thing::Endpoint { .. }) {
        return Ok(None);
    }
    let endpoint: endpoint::State = serde_json::from_value(answer.json()?["EndpointConfig"].clone())?;
    Ok(Some(endpoint.ip_address.parse()?))
}

impl Thing {
    pub(super) fn name(&self) -> &str {
        match self {
            Thing::Network(name) | Thing::Group { name, .. } => name,
            Thing::Endpoint { id, .. } => id,
        }
    }

    /// The network that it is on.
    pub(super) fn network(&self) -> &str {
        match self {
            Thing::Network(name) => name,
            Thing::Group { network, .. } | Thing::Endpoint { network, .. } => network,
        }
    }

    fn path(&self) -> String {
        let types = if matches!(self, Thing::Network(_)) { "networks" } else { "endpointGroups" };
        format!("/api/v1/{types}/default:{}/", self.name())
    }
}

impl fmt::Display for Thing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Thing::Network(name) => write!(f, "network {name}"),
            Thing::Group { name, network } => write!(f, "group {name} on {network}"),
            Thing::Endpoint { id, network, group } => write!(f, "endpoint {id} on {network} in {group:?}"),
        }
    }
}
