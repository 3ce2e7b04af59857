//! Execution of ops: ports first, then flows and groups, then the removal of unused ports.

use std::collections::BTreeSet;

use super::{
    bridge::BridgeKind,
    desired::{
        batch::Batch,
        model::{BridgePorts, SwitchModel},
        support,
    },
    error::ovs_error,
    options::{DatapathType, Options},
    switch::{
        ovsdb::{Database, Operation},
        ports::{self, PortSpec},
        session::{self, Session},
        tunnel, uplink,
    },
    tables::index::{BridgePort, FlowIndex, Installed},
};
use crate::datapath::{Error, FailedOp, Group, Kind, Local, Object, ObjectId, Op};

#[derive(Debug, thiserror::Error)]
enum PortError {
    #[error("ovs-vswitchd cannot open the interface: {0}")]
    Rejected(String),
    #[error("ovs-vswitchd assigned no port number")]
    NoNumber,
}

/// A port that an op needs.
struct PortRequest {
    /// Index of the op.
    op: usize,
    id: ObjectId,
    port: PortSpec,
    /// Configuration after the flows are programmed, if another.
    open: Option<PortSpec>,
}

impl PortRequest {
    fn operations(requests: &[PortRequest], database: &Database) -> Vec<Operation> {
        requests.iter().flat_map(|request| request.port.operations(database, request.op)).collect()
    }

    fn failed(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> FailedOp {
        FailedOp {
            index: self.op,
            error: ovs_error(format!("add port {} of {}", self.port.name, self.id), error),
        }
    }
}

/// Executes the ops and updates `model`. Returns the ops that failed.
///
/// After an `Err` the state of the switch is unknown.
pub(crate) async fn apply(
    session: &mut Session,
    options: &Options,
    model: &mut SwitchModel,
    ops: &[Op],
) -> Result<Vec<FailedOp>, Error> {
    let mut failures: Vec<FailedOp> =
        ops.iter().enumerate().filter_map(|(index, op)| unsupported(index, op)).collect();
    let requests = port_requests(&session.database(), options, &model.index, ops);
    let requests = add_ports(session, requests, &mut failures).await?;
    let closed = requests.iter().filter_map(|request| Some((request.op, request.open.clone()?)));
    let closed: Vec<_> = closed.collect();
    let ports = number_ports(session, requests, &mut failures).await?;
    let affected = ops.iter().filter_map(|op| match op {
        Op::Set(object) => Some(object.id()),
        Op::Delete(id) => Some(id.clone()),
        Op::GarbageCollect => None,
    });
    let previous: Vec<Installed> = affected.filter_map(|id| model.index.get(&id).cloned()).collect();
    program(session, model, ops, &ports, &mut failures).await?;
    open_ports(session, &model.index, closed).await?;
    remove_unused_ports(session, options, &model.index, ops, &previous).await?;
    if options.datapath_type == DatapathType::Netdev {
        let new_peers = ops.iter().filter_map(|op| match op {
            Op::Set(Object::Peer(peer)) => model.index.peers().get(&peer.vtep).copied(),
            _ => None,
        });
        tunnel::resolve_next_hops(session, new_peers).await;
    }
    failures.sort_by_key(|failed| failed.index);
    Ok(failures)
}

/// Returns the names of the ports that the ops may add, change or remove; `None` if that can be any port.
pub(crate) fn ports_of_ops(database: &Database, index: &FlowIndex, ops: &[Op]) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for op in ops {
        let id = match op {
            Op::Set(object) => object.id(),
            Op::Delete(id) => id.clone(),
            Op::GarbageCollect => return None,
        };
        names.extend(
            index.get(&id).and_then(|installed| installed.port.as_ref()).map(|port| port.name.clone()),
        );
        names.extend(ports::of_object(database, &id));
        match op {
            Op::Set(Object::Local(local)) => drop(names.insert(local.port.clone())),
            Op::Set(Object::Peer(peer)) => {
                let taken = |name: &str| index.port_owner(name).is_some_and(|owner| *owner != id);
                names.insert(ports::tunnel_name(database, peer.vtep, taken));
                // Of two peers in one batch whose addresses have the same digits, one has the hash as its name.
                names.insert(ports::tunnel_name(database, peer.vtep, |_| true));
            }
            _ => {}
        }
    }
    Some(names)
}

