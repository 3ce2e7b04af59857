//! Execution of ops: ports first, then flows and groups, then the removal of unused ports.

pub(super) mod announce;
mod inherited;
mod refused;
pub(super) mod requests;
mod retained;

use std::collections::{BTreeSet, HashSet};

use contiv_model::policy::Identity;

use super::{
    bridge::{BridgeKind, PerBridge},
    desired::{
        batch::Batch,
        domain::zones,
        model::{BridgePorts, SwitchModel},
        needed_kernel_port, support,
    },
    error::ovs_error,
    options::{DatapathType, Options},
    switch::{
        announcer::Announcer,
        hold, kernel, limit,
        ovsdb::Database,
        pod_filter::PodFilter,
        ports,
        session::{self, Session},
        tunnel, uplink,
    },
    tables::index::Installed,
};
use crate::datapath::{
    Error, FailedOp, KERNEL_PORT, Kind, Object, ObjectId, Op, TrackedConnection, host_access::HOST_PORT,
};

/// Result of applied ops.
#[derive(Default)]
pub(crate) struct Applied {
    pub(crate) failures: Vec<FailedOp>,
    /// Groups and services whose flows have changed.
    pub(crate) counted: BTreeSet<ObjectId>,
    /// Groups for which the switch rejects both the rules and the flows that drop their traffic. The interfaces of their
    /// endpoints are down.
    shut: BTreeSet<Identity>,
}

/// Executes the ops and updates `model`.
///
/// `inherited` are the connections of the datapath that this one replaces. They are imported after garbage collection,
/// before frames can enter. New endpoints and services are passed to `announcer`, even if the call fails after the switch
/// has accepted them. `filter` is the filter for new ports, if it could be loaded.
///
/// After an `Err` the state of the switch is unknown.
pub(crate) async fn apply(
    session: &mut Session,
    options: &Options,
    model: &mut SwitchModel,
    ops: &[Op],
    inherited: &mut Vec<TrackedConnection>,
    announcer: &Announcer,
    filter: Option<&mut PodFilter>,
) -> Result<Applied, Error> {
    let mut failures: Vec<FailedOp> =
        ops.iter().enumerate().filter_map(|(index, op)| unsupported(index, op)).collect();
    let requests = requests::of_ops(&session.database(), options, &model.index, ops);
    let mut requests = requests::add(session, options.datapath_type, requests, &mut failures).await?;
    if let Some(filter) = filter {
        requests = requests::attach_filter(filter, requests, &mut failures);
    }
    let closed = requests::closed(&requests);
    let ports = requests::number(session, requests, &mut failures).await?;
    let mut kernel = model.base.kernel;
    for bridge in BridgeKind::ALL {
        if !model.base.stands_by && ops.iter().any(|op| needs_kernel_port(op, bridge)) {
            let port = session.ensure_kernel_port(bridge).await;
            *kernel.get_mut(bridge) =
                port.map_err(|error| ovs_error(format!("add port {}", kernel::name(bridge)), error))?;
        }
    }
    let affected = ops.iter().filter_map(Op::target);
    let previous: Vec<Installed> = affected.filter_map(|id| model.index.get(&id).cloned()).collect();
    let before = announce::Before::new(model, ops, &previous);
    let without_rules = refused::without_rules(model, ops);
    let mut applied = Applied { failures, ..Applied::default() };
    retained::forget_ports(session, model, ops).await?;
    // This precedes the flows: the bridge would flood frames to a port whose endpoint no longer has a record, bypassing
    // the endpoint's rules.
    let database = session.database();
    requests::set_down(&database, &ports_of_deleted(&database, options, model, ops))?;
    let programmed = program(session, model, ops, (&ports, kernel), &mut applied).await;
    if options.announce {
        // Even if a later step fails: a retry cannot determine what is new.
        announce::changed(announcer, model, ops, &before);
    }
    programmed?;
    let kept = session.store_numbers(&model.numbers, model.base.retained.is_some()).await;
    kept.map_err(|error| ovs_error("keep the numbers of services and tenants", error))?;
    if ops.iter().any(changes_zones) {
        let zones = zones(&model.index, &model.numbers);
        // At this point, ports of new pods are still closed and flows of deleted networks are gone. Zones of endpoints
        // that are not installed yet are kept.
        let set = session.set_zones(options, zones, model.base.retained.is_some(), true).await;
        if let Some(why) = set.map_err(|error| ovs_error("set the timeouts of connections", error))? {
            tracing::warn!("{why}");
        }
    }
    // Earlier batches lack services and endpoints.
    if !inherited.is_empty() && ops.contains(&Op::GarbageCollect) {
        take_over(session, model, options.datapath_type, std::mem::take(inherited)).await?;
        model.base.holds = false;
    }
    let failed: BTreeSet<usize> = applied.failures.iter().map(|failed| failed.index).collect();
    requests::open(session, &model.index, &closed, &failed).await?;
    requests::set_up(&model.index, ops, &failed, &applied.shut).await?;
    refused::reopen(model, ops, without_rules, &failed).await?;
    announce::release(announcer, &session.database(), &model.index);
    remove_unused_ports(session, options, model, ops, &previous).await?;
    if options.datapath_type == DatapathType::Netdev {
        let new_peers = ops.iter().filter_map(|op| match op {
            Op::Set(Object::Peer(peer)) => model.index.peers().get(&peer.vtep).copied(),
            _ => None,
        });
        tunnel::resolve_next_hops(session, new_peers).await;
    }
    applied.failures.sort_by_key(|failed| failed.index);
    Ok(applied)
}

