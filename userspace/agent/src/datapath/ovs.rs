//! Open vSwitch, programmed over OVSDB and OpenFlow 1.3.
//!
//! Two bridges, as Contiv always had them: `contivVlanBridge` and `contivVxlanBridge`. [`pipeline`] says
//! what their tables do, [`state`] turns objects into tables, [`session`] speaks with the switch.

mod books;
mod cookie;
mod observation;
mod ovsdb;
mod pipeline;
mod ports;
mod session;
mod state;
mod tables;

use std::{net::IpAddr, path::PathBuf};

use self::{
    books::{Held, Port},
    ports::Wanted,
    session::Session,
    state::{Batch, Ports, State},
};
use super::{Datapath, Desired, Error, Failed, Kind, Object, ObjectId, Observed, Op, PortNeeds};
use pipeline::Side;

/// Where Debian and most others have the database's socket.
pub const DEFAULT_SOCKET: &str = "/var/run/openvswitch/db.sock";

/// How the switch forwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DatapathType {
    /// By the kernel's module `openvswitch`.
    #[default]
    System,
    /// In ovs-vswitchd itself.
    Netdev,
}

impl DatapathType {
    fn name(self) -> &'static str {
        match self {
            DatapathType::System => "system",
            DatapathType::Netdev => "netdev",
        }
    }
}

/// What the datapath needs to know of its node.
#[derive(Clone, Debug)]
pub struct Options {
    /// The database's socket; the bridges' are beside it.
    pub socket: PathBuf,
    pub datapath_type: DatapathType,
    /// Interfaces that carry the VLAN networks: one, or several as a bond.
    pub uplinks: Vec<String>,
    /// The address that tunnels start from; the route to the other end decides if there is none.
    pub vtep: Option<IpAddr>,
}

/// The Open vSwitch of this node.
pub struct Ovs {
    options: Options,
    session: Option<Session>,
    state: State,
    /// The configuration that the last call left, to notice what others change.
    layout: u64,
    writes: u64,
}

fn failed(
    operation: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(Kind::Ovs, operation, source)
}

#[derive(Debug, thiserror::Error)]
enum PortError {
    #[error("the switch cannot have the interface: {0}")]
    Refused(String),
    #[error("the switch gave the interface no port number")]
    NoNumber,
}

#[derive(Debug, thiserror::Error)]
#[error("observe comes before apply")]
struct NotObserved;

impl Ovs {
    /// Nothing is connected before the first `observe`.
    pub fn new(options: Options) -> Ovs {
        Ovs { options, session: None, state: State::default(), layout: 0, writes: 0 }
    }

