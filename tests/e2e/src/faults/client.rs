//! Clients that create and delete objects, and record the acknowledged state.

use std::{
    collections::BTreeMap,
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Mutex, PoisonError, RwLock, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use contiv_model::endpoint;
use serde_json::{Value, json};

use super::{
    linear::{Action, Operation},
    random::Random,
    register::{Register, Request},
};
use crate::http::{self, JSON, Response};

/// Network that all clients create endpoints on.
pub(super) const SHARED: &str = "shared";
/// Timeout of a request; the client uses another netmaster afterwards.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const MAX_ENDPOINTS: usize = 30;
const MAX_NETWORKS: usize = 3;
const MAX_GROUPS: usize = 3;

/// An object of one client; each name is used once.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Object {
    Network(String),
    Group { name: String, network: String },
    Endpoint { id: String, network: String, group: String },
}

/// State of an object according to the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Created; with the address of an endpoint.
    Present(Option<Ipv4Addr>),
    Absent,
    /// A request had no response; it may still be executed, even much later.
    Unknown,
}

pub(super) type History = BTreeMap<Object, Known>;

/// Begin and end of the acknowledged writes of all clients.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<Vec<(Instant, Instant)>>);

impl Log {
    fn add(&self, begin: Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((begin, Instant::now()));
    }

    pub(super) fn take(self) -> Vec<(Instant, Instant)> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds the clients back while it is closed.
#[derive(Debug, Default)]
pub(super) struct Gate(RwLock<()>);

impl Gate {
    /// Waits for the requests on their way, and keeps the clients from sending others until it is dropped.
    pub(super) fn close(&self) -> RwLockWriteGuard<'_, ()> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Results of one client.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) history: History,
    pub(super) unanswered: usize,
    pub(super) turned_away: usize,
    pub(super) refused: usize,
    /// Operations on the objects that all clients share.
    pub(super) operations: Vec<(Register, Operation)>,
    /// Inconsistent responses.
    pub(super) wrong: Vec<String>,
}

pub(super) struct Client<'a> {
    number: usize,
    random: Random,
    masters: Vec<http::Client>,
    /// Index of the current netmaster.
    at: usize,
    next: usize,
    registers: Vec<Register>,
    /// Begin of the run.
    epoch: Instant,
    log: &'a Log,
    gate: &'a Gate,
    outcome: Outcome,
}

enum Reply {
    Done(Response),
    /// Rejected with an error text; not executed.
    Refused(String),
    /// Unavailable; not executed.
    TurnedAway,
    /// Unknown result.
    Nothing,
}