/// Records the connections of the datapath that this one replaces, and lets frames enter the bridges.
pub(crate) async fn take_over(
    session: &mut Session,
    model: &SwitchModel,
    datapath_type: DatapathType,
    connections: Vec<TrackedConnection>,
) -> Result<(), Error> {
    inherited::import(session, model, datapath_type, connections).await;
    hold::release(session).await
}

/// Ports of objects, and the port numbers of the node's kernel.
type Ports<'a> = (&'a BridgePorts, PerBridge<Option<u32>>);

/// Reports whether an op may change the zones of connection tracking.
fn changes_zones(op: &Op) -> bool {
    matches!(op.target(), None | Some(ObjectId::Network(_) | ObjectId::Subnet(_)))
}

fn needs_kernel_port(op: &Op, bridge: BridgeKind) -> bool {
    matches!(op, Op::Set(object) if needed_kernel_port(object) == Some(bridge))
}

/// Writes the flows and groups of the ops to both bridges in one batch. If a bridge rejects a batch, writes each half
/// separately, so that a few rejected ops among many need few batches.
async fn program(
    session: &mut Session,
    model: &mut SwitchModel,
    ops: &[Op],
    ports: Ports<'_>,
    applied: &mut Applied,
) -> Result<(), Error> {
    let pending: Vec<usize> =
        (0..ops.len()).filter(|op| applied.failures.iter().all(|failed| failed.index != *op)).collect();
    let mut batches = vec![&pending[..]];
    while let Some(batch) = batches.pop() {
        match program_batch(session, model, ops, batch, ports, applied).await {
            Ok(()) => {}
            Err(error) if !session::is_rejection(&error) => {
                return Err(ovs_error("program the bridges", error));
            }
            Err(error) => match batch {
                [op] => {
                    let mut what = describe(&ops[*op]);
                    if let Op::Set(Object::Group(group)) = &ops[*op]
                        && refused::close(session, model, group, applied).await?
                    {
                        what.push_str(", whose endpoints are set down, as their traffic cannot be denied");
                    }
                    applied.failures.push(FailedOp { index: *op, error: ovs_error(what, error) });
                }
                many => {
                    let (first, second) = many.split_at(many.len() / 2);
                    // In order, because a remote endpoint needs the tunnel to its node.
                    batches.extend([second, first]);
                }
            },
        }
    }
    Ok(())
}

/// Writes the ops with the indices `selected` in one batch. After an error, `model` contains only the changes that a
/// bridge has accepted.
async fn program_batch(
    session: &mut Session,
    model: &mut SwitchModel,
    ops: &[Op],
    selected: &[usize],
    (ports, kernel): Ports<'_>,
    applied: &mut Applied,
) -> Result<(), session::Error> {
    let mut batch = Batch::new(model);
    let mut not_set = vec![];
    for op in selected {
        match &ops[*op] {
            Op::Set(object) => {
                let id = object.id();
                if let Err(error) = batch.set(object.clone(), ports.get(&id).cloned()) {
                    not_set.push(FailedOp { index: *op, error: ovs_error(format!("set {id}"), error) });
                }
            }
            Op::Delete(id) => batch.delete(id),
            Op::GarbageCollect => batch.collect_garbage(),
        }
    }
    batch.set_kernel_ports(kernel);
    let changes = batch.changes();
    let mut programmed = vec![];
    for (bridge, changes) in [(BridgeKind::Vlan, changes.vlan), (BridgeKind::Vxlan, changes.vxlan)] {
        if let Err(error) = session.apply(bridge, changes).await {
            batch.rollback(&programmed);
            return Err(error);
        }
        programmed.push(bridge);
    }
    applied.counted.extend(batch.commit());
    applied.failures.extend(not_set);
    Ok(())
}

