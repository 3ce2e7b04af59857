//! Packets to and from the controller.

use bytes::BufMut;

use crate::action::{Action, decode_list, encode_list};
use crate::matching::Match;
use crate::port::Port;
use crate::wire::{DecodeError, Reader};

const NO_BUFFER: u32 = 0xffff_ffff;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketInReason {
    NoMatch,
    Action,
    InvalidTtl,
    Other(u8),
}

/// A packet that a flow sent to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketIn {
    /// Its length before it was cut to fit the message.
    pub total_len: u16,
    pub reason: PacketInReason,
    pub table: u8,
    /// Of the flow that sent it.
    pub cookie: u64,
    /// Where it came from: in_port, metadata, registers, tunnel.
    pub matching: Match,
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
        let matching = Match::decode(r)?;
        r.skip(2)?;
        Ok(PacketIn { total_len, reason, table, cookie, matching, data: r.rest().to_vec() })
    }
}

/// A packet for the switch to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketOut {
    /// Where it is said to have come from; [`Port::CONTROLLER`] for nowhere.
    pub in_port: Port,
    pub actions: Vec<Action>,
    pub data: Vec<u8>,
}

impl PacketOut {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let mut actions = vec![];
        encode_list(&self.actions, &mut actions);
        out.put_u32(NO_BUFFER);
        out.put_u32(self.in_port.0);
        // A length that wraps makes the whole message too long, which its framing refuses.
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
