//! Ports of the bridges towards the node's kernel, which routes VLAN networks and gives VXLAN networks host access.

use super::{
    ovsdb::{Database, Operation},
    ports::{self, PortSpec},
};
use crate::datapath::{KERNEL_PORT, host_access::HOST_PORT, ovs::bridge::BridgeKind};

/// Returns the name of the port of a bridge.
pub(crate) fn name(bridge: BridgeKind) -> &'static str {
    match bridge {
        BridgeKind::Vlan => KERNEL_PORT,
        BridgeKind::Vxlan => HOST_PORT,
    }
}

/// Returns the operations that create or update the port.
pub(crate) fn operations(database: &Database, bridge: BridgeKind) -> Vec<Operation> {
    let port = PortSpec::kernel(bridge, name(bridge));
    if port.is_in_sync(database) { vec![] } else { port.operations(database, 0) }
}

/// Returns the OpenFlow port number, if ovs-vswitchd has opened the interface.
pub(crate) fn number(database: &Database, bridge: BridgeKind) -> Option<u32> {
    ports::find(database, name(bridge))?.interface.number()
}

/// Returns why packets do not reach the kernel.
pub(crate) fn warning(database: &Database, bridge: BridgeKind) -> Option<String> {
    if number(database, bridge).is_some() {
        return None;
    }
    let error = ports::find(database, name(bridge)).and_then(|found| found.interface.error.clone());
    let why = error.unwrap_or_else(|| "ovs-vswitchd has not opened it".to_owned());
    let what = match bridge {
        BridgeKind::Vlan => "which routes VLAN networks",
        BridgeKind::Vxlan => "by which pods reach addresses outside of the cluster",
    };
    Some(format!("port {} to the kernel, {what}: {why}", name(bridge)))
}
