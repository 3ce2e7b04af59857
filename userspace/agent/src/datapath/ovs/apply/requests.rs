//! Ports in the database that the ops need.

use std::collections::{BTreeSet, HashMap, HashSet};

use contiv_model::policy::Identity;

use crate::datapath::{
    Error, FailedOp, Group, KERNEL_PORT, Local, Object, ObjectId, Op,
    host_access::HOST_PORT,
    host_end,
    ovs::{
        desired::{model::BridgePorts, support},
        error::ovs_error,
        options::{DatapathType, Options},
        switch::{
            limit::Bandwidth,
            ovsdb::{Database, Operation},
            pod_filter::PodFilter,
            ports::{self, PortSpec},
            session::{self, Session},
            uplink,
        },
        tables::index::{BridgePort, FlowIndex, Installed},
    },
};

#[derive(Debug, thiserror::Error)]
enum PortError {
    #[error("ovs-vswitchd cannot open the interface: {0}")]
    Rejected(String),
    #[error("ovs-vswitchd assigned no port number")]
    NoNumber,
}

/// A port that an op needs.
pub(super) struct PortRequest {
    /// Index of the op.
    op: usize,
    id: ObjectId,
    port: PortSpec,
    /// Configuration after the flows are programmed, if it differs.
    open: Option<PortSpec>,
    /// The port number is needed.
    is_numbered: bool,
}

/// A port that carries no frames until the flows of its endpoint are programmed.
pub(super) struct ClosedPort {
    /// Index of the op.
    op: usize,
    id: ObjectId,
    /// Configuration after the flows are programmed.
    port: PortSpec,
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

/// Returns the names of the ports that the ops may add, change or remove.
pub(in super::super) fn ports_of_ops(
    database: &Database,
    index: &FlowIndex,
    ops: &[Op],
    uplinks: &[String],
) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for op in ops {
        let Some(id) = op.target() else {
            // Ports that garbage collection removes.
            names.extend(uplink::collectable(database, uplinks).map(str::to_owned));
            continue;
        };
        names.extend(
            index.get(&id).and_then(|installed| installed.port.as_ref()).map(|port| port.name.clone()),
        );
        names.extend(ports::of_object(database, &id));
        if let ObjectId::Group(identity) = id {
            let members =
                index.members(identity).into_iter().filter_map(|id| index.get(&ObjectId::Local(id)));
            names.extend(members.filter_map(|member| Some(member.port.as_ref()?.name.clone())));
        }
        match op {
            Op::Set(Object::Local(local)) => drop(names.insert(local.port.clone())),
            Op::Set(Object::Peer(peer)) => {
                let taken = |name: &str| index.port_owner(name).is_some_and(|owner| *owner != id);
                names.insert(ports::tunnel_name(database, peer.vtep, taken));
                // If two peers in one batch have addresses with the same digits, one of the names is the hash.
                names.insert(ports::tunnel_name(database, peer.vtep, |_| true));
            }
            Op::Set(Object::Subnet(_)) | Op::Delete(ObjectId::Subnet(_)) => {
                names.insert(KERNEL_PORT.to_owned());
            }
            Op::Set(Object::Route(_)) | Op::Delete(ObjectId::Route(_)) => {
                names.insert(HOST_PORT.to_owned());
            }
            _ => {}
        }
    }
    names
}

/// Groups as they will be after the ops.
struct Groups<'a> {
    index: &'a FlowIndex,
    /// Last op on each group.
    changed: HashMap<Identity, (usize, Option<&'a Group>)>,
}

