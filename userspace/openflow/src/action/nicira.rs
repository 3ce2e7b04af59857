//! Nicira extension actions of Open vSwitch.
//!
//! Follows `enum ofp_raw_action_type` and the `nx_action_*` structures of `lib/ofp-actions.c` (experimenter 0x2320),
//! described in ovs-actions(7).

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::BufMut;

use crate::action::{Action, decode_list, encode_list};
use crate::field::Field;
use crate::port::Port;
use crate::wire::{DecodeError, Reader};

/// Consecutive bits of a field (`mf_subfield`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    /// Field that contains the bits.
    pub field: Field,
    /// Position of the lowest bit; 0 is the least significant bit of the field.
    pub offset: u16,
    /// Number of bits, at least 1.
    pub width: u16,
}

impl Slice {
    /// Returns all bits of a field.
    pub fn whole(field: Field) -> Slice {
        Slice { field, offset: 0, width: field.bits() }
    }

    /// Returns `width` bits of a field from `offset` on.
    pub fn bits(field: Field, offset: u16, width: u16) -> Slice {
        Slice { field, offset, width }
    }

    /// Returns offset and width in one number (`ofs_nbits`: offset << 6 | width - 1).
    fn packed(self) -> u16 {
        self.offset << 6 | (self.width.wrapping_sub(1) & 0x3f)
    }

    fn unpack(field: Field, packed: u16) -> Slice {
        Slice { field, offset: packed >> 6, width: (packed & 0x3f) + 1 }
    }
}

impl From<Field> for Slice {
    fn from(field: Field) -> Self {
        Slice::whole(field)
    }
}

/// Arguments of connection tracking (`nx_action_conntrack`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ct {
    /// Whether the connection is committed to the connection table.
    pub commit: bool,
    /// With `commit`: whether an existing connection in the opposite direction is deleted first.
    pub force: bool,
    /// Connection tracking zone.
    pub zone: Zone,
    /// Table that processes the packet with its connection state, in addition to the actions that follow.
    pub table: Option<u8>,
    /// Application layer gateway, by its well-known port: 21 for FTP, 69 for TFTP; 0 for none.
    pub alg: u16,
    /// Actions on the connection: [`Action::Nat`], and set or move of its mark and label.
    pub exec: Vec<Action>,
}

/// Connection tracking zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Zone {
    /// A constant.
    Number(u16),
    /// The value of 16 bits of a field.
    From(Slice),
}

impl Default for Zone {
    fn default() -> Self {
        Zone::Number(0)
    }
}

/// Address and port translation (`nx_action_nat`), valid in [`Ct::exec`].
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

/// Template of a flow that the switch installs for a packet (`nx_action_learn`, with a limit `nx_action_learn2`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Learn {
    /// Idle timeout in seconds; 0 for none.
    pub idle_timeout: u16,
    /// Hard timeout in seconds; 0 for none.
    pub hard_timeout: u16,
    /// Priority of the learned flow.
    pub priority: u16,
    /// Cookie of the learned flow.
    pub cookie: u64,
    /// `NX_LEARN_F_*`: 1 sends flow-removed messages, 2 deletes the learned flows together with this one.
    pub flags: u16,
    /// Table of the learned flow.
    pub table: u8,
    /// Idle timeout in seconds after a TCP FIN or RST; 0 for no change.
    pub fin_idle_timeout: u16,
    /// Hard timeout in seconds after a TCP FIN or RST; 0 for no change.
    pub fin_hard_timeout: u16,
    /// Maximum number of flows with this cookie in the table; 0 for none. Needs Open vSwitch 2.8.
    pub limit: u32,
    /// Matches and actions of the learned flow.
    pub specs: Vec<LearnSpec>,
}

