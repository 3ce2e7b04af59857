//! The way of ops into the switch: ports first, then flows and groups, and ports that are not needed any longer
//! last.

use super::{
    Ovs,
    desired::{Batch, Ports},
    failed, observe,
    pipeline::Side,
    switch::{
        ovsdb::{Database, Operation},
        ports::{self, Wanted},
        session::{self, Session},
    },
    tables::index::{Held, Port},
};
use crate::datapath::{Error, FailedOp, Kind, Object, ObjectId, Op};

#[derive(Debug, thiserror::Error)]
enum PortError {
    #[error("the switch cannot have the interface: {0}")]
    Refused(String),
    #[error("the switch gave the interface no port number")]
    NoNumber,
}

/// A port that an op needs.
struct Request {
    op: usize,
    id: ObjectId,
    port: Wanted,
}

impl Request {
    fn operations(requests: &[Request], database: &Database) -> Vec<Operation> {
        requests.iter().flat_map(|request| request.port.operations(database, request.op)).collect()
    }

    fn failed(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> FailedOp {
        FailedOp {
            index: self.op,
            error: failed(format!("add port {} of {}", self.port.name, self.id), error),
        }
    }
}

impl Ovs {
    pub(crate) async fn apply_on(
        &mut self,
        session: &mut Session,
        ops: &[Op],
    ) -> Result<Vec<FailedOp>, Error> {
        let mut failures: Vec<FailedOp> =
            ops.iter().enumerate().filter_map(|(op, what)| unsupported(op, what)).collect();
        let requests = self.requests(&session.database(), ops);
        let requests = add_ports(session, requests, &mut failures).await?;
        let ports = number_ports(session, requests, &mut failures).await?;
        let touched = ops.iter().filter_map(|op| match op {
            Op::Set(object) => Some(object.id()),
            Op::Delete(id) => Some(id.clone()),
            Op::GarbageCollect => None,
        });
        let before: Vec<Held> = touched.filter_map(|id| self.state.books.get(&id).cloned()).collect();
        self.program(session, ops, &ports, &mut failures).await?;
        self.drop_ports(session, ops, &before).await?;
        let new_peers = ops.iter().filter_map(|op| match op {
            Op::Set(Object::Peer(peer)) => self.state.books.peers().get(&peer.vtep).copied(),
            _ => None,
        });
        self.find_way(session, new_peers).await;
        failures.sort_by_key(|failed| failed.index);
        Ok(failures)
    }

    /// The ports that the ops need.
    fn requests(&self, database: &Database, ops: &[Op]) -> Vec<Request> {
        let mut requests: Vec<Request> = vec![];
        for (op, object) in ops.iter().enumerate() {
            let Op::Set(object) = object else { continue };
            let id = object.id();
            let port = match object {
                Object::Local(local) => Wanted::local(local),
                Object::Peer(peer) => {
                    let taken = |name: &str| {
                        self.state.books.owner_of_port(name).is_some_and(|owner| *owner != id)
                            || requests.iter().any(|other| other.port.name == name && other.id != id)
                    };
                    let name = ports::tunnel_name(database, peer.vtep, taken);
                    Wanted::tunnel(peer, name, self.options.vtep)
                }
                Object::Network(_) | Object::Group(_) | Object::Remote(_) | Object::Service(_) => continue,
            };
            // The last word on an object counts.
            requests.retain(|request| request.id != id);
            requests.push(Request { op, id, port });
        }
        requests
    }