impl<'a> Groups<'a> {
    fn after(index: &'a FlowIndex, ops: &'a [Op]) -> Groups<'a> {
        let changed = ops.iter().enumerate().filter_map(|(n, op)| match op {
            Op::Set(Object::Group(group)) => Some((group.identity, (n, Some(group)))),
            Op::Delete(ObjectId::Group(identity)) => Some((*identity, (n, None))),
            _ => None,
        });
        Groups { index, changed: changed.collect() }
    }

    fn of(&self, local: &Local) -> Option<&'a Group> {
        let identity = local.identity?;
        match self.changed.get(&identity) {
            Some((_, group)) => *group,
            None => self.index.group(identity),
        }
    }

    fn bandwidth(&self, local: &Local) -> Bandwidth {
        self.of(local).and_then(|group| group.rate).into()
    }

    /// Returns the installed endpoints of the groups whose rate changes, each with the op that changes it. Endpoints
    /// without a port receive one with its limits when they are set.
    fn limited_anew(&self) -> impl Iterator<Item = (usize, &'a Local)> {
        let changed = self.changed.iter().filter(|(identity, (_, group))| {
            let before = self.index.group(**identity).and_then(|group| group.rate);
            before != group.and_then(|group| group.rate)
        });
        changed.flat_map(|(identity, (op, _))| {
            let members = self.index.members(*identity).into_iter();
            members.filter_map(|id| match self.index.get(&ObjectId::Local(id))? {
                Installed { object: Object::Local(local), port: Some(_) } => Some((*op, local)),
                _ => None,
            })
        })
    }
}

