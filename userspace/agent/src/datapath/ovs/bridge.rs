//! The two bridges of a node.

/// One of the two bridges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum BridgeKind {
    /// Carries VLAN networks.
    Vlan,
    /// Carries VXLAN networks.
    Vxlan,
}

impl BridgeKind {
    pub(crate) const ALL: [BridgeKind; 2] = [BridgeKind::Vlan, BridgeKind::Vxlan];

    /// Bridge name in the database.
    pub(crate) fn name(self) -> &'static str {
        match self {
            BridgeKind::Vlan => "contivVlanBridge",
            BridgeKind::Vxlan => "contivVxlanBridge",
        }
    }
}

/// One value for each bridge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerBridge<T> {
    pub(crate) vlan: T,
    pub(crate) vxlan: T,
}

impl<T> PerBridge<T> {
    pub(crate) fn get(&self, bridge: BridgeKind) -> &T {
        match bridge {
            BridgeKind::Vlan => &self.vlan,
            BridgeKind::Vxlan => &self.vxlan,
        }
    }

    pub(crate) fn get_mut(&mut self, bridge: BridgeKind) -> &mut T {
        match bridge {
            BridgeKind::Vlan => &mut self.vlan,
            BridgeKind::Vxlan => &mut self.vxlan,
        }
    }
}