    /// Tells both bridges; if they do not like something, one op at a time, to know which.
    async fn program(
        &mut self,
        session: &mut Session,
        ops: &[Op],
        ports: &Ports,
        failures: &mut Vec<FailedOp>,
    ) -> Result<(), Error> {
        let todo: Vec<usize> =
            (0..ops.len()).filter(|op| failures.iter().all(|failed| failed.index != *op)).collect();
        match self.program_some(session, ops, &todo, ports, failures).await {
            Ok(()) => return Ok(()),
            Err(error) if !session::is_refusal(&error) => return Err(failed("program the bridges", error)),
            Err(_) => {}
        }
        for op in todo {
            match self.program_some(session, ops, &[op], ports, failures).await {
                Ok(()) => {}
                Err(error) if session::is_refusal(&error) => {
                    failures.push(FailedOp { index: op, error: failed(name(&ops[op]), error) });
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
        failures: &mut Vec<FailedOp>,
    ) -> Result<(), session::Error> {
        let mut batch = Batch::on(&mut self.state);
        let mut missing = vec![];
        for op in which {
            match &ops[*op] {
                Op::Set(object) => {
                    let id = object.id();
                    if let Err(error) = batch.set(object.clone(), ports.get(&id).cloned()) {
                        missing.push(FailedOp { index: *op, error: failed(format!("set {id}"), error) });
                    }
                }
                Op::Delete(id) => batch.delete(id),
                Op::GarbageCollect => batch.sweep(),
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
                Op::GarbageCollect => {
                    let strays = ports::present(&database).map(|(_, name)| name.to_owned());
                    names.extend(strays.filter(|name| !observe::is_uplink(name, &self.options.uplinks)));
                }
            }
        }
        names.retain(|name| self.state.books.owner_of_port(name).is_none());
        names.sort();
        names.dedup();
        let operations = names.iter().filter_map(|name| ports::removal(&database, name)).collect();
        let removed = session.reconfigure(operations).await;
        removed.map_err(|error| failed(format!("remove ports {}", names.join(", ")), error))
    }
}

/// Puts ports into the database; those that it takes are returned.
async fn add_ports(
    session: &mut Session,
    requests: Vec<Request>,
    failures: &mut Vec<FailedOp>,
) -> Result<Vec<Request>, Error> {
    let database = session.database();
    match session.reconfigure(Request::operations(&requests, &database)).await {
        Ok(()) => return Ok(requests),
        Err(error) if !session::is_refusal(&error) => return Err(failed("add ports", error)),
        Err(_) => {}
    }
    // One bad port spoils the transaction for all: find it.
    let mut good = vec![];
    for request in requests {
        let operations = Request::operations(std::slice::from_ref(&request), &database);
        match session.reconfigure(operations).await {
            Ok(()) => good.push(request),
            Err(error) if session::is_refusal(&error) => failures.push(request.failed(error)),
            Err(error) => return Err(failed("add ports", error)),
        }
    }
    Ok(good)
}

/// The OpenFlow numbers of ports that are in the database.
async fn number_ports(
    session: &mut Session,
    requests: Vec<Request>,
    failures: &mut Vec<FailedOp>,
) -> Result<Ports, Error> {
    let number = |database: &Database, port: &Wanted| ports::find(database, &port.name)?.interface.number();
    let database = session.database();
    if requests.iter().any(|request| number(&database, &request.port).is_none()) {
        session.nudge().await.map_err(|error| failed("add ports", error))?;
    }
    let database = session.database();
    let mut numbered = Ports::new();
    for request in requests {
        match number(&database, &request.port) {
            Some(number) => drop(numbered.insert(request.id, Port { name: request.port.name, number })),
            None => {
                let found = ports::find(&database, &request.port.name);
                let why = found.and_then(|found| found.interface.error.clone());
                failures.push(request.failed(why.map_or(PortError::NoNumber, PortError::Refused)));
            }
        }
    }
    Ok(numbered)
}

/// What this datapath has no flows for yet: groups and services.
fn unsupported(op: usize, what: &Op) -> Option<FailedOp> {
    match what {
        Op::Set(object @ (Object::Group(_) | Object::Service(_))) => {
            Some(FailedOp { index: op, error: Error::unsupported(Kind::Ovs, object) })
        }
        _ => None,
    }
}

fn name(op: &Op) -> String {
    match op {
        Op::Set(object) => format!("set {}", object.id()),
        Op::Delete(id) => format!("delete {id}"),
        Op::GarbageCollect => "remove strays".into(),
    }
}
