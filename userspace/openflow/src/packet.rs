//! Packet-in and packet-out messages (OpenFlow 1.3.5 sections 7.3.7 and 7.4.1).

use bytes::BufMut;

use crate::action::{Action, decode_list, encode_list};
use crate::matching::Match;
use crate::port::Port;
use crate::wire::{DecodeError, Reader};

const NO_BUFFER: u32 = 0xffff_ffff;

/// Reason for a packet-in (`ofp_packet_in_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketInReason {
    /// Table miss.
    NoMatch,
    /// Output to the controller.
    Action,
    /// Invalid TTL.
    InvalidTtl,
    /// A reason that this library does not know.
    Other(u8),
}

/// Packet for the controller (`ofp_packet_in`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketIn {
    /// Length of the original packet in bytes; `data` can be shorter.
    pub total_len: u16,
    /// Why the switch sent the packet.
    pub reason: PacketInReason,
    /// Table of the flow that sent the packet.
    pub table: u8,
    /// Cookie of the flow that sent the packet.
    pub cookie: u64,
    /// Pipeline fields of the packet: ingress port, metadata, registers, tunnel. Those that this library does not know, such as the
    /// options of a Geneve tunnel, are left out.
    pub matching: Match,
    /// The packet from its Ethernet header on.
    pub data: Vec<u8>,
}

impl PacketIn {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(NO_BUFFER);
        out.put_u16(self.total_len);
        out.put_u8(match self.reason {
            PacketInReason::NoMatch => 0,
            PacketInReason::Action => 1,
            PacketInReason::InvalidTtl => 2,
            PacketInReason::Other(reason) => reason,
        });
        out.put_u8(self.table);
        out.put_u64(self.cookie);
        self.matching.encode(out);
        out.put_bytes(0, 2);
        out.extend_from_slice(&self.data);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<PacketIn, DecodeError> {
        r.skip(4)?;
        let total_len = r.u16()?;
        let reason = match r.u8()? {
            0 => PacketInReason::NoMatch,
            1 => PacketInReason::Action,
            2 => PacketInReason::InvalidTtl,
            other => PacketInReason::Other(other),
        };
        let (table, cookie) = (r.u8()?, r.u64()?);
        let matching = Match::decode_known(r)?;
        r.skip(2)?;
        Ok(PacketIn { total_len, reason, table, cookie, matching, data: r.rest().to_vec() })
    }
}

/// Packet for the switch to process (`ofp_packet_out`). It is sent without a packet buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOut {
    /// Ingress port of the packet; [`Port::CONTROLLER`] for none.
    pub in_port: Port,
    /// Actions to execute.
    pub actions: Vec<Action>,
    /// The packet from its Ethernet header on.
    pub data: Vec<u8>,
}

impl PacketOut {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut actions = vec![];
        encode_list(&self.actions, &mut actions);
        out.put_u32(NO_BUFFER);
        out.put_u32(self.in_port.0);
        // If the length wraps, the whole message is too long and `Message::encode` rejects it.
        out.put_u16(actions.len() as u16);
        out.put_bytes(0, 6);
        out.extend_from_slice(&actions);
        out.extend_from_slice(&self.data);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<PacketOut, DecodeError> {
        r.skip(4)?;
        let in_port = Port(r.u32()?);
        let length = usize::from(r.u16()?);
        r.skip(6)?;
        let actions = decode_list(r.take(length, "actions")?)?;
        Ok(PacketOut { in_port, actions, data: r.rest().to_vec() })
    }
}
