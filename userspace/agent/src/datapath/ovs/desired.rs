//! Translation of objects to table contents. No I/O.
//!
//! * [`model`]: the contents of both bridges and the objects that account for them.
//! * [`domain`]: domains of networks and services.
//! * [`batch`]: changes of the model that reach the switch together.
//! * [`compare`]: differences between the desired and the actual contents.

pub(crate) mod batch;
pub(crate) mod compare;
pub(crate) mod domain;
pub(crate) mod model;

use batch::Batch;
use model::{BaseConfig, BridgePorts, SwitchModel};

use contiv_model::{addresses::Addresses, vrf::Vrf};

use super::{
    bridge::{BridgeKind, PerBridge},
    pipeline::{self, Domain},
    tables::{edit::Tables, ids::ObjectNumbers},
};
use crate::datapath::{Desired, Object, Service, Unsupported};

/// Returns the contents of both bridges for `desired`. Omits peers without a port, services without a network, and
/// objects that this datapath does not implement. Local endpoints without a port have only their record.
///
/// `numbers` are those of the installed services and VRFs. `retained` are the groups of ports that belong to no object
/// and are kept.
pub(crate) fn expected(
    desired: &Desired,
    ports: &BridgePorts,
    base: BaseConfig,
    numbers: ObjectNumbers,
    retained: PerBridge<Tables>,
) -> SwitchModel {
    let mut model = SwitchModel { base, numbers, tables: retained, ..SwitchModel::default() };
    let mut batch = Batch::new(&mut model);
    batch.set_base_flows();
    for (id, object) in desired.iter() {
        let port = ports.get(id).cloned();
        if support(object).is_err() {
            continue;
        }
        if port.is_some() || !matches!(object, Object::Peer(_)) {
            // Objects that cannot be set, such as a service without a network, are not in the index and count as out of
            // sync.
            let _omitted = batch.set(object.clone(), port);
        }
    }
    batch.commit();
    model
}

/// Checks that this datapath implements the object.
pub(crate) fn support(object: &Object) -> Result<(), Unsupported> {
    let dual_stack = |addresses: &Addresses| addresses.dual_stack().map(drop).ok_or(Unsupported::ADDRESSES);
    match object {
        Object::Peer(_) | Object::Network(_) => Ok(()),
        Object::Subnet(subnet) if subnet.is_routed() && !subnet.has_node_router() => Err(Unsupported::ROUTER),
        Object::Subnet(_) => Ok(()),
        Object::Group(_) => Ok(()),
        Object::Route(route) if route.private_subnet().is_none() => Err(Unsupported::Object),
        Object::Route(_) => Ok(()),
        Object::Service(service) => support_service(service),
        Object::Remote(remote) if !remote.next_hop.is_on(remote.encap) => Err(Unsupported::NEXT_HOP),
        Object::Remote(remote) => dual_stack(&remote.addresses),
        Object::Local(local) => dual_stack(&local.addresses),
    }
}

/// Returns the bridge on which an object needs the port of the node's kernel.
pub(crate) fn needed_kernel_port(object: &Object) -> Option<BridgeKind> {
    match object {
        Object::Subnet(subnet) if subnet.is_routed_vlan() => Some(BridgeKind::Vlan),
        Object::Route(route) if route.private_subnet().is_some() => Some(BridgeKind::Vxlan),
        _ => None,
    }
}

fn support_service(service: &Service) -> Result<(), Unsupported> {
    let domains = match (&service.scope.vrf, &service.scope.network) {
        (Vrf::Network(_), Some(network)) => vec![Domain::Network(network.encap)],
        // The ready backends on all networks of the VRF count.
        _ => BridgeKind::ALL.map(|bridge| Domain::Vrf(bridge, 0)).into(),
    };
    if domains.into_iter().any(|domain| pipeline::ready(service, domain).count() > pipeline::MAX_BACKENDS) {
        return Err(Unsupported::Value { field: "backends", accepted: "at most 1000 that are ready" });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