    /// Makes the ports of objects to be set be there. Objects whose port could not be had are in the second.
    async fn make_ports(&mut self, session: &mut Session, ops: &[Op]) -> Result<(Ports, Vec<Failed>), Error> {
        let database = session.database();
        let mut wanted: Vec<(usize, ObjectId, Wanted)> = vec![];
        for (n, op) in ops.iter().enumerate() {
            let Op::Set(object) = op else { continue };
            let port = match object {
                Object::Local(local) => Wanted::local(local),
                Object::Peer(peer) => {
                    let taken = |name: &str| {
                        let other = |id: &ObjectId| *id != object.id();
                        self.state.books.owner_of_port(name).is_some_and(other)
                            || wanted.iter().any(|(_, id, port)| port.name == name && other(id))
                    };
                    let name = ports::tunnel_name(&database, peer.vtep, taken);
                    Wanted::tunnel(peer, name, self.options.vtep)
                }
                Object::Network(_) | Object::Remote(_) => continue,
            };
            // The last word on an object counts.
            wanted.retain(|(_, id, _)| *id != object.id());
            wanted.push((n, object.id(), port));
        }
        let operations = |wanted: &[(usize, ObjectId, Wanted)]| -> Vec<_> {
            wanted.iter().flat_map(|(n, _, port)| port.operations(&database, *n)).collect()
        };
        let all = operations(&wanted);
        let made = session.reconfigure(all).await;
        let mut failures = vec![];
        match made {
            Ok(()) => {}
            Err(error) if session::is_refusal(&error) => {
                // One bad port spoils the transaction for all: find it.
                let mut good = vec![];
                for one in wanted {
                    match session.reconfigure(operations(std::slice::from_ref(&one))).await {
                        Ok(()) => good.push(one),
                        Err(error) if session::is_refusal(&error) => {
                            failures.push(Failed {
                                op: one.0,
                                error: failed(format!("add port {}", one.2.name), error),
                            });
                        }
                        Err(error) => return Err(failed("add ports", error)),
                    }
                }
                wanted = good;
            }
            Err(error) => return Err(failed("add ports", error)),
        }
        let numbered = |session: &Session, port: &Wanted| {
            ports::find(&session.database(), &port.name).and_then(|found| found.interface.number())
        };
        if wanted.iter().any(|(_, _, port)| numbered(session, port).is_none()) {
            session.nudge().await.map_err(|error| failed("add ports", error))?;
        }
        let mut numbers = Ports::new();
        for (n, id, port) in wanted {
            match numbered(session, &port) {
                Some(number) => drop(numbers.insert(id, Port { name: port.name, number })),
                None => {
                    let database = session.database();
                    let why =
                        ports::find(&database, &port.name).and_then(|found| found.interface.error.clone());
                    let error = why.map_or(PortError::NoNumber, PortError::Refused);
                    failures.push(Failed {
                        op: n,
                        error: failed(format!("add port {} of {id}", port.name), error),
                    });
                }
            }
        }
        Ok((numbers, failures))
    }

    /// Tells both bridges; if they do not like something, one op at a time, to know which.
    async fn program(
        &mut self,
        session: &mut Session,
        ops: &[Op],
        ports: &Ports,
        failures: &mut Vec<Failed>,
    ) -> Result<(), Error> {
        let todo: Vec<usize> =
            (0..ops.len()).filter(|n| failures.iter().all(|failed| failed.op != *n)).collect();
        match self.program_some(session, ops, &todo, ports, failures).await {
            Ok(()) => return Ok(()),
            Err(error) if !session::is_refusal(&error) => return Err(failed("program the bridges", error)),
            Err(error) if todo.len() == 1 => {
                failures.push(Failed { op: todo[0], error: failed(name(&ops[todo[0]]), error) });
                return Ok(());
            }
            Err(_) => {}
        }
        for n in todo {
            match self.program_some(session, ops, &[n], ports, failures).await {
                Ok(()) => {}
                Err(error) if session::is_refusal(&error) => {
                    failures.push(Failed { op: n, error: failed(name(&ops[n]), error) });
                }
                Err(error) => return Err(failed("program the bridges", error)),
            }
        }
        Ok(())
    }

    async fn program_some(
        &mut self,
        session: &mut Session,
        ops: &[Op],
        which: &[usize],
        ports: &Ports,
        failures: &mut Vec<Failed>,
    ) -> Result<(), session::Error> {
        let mut batch = Batch::on(&mut self.state);
        let mut missing = vec![];
        for n in which {
            match &ops[*n] {
                Op::Set(object) => {
                    let id = object.id();
                    if let Err(error) = batch.set(object.clone(), ports.get(&id).cloned()) {
                        missing.push(Failed { op: *n, error: failed(format!("set {id}"), error) });
                    }
                }
                Op::Delete(id) => batch.delete(id),
                Op::Sweep => batch.sweep(),
            }
        }
        let changes = batch.changes();
        let mut taken = vec![];
        for (side, changes) in [(Side::Vlan, changes.vlan), (Side::Vxlan, changes.vxlan)] {
            if let Err(error) = session.apply(side, changes).await {
                batch.undo(&taken);
                return Err(error);
            }
            taken.push(side);
        }
        batch.finish();
        failures.extend(missing);
        Ok(())
    }

