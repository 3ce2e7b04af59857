//! Groups whose rules the switch rejects: their endpoints must not run without rules.

use std::collections::BTreeSet;

use contiv_model::policy::Identity;

use super::{Applied, program_batch, requests};
use crate::{
    datapath::{
        Error, Group, Local, Object, ObjectId, Op, host_end,
        ovs::{
            bridge::BridgeKind,
            desired::model::{BridgePorts, SwitchModel},
            error::ovs_error,
            pipeline::bridge_and_tag,
            switch::session::{self, Session},
            tables::{
                cookie::Cookie,
                index::{BridgePort, Installed},
            },
        },
    },
    error::one_line,
};

/// Drops the traffic of a group whose rules the switch has rejected, unless the switch has earlier rules. This also
/// applies if the group had only a rate or DSCP before. If the switch rejects these flows too, sets the interfaces of the
/// group's endpoints down, which needs no space in the tables. Returns whether it has set any interface down. The caller
/// does not attach new endpoints of a failed group.
pub(super) async fn close(
    session: &mut Session,
    model: &mut SwitchModel,
    group: &Group,
    applied: &mut Applied,
) -> Result<bool, Error> {
    let identity = group.identity;
    // After a restart, the index also has desired groups whose rules the switch does not have.
    if group.rules.is_empty() || has_all_rules(model, identity) {
        return Ok(false);
    }
    let ops = [Op::Set(Object::Group(group.closed()))];
    let kernel = model.base.kernel;
    let closed = program_batch(session, model, &ops, &[0], (&BridgePorts::new(), kernel), applied).await;
    let what = || format!("deny the traffic of {}", ObjectId::Group(identity));
    match closed {
        Ok(()) => return Ok(false),
        Err(error) if session::is_rejection(&error) => {
            tracing::warn!("{}", one_line(&ovs_error(what(), error)));
        }
        Err(error) => return Err(ovs_error(what(), error)),
    }
    applied.shut.insert(identity);
    let ports: BTreeSet<String> = members(model, identity)
        .filter(|(local, _)| !has_rules(model, bridge_of(local), identity))
        .map(|(_, port)| port.name.clone())
        .collect();
    requests::set_down(&session.database(), &ports)?;
    Ok(!ports.is_empty())
}

/// Returns the groups of the ops for which a bridge has no rules, with the index of the op. [`close`] may have set the
/// interfaces of their endpoints down, possibly in an earlier agent process.
pub(super) fn without_rules(model: &SwitchModel, ops: &[Op]) -> Vec<(usize, Identity)> {
    let groups = ops.iter().enumerate().filter_map(|(n, op)| match op.target()? {
        ObjectId::Group(identity) => Some((n, identity)),
        _ => None,
    });
    groups.filter(|(_, identity)| !has_all_rules(model, *identity)).collect()
}

/// Sets the interfaces of these groups' endpoints up if the switch now has rules of the group, or if the group is to have
/// none. Interfaces of endpoints that the ops set or delete are handled by these ops.
pub(super) async fn reopen(
    model: &SwitchModel,
    ops: &[Op],
    groups: Vec<(usize, Identity)>,
    failed: &BTreeSet<usize>,
) -> Result<(), Error> {
    let own: BTreeSet<ObjectId> = ops.iter().filter_map(Op::target).collect();
    for (n, identity) in groups {
        for (local, port) in members(model, identity) {
            let is_ready = !failed.contains(&n) || has_rules(model, bridge_of(local), identity);
            if is_ready && !own.contains(&ObjectId::Local(local.id.clone())) {
                let changed = host_end::set_up(&port.name).await;
                changed.map_err(|error| ovs_error(format!("set {} up", port.name), error))?;
            }
        }
    }
    Ok(())
}

/// Returns the local endpoints of a group that have a port.
fn members(model: &SwitchModel, identity: Identity) -> impl Iterator<Item = (&Local, &BridgePort)> {
    let members = model.index.members(identity).into_iter();
    members.filter_map(move |id| match model.index.get(&ObjectId::Local(id))? {
        Installed { object: Object::Local(local), port: Some(port) } => Some((local, port)),
        _ => None,
    })
}

fn bridge_of(local: &Local) -> BridgeKind {
    bridge_and_tag(local.encap).0
}

fn has_all_rules(model: &SwitchModel, identity: Identity) -> bool {
    BridgeKind::ALL.into_iter().all(|bridge| has_rules(model, bridge, identity))
}

/// Reports whether a bridge has rules of a group.
fn has_rules(model: &SwitchModel, bridge: BridgeKind, identity: Identity) -> bool {
    let owner = Cookie::of(&ObjectId::Group(identity));
    !model.tables.get(bridge).flows_of(owner).is_empty()
}
