//! Port of the VLAN bridge towards the node's kernel, which routes VLAN networks.

use super::{
    ovsdb::{Database, Operation},
    ports::{self, PortSpec},
};
use crate::datapath::KERNEL_PORT;

/// Returns the operations that create or update the port.
pub(crate) fn operations(database: &Database) -> Vec<Operation> {
    let port = PortSpec::kernel(KERNEL_PORT);
    if port.is_in_sync(database) { vec![] } else { port.operations(database, 0) }
}

/// Returns the OpenFlow port number, if ovs-vswitchd has opened the interface.
pub(crate) fn number(database: &Database) -> Option<u32> {
    ports::find(database, KERNEL_PORT)?.interface.number()
}

/// Returns why VLAN networks are not routed to other nodes.
pub(crate) fn warning(database: &Database) -> Option<String> {
    if number(database).is_some() {
        return None;
    }
    let error = ports::find(database, KERNEL_PORT).and_then(|found| found.interface.error.clone());
    let why = error.unwrap_or_else(|| "ovs-vswitchd has not opened it".to_owned());
    Some(format!("port {KERNEL_PORT} to the kernel, which routes VLAN networks: {why}"))
}
