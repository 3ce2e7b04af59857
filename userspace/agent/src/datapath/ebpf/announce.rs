//! Announcement of the endpoints of VLAN networks that appear on this node or get another address.

use contiv_abi::{Address, Port, VipKey};

use super::{
    device,
    kernel::installed::Installed,
    service::announcer::{Announcement, Announcer},
};
use crate::datapath::{Object, ObjectId, Op};

/// The announcements of a port, by interface index.
type Announced = (u32, Vec<Announcement>);

/// Returns the announcements that were valid for the ports of the ops: switches may have learned them.
pub(super) fn announced(installed: &Installed, ops: &[Op]) -> Vec<Announced> {
    let ports = ops.iter().filter_map(|op| match op {
        Op::Set(Object::Local(local)) => device::ifindex(&local.port),
        _ => None,
    });
    ports.map(|ifindex| (ifindex, of_interface(installed, ifindex).collect())).collect()
}

/// Announces the addresses that these ports did not have `before` the ops, and ends the announcement of deleted
/// addresses.
pub(super) fn changed(
    announcer: &mut Announcer,
    uplink: u32,
    installed: &Installed,
    before: &[Announced],
    ops: &[Op],
) {
    if ops.iter().any(|op| matches!(op, Op::Delete(ObjectId::Local(_)))) {
        let ports = installed.kernel().ports.iter();
        announcer.retain_endpoints(|| ports.flat_map(|(_, port)| of_port(installed, port)).collect());
    }
    let new = before.iter().flat_map(|(ifindex, before)| {
        of_interface(installed, *ifindex).filter(|announcement| !before.contains(announcement))
    });
    announcer.endpoints(uplink, new.collect());
}

fn of_interface(installed: &Installed, ifindex: u32) -> impl Iterator<Item = Announcement> {
    installed.kernel().ports.get(ifindex).into_iter().flat_map(|port| of_port(installed, port))
}

/// Returns the announcements of a port's addresses. Returns none on a VXLAN network, and on a network whose frames stay
/// on the node.
fn of_port(installed: &Installed, port: &Port) -> impl Iterator<Item = Announcement> + use<> {
    let Port { segment, mac, ip, ip6, .. } = *port;
    let v4 = (ip != [0; 4]).then(|| Address::v4(ip));
    let v6 = (ip6 != Address::default()).then_some(ip6);
    let is_on_wire = segment.vni().is_none() && !installed.is_on_node(segment);
    let addresses = v4.into_iter().chain(v6).filter(move |_| is_on_wire);
    addresses.map(move |ip| Announcement::endpoint(VipKey { segment, ip }, mac))
}
