//! Translation of objects to table contents. No I/O.
//!
//! * [`model`]: the contents of both bridges and the objects that account for them.
//! * [`batch`]: changes of the model that reach the switch together.
//! * [`compare`]: differences between the desired and the actual contents.

pub(crate) mod batch;
pub(crate) mod compare;
pub(crate) mod model;

use batch::Batch;
use model::{BaseConfig, BridgePorts, SwitchModel};

use crate::datapath::{Desired, Object};

/// Returns the contents of both bridges for `desired`. Omits objects without their port, remote endpoints without a
/// tunnel, and objects that this datapath does not implement.
pub(crate) fn expected(desired: &Desired, ports: &BridgePorts, base: BaseConfig) -> SwitchModel {
    let mut model = SwitchModel { base, ..SwitchModel::default() };
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    for (id, object) in desired.iter() {
        let port = ports.get(id).cloned();
        if matches!(object, Object::Group(_) | Object::Service(_)) {
            continue;
        }
        if port.is_some() || !needs_port(object) {
            // Without its tunnel a remote endpoint is not in the index and counts as out of sync.
            let _omitted = batch.set(object.clone(), port);
        }
    }
    batch.commit();
    model
}

fn needs_port(object: &Object) -> bool {
    matches!(object, Object::Local(_) | Object::Peer(_))
}

#[cfg(test)]
mod tests;
