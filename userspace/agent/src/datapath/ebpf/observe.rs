//! Compares the kernel with the desired state.

use contiv_model::vrf::Vrf;

use super::{
    device::{self, Netlink},
    kernel::{encode::encode, installed::Installed},
    programs::{
        interfaces::Interfaces,
        kernel_port::KernelPort,
        tc::{AttachMode, Role},
    },
    rate::queues,
};
use crate::datapath::{Desired, Error, Object, Observed};

/// Reads the kernel, records the owners of the entries, and counts orphans.
pub(super) async fn compare(
    netlink: &Netlink,
    installed: &mut Installed,
    interfaces: &Interfaces,
    desired: &Desired,
) -> Result<Observed, Error> {
    installed.read()?;
    let hooks = interfaces.hooks();
    if let Some(pair) = installed.read_queues(netlink).await? {
        let program = installed.kernel_mut().programs.tc(Role::Queue);
        hooks.ensure(program, Role::Queue, queues::EXIT, pair.exit, netlink).await?;
    }
    if hooks.mode() == AttachMode::Clsact {
        // Filters have no pins, so those on other interfaces are found only by a scan.
        for interface in netlink.names().await? {
            detect_attached(netlink, installed, interfaces, &interface).await?;
        }
    }
    let mut observed = Observed::default();
    for (id, object) in desired.iter() {
        if let Object::Group(group) = object {
            if installed.adopt_group(group) {
                observed.in_sync.insert(id.clone());
            }
            continue;
        }
        // An object that cannot be encoded is not in sync. Its `Set` reports the error.
        let domain = |vrf: &Vrf, network| installed.domain(vrf, network);
        let Ok(entries) = encode(object, interfaces.devices(), domain, device::ifindex) else { continue };
        if let Object::Local(local) = object
            && hooks.mode() == AttachMode::Tcx
        {
            detect_attached(netlink, installed, interfaces, &local.port).await?;
        }
        let has_port = KernelPort::of(object).is_none_or(|port| interfaces.devices().has(port));
        if installed.adopt(id, &entries) && has_port {
            observed.in_sync.insert(id.clone());
        }
    }
    observed.orphans = installed.orphans()?;
    Ok(observed)
}

/// Records the interface if the program for pods is attached to it.
async fn detect_attached(
    netlink: &Netlink,
    installed: &mut Installed,
    interfaces: &Interfaces,
    interface: &str,
) -> Result<(), Error> {
    let program = installed.kernel_mut().programs.tc(Role::Pod);
    if let Some(ifindex) = device::ifindex(interface)
        && interfaces.hooks().is_attached(program, Role::Pod, interface, ifindex, netlink).await?
    {
        installed.record_attached(ifindex, interface);
    }
    Ok(())
}