/// Returns the ports that the ops need, and those whose limits they change.
pub(super) fn of_ops(
    database: &Database,
    options: &Options,
    index: &FlowIndex,
    ops: &[Op],
) -> Vec<PortRequest> {
    let groups = Groups::after(index, ops);
    let mut requests: Vec<PortRequest> = vec![];
    for (op, object) in ops.iter().enumerate() {
        let Op::Set(object) = object else { continue };
        if support(object).is_err() {
            continue;
        }
        let id = object.id();
        let port = match object {
            Object::Local(local) => PortSpec::local(local, groups.bandwidth(local)),
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
        let is_programmed = index.port_owner(&port.name) == Some(&id);
        let closed = port.closed(database, is_programmed).filter(|_| has_rules(&groups, object));
        let (port, open) = match closed {
            Some(closed) => (closed, Some(port)),
            None => (port, None),
        };
        requests.push(PortRequest { op, id, port, open, is_numbered: true });
    }
    let own: HashSet<ObjectId> = ops.iter().filter_map(Op::target).collect();
    for (op, local) in groups.limited_anew() {
        let id = ObjectId::Local(local.id.clone());
        let port = PortSpec::local(local, groups.bandwidth(local));
        // A closed or misplaced port waits for the flows of its endpoint, and gets its limits with them.
        if !own.contains(&id) && port.is_in_place(database) {
            requests.push(PortRequest { op, id, port, open: None, is_numbered: false });
        }
    }
    requests
}

/// Reports whether rules apply to a local endpoint: those of its group, which may be set by the same ops.
fn has_rules(groups: &Groups<'_>, object: &Object) -> bool {
    let Object::Local(local) = object else { return false };
    groups.of(local).is_some_and(|group| !group.rules.is_empty())
}

/// Returns the ports that are closed.
pub(super) fn closed(requests: &[PortRequest]) -> Vec<ClosedPort> {
    let closed = |request: &PortRequest| {
        let port = request.open.clone()?;
        Some(ClosedPort { op: request.op, id: request.id.clone(), port })
    };
    requests.iter().filter_map(closed).collect()
}

/// Moves new ports whose flows are programmed to their VLANs. After a failed op, the switch has earlier flows of the
/// endpoint, or none.
pub(super) async fn open(
    session: &mut Session,
    index: &FlowIndex,
    closed: &[ClosedPort],
    failed: &BTreeSet<usize>,
) -> Result<(), Error> {
    let database = session.database();
    let is_programmed = |closed: &&ClosedPort| {
        !failed.contains(&closed.op) && index.port_owner(&closed.port.name) == Some(&closed.id)
    };
    let ready = closed.iter().filter(is_programmed);
    let operations = ready.flat_map(|closed| closed.port.operations(&database, closed.op)).collect();
    session.reconfigure(operations).await.map_err(|error| ovs_error("open ports", error))
}

/// Sets the interfaces of programmed endpoints up: the interface of an endpoint that was deleted is down. After a failed
/// op an interface is not changed. Interfaces of endpoints of the groups `shut` are not changed either.
pub(super) async fn set_up(
    index: &FlowIndex,
    ops: &[Op],
    failed: &BTreeSet<usize>,
    shut: &BTreeSet<Identity>,
) -> Result<(), Error> {
    for (n, op) in ops.iter().enumerate() {
        let Op::Set(Object::Local(local)) = op else { continue };
        let id = ObjectId::Local(local.id.clone());
        let is_shut = local.identity.is_some_and(|identity| shut.contains(&identity));
        if !failed.contains(&n) && !is_shut && index.port_owner(&local.port) == Some(&id) {
            let changed = host_end::set_up(&local.port).await;
            changed.map_err(|error| ovs_error(format!("set {} up", local.port), error))?;
        }
    }
    Ok(())
}

/// Sets the interfaces of endpoints among the ports down, before their flows are removed and their ports are removed from
/// the bridge. Otherwise frames of a pod would enter the network stack of the node.
pub(super) fn set_down(database: &Database, ports: &BTreeSet<String>) -> Result<(), Error> {
    if ports.is_empty() {
        return Ok(());
    }
    let endpoints: BTreeSet<&str> = ports::of_endpoints(database).collect();
    for port in ports.iter().filter(|port| endpoints.contains(port.as_str())) {
        host_end::set_down(port).map_err(|error| ovs_error(format!("set {port} down"), error))?;
    }
    Ok(())
}

/// Writes the ports to the database. Returns the requests that the database accepted.
pub(super) async fn add(
    session: &mut Session,
    datapath_type: DatapathType,
    requests: Vec<PortRequest>,
    failures: &mut Vec<FailedOp>,
) -> Result<Vec<PortRequest>, Error> {
    let database = session.database();
    for request in &requests {
        request.port.prepare_queue(&database, datapath_type);
    }
    match session.reconfigure(PortRequest::operations(&requests, &database)).await {
        Ok(()) => return Ok(requests),
        Err(error) if !session::is_rejection(&error) => return Err(ovs_error("add ports", error)),
        Err(_) => {}
    }
    // One invalid port fails the whole transaction. Separate transactions identify it.
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

/// Attaches the filter to the interfaces of endpoints, because the switch removed it when it opened their ports. Returns
/// the requests whose ports are ready for flows.
pub(super) fn attach_filter(
    filter: &mut PodFilter,
    requests: Vec<PortRequest>,
    failures: &mut Vec<FailedOp>,
) -> Vec<PortRequest> {
    let mut ready = vec![];
    for request in requests {
        let attached = match request.id {
            ObjectId::Local(_) => filter.attach(&request.port.name),
            _ => Ok(()),
        };
        match attached {
            Ok(()) => ready.push(request),
            Err(error) => failures.push(FailedOp { index: request.op, error }),
        }
    }
    ready
}

/// Returns the OpenFlow port numbers of ports in the database.
pub(super) async fn number(
    session: &mut Session,
    mut requests: Vec<PortRequest>,
    failures: &mut Vec<FailedOp>,
) -> Result<BridgePorts, Error> {
    let number = |database: &Database, port: &PortSpec| ports::find(database, &port.name)?.interface.number();
    // A port that ovs-vswitchd could not open has an error. It opens the port when the interface appears, and the new port
    // number causes a resync; a reconfiguration of the whole switch at each retry would not help.
    let is_pending = |database: &Database, port: &PortSpec| {
        let interface = ports::find(database, &port.name).map(|found| found.interface);
        interface.is_some_and(|interface| interface.number().is_none() && interface.error.is_none())
    };
    requests.retain(|request| request.is_numbered);
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

#[cfg(test)]
mod tests;