/// One match or action of a learned flow (`flow_mod_spec`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LearnSpec {
    /// The learned flow matches bits against the value that other bits have in the packet.
    MatchField {
        /// Bits of the packet.
        from: Slice,
        /// Matched bits; as many as in `from`.
        to: Slice,
    },
    /// The learned flow matches bits against a constant.
    MatchValue {
        /// Constant in network byte order, right-aligned in an even number of bytes.
        value: Vec<u8>,
        /// Matched bits.
        to: Slice,
    },
    /// The learned flow sets bits to the value that other bits have in the packet.
    LoadField {
        /// Bits of the packet.
        from: Slice,
        /// Bits to set; as many as in `from`.
        to: Slice,
    },
    /// The learned flow sets bits to a constant.
    LoadValue {
        /// Constant in network byte order, right-aligned in an even number of bytes.
        value: Vec<u8>,
        /// Bits to set.
        to: Slice,
    },
    /// The learned flow outputs to the port whose number is in the packet's bits.
    Output {
        /// Bits of the packet that contain the port number.
        from: Slice,
    },
}

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

const MOVE: u16 = 6;
const LOAD: u16 = 7;
const MULTIPATH: u16 = 10;
const RESUBMIT_TABLE: u16 = 14;
const OUTPUT_REG: u16 = 15;
const LEARN: u16 = 16;
const LOAD_MASKED: u16 = 33;
const CONJUNCTION: u16 = 34;
const CT: u16 = 35;
const NAT: u16 = 36;
const LEARN2: u16 = 45;

/// Encodes what follows the experimenter id.
pub(crate) fn encode(action: &Action, out: &mut Vec<u8>) {
    match action {
        Action::OutputField { port, max_len } => {
            out.put_u16(OUTPUT_REG);
            out.put_u16(port.packed());
            port.field.put_header(out);
            out.put_u16(*max_len);
            out.put_bytes(0, 6);
        }
        Action::SetMasked { field, value, mask } => {
            out.put_u16(LOAD_MASKED);
            field.put(out, *value, Some(*mask));
        }
        Action::Load { value, to } => {
            out.put_u16(LOAD);
            out.put_u16(to.packed());
            to.field.put_header(out);
            out.put_u64(*value);
        }
        Action::Move { from, to } => {
            out.put_u16(MOVE);
            out.put_u16(from.width);
            out.put_u16(from.offset);
            out.put_u16(to.offset);
            from.field.put_header(out);
            to.field.put_header(out);
        }
        Action::Resubmit { port, table } => {
            out.put_u16(RESUBMIT_TABLE);
            out.put_u16(port.unwrap_or(Port::IN_PORT).short());
            out.put_u8(*table);
            out.put_bytes(0, 3);
        }
        Action::Conjunction { id, clause, clauses } => {
            out.put_u16(CONJUNCTION);
            out.put_u8(*clause);
            out.put_u8(*clauses);
            out.put_u32(*id);
        }
        Action::Multipath(multipath) => encode_multipath(multipath, out),
        Action::Ct(ct) => encode_ct(ct, out),
        Action::Nat(nat) => encode_nat(nat, out),
        Action::Learn(learn) => encode_learn(learn, out),
        _ => {}
    }
}

/// Decodes what follows the experimenter id; `None` for an unknown subtype.
pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Option<Action>, DecodeError> {
    Ok(Some(match r.u16()? {
        OUTPUT_REG => {
            let packed = r.u16()?;
            let field = Field::read_header(r)?;
            Action::OutputField { port: Slice::unpack(field, packed), max_len: r.u16()? }
        }
        LOAD_MASKED => {
            let (field, value, mask) = Field::read(r)?;
            Action::SetMasked { field, value, mask }
        }
        LOAD => {
            let packed = r.u16()?;
            let field = Field::read_header(r)?;
            Action::Load { to: Slice::unpack(field, packed), value: r.u64()? }
        }
        MOVE => {
            let (width, from_offset, to_offset) = (r.u16()?, r.u16()?, r.u16()?);
            let from = Field::read_header(r)?;
            let to = Field::read_header(r)?;
            Action::Move {
                from: Slice::bits(from, from_offset, width),
                to: Slice::bits(to, to_offset, width),
            }
        }
        RESUBMIT_TABLE => {
            let port = Port::from_short(r.u16()?);
            Action::Resubmit { port: (port != Port::IN_PORT).then_some(port), table: r.u8()? }
        }
        CONJUNCTION => Action::Conjunction { clause: r.u8()?, clauses: r.u8()?, id: r.u32()? },
        MULTIPATH => match decode_multipath(r)? {
            Some(multipath) => Action::Multipath(multipath),
            None => return Ok(None),
        },
        CT => Action::Ct(decode_ct(r)?),
        NAT => Action::Nat(decode_nat(r)?),
        subtype @ (LEARN | LEARN2) => match decode_learn(r, subtype == LEARN2)? {
            Some(learn) => Action::Learn(learn),
            None => return Ok(None),
        },
        _ => return Ok(None),
    }))
}

