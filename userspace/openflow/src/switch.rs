//! The switch as a whole: hello, features, configuration, role, which messages it sends unasked.

use bytes::BufMut;

use crate::wire::{DecodeError, Reader};

/// OpenFlow 1.3.
pub const VERSION: u8 = 4;

/// The versions that a peer speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version in the message's header: the highest it speaks.
    pub version: u8,
    /// Bit n for version n, if the peer told.
    pub versions: Option<u32>,
}

impl Hello {
    /// Ours: OpenFlow 1.3 and nothing else.
    pub fn ours() -> Hello {
        Hello { version: VERSION, versions: Some(1 << VERSION) }
    }

    /// Whether the peer can speak OpenFlow 1.3.
    pub fn speaks_ours(&self) -> bool {
        match self.versions {
            Some(versions) => versions & 1 << VERSION != 0,
            None => self.version >= VERSION,
        }
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        if let Some(versions) = self.versions {
            out.put_u16(1);
            out.put_u16(8);
            out.put_u32(versions);
        }
    }

    /// Elements that are not known or not whole are passed over, as the specification wants.
    pub(crate) fn decode(version: u8, r: &mut Reader<'_>) -> Hello {
        let mut versions = None;
        while let Ok((kind, mut body)) = r.tlv("hello element") {
            if kind == 1 {
                versions = body.u32().ok().or(versions);
            }
            r.skip_up_to((8 - (body.len() + 4) % 8) % 8);
        }
        Hello { version, versions }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    pub datapath_id: u64,
    pub buffers: u32,
    pub tables: u8,
    pub auxiliary_id: u8,
    pub capabilities: u32,
}

impl Features {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.datapath_id);
        out.put_u32(self.buffers);
        out.put_u8(self.tables);
        out.put_u8(self.auxiliary_id);
        out.put_bytes(0, 2);
        out.put_u32(self.capabilities);
        out.put_u32(0);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Features, DecodeError> {
        let (datapath_id, buffers, tables, auxiliary_id) = (r.u64()?, r.u32()?, r.u8()?, r.u8()?);
        r.skip(2)?;
        let capabilities = r.u32()?;
        r.skip(4)?;
        Ok(Features { datapath_id, buffers, tables, auxiliary_id, capabilities })
    }
}

/// How the switch treats fragments and packets for the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// 0 normal, 1 drop fragments, 2 reassemble.
    pub flags: u16,
    /// How much of a packet goes to the controller when no action says; not 0 also makes a
    /// connection that the switch did not ask for receive packets at all.
    pub miss_send_len: u16,
}

impl SwitchConfig {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(self.flags);
        out.put_u16(self.miss_send_len);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<SwitchConfig, DecodeError> {
        Ok(SwitchConfig { flags: r.u16()?, miss_send_len: r.u16()? })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    NoChange,
    Equal,
    /// The one that may change things; others become secondary.
    Primary,
    /// Reads only.
    Secondary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleMessage {
    pub role: Role,
    /// Older requests than the newest the switch has seen are refused.
    pub generation: u64,
}

impl RoleMessage {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u32(match self.role {
            Role::NoChange => 0,
            Role::Equal => 1,
            Role::Primary => 2,
            Role::Secondary => 3,
        });
        out.put_u32(0);
        out.put_u64(self.generation);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<RoleMessage, DecodeError> {
        let role = match r.u32()? {
            0 => Role::NoChange,
            1 => Role::Equal,
            2 => Role::Primary,
            3 => Role::Secondary,
            other => return Err(DecodeError::Value { what: "role", value: other.into() }),
        };
        r.skip(4)?;
        Ok(RoleMessage { role, generation: r.u64()? })
    }
}

/// Which unasked messages come, one bit per reason: the first for primary or equal, the second for secondary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsyncConfig {
    pub packet_in: [u32; 2],
    pub port_status: [u32; 2],
    pub flow_removed: [u32; 2],
}

impl AsyncConfig {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for value in [self.packet_in, self.port_status, self.flow_removed].into_iter().flatten() {
            out.put_u32(value);
        }
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<AsyncConfig, DecodeError> {
        let mut pair = || Ok([r.u32()?, r.u32()?]);
        Ok(AsyncConfig { packet_in: pair()?, port_status: pair()?, flow_removed: pair()? })
    }
}