    /// Removes the ports that no object in place has any longer.
    async fn drop_ports(&mut self, session: &mut Session, ops: &[Op], before: &[Held]) -> Result<(), Error> {
        let database = session.database();
        let mut names: Vec<String> =
            before.iter().filter_map(|held| held.port.as_ref()).map(|port| port.name.clone()).collect();
        for op in ops {
            match op {
                Op::Set(_) => {}
                Op::Delete(id) => names.extend(ports::of_object(&database, id)),
                Op::Sweep => {
                    let strays = ports::present(&database).map(|(_, name)| name.to_owned());
                    names.extend(strays.filter(|name| !observation::is_uplink(name, &self.options.uplinks)));
                }
            }
        }
        names.retain(|name| self.state.books.owner_of_port(name).is_none());
        names.sort();
        names.dedup();
        let operations = names.iter().filter_map(|name| ports::removal(&database, name)).collect();
        session
            .reconfigure(operations)
            .await
            .map_err(|error| failed(format!("remove ports {}", names.join(", ")), error))
    }

    async fn apply_on(&mut self, session: &mut Session, ops: &[Op]) -> Result<Vec<Failed>, Error> {
        let (ports, mut failures) = self.make_ports(session, ops).await?;
        let touched = ops.iter().filter_map(|op| match op {
            Op::Set(object) => Some(object.id()),
            Op::Delete(id) => Some(id.clone()),
            Op::Sweep => None,
        });
        let before: Vec<Held> = touched.filter_map(|id| self.state.books.get(&id).cloned()).collect();
        self.program(session, ops, &ports, &mut failures).await?;
        self.drop_ports(session, ops, &before).await?;
        failures.sort_by_key(|failed| failed.op);
        Ok(failures)
    }
}

fn name(op: &Op) -> String {
    match op {
        Op::Set(object) => format!("set {}", object.id()),
        Op::Delete(id) => format!("delete {id}"),
        Op::Sweep => "remove strays".into(),
    }
}

impl Datapath for Ovs {
    async fn observe(&mut self, desired: &Desired) -> Result<Observed, Error> {
        let session = self.session.take().filter(Session::is_open);
        let mut session = match session {
            Some(session) => session,
            None => {
                let options = &self.options;
                let opened = Session::open(&options.socket, options.datapath_type, &options.uplinks).await;
                opened.map_err(|error| failed("connect to the switch", error))?
            }
        };
        let observed = self.observe_on(&mut session, desired).await;
        self.writes += session.take_writes();
        let observed = observed?;
        self.session = Some(session);
        Ok(observed)
    }

    async fn apply(&mut self, ops: &[Op]) -> Result<Vec<Failed>, Error> {
        let Some(mut session) = self.session.take() else { return Err(failed("apply changes", NotObserved)) };
        // An error leaves no session: what the switch holds is not known any more.
        let result = self.apply_on(&mut session, ops).await;
        self.writes += session.take_writes();
        let failures = result?;
        self.layout = observation::layout(&session.database());
        self.session = Some(session);
        Ok(failures)
    }

    async fn disturbed(&mut self) {
        let Some(session) = &self.session else { return std::future::pending().await };
        observation::until_disturbed(session, self.layout).await;
        // Told once; the next observation connects again.
        self.session = None;
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    fn port_needs(&self) -> PortNeeds {
        PortNeeds { tx_offload_off: self.options.datapath_type == DatapathType::Netdev }
    }

    fn inspect(&self) -> serde_json::Value {
        observation::inspect(self)
    }

    async fn cleanup(&mut self) -> Result<(), Error> {
        self.session = None;
        self.state = State::default();
        let database = ovsdb::Client::connect(&self.options.socket).await;
        let database = database.map_err(|error| failed("remove the bridges", error))?;
        let mut session = Session::over(database);
        let removed = session.remove().await;
        self.writes += session.take_writes();
        removed.map_err(|error| failed("remove the bridges", error))
    }
}