/// Returns the ports that the ops need.
fn port_requests(database: &Database, options: &Options, index: &FlowIndex, ops: &[Op]) -> Vec<PortRequest> {
    let mut requests: Vec<PortRequest> = vec![];
    for (op, object) in ops.iter().enumerate() {
        let Op::Set(object) = object else { continue };
        if support(object).is_err() {
            continue;
        }
        let id = object.id();
        let port = match object {
            Object::Local(local) => PortSpec::local(local),
            Object::Peer(peer) => {
                let taken = |name: &str| {
                    index.port_owner(name).is_some_and(|owner| *owner != id)
                        || requests.iter().any(|other| other.port.name == name && other.id != id)
                };
                let name = ports::tunnel_name(database, peer.vtep, taken);
                PortSpec::tunnel(peer, name, options.vtep)
            }
            _ => continue,
        };
        // The last op on an object wins.
        requests.retain(|request| request.id != id);
        let closed = port.closed(database).filter(|_| has_rules(index, ops, object));
        let (port, open) = match closed {
            Some(closed) => (closed, Some(port)),
            None => (port, None),
        };
        requests.push(PortRequest { op, id, port, open });
    }
    requests
}

/// Whether rules apply to a local endpoint: those of its group, which can be in the same ops.
fn has_rules(index: &FlowIndex, ops: &[Op], object: &Object) -> bool {
    let Object::Local(Local { identity: Some(identity), .. }) = object else { return false };
    let new = ops.iter().rev().find_map(|op| match op {
        Op::Set(Object::Group(group)) if group.identity == *identity => Some(group),
        _ => None,
    });
    new.or_else(|| index.group(*identity)).is_some_and(|group| !group.rules.is_empty())
}

/// Moves new ports whose flows are programmed to their VLANs.
async fn open_ports(
    session: &mut Session,
    index: &FlowIndex,
    closed: Vec<(usize, PortSpec)>,
) -> Result<(), Error> {
    let database = session.database();
    let ready = closed.iter().filter(|(_, port)| index.port_owner(&port.name).is_some());
    let operations = ready.flat_map(|(op, port)| port.operations(&database, *op)).collect();
    session.reconfigure(operations).await.map_err(|error| ovs_error("open ports", error))
}

/// Writes the flows and groups of the ops to both bridges in one batch. If a bridge rejects a batch, writes its halves, so
/// that few rejected ops among many take few batches.
async fn program(
    session: &mut Session,
    model: &mut SwitchModel,
    ops: &[Op],
    ports: &BridgePorts,
    failures: &mut Vec<FailedOp>,
) -> Result<(), Error> {
    let pending: Vec<usize> =
        (0..ops.len()).filter(|op| failures.iter().all(|failed| failed.index != *op)).collect();
    let mut batches = vec![&pending[..]];
    while let Some(batch) = batches.pop() {
        match program_batch(session, model, ops, batch, ports, failures).await {
            Ok(()) => {}
            Err(error) if !session::is_rejection(&error) => {
                return Err(ovs_error("program the bridges", error));
            }
            Err(error) => match batch {
                [op] => {
                    failures.push(FailedOp { index: *op, error: ovs_error(describe(&ops[*op]), error) });
                    if let Op::Set(Object::Group(group)) = &ops[*op] {
                        close(session, model, group).await?;
                    }
                }
                many => {
                    let (first, second) = many.split_at(many.len() / 2);
                    // In order: a remote endpoint needs the tunnel to its node.
                    batches.extend([second, first]);
                }
            },
        }
    }
    Ok(())
}

/// Denies the traffic of a group whose rules the switch has rejected, unless it has earlier ones.
async fn close(session: &mut Session, model: &mut SwitchModel, group: &Group) -> Result<(), Error> {
    if model.index.group(group.identity).is_some() {
        return Ok(());
    }
    let ops = [Op::Set(Object::Group(group.closed()))];
    let mut failures = vec![];
    let closed = program_batch(session, model, &ops, &[0], &BridgePorts::new(), &mut failures).await;
    closed
        .map_err(|error| ovs_error(format!("deny the traffic of {}", ObjectId::Group(group.identity)), error))
}

/// Writes the ops with the indices `selected` in one batch. After an error `model` contains only what a bridge has
/// accepted.
async fn program_batch(
    session: &mut Session,
    model: &mut SwitchModel,
    ops: &[Op],
    selected: &[usize],
    ports: &BridgePorts,
    failures: &mut Vec<FailedOp>,
) -> Result<(), session::Error> {
    let mut batch = Batch::new(model);
    let mut without_tunnel = vec![];
    for op in selected {
        match &ops[*op] {
            Op::Set(object) => {
                let id = object.id();
                if let Err(error) = batch.set(object.clone(), ports.get(&id).cloned()) {
                    without_tunnel
                        .push(FailedOp { index: *op, error: ovs_error(format!("set {id}"), error) });
                }
            }
            Op::Delete(id) => batch.delete(id),
            Op::GarbageCollect => batch.collect_garbage(),
        }
    }
    let changes = batch.changes();
    let mut applied = vec![];
    for (bridge, changes) in [(BridgeKind::Vlan, changes.vlan), (BridgeKind::Vxlan, changes.vxlan)] {
        if let Err(error) = session.apply(bridge, changes).await {
            batch.rollback(&applied);
            return Err(error);
        }
        applied.push(bridge);
    }
    batch.commit();
    failures.extend(without_tunnel);
    Ok(())
}

