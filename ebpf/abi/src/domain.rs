//! Identifier of a routing domain in the kernel.

use crate::Segment;

/// A routing domain (VRF): an IP address is unique within it. Maps that are looked up by an IP address have the domain in their
/// key: neighbours, subnets, services, flows, fragments.
///
/// A bridged network is a separate domain, because networks that are not routed to each other may have the same addresses; its
/// number follows from its [`Segment`]. Networks that are routed to each other share a domain; the agent allocates its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(transparent)]
pub struct Domain(u32);

impl Domain {
    /// In the numbers of VLAN networks: greater than every VNI.
    const VLAN: u32 = 1 << 24;
    /// In the numbers of VRFs.
    const VRF: u32 = 1 << 31;
    /// The highest number of a VRF.
    pub const MAX_VRF: u32 = Domain::VRF - 1;

    /// No domain: no packet is in it. `ctv_subnets` has the VLAN networks that the node routes in it, too: those of all
    /// domains.
    pub const NONE: Domain = Domain(0);

    /// The domain of a bridged network.
    #[inline(always)]
    pub const fn of_segment(segment: Segment) -> Domain {
        match segment.vni() {
            Some(vni) => Domain(vni),
            None => Domain(Domain::VLAN | segment.tag() as u32),
        }
    }

    /// The domain of a VRF of several networks, 1 to [`Domain::MAX_VRF`].
    pub const fn of_vrf(vrf: u32) -> Domain {
        Domain(Domain::VRF | vrf)
    }

    /// The number of the VRF; `None` for a bridged network.
    pub const fn vrf(self) -> Option<u32> {
        if self.0 & Domain::VRF != 0 { Some(self.0 & Domain::MAX_VRF) } else { None }
    }

    /// The domain as a number, as flows and hashes have it.
    #[inline(always)]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The inverse of [`Domain::number`].
    #[inline(always)]
    pub const fn from_number(number: u32) -> Domain {
        Domain(number)
    }
}

/// Name of a VRF of several networks, by which the agent looks up its number: that of its tenant, padded with zeros. Bytes, so
/// that a map dump is readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(transparent)]
pub struct DomainName(pub [u8; DomainName::LEN]);

impl DomainName {
    /// Maximum length of a name in bytes.
    pub const LEN: usize = 64;

    /// Returns the name; `None` if it is too long.
    pub fn new(name: &str) -> Option<DomainName> {
        let mut bytes = [0; DomainName::LEN];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        Some(DomainName(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_vrfs_have_different_numbers() {
        let segments =
            [Segment::vxlan(1), Segment::vxlan((1 << 24) - 1), Segment::vlan(1), Segment::vlan(4094)];
        let mut numbers: std::vec::Vec<Domain> = segments.map(Domain::of_segment).into();
        assert!(numbers.iter().all(|domain| domain.vrf().is_none()));
        for vrf in [1, Domain::MAX_VRF] {
            let domain = Domain::of_vrf(vrf);
            assert_eq!(domain.vrf(), Some(vrf));
            assert_eq!(Domain::from_number(domain.number()), domain);
            numbers.push(domain);
        }
        assert_eq!(Domain::NONE.vrf(), None);
        numbers.push(Domain::NONE);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 7);
    }

    #[test]
    fn names_are_padded() {
        let name = DomainName::new("blue").unwrap();
        assert_eq!((&name.0[..4], name.0[4..].iter().max()), (&b"blue"[..], Some(&0)));
        let long = "x".repeat(DomainName::LEN);
        assert!(DomainName::new(&long).is_some_and(|name| name.0 == *long.as_bytes()));
        assert_eq!(DomainName::new(&(long + "x")), None);
    }

    /// The numbers of bridged networks are in flows, which outlive upgrades.
    #[test]
    fn numbers_of_networks_are_those_of_earlier_versions() {
        assert_eq!(Domain::of_segment(Segment::vxlan(10_001)).number(), 10_001);
        assert_eq!(Domain::of_segment(Segment::vlan(100)).number(), 1 << 24 | 100);
    }
}
