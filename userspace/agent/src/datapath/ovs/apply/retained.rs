//! Deleted endpoints that have no object.

use std::collections::BTreeSet;

use crate::datapath::{
    Error, ObjectId, Op,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        desired::{batch::Batch, model::SwitchModel},
        error::ovs_error,
        switch::{ovsdb::Database, ports, session::Session},
        tables::index::FlowIndex,
    },
};

/// Removes the ports of deleted endpoints without an object from the groups of their networks, because the switch will
/// reuse the port numbers.
pub(super) async fn forget_ports(
    session: &mut Session,
    model: &mut SwitchModel,
    ops: &[Op],
) -> Result<(), Error> {
    if model.base.retained.is_none() {
        return Ok(());
    }
    let gone = ports_of_deleted(&session.database(), &model.index, ops);
    if gone == PerBridge::default() {
        return Ok(());
    }
    let mut batch = Batch::new(model);
    batch.forget_ports(&gone);
    let changes = batch.changes();
    for (bridge, changes) in [(BridgeKind::Vlan, changes.vlan), (BridgeKind::Vxlan, changes.vxlan)] {
        let applied = session.apply(bridge, changes).await;
        applied.map_err(|error| ovs_error("remove ports from the groups of networks", error))?;
    }
    batch.commit();
    Ok(())
}

/// Returns the port numbers of endpoints that the ops delete and that are not installed, or are installed without a port.
fn ports_of_deleted(database: &Database, index: &FlowIndex, ops: &[Op]) -> PerBridge<BTreeSet<u32>> {
    let mut gone: PerBridge<BTreeSet<u32>> = PerBridge::default();
    for op in ops {
        let Op::Delete(id @ ObjectId::Local(_)) = op else { continue };
        if index.get(id).is_some_and(|installed| installed.port.is_some()) {
            continue;
        }
        for name in ports::of_object(database, id) {
            let bridge = ports::present(database).find(|(_, present)| *present == name);
            let number = ports::find(database, &name).and_then(|found| found.interface.number());
            if let (Some((bridge, _)), Some(number)) = (bridge, number) {
                gone.get_mut(bridge).insert(number);
            }
        }
    }
    gone
}