/// Removes the ports that no installed object uses any longer. `previous` are the objects before the ops.
async fn remove_unused_ports(
    session: &mut Session,
    options: &Options,
    index: &FlowIndex,
    ops: &[Op],
    previous: &[Installed],
) -> Result<(), Error> {
    let database = session.database();
    let mut names: Vec<String> = previous
        .iter()
        .filter_map(|installed| installed.port.as_ref())
        .map(|port| port.name.clone())
        .collect();
    for op in ops {
        match op {
            Op::Set(_) => {}
            Op::Delete(id) => names.extend(ports::of_object(&database, id)),
            Op::GarbageCollect => {
                let present = ports::present(&database).map(|(_, name)| name.to_owned());
                names.extend(present.filter(|name| !uplink::is_uplink(name, &options.uplinks)));
            }
        }
    }
    names.retain(|name| index.port_owner(name).is_none());
    names.sort();
    names.dedup();
    let operations = names.iter().filter_map(|name| ports::removal(&database, name)).collect();
    let removed = session.reconfigure(operations).await;
    removed.map_err(|error| ovs_error(format!("remove ports {}", names.join(", ")), error))
}

/// Writes the ports to the database. Returns the requests that the database accepted.
async fn add_ports(
    session: &mut Session,
    requests: Vec<PortRequest>,
    failures: &mut Vec<FailedOp>,
) -> Result<Vec<PortRequest>, Error> {
    let database = session.database();
    match session.reconfigure(PortRequest::operations(&requests, &database)).await {
        Ok(()) => return Ok(requests),
        Err(error) if !session::is_rejection(&error) => return Err(ovs_error("add ports", error)),
        Err(_) => {}
    }
    // One invalid port fails the whole transaction; separate transactions find it.
    let mut accepted = vec![];
    for request in requests {
        let operations = PortRequest::operations(std::slice::from_ref(&request), &database);
        match session.reconfigure(operations).await {
            Ok(()) => accepted.push(request),
            Err(error) if session::is_rejection(&error) => failures.push(request.failed(error)),
            Err(error) => return Err(ovs_error("add ports", error)),
        }
    }
    Ok(accepted)
}

/// Returns the OpenFlow port numbers of ports in the database.
async fn number_ports(
    session: &mut Session,
    requests: Vec<PortRequest>,
    failures: &mut Vec<FailedOp>,
) -> Result<BridgePorts, Error> {
    let number = |database: &Database, port: &PortSpec| ports::find(database, &port.name)?.interface.number();
    // A port that ovs-vswitchd could not open has an error. It opens the port when the interface appears, and the new port
    // number causes a resync; a reconfiguration of the whole switch at each retry would not help.
    let is_pending = |database: &Database, port: &PortSpec| {
        let interface = ports::find(database, &port.name).map(|found| found.interface);
        interface.is_some_and(|interface| interface.number().is_none() && interface.error.is_none())
    };
    let database = session.database();
    if requests.iter().any(|request| is_pending(&database, &request.port)) {
        session.reconfigure_unchanged().await.map_err(|error| ovs_error("add ports", error))?;
    }
    let database = session.database();
    let mut numbered = BridgePorts::new();
    for request in requests {
        match number(&database, &request.port) {
            Some(number) => {
                drop(numbered.insert(request.id, BridgePort { name: request.port.name, number }));
            }
            None => {
                let found = ports::find(&database, &request.port.name);
                let why = found.and_then(|found| found.interface.error.clone());
                failures.push(request.failed(why.map_or(PortError::NoNumber, PortError::Rejected)));
            }
        }
    }
    Ok(numbered)
}

/// Returns the failure of an op on an object that this datapath does not implement.
fn unsupported(index: usize, op: &Op) -> Option<FailedOp> {
    let Op::Set(object) = op else { return None };
    let unsupported = support(object).err()?;
    Some(FailedOp { index, error: Error::unsupported(Kind::Ovs, object, unsupported) })
}

fn describe(op: &Op) -> String {
    match op {
        Op::Set(object) => format!("set {}", object.id()),
        Op::Delete(id) => format!("delete {id}"),
        Op::GarbageCollect => "remove orphans".into(),
    }
}
