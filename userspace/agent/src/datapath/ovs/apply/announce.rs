//! Announcement of the endpoints that come up.

use contiv_model::tag::Encap;
use openflow_rs::Action;

use crate::datapath::{
    Local, Object, ObjectId, Op, announcement,
    ovs::{
        desired::model::SwitchModel,
        pipeline::{UPLINK_GROUP, bridge_and_tag},
        switch::session::Session,
        tables::index::Installed,
    },
};

/// Announces the endpoints of VLAN networks that the ops installed, or gave another port or address. `previous` are the objects
/// before the ops.
pub(super) fn endpoints(session: &mut Session, model: &SwitchModel, ops: &[Op], previous: &[Installed]) {
    let uplinks = match &model.base.uplinks[..] {
        [] => return,
        [one] => Action::output(*one),
        _ => Action::Group(UPLINK_GROUP),
    };
    for op in ops {
        match op {
            Op::Delete(ObjectId::Local(endpoint)) => session.withdraw(endpoint),
            Op::Set(Object::Local(local)) => {
                let id = ObjectId::Local(local.id.clone());
                let Some(installed) = model.index.get(&id) else { continue };
                let before = previous.iter().find(|installed| installed.object.id() == id);
                // Frames of routed VLANs stay on the node.
                if is_new(local, installed, before) && !model.index.is_routed_vlan(&local.network) {
                    session.announce(&local.id, frames(local), &uplinks);
                }
            }
            _ => {}
        }
    }
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

fn frames(local: &Local) -> Vec<Vec<u8>> {
    let (_, tag) = bridge_and_tag(local.encap);
    let addresses = local.addresses.iter();
    addresses.map(|ip| announcement::frame(tag as u16, local.mac.0, ip)).collect()
}
