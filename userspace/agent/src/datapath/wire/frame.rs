//! Ethernet, VLAN, ARP and ND: the fields that layer 2 forwarding reads.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_model::{mac::Mac, tag::Vlan};

pub(crate) const ARP: u16 = 0x0806;
pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;
/// 802.1Q, 802.1ad, and the values that equipment used before 802.1ad.
const TAGS: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];
pub(crate) const ETHERNET: usize = 14;
/// ARP header for Ethernet (address length 6) and IPv4 (address length 4).
const ARP_HEADER: [u8; 6] = [0, 1, 8, 0, 6, 4];
pub(crate) const ICMPV6: u8 = 58;
/// Hop limit of neighbour discovery. The value proves that no router has forwarded the packet (RFC 4861 section 11.2).
pub(crate) const ND_HOP_LIMIT: u8 = 255;

/// Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ethernet {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
    pub(crate) kind: u16,
}

impl Ethernet {
    pub(crate) fn read(frame: &[u8]) -> Option<Ethernet> {
        Some(Ethernet {
            destination: Mac(bytes(frame, 0)?),
            source: Mac(bytes(frame, 6)?),
            kind: u16::from_be_bytes(bytes(frame, 12)?),
        })
    }

    pub(crate) fn is_tagged(self) -> bool {
        TAGS.contains(&self.kind)
    }

    /// Whether the destination is link-local (IEEE 802.1D table 7-10), which bridges do not forward.
    pub(crate) fn is_link_local(self) -> bool {
        matches!(self.destination.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
    }
}

/// Removes the 802.1Q tag; `None` without a tag or with VLAN id 0.
pub(crate) fn untag(frame: &[u8]) -> Option<(Vlan, Vec<u8>)> {
    let [protocol, tag]: [u16; 2] =
        [bytes(frame, 12)?, bytes(frame, ETHERNET)?].map(|field: [u8; 2]| u16::from_be_bytes(field));
    let vlan = Vlan::try_from(tag & 0x0fff).ok().filter(|_| protocol == TAGS[0])?;
    Some((vlan, [&frame[..12], &frame[16..]].concat()))
}

/// Adds an 802.1Q tag with priority 0.
pub(crate) fn tagged(frame: &[u8], vlan: Vlan) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(frame.len().min(12));
    [addresses, &TAGS[0].to_be_bytes(), &vlan.get().to_be_bytes(), rest].concat()
}

/// Returns the DSCP, which a tunnel copies to its outer header.
pub(crate) fn dscp(frame: &[u8]) -> u8 {
    match (Ethernet::read(frame), frame.get(ETHERNET..)) {
        (Some(Ethernet { kind: IPV4, .. }), Some([_, tos, ..])) => tos >> 2,
        (Some(Ethernet { kind: IPV6, .. }), Some([first, second, ..])) => (first << 2 | second >> 6) & 0x3f,
        _ => 0,
    }
}

/// An ARP request or a neighbour solicitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeighbourRequest {
    Arp { from: Mac, sender: (Mac, Ipv4Addr), target: Ipv4Addr },
    Solicitation { from: Mac, source: Ipv6Addr, target: Ipv6Addr },
}

impl NeighbourRequest {
    pub(crate) fn read(frame: &[u8]) -> Option<NeighbourRequest> {
        let ethernet = Ethernet::read(frame)?;
        let body = &frame[ETHERNET..];
        match ethernet.kind {
            ARP if bytes(body, 0) == Some(ARP_HEADER) && bytes(body, 6) == Some([0, 1]) => {
                let sender = (Mac(bytes(body, 8)?), Ipv4Addr::from(bytes::<4>(body, 14)?));
                let target = Ipv4Addr::from(bytes::<4>(body, 24)?);
                // A request for the sender's own address is gratuitous ARP.
                (sender.1 != target).then_some(NeighbourRequest::Arp {
                    from: ethernet.source,
                    sender,
                    target,
                })
            }
            IPV6 if bytes(body, 6) == Some([ICMPV6, ND_HOP_LIMIT]) && bytes(body, 40) == Some([135, 0]) => {
                Some(NeighbourRequest::Solicitation {
                    from: ethernet.source,
                    source: Ipv6Addr::from(bytes::<16>(body, 8)?),
                    target: Ipv6Addr::from(bytes::<16>(body, 48)?),
                })
            }
            _ => None,
        }
    }

    /// Requested address.
    pub(crate) fn target(&self) -> IpAddr {
        match self {
            NeighbourRequest::Arp { target, .. } => IpAddr::V4(*target),
            NeighbourRequest::Solicitation { target, .. } => IpAddr::V6(*target),
        }
    }

    /// Returns the reply with `owner` as the Ethernet address.
    pub(crate) fn reply(self, owner: Mac) -> Vec<u8> {
        match self {
            NeighbourRequest::Arp { from, sender, target } => [
                &from.0[..],
                &owner.0,
                &ARP.to_be_bytes(),
                &ARP_HEADER,
                &[0, 2],
                &owner.0,
                &target.octets(),
                &sender.0.0,
                &sender.1.octets(),
            ]
            .concat(),
            NeighbourRequest::Solicitation { from, source, target } => {
                advertisement(from, source, target, owner)
            }
        }
    }
}

fn advertisement(from: Mac, source: Ipv6Addr, target: Ipv6Addr, owner: Mac) -> Vec<u8> {
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    // Duplicate address detection: the advertisement goes to all nodes (RFC 4861 section 7.2.4).
    let (mac, destination, flags) = if source.is_unspecified() {
        (Mac([0x33, 0x33, 0, 0, 0, 1]), all_nodes, OVERRIDE)
    } else {
        (from, source, SOLICITED | OVERRIDE)
    };
    let message = [&[136, 0, 0, 0, flags, 0, 0, 0][..], &target.octets(), &[2, 1], &owner.0].concat();
    let length = [0, message.len() as u8];
    let mut frame = [
        &mac.0[..],
        &owner.0,
        &IPV6.to_be_bytes(),
        &[0x60, 0, 0, 0],
        &length,
        &[ICMPV6, ND_HOP_LIMIT],
        &target.octets(),
        &destination.octets(),
        &message,
    ]
    .concat();
    let pseudo_header_and_message = [&frame[22..54], &[0, 0], &length, &[0, 0, 0, ICMPV6], &message].concat();
    frame[56..58].copy_from_slice(&checksum(&pseudo_header_and_message).to_be_bytes());
    frame
}

pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let sum =
        bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    let folded = (0..2).fold(sum, |sum: u32, _| (sum & 0xffff) + (sum >> 16));
    !(folded as u16)
}

pub(crate) fn bytes<const N: usize>(from: &[u8], at: usize) -> Option<[u8; N]> {
    from.get(at..)?.first_chunk().copied()
}
