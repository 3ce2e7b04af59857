//! Announcement of the endpoints that come up, and of the services for which the node starts to answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::{
    mac::Mac,
    name::{NetworkId, ServiceId},
    tag::Encap,
};
use openflow_rs::Action;

use crate::datapath::{
    Local, Object, ObjectId, Op, Service, announcement,
    ovs::{
        desired::model::SwitchModel,
        pipeline::{UPLINK_GROUP, bridge_and_tag},
        switch::session::Session,
        tables::index::{FlowIndex, Installed},
    },
};

/// What was installed before ops.
pub(super) struct Before<'a> {
    /// Objects of the ops.
    objects: &'a [Installed],
    services: Services,
}

type Answered = BTreeMap<ServiceId, Vec<u8>>;

/// Services that ops may affect.
#[derive(Default)]
struct Services {
    /// All of them.
    affected: BTreeSet<ServiceId>,
    /// Those for which this node answers, and the frames that announce them.
    answered: Answered,
}

impl Services {
    /// `objects` are those of the ops, installed before or after them.
    fn of<'a>(index: &FlowIndex, objects: impl Iterator<Item = &'a Object>) -> Services {
        let affected: BTreeSet<ServiceId> = objects.flat_map(|object| affected(index, object)).collect();
        Services { answered: answered(index, &affected), affected }
    }
}

impl<'a> Before<'a> {
    pub(super) fn new(model: &SwitchModel, ops: &[Op], objects: &'a [Installed]) -> Before<'a> {
        let previous = objects.iter().map(|installed| &installed.object);
        Before { objects, services: Services::of(&model.index, previous.chain(set(ops))) }
    }
}

/// Announces the endpoints of VLAN networks that the ops installed, or gave another port or address, and the services for which
/// this node answers since.
pub(super) fn changed(session: &mut Session, model: &SwitchModel, ops: &[Op], before: &Before<'_>) {
    let uplinks = match &model.base.uplinks[..] {
        [] => return,
        [one] => Action::output(*one),
        _ => Action::Group(UPLINK_GROUP),
    };
    for op in ops {
        match op {
            Op::Delete(endpoint @ ObjectId::Local(_)) => session.withdraw(endpoint),
            Op::Set(Object::Local(local)) => {
                let id = ObjectId::Local(local.id.clone());
                let Some(installed) = model.index.get(&id) else { continue };
                let before = before.objects.iter().find(|installed| installed.object.id() == id);
                // Frames of routed VLANs stay on the node.
                if is_new(local, installed, before) && !model.index.is_routed_vlan(&local.network) {
                    session.announce(&id, endpoint_frames(local), &uplinks);
                }
            }
            _ => {}
        }
    }
    services(session, model, ops, &before.services, &uplinks);
}

fn services(session: &mut Session, model: &SwitchModel, ops: &[Op], before: &Services, uplinks: &Action) {
    let mut affected = Services::of(&model.index, set(ops)).affected;
    affected.extend(before.affected.iter().cloned());
    let now = answered(&model.index, &affected);
    for service in before.answered.keys().filter(|service| !now.contains_key(service)) {
        session.withdraw(&ObjectId::Service(service.clone()));
    }
    for (service, frame) in now {
        if before.answered.get(&service) != Some(&frame) {
            session.announce(&ObjectId::Service(service), vec![frame], uplinks);
        }
    }
}

fn set(ops: &[Op]) -> impl Iterator<Item = &Object> {
    ops.iter().filter_map(|op| match op {
        Op::Set(object) => Some(object),
        _ => None,
    })
}

/// The services for which the node may answer, or not, because of this object.
fn affected(index: &FlowIndex, object: &Object) -> Vec<ServiceId> {
    let spoken_for = |network: &NetworkId, addresses: Vec<IpAddr>| {
        addresses.into_iter().flat_map(|ip| index.spoken_for(network, ip)).cloned().collect()
    };
    match object {
        Object::Service(service) => vec![service.id.clone()],
        Object::Local(local) => spoken_for(&local.network, local.addresses.iter().collect()),
        _ => vec![],
    }
}

fn answered(index: &FlowIndex, services: &BTreeSet<ServiceId>) -> Answered {
    let frame = |id: &ServiceId| match &index.get(&ObjectId::Service(id.clone()))?.object {
        Object::Service(service) if index.is_answered(service) => service_frame(service),
        _ => None,
    };
    services.iter().filter_map(|id| Some((id.clone(), frame(id)?))).collect()
}

/// Whether switches may have learnt the endpoint elsewhere, or not at all.
fn is_new(local: &Local, installed: &Installed, before: Option<&Installed>) -> bool {
    let is_in_effect = installed.object == Object::Local(local.clone());
    let same = before.is_some_and(|before| {
        before.port == installed.port
            && matches!(&before.object, Object::Local(old)
                if (old.encap, old.mac, &old.addresses) == (local.encap, local.mac, &local.addresses))
    });
    matches!(local.encap, Encap::Vlan(_)) && is_in_effect && !same
}

fn endpoint_frames(local: &Local) -> Vec<Vec<u8>> {
    let (_, tag) = bridge_and_tag(local.encap);
    let addresses = local.addresses.iter();
    addresses.map(|ip| announcement::frame(tag as u16, local.mac.0, ip)).collect()
}

fn service_frame(service: &Service) -> Option<Vec<u8>> {
    let (_, tag) = bridge_and_tag(service.scope.network.as_ref()?.encap);
    Some(announcement::frame(tag as u16, Mac::of_service(service.vip).0, service.vip))
}
