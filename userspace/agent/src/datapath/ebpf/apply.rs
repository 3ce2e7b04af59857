//! Executes operations.

use contiv_model::vrf::Vrf;

use super::{
    device,
    failure::failed,
    kernel::{
        encode::{EncodeError, encode},
        installed::{Installed, QueueError},
    },
    programs::{interfaces::Interfaces, kernel_port::KernelPort},
    takeover::Takeovers,
};
use crate::{
    datapath::{Error, FailedOp, Kind, Object, ObjectId, Op},
    error::one_line,
};

/// State that operations do not change.
#[derive(Clone, Copy)]
pub(super) struct Reserved {
    /// Orphans are retained.
    pub(super) orphans: bool,
    /// Another datapath owns the interfaces to the node's kernel.
    pub(super) kernel_ports: bool,
}

/// Executes the operations. Returns those that failed.
///
/// # Errors
/// The state of the kernel is unknown.
pub(super) async fn execute(
    installed: &mut Installed,
    interfaces: &mut Interfaces,
    takeovers: &mut Takeovers,
    ops: &[Op],
    reserved: Reserved,
) -> Result<Vec<FailedOp>, Error> {
    let mut failures = vec![];
    for (index, op) in ops.iter().enumerate() {
        if let Err(error) = execute_one(installed, interfaces, takeovers, op, reserved).await {
            failures.push(FailedOp { index, error });
        }
        // An endpoint that failed, or that is an orphan, may still have the filter of an earlier load.
        if matches!(op, Op::GarbageCollect) && failures.is_empty() && !reserved.orphans {
            interfaces.remove_superseded_stages()?;
        }
    }
    for port in KernelPort::ALL.into_iter().filter(|port| !installed.needs(*port)) {
        interfaces.remove_kernel_port(port).await?;
    }
    installed.kernel_mut().ensure_kernel_port(interfaces.devices().vlans)?;
    for QueueError { owner, group, error } in installed.flush().await? {
        match ops.iter().position(|op| concerns(op, owner.as_ref(), group)) {
            Some(index) => failures.push(FailedOp { index, error }),
            None => return Err(error),
        }
    }
    Ok(failures)
}

async fn execute_one(
    installed: &mut Installed,
    interfaces: &mut Interfaces,
    takeovers: &mut Takeovers,
    op: &Op,
    reserved: Reserved,
) -> Result<(), Error> {
    match op {
        Op::Set(Object::Group(group)) => installed.set_group(group),
        Op::Set(object) => {
            let id = object.id();
            match object {
                Object::Network(network) => installed.allocate_domain(&network.vrf)?,
                // The node may have no network of the tenant.
                Object::Subnet(subnet) if subnet.is_routed_vlan() => {
                    installed.allocate_domain(&subnet.vrf)?;
                }
                _ => {}
            }
            let port = match KernelPort::of(object).filter(|_| !reserved.kernel_ports) {
                Some(port) => ensure_kernel_port(installed, interfaces, port).await,
                None => Ok(()),
            };
            let domain = |vrf: &Vrf, network| installed.domain(vrf, network);
            let entries = encode(object, interfaces.devices(), domain, device::ifindex);
            let entries = match (entries, port.is_err()) {
                (Ok(entries), _) => entries,
                // Without the interface, the object cannot be encoded.
                (Err(EncodeError::NoInterface(_)), true) => return port,
                (Err(EncodeError::Unsupported(unsupported)), _) => {
                    return Err(Error::unsupported(Kind::Ebpf, object, unsupported));
                }
                (Err(other), _) => return Err(failed(format!("set {id}"), other)),
            };
            // Written even without the interface, so that frames of a routed VLAN stay on the node.
            installed.set(&id, &entries).await?;
            port
        }
        Op::Delete(id) => installed.delete(id),
        Op::GarbageCollect => {
            let collected = if reserved.orphans { Ok(()) } else { installed.collect_garbage() };
            // The takeover ends even if an orphan remains: until it ends, packets without a flow are dropped.
            let taken_over = take_over(installed, interfaces, takeovers).await;
            if let (Err(_), Err(error)) = (&collected, &taken_over) {
                tracing::warn!("the takeover has not ended: {}", one_line(error));
            }
            collected.and(taken_over)
        }
    }
}

async fn take_over(
    installed: &mut Installed,
    interfaces: &mut Interfaces,
    takeovers: &mut Takeovers,
) -> Result<(), Error> {
    if !interfaces.pins().other_abi_versions().is_empty() {
        installed.close_abandoned().await?;
    }
    takeovers.run(installed.kernel_mut(), interfaces).await
}

async fn ensure_kernel_port(
    installed: &mut Installed,
    interfaces: &mut Interfaces,
    port: KernelPort,
) -> Result<(), Error> {
    interfaces.ensure_kernel_port(port, &mut installed.kernel_mut().programs).await?;
    installed.kernel_mut().ensure_kernel_port(interfaces.devices().vlans)
}

/// Reports whether the operation sets the object that owns a port, or the port's group.
fn concerns(op: &Op, owner: Option<&ObjectId>, group: u32) -> bool {
    match op {
        Op::Set(Object::Group(set)) => set.identity.get() == group,
        Op::Set(object) => owner == Some(&object.id()),
        Op::Delete(_) | Op::GarbageCollect => false,
    }
}