fn encode_multipath(multipath: &Multipath, out: &mut Vec<u8>) {
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
    multipath.to.field.put_header(out);
}

/// `None` for a hash or an algorithm that this library does not know.
fn decode_multipath(r: &mut Reader<'_>) -> Result<Option<Multipath>, DecodeError> {
    let (fields, basis) = (r.u16()?, r.u16()?);
    r.skip(2)?;
    let (algorithm, max_link, arg) = (r.u16()?, r.u16()?, r.u32()?);
    r.skip(2)?;
    let packed = r.u16()?;
    let to = Slice::unpack(Field::read_header(r)?, packed);
    let fields = HashFields::ALL.get(usize::from(fields)).copied();
    let algorithm = LinkAlgorithm::ALL.get(usize::from(algorithm)).copied();
    let known = fields.zip(algorithm);
    Ok(known.map(|(fields, algorithm)| Multipath { fields, basis, algorithm, max_link, arg, to }))
}

const CT_COMMIT: u16 = 1;
const CT_FORCE: u16 = 2;
const CT_NO_TABLE: u8 = 0xff;

fn encode_ct(ct: &Ct, out: &mut Vec<u8>) {
    out.put_u16(CT);
    out.put_u16((u16::from(ct.commit) * CT_COMMIT) | (u16::from(ct.force) * CT_FORCE));
    match ct.zone {
        Zone::Number(zone) => {
            out.put_u32(0);
            out.put_u16(zone);
        }
        Zone::From(slice) => {
            slice.field.put_header(out);
            out.put_u16(slice.packed());
        }
    }
    out.put_u8(ct.table.unwrap_or(CT_NO_TABLE));
    out.put_bytes(0, 3);
    out.put_u16(ct.alg);
    encode_list(&ct.exec, out);
}

fn decode_ct(r: &mut Reader<'_>) -> Result<Ct, DecodeError> {
    let flags = r.u16()?;
    let source = r.u32()?;
    let zone = r.u16()?;
    let zone = if source == 0 {
        Zone::Number(zone)
    } else {
        let header = source.to_be_bytes();
        Zone::From(Slice::unpack(Field::read_header(&mut Reader::new(&header, "ct zone"))?, zone))
    };
    let table = r.u8()?;
    r.skip(3)?;
    let alg = r.u16()?;
    Ok(Ct {
        commit: flags & CT_COMMIT != 0,
        force: flags & CT_FORCE != 0,
        zone,
        table: (table != CT_NO_TABLE).then_some(table),
        alg,
        exec: decode_list(r.nested("ct actions")?)?,
    })
}

