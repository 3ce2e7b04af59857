//! Choice of a link by a hash.

use bytes::BufMut;

use super::{MULTIPATH, Slice};
use crate::field::Field;
use crate::wire::{DecodeError, Reader};

/// Choice of one of several links by a hash of the packet (`nx_action_multipath`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Multipath {
    /// Fields that are hashed.
    pub fields: HashFields,
    /// Start value of the hash.
    pub basis: u16,
    /// How a link follows from the hash.
    pub algorithm: LinkAlgorithm,
    /// Number of the last link: the first is 0.
    pub max_link: u16,
    /// Parameter of the algorithm.
    pub arg: u32,
    /// Bits that are set to the number of the link.
    pub to: Slice,
}

/// Fields that a [`Multipath`] hashes (`enum nx_hash_fields`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashFields {
    /// Ethernet source.
    EthSrc,
    /// Ethernet addresses, VLAN id, EtherType, IP addresses and protocol, TCP and SCTP ports; equal in both directions.
    SymmetricL4,
    /// IP addresses and protocol, TCP and SCTP ports; equal in both directions.
    SymmetricL3L4,
    /// As the former, and UDP ports.
    SymmetricL3L4Udp,
    /// IP source.
    IpSrc,
    /// IP destination.
    IpDst,
    /// IP addresses; equal in both directions.
    SymmetricL3,
}

impl HashFields {
    const ALL: [HashFields; 7] = [
        HashFields::EthSrc,
        HashFields::SymmetricL4,
        HashFields::SymmetricL3L4,
        HashFields::SymmetricL3L4Udp,
        HashFields::IpSrc,
        HashFields::IpDst,
        HashFields::SymmetricL3,
    ];
}

/// How a link follows from the hash of a [`Multipath`] (`enum nx_mp_algorithm`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkAlgorithm {
    /// Remainder of the division by the number of links: a change of the number moves almost all packets.
    Modulo,
    /// Ranges of the hash: a change moves half of the packets or more.
    Threshold,
    /// Rendezvous hashing: a change moves only the packets of the links that come or go; takes time for each link.
    Rendezvous,
    /// Rehashing until a link is found.
    Iterative,
}

impl LinkAlgorithm {
    const ALL: [LinkAlgorithm; 4] = [
        LinkAlgorithm::Modulo,
        LinkAlgorithm::Threshold,
        LinkAlgorithm::Rendezvous,
        LinkAlgorithm::Iterative,
    ];
}

pub(super) fn encode_multipath(multipath: &Multipath, out: &mut Vec<u8>) {
    out.put_u16(MULTIPATH);
    // The variants have the numbers of the enumerations.
    out.put_u16(multipath.fields as u16);
    out.put_u16(multipath.basis);
    out.put_bytes(0, 2);
    out.put_u16(multipath.algorithm as u16);
    out.put_u16(multipath.max_link);
    out.put_u32(multipath.arg);
    out.put_bytes(0, 2);
    out.put_u16(multipath.to.packed());
    multipath.to.field.put_short_header(out);
}

/// `None` for a hash or an algorithm that this library does not know.
pub(super) fn decode_multipath(r: &mut Reader<'_>) -> Result<Option<Multipath>, DecodeError> {
    let (fields, basis) = (r.u16()?, r.u16()?);
    r.skip(2)?;
    let (algorithm, max_link, arg) = (r.u16()?, r.u16()?, r.u32()?);
    r.skip(2)?;
    let packed = r.u16()?;
    let to = Slice::unpack(Field::read_short_header(r)?, packed);
    let fields = HashFields::ALL.get(usize::from(fields)).copied();
    let algorithm = LinkAlgorithm::ALL.get(usize::from(algorithm)).copied();
    let known = fields.zip(algorithm);
    Ok(known.map(|(fields, algorithm)| Multipath { fields, basis, algorithm, max_link, arg, to }))
}
