//! Ports of a switch.

use std::fmt;

use bytes::BufMut;

use crate::wire::{DecodeError, Reader, put_text};

/// An OpenFlow port number, real or reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(pub u32);

impl Port {
    /// The port the packet came in by; `output` to a port never does that by itself.
    pub const IN_PORT: Port = Port(0xffff_fff8);
    pub const TABLE: Port = Port(0xffff_fff9);
    pub const NORMAL: Port = Port(0xffff_fffa);
    pub const FLOOD: Port = Port(0xffff_fffb);
    pub const ALL: Port = Port(0xffff_fffc);
    pub const CONTROLLER: Port = Port(0xffff_fffd);
    pub const LOCAL: Port = Port(0xffff_fffe);
    pub const ANY: Port = Port(0xffff_ffff);

    /// The 16-bit form of OpenFlow 1.0, which the Nicira actions kept.
    pub(crate) fn short(self) -> u16 {
        self.0 as u16
    }

    pub(crate) fn from_short(short: u16) -> Port {
        if short >= 0xfff8 { Port(0xffff_0000 | u32::from(short)) } else { Port(short.into()) }
    }
}

impl From<u32> for Port {
    fn from(number: u32) -> Self {
        Port(number)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Port::IN_PORT => "IN_PORT",
            Port::TABLE => "TABLE",
            Port::NORMAL => "NORMAL",
            Port::FLOOD => "FLOOD",
            Port::ALL => "ALL",
            Port::CONTROLLER => "CONTROLLER",
            Port::LOCAL => "LOCAL",
            Port::ANY => "ANY",
            Port(number) => return write!(f, "{number}"),
        })
    }
}

/// A port as the switch describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortDesc {
    pub port: Port,
    pub mac: [u8; 6],
    pub name: String,
    /// Bit 0: administratively down.
    pub config: u32,
    /// Bit 0: no link; bit 2: live.
    pub state: u32,
    pub current: u32,
    pub advertised: u32,
    pub supported: u32,
    pub peer: u32,
    pub current_kbps: u32,
    pub max_kbps: u32,
}

impl PortDesc {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(self.port.0);
        out.put_bytes(0, 4);
        out.extend_from_slice(&self.mac);
        out.put_bytes(0, 2);
        put_text(out, &self.name, 16);
        for value in [
            self.config,
            self.state,
            self.current,
            self.advertised,
            self.supported,
            self.peer,
            self.current_kbps,
            self.max_kbps,
        ] {
            out.put_u32(value);
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<PortDesc, DecodeError> {
        let port = Port(r.u32()?);
        r.skip(4)?;
        let mac = r.array()?;
        r.skip(2)?;
        Ok(PortDesc {
            port,
            mac,
            name: r.text(16)?,
            config: r.u32()?,
            state: r.u32()?,
            current: r.u32()?,
            advertised: r.u32()?,
            supported: r.u32()?,
            peer: r.u32()?,
            current_kbps: r.u32()?,
            max_kbps: r.u32()?,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChange {
    Added,
    Deleted,
    Modified,
}

/// A port came, went or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    pub change: PortChange,
    pub port: PortDesc,
}

impl PortStatus {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(match self.change {
            PortChange::Added => 0,
            PortChange::Deleted => 1,
            PortChange::Modified => 2,
        });
        out.put_bytes(0, 7);
        self.port.encode(out);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<PortStatus, DecodeError> {
        let change = match r.u8()? {
            0 => PortChange::Added,
            1 => PortChange::Deleted,
            2 => PortChange::Modified,
            other => return Err(DecodeError::Value { what: "port status reason", value: other.into() }),
        };
        r.skip(7)?;
        Ok(PortStatus { change, port: PortDesc::decode(r)? })
    }
}
