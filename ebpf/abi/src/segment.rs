//! Identifier of a network in the kernel.

/// A broadcast domain: a VXLAN network or a VLAN. Frames are never bridged between segments.
///
/// Exactly one of the two numbers, VNI and VLAN id, is not zero; two fields rather than a tagged
/// number keep map dumps readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Segment {
    vni: u32,
    vlan: u32,
}

impl Segment {
    /// The network with this VNI, 1 to 2^24 - 1.
    pub const fn vxlan(vni: u32) -> Self {
        Segment { vni, vlan: 0 }
    }

    /// The network with this VLAN id, 1 to 4094.
    pub const fn vlan(vlan: u16) -> Self {
        Segment { vni: 0, vlan: vlan as u32 }
    }

    /// The network with this VLAN id or VNI.
    #[inline(always)]
    pub const fn of(number: u32, is_vlan: bool) -> Self {
        if is_vlan { Segment { vni: 0, vlan: number } } else { Segment { vni: number, vlan: 0 } }
    }

    /// The VNI; `None` for a VLAN.
    pub const fn vni(self) -> Option<u32> {
        if self.vni != 0 { Some(self.vni) } else { None }
    }

    /// The VLAN id; zero for a VXLAN network.
    pub const fn tag(self) -> u16 {
        self.vlan as u16
    }

    /// Both numbers as one word, as they are in memory.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.vni as u64 | (self.vlan as u64) << 32
    }
}

#[cfg(feature = "user")]
impl std::fmt::Display for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.vni() {
            Some(vni) => write!(f, "vxlan {vni}"),
            None => write!(f, "vlan {}", self.vlan),
        }
    }
}
