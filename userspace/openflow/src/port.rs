//! Ports of a switch (OpenFlow 1.3.5 sections 4 and 7.2.1).

use std::fmt;

use bytes::BufMut;

use crate::wire::{DecodeError, Reader, put_text};

/// An OpenFlow port number: physical and logical ports count from 1, the constants are reserved ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(pub u32);

impl Port {
    /// The ingress port of the packet. An output to the number of the ingress port is dropped; this is the way to send the
    /// packet back.
    pub const IN_PORT: Port = Port(0xffff_fff8);
    /// Start of the pipeline; valid only in packet-out messages.
    pub const TABLE: Port = Port(0xffff_fff9);
    /// Processing by the MAC-learning bridge.
    pub const NORMAL: Port = Port(0xffff_fffa);
    /// All ports except the ingress port and those that do not flood.
    pub const FLOOD: Port = Port(0xffff_fffb);
    /// All ports except the ingress port.
    pub const ALL: Port = Port(0xffff_fffc);
    /// The controller.
    pub const CONTROLLER: Port = Port(0xffff_fffd);
    /// The internal port of the bridge.
    pub const LOCAL: Port = Port(0xffff_fffe);
    /// No restriction on the port; not a destination.
    pub const ANY: Port = Port(0xffff_ffff);

    /// Returns the 16-bit port number of OpenFlow 1.0, which the Nicira actions use.
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

/// Description of a port (`ofp_port`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortDesc {
    /// Port number.
    pub port: Port,
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Interface name, at most 15 bytes.
    pub name: String,
    /// `ofp_port_config`: bit 0 is set if the port is administratively down.
    pub config: u32,
    /// `ofp_port_state`: bit 0 is set if there is no link, bit 2 if the port is live.
    pub state: u32,
    /// Current features (`ofp_port_features`).
    pub current: u32,
    /// Features that the port advertises.
    pub advertised: u32,
    /// Features that the port supports.
    pub supported: u32,
    /// Features that the link partner advertises.
    pub peer: u32,
    /// Current bit rate in kbit/s.
    pub current_kbps: u32,
    /// Maximum bit rate in kbit/s.
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

/// Reason for a port status message (`ofp_port_reason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// The port was added.
    Added,
    /// The port was removed.
    Deleted,
    /// The description of the port changed.
    Modified,
}

/// Port status message (`ofp_port_status`, OpenFlow 1.3.5 section 7.4.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortStatus {
    /// What happened.
    pub change: PortChange,
    /// Description of the port after the change.
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
