//! Attacks behind a packet that is like them for one part of a switch, and something else for another: what is decided about that must
//! not hold for the attack.

use std::ops::Range;

use crate::attack::Attack;

/// Offsets in headers of IPv4 and IPv6.
const V4_LENGTH: Range<usize> = 2..4;
const V6_LENGTH: Range<usize> = 4..6;
const V6_NEXT: usize = 6;
const V6_END: usize = 40;
const V4_HEADER: u16 = 20;
const DESTINATION_OPTIONS: u8 = 60;
const TAG: [u8; 2] = [0x81, 0];

/// Makes one packet of another; none if it is of the other family.
type Change = fn(Vec<u8>, Version) -> Option<Vec<u8>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V4,
    V6,
}

/// Attacks that depend on what is behind the IP header.
pub(super) fn attacks() -> Vec<Attack> {
    let kinds: [(&str, Change); 3] = [
        ("one that ends with its header", ends_early),
        ("one longer than its frame", ends_late),
        ("one with a false extension header", with_options),
    ];
    let of = |list: fn() -> Vec<Attack>| {
        kinds.into_iter().flat_map(move |kind| list().into_iter().map(move |attack| behind(attack, kind)))
    };
    [super::nd::attacks, super::dhcp::attacks, super::icmp::attacks].into_iter().flat_map(of).collect()
}

fn behind(attack: Attack, (name, change): (&str, Change)) -> Attack {
    attack.behind(name, move |frame| {
        let (at, version) = packet(frame)?;
        Some([&frame[..at], &change(frame[at..].to_vec(), version)?].concat())
    })
}

/// Where the IP header of a frame begins.
fn packet(frame: &[u8]) -> Option<(usize, Version)> {
    let tags = if frame.get(12..14)? == TAG { 4 } else { 0 };
    let version = match frame.get(12 + tags..14 + tags)? {
        [0x08, 0] => Version::V4,
        [0x86, 0xdd] => Version::V6,
        _ => return None,
    };
    let (at, header) = (14 + tags, if version == Version::V4 { usize::from(V4_HEADER) } else { V6_END });
    (frame.len() >= at + header).then_some((at, version))
}

fn ends_early(mut packet: Vec<u8>, version: Version) -> Option<Vec<u8>> {
    match version {
        Version::V4 => packet[V4_LENGTH].copy_from_slice(&V4_HEADER.to_be_bytes()),
        Version::V6 => packet[V6_LENGTH].copy_from_slice(&[0; 2]),
    }
    Some(packet)
}

fn ends_late(mut packet: Vec<u8>, version: Version) -> Option<Vec<u8>> {
    let length = if version == Version::V4 { V4_LENGTH } else { V6_LENGTH };
    packet[length].copy_from_slice(&u16::MAX.to_be_bytes());
    Some(packet)
}

/// Puts options in front of the payload that are longer than the packet.
fn with_options(mut packet: Vec<u8>, version: Version) -> Option<Vec<u8>> {
    if version == Version::V4 {
        return None;
    }
    let options = [packet[V6_NEXT], u8::MAX, 1, 4, 0, 0, 0, 0];
    packet[V6_NEXT] = DESTINATION_OPTIONS;
    packet.splice(V6_END..V6_END, options);
    let length = u16::try_from(packet.len() - V6_END).ok()?;
    packet[V6_LENGTH].copy_from_slice(&length.to_be_bytes());
    Some(packet)
}