impl<'a> Client<'a> {
    pub(super) fn new(
        number: usize,
        seed: u64,
        servers: &[SocketAddr],
        epoch: Instant,
        (log, gate): (&'a Log, &'a Gate),
    ) -> Client<'a> {
        let limit = REQUEST_TIMEOUT * testkit::patience();
        let masters = servers.iter().map(|server| http::Client::with_timeout(*server, limit)).collect();
        let (random, registers, outcome) = (Random::new(seed), Register::all(), Outcome::default());
        Client { number, random, masters, at: number, next: 0, registers, epoch, log, gate, outcome }
    }

    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<Outcome> {
        while !stop.load(Ordering::Relaxed) {
            let _open = self.gate.0.read().unwrap_or_else(PoisonError::into_inner);
            match self.random.below(100) {
                0..8 => self.networks()?,
                8..16 => self.groups()?,
                16..22 => self.read()?,
                22..50 => self.register()?,
                _ => self.endpoints()?,
            }
        }
        Ok(self.outcome)
    }

    fn networks(&mut self) -> Result<()> {
        let mine = self.present(|object| matches!(object, Object::Network(_)));
        if mine.len() < MAX_NETWORKS && self.random.percent(60) {
            let number = self.number();
            let object = Object::Network(format!("n{}x{number}", self.number));
            // Subnets of 16 addresses each, from a separate /8 per client.
            let base = u32::from(Ipv4Addr::new(64 + u8::try_from(self.number)?, 0, 0, 0));
            let subnet = Ipv4Addr::from(base + (u32::try_from(number)? << 4));
            let encap = if self.random.percent(50) { "vlan" } else { "vxlan" };
            let body = json!({
                "tenantName": "default", "networkName": object.name(), "encap": encap, "subnet": format!("{subnet}/28"),
            });
            return self.create(object, &body);
        }
        let free = |network: &Object| {
            self.outcome.history.iter().all(|(object, known)| {
                *known == Known::Absent || object == network || object.network() != network.name()
            })
        };
        let free: Vec<_> = mine.into_iter().filter(free).collect();
        self.delete_one(&free)
    }

    fn groups(&mut self) -> Result<()> {
        let mine = self.present(|object| matches!(object, Object::Group { .. }));
        if mine.len() < MAX_GROUPS && self.random.percent(60) {
            let number = self.number();
            let object =
                Object::Group { name: format!("g{}x{number}", self.number), network: self.some_network() };
            let body = json!({
                "tenantName": "default", "groupName": object.name(), "networkName": object.network(),
            });
            return self.create(object, &body);
        }
        let in_group =
            |object: &Object, group: &str| matches!(object, Object::Endpoint { group: g, .. } if g == group);
        let free = |group: &Object| {
            let members = self.outcome.history.iter().filter(|(object, _)| in_group(object, group.name()));
            members.into_iter().all(|(_, known)| *known == Known::Absent)
        };
        let free: Vec<_> = mine.into_iter().filter(free).collect();
        self.delete_one(&free)
    }

    fn endpoints(&mut self) -> Result<()> {
        let mine = self.present(|object| matches!(object, Object::Endpoint { .. }));
        if mine.len() >= MAX_ENDPOINTS || !self.random.percent(55) {
            return self.delete_one(&mine);
        }
        let groups = self.present(|object| matches!(object, Object::Group { .. }));
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
        self.create(Object::Endpoint { id, network, group }, &body)
    }

    /// Reads an existing object; every netmaster must return it.
    fn read(&mut self) -> Result<()> {
        let mine = self.present(|_| true);
        let Some(object) = self.random.pick(&mine).cloned() else { return Ok(()) };
        self.at += 1;
        let path = match &object {
            Object::Network(_) | Object::Group { .. } => object.path(),
            Object::Endpoint { id, .. } => format!("/api/v1/inspect/endpoints/{id}/"),
        };
        if let Reply::Refused(line) = self.send("GET", &path, None) {
            self.outcome.wrong.push(format!("{object} exists but was not found: {line}"));
        }
        Ok(())
    }

    /// Reads, writes or deletes an object that all clients share, and records what the response tells.
    fn register(&mut self) -> Result<()> {
        let Some(register) = self.random.pick(&self.registers).copied() else { return Ok(()) };
        let request = match self.random.below(100) {
            0..12 => register.delete(),
            12..45 if !register.is_large() || self.random.percent(20) => {
                // Distinct for up to 64 clients.
                let value = self.number * 1000 + self.number() % 1000;
                register.put(value, &mut self.random)
            }
            _ => {
                // Another netmaster than that of the last request, so that all are read from.
                self.at += 1;
                register.read()
            }
        };
        let begin = self.epoch.elapsed();
        let reply = self.send(request.method, &request.path, request.body.as_ref());
        let end = Some(self.epoch.elapsed());
        if let Some((action, answered)) = self.observed(register, &request, reply)? {
            let operation = Operation { client: self.number, begin, end: end.filter(|_| answered), action };
            self.outcome.operations.push((register, operation));
        }
        Ok(())
    }

    /// What a reply tells about a register, and whether it was an answer.
    fn observed(
        &mut self,
        register: Register,
        request: &Request,
        reply: Reply,
    ) -> Result<Option<(Action, bool)>> {
        Ok(match reply {
            Reply::Done(response) => Some((register.answered(request, &response.json()?)?, true)),
            Reply::Nothing => Some((request.action.clone(), false)),
            Reply::TurnedAway => None,
            Reply::Refused(line) => {
                let action = register.refused(request, &line);
                if action.is_none() {
                    self.outcome.wrong.push(format!("{} {}: {line}", request.method, request.path));
                }
                action.map(|action| (action, true))
            }
        })
    }

    fn some_network(&mut self) -> String {
        let mine = self.present(|object| matches!(object, Object::Network(_)));
        let mine = if self.random.percent(40) { self.random.pick(&mine) } else { None };
        mine.map_or_else(|| SHARED.to_owned(), |network| network.name().to_owned())
    }

    fn present(&self, kind: impl Fn(&Object) -> bool) -> Vec<Object> {
        let known = self.outcome.history.iter();
        let present = known.filter(|(object, known)| matches!(known, Known::Present(_)) && kind(object));
        present.map(|(object, _)| object.clone()).collect()
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    fn create(&mut self, object: Object, body: &Value) -> Result<()> {
        let path = match &object {
            Object::Endpoint { .. } => "/plugin/createEndpoint".to_owned(),
            Object::Network(_) | Object::Group { .. } => object.path(),
        };
        let known = match self.send("POST", &path, Some(body)) {
            Reply::Done(response) => Known::Present(address(&object, &response)?),
            Reply::Nothing => Known::Unknown,
            Reply::TurnedAway => Known::Absent,
            Reply::Refused(line) => {
                // A network of 16 addresses may be full, but referenced objects exist.
                if line.contains("not found") {
                    self.outcome.wrong.push(format!("create {object}: {line}"));
                }
                self.outcome.refused += 1;
                Known::Absent
            }
        };
        self.outcome.history.insert(object, known);
        Ok(())
    }

    fn delete_one(&mut self, of: &[Object]) -> Result<()> {
        let Some(object) = self.random.pick(of).cloned() else { return Ok(()) };
        let reply = match &object {
            Object::Endpoint { id, network, .. } => {
                let body = json!({"TenantName": "default", "NetworkName": network, "EndpointID": id});
                self.send("POST", "/plugin/deleteEndpoint", Some(&body))
            }
            Object::Network(_) | Object::Group { .. } => self.send("DELETE", &object.path(), None),
        };
        match reply {
            Reply::Done(_) => drop(self.outcome.history.insert(object, Known::Absent)),
            Reply::Nothing => drop(self.outcome.history.insert(object, Known::Unknown)),
            Reply::TurnedAway => {}
            Reply::Refused(line) => {
                self.outcome.refused += 1;
                self.outcome.wrong.push(format!("delete {object}: {line}"));
            }
        }
        Ok(())
    }

    /// Sends a request to the current netmaster; switches to another one if it is unavailable.
    fn send(&mut self, method: &str, path: &str, body: Option<&Value>) -> Reply {
        let begin = Instant::now();
        let master = &self.masters[self.at % self.masters.len()];
        let text = body.map(Value::to_string);
        match master.send(method, path, text.as_ref().map(|_| JSON), text.as_deref()) {
            Ok(response) if response.status == 200 => {
                if method != "GET" {
                    self.log.add(begin);
                }
                Reply::Done(response)
            }
            Ok(response) if response.status == 503 => {
                self.switch_master();
                if response.body.contains("may have been carried out") {
                    self.outcome.unanswered += 1;
                    Reply::Nothing
                } else {
                    self.outcome.turned_away += 1;
                    Reply::TurnedAway
                }
            }
            Ok(response) => Reply::Refused(response.first_line().to_owned()),
            Err(error) => {
                self.switch_master();
                let refused = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
                if refused.into_iter().any(|cause| cause.kind() == io::ErrorKind::ConnectionRefused) {
                    return Reply::TurnedAway;
                }
                self.outcome.unanswered += 1;
                Reply::Nothing
            }
        }
    }

    fn switch_master(&mut self) {
        self.at += 1;
        thread::sleep(RETRY_INTERVAL);
    }
}

fn address(object: &Object, response: &Response) -> Result<Option<Ipv4Addr>> {
    if !matches!(object, Object::Endpoint { .. }) {
        return Ok(None);
    }
    let endpoint: endpoint::State = serde_json::from_value(response.json()?["EndpointConfig"].clone())?;
    Ok(Some(endpoint.ip_address.parse()?))
}

impl Object {
    pub(super) fn name(&self) -> &str {
        match self {
            Object::Network(name) | Object::Group { name, .. } => name,
            Object::Endpoint { id, .. } => id,
        }
    }

    /// Network of the object.
    pub(super) fn network(&self) -> &str {
        match self {
            Object::Network(name) => name,
            Object::Group { network, .. } | Object::Endpoint { network, .. } => network,
        }
    }

    fn path(&self) -> String {
        let types = if matches!(self, Object::Network(_)) { "networks" } else { "endpointGroups" };
        format!("/api/v1/{types}/default:{}/", self.name())
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Network(name) => write!(f, "network {name}"),
            Object::Group { name, network } => write!(f, "group {name} on {network}"),
            Object::Endpoint { id, network, group } => write!(f, "endpoint {id} on {network} in {group:?}"),
        }
    }
}