fn encode_nat(nat: &Nat, out: &mut Vec<u8>) {
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

fn decode_nat(r: &mut Reader<'_>) -> Result<Nat, DecodeError> {
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

const LEARN_IMMEDIATE: u16 = 1 << 13;
const LEARN_LOAD: u16 = 1 << 11;
const LEARN_OUTPUT: u16 = 2 << 11;
const LEARN_WIDTH: u16 = 0x7ff;

/// `NX_LEARN_F_WRITE_RESULT`: a field gets the result.
const LEARN_RESULT: u16 = 4;

fn encode_learn(learn: &Learn, out: &mut Vec<u8>) {
    out.put_u16(if learn.limit == 0 { LEARN } else { LEARN2 });
    for value in [learn.idle_timeout, learn.hard_timeout, learn.priority] {
        out.put_u16(value);
    }
    out.put_u64(learn.cookie);
    out.put_u16(learn.flags);
    out.put_u8(learn.table);
    out.put_u8(0);
    out.put_u16(learn.fin_idle_timeout);
    out.put_u16(learn.fin_hard_timeout);
    if learn.limit != 0 {
        out.put_u32(learn.limit);
        // No field for the result.
        out.put_bytes(0, 4);
    }
    let put_slice = |out: &mut Vec<u8>, slice: &Slice| {
        slice.field.put_header(out);
        out.put_u16(slice.offset);
    };
    for spec in &learn.specs {
        match spec {
            LearnSpec::MatchField { from, to } | LearnSpec::LoadField { from, to } => {
                let kind = if matches!(spec, LearnSpec::LoadField { .. }) { LEARN_LOAD } else { 0 };
                out.put_u16(kind | to.width);
                put_slice(out, from);
                put_slice(out, to);
            }
            LearnSpec::MatchValue { value, to } | LearnSpec::LoadValue { value, to } => {
                let kind = if matches!(spec, LearnSpec::LoadValue { .. }) { LEARN_LOAD } else { 0 };
                out.put_u16(kind | LEARN_IMMEDIATE | to.width);
                out.extend_from_slice(value);
                put_slice(out, to);
            }
            LearnSpec::Output { from } => {
                out.put_u16(LEARN_OUTPUT | from.width);
                put_slice(out, from);
            }
        }
    }
}

/// `None` for one whose result a field gets.
fn decode_learn(r: &mut Reader<'_>, is_limited: bool) -> Result<Option<Learn>, DecodeError> {
    let (idle_timeout, hard_timeout, priority) = (r.u16()?, r.u16()?, r.u16()?);
    let (cookie, flags, table) = (r.u64()?, r.u16()?, r.u8()?);
    r.skip(1)?;
    let (fin_idle_timeout, fin_hard_timeout) = (r.u16()?, r.u16()?);
    let limit = if is_limited { r.u32()? } else { 0 };
    if is_limited {
        if flags & LEARN_RESULT != 0 {
            return Ok(None);
        }
        r.skip(4)?;
    }
    let mut specs = vec![];
    // A header of zero begins the padding.
    while r.len() >= 2 {
        let header = r.u16()?;
        if header == 0 {
            break;
        }
        let width = header & LEARN_WIDTH;
        let slice = |r: &mut Reader<'_>| -> Result<Slice, DecodeError> {
            let field = Field::read_header(r)?;
            Ok(Slice::bits(field, r.u16()?, width))
        };
        let value = |r: &mut Reader<'_>| r.bytes(2 * usize::from(width).div_ceil(16)).map(<[u8]>::to_vec);
        let immediate = header & LEARN_IMMEDIATE != 0;
        specs.push(match header & !(LEARN_WIDTH | LEARN_IMMEDIATE) {
            0 if immediate => LearnSpec::MatchValue { value: value(r)?, to: slice(r)? },
            0 => LearnSpec::MatchField { from: slice(r)?, to: slice(r)? },
            LEARN_LOAD if immediate => LearnSpec::LoadValue { value: value(r)?, to: slice(r)? },
            LEARN_LOAD => LearnSpec::LoadField { from: slice(r)?, to: slice(r)? },
            LEARN_OUTPUT => LearnSpec::Output { from: slice(r)? },
            other => return Err(DecodeError::Value { what: "learn part", value: other.into() }),
        });
    }
    Ok(Some(Learn {
        idle_timeout,
        hard_timeout,
        priority,
        cookie,
        flags,
        table,
        fin_idle_timeout,
        fin_hard_timeout,
        limit,
        specs,
    }))
}
