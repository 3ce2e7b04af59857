//! Translation of addresses and ports.

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::BufMut;

use super::NAT;
use crate::wire::{DecodeError, Reader};

/// Address and port translation (`nx_action_nat`), valid in [`Ct::exec`](super::Ct::exec).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Nat {
    /// Kind of the translation to set up; `None` applies the existing translation of the connection.
    pub kind: Option<NatKind>,
    /// Whether the mapping persists across system restarts.
    pub persistent: bool,
    /// Whether ports are selected by a hash.
    pub hash: bool,
    /// Whether ports are selected randomly.
    pub random: bool,
    /// Addresses to choose from; `None` keeps the address.
    pub addresses: Option<NatRange>,
    /// First port and, for a range, last port; `None` keeps the port if it is free.
    pub ports: Option<(u16, Option<u16>)>,
}

/// Translated side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// Source address and port (SNAT).
    Source,
    /// Destination address and port (DNAT).
    Destination,
}

/// Address range: first address and, for more than one, last address (inclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatRange {
    /// IPv4 addresses.
    V4(Ipv4Addr, Option<Ipv4Addr>),
    /// IPv6 addresses.
    V6(Ipv6Addr, Option<Ipv6Addr>),
}

pub(super) fn encode_nat(nat: &Nat, out: &mut Vec<u8>) {
    out.put_u16(NAT);
    out.put_bytes(0, 2);
    let kind = match nat.kind {
        None => 0,
        Some(NatKind::Source) => 1,
        Some(NatKind::Destination) => 2,
    };
    out.put_u16(
        kind | u16::from(nat.persistent) << 2 | u16::from(nat.hash) << 3 | u16::from(nat.random) << 4,
    );
    let addresses = match nat.addresses {
        None => 0,
        Some(NatRange::V4(_, last)) => 0x01 | u16::from(last.is_some()) << 1,
        Some(NatRange::V6(_, last)) => 0x04 | u16::from(last.is_some()) << 3,
    };
    let ports = nat.ports.map_or(0, |(_, last)| 0x10 | u16::from(last.is_some()) << 5);
    out.put_u16(addresses | ports);
    match nat.addresses {
        None => {}
        Some(NatRange::V4(first, last)) => {
            out.put_u32(first.to_bits());
            last.into_iter().for_each(|last| out.put_u32(last.to_bits()));
        }
        Some(NatRange::V6(first, last)) => {
            out.put_u128(first.to_bits());
            last.into_iter().for_each(|last| out.put_u128(last.to_bits()));
        }
    }
    if let Some((first, last)) = nat.ports {
        out.put_u16(first);
        last.into_iter().for_each(|last| out.put_u16(last));
    }
}

pub(super) fn decode_nat(r: &mut Reader<'_>) -> Result<Nat, DecodeError> {
    r.skip(2)?;
    let flags = r.u16()?;
    let present = r.u16()?;
    let has = |bit: u16| present & bit != 0;
    let v4 = |r: &mut Reader<'_>| r.u32().map(Ipv4Addr::from);
    let v6 = |r: &mut Reader<'_>| r.uint(16).map(Ipv6Addr::from);
    let addresses = if has(0x01) {
        let first = v4(r)?;
        Some(NatRange::V4(first, if has(0x02) { Some(v4(r)?) } else { None }))
    } else if has(0x04) {
        let first = v6(r)?;
        Some(NatRange::V6(first, if has(0x08) { Some(v6(r)?) } else { None }))
    } else {
        None
    };
    let ports = if has(0x10) {
        let first = r.u16()?;
        Some((first, if has(0x20) { Some(r.u16()?) } else { None }))
    } else {
        None
    };
    Ok(Nat {
        kind: match flags & 3 {
            0 => None,
            1 => Some(NatKind::Source),
            2 => Some(NatKind::Destination),
            other => return Err(DecodeError::Value { what: "nat flags", value: other.into() }),
        },
        persistent: flags & 4 != 0,
        hash: flags & 8 != 0,
        random: flags & 16 != 0,
        addresses,
        ports,
    })
}