/// Returns the ports of the endpoints that the ops delete, and the ports that garbage collection will find without an
/// owner.
fn ports_of_deleted(
    database: &Database,
    options: &Options,
    model: &SwitchModel,
    ops: &[Op],
) -> BTreeSet<String> {
    let index = &model.index;
    let mut names = BTreeSet::new();
    for op in ops {
        match op {
            Op::Delete(id @ ObjectId::Local(_)) => {
                let port = index.get(id).and_then(|installed| installed.port.as_ref());
                let own = port.map(|port| port.name.clone()).into_iter();
                let own = own.chain(ports::of_object(database, id));
                names.extend(own.filter(|name| index.port_owner(name).is_none_or(|owner| owner == id)));
            }
            Op::GarbageCollect if model.base.retained.is_none() => {
                let unowned = collectable(database, options, model);
                names.extend(unowned.filter(|name| index.port_owner(name).is_none()).map(str::to_owned));
            }
            _ => {}
        }
    }
    // Another endpoint receives the port in the same change.
    let added: HashSet<&str> = ops.iter().filter_map(added_port).collect();
    names.retain(|name| !added.contains(name.as_str()));
    names
}

/// Returns the ports that a garbage collection removes, unless an installed object uses them.
fn collectable<'a>(
    database: &'a Database,
    options: &'a Options,
    model: &'a SwitchModel,
) -> impl Iterator<Item = &'a str> {
    uplink::collectable(database, &options.uplinks).filter(|name| !model.base.unprogrammed.contains(*name))
}

/// Returns the port that an op adds for an endpoint.
fn added_port(op: &Op) -> Option<&str> {
    match op {
        Op::Set(Object::Local(local)) => Some(&local.port),
        _ => None,
    }
}

/// Removes the ports that no installed object uses any longer. `previous` holds the objects from before the ops.
async fn remove_unused_ports(
    session: &mut Session,
    options: &Options,
    model: &SwitchModel,
    ops: &[Op],
    previous: &[Installed],
) -> Result<(), Error> {
    let (database, index) = (session.database(), &model.index);
    let retains = model.base.retained.is_some();
    let mut names: BTreeSet<String> = previous
        .iter()
        .filter_map(|installed| installed.port.as_ref())
        .map(|port| port.name.clone())
        .collect();
    for op in ops {
        match op {
            Op::Set(_) => {}
            Op::Delete(id) => names.extend(ports::of_object(&database, id)),
            Op::GarbageCollect if retains => {}
            Op::GarbageCollect => {
                names.extend(collectable(&database, options, model).map(str::to_owned));
            }
        }
    }
    let targets = || ops.iter().filter_map(Op::target);
    let is_subnet = targets().any(|id| matches!(id, ObjectId::Subnet(_)));
    let is_route = targets().any(|id| matches!(id, ObjectId::Route(_)));
    let kernels = [
        (KERNEL_PORT, is_subnet, retains || index.has_routed_vlan()),
        (HOST_PORT, is_route, retains || index.has_host_route()),
    ];
    for (port, is_affected, is_needed) in kernels {
        names.extend(is_affected.then(|| port.to_owned()));
        names.retain(|name| name != port || !is_needed);
    }
    names.retain(|name| index.port_owner(name).is_none());
    requests::set_down(&database, &names)?;
    let mut operations: Vec<_> = names.iter().flat_map(|name| ports::removal(&database, name)).collect();
    if ops.contains(&Op::GarbageCollect) {
        operations.extend(limit::orphans(&database));
    }
    let removed = session.reconfigure(operations).await;
    let all = || names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    removed.map_err(|error| ovs_error(format!("remove ports {}", all()), error))?;
    // When ovs-vswitchd closes a port, it restores the interface flags that it read last, which may be from before the
    // interface was set down.
    requests::set_down(&database, &names)
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
