//! Dependents of the ports of the node's kernel.

use contiv_model::vrf::Vrf;

use super::Batch;
use crate::datapath::{
    ObjectId,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        pipeline::HostAccess,
    },
};

impl Batch<'_> {
    /// Sets the port numbers of the node's kernel if objects need them or may need them. Updates the flows that depend on
    /// these numbers and on whether a network needs the port. Must be called after all other changes.
    pub(crate) fn set_kernel_ports(&mut self, ports: PerBridge<Option<u32>>) {
        let ports = PerBridge {
            vlan: ports.vlan.filter(|_| self.retains() || self.index.has_routed_vlan()),
            vxlan: ports.vxlan.filter(|_| self.retains() || self.index.has_host_route()),
        };
        let before = std::mem::replace(&mut self.base.kernel, ports);
        if before != ports {
            self.set_base_flows();
        }
        if before.vlan != ports.vlan {
            self.update_all(|id| matches!(id, ObjectId::Subnet(_) | ObjectId::Remote(_)));
        }
        if self.had_routed_vlan != self.index.has_routed_vlan() {
            self.update_all(|id| matches!(id, ObjectId::Service(_)));
        }
        if before.vxlan != ports.vxlan {
            self.update_all(|id| matches!(id, ObjectId::Subnet(_) | ObjectId::Route(_) | ObjectId::Local(_)));
        }
    }

    fn update_all(&mut self, is_dependent: impl Fn(&ObjectId) -> bool) {
        let dependent: Vec<_> = self.index.ids().filter(|id| is_dependent(id)).cloned().collect();
        dependent.iter().for_each(|id| self.update_flows(id));
    }

    /// Updates the subnets and endpoints of a VRF whose route has changed. Also updates the route of a network that is
    /// its own VRF, because its tag may have changed.
    pub(super) fn update_host_access(&mut self, id: &ObjectId) {
        match id {
            ObjectId::Route(route) => {
                self.update_vrf(&route.vrf, |id| matches!(id, ObjectId::Subnet(_) | ObjectId::Local(_)));
            }
            ObjectId::Network(network) => {
                self.update_vrf(&network.clone().into(), |id| matches!(id, ObjectId::Route(_)));
            }
            _ => {}
        }
    }

    fn update_vrf(&mut self, vrf: &Vrf, is_dependent: impl Fn(&ObjectId) -> bool) {
        let dependent: Vec<_> = self.index.objects_in(vrf).filter(|id| is_dependent(id)).cloned().collect();
        dependent.iter().for_each(|id| self.update_flows(id));
    }

    /// Returns the host access of a VRF whose networks are on this bridge.
    pub(super) fn host_access(&self, vrf: &Vrf, bridge: BridgeKind) -> Option<HostAccess> {
        let port = self.base.kernel.vxlan.filter(|_| bridge == BridgeKind::Vxlan);
        let (port, subnet) = port.zip(self.index.private_subnet(vrf))?;
        Some(HostAccess { port, subnet })
    }
}
