//! Messages about the switch as a whole: hello, features, configuration, role, asynchronous configuration.
//!
//! Follows OpenFlow 1.3.5 sections 7.3.1, 7.3.2, 7.3.9, 7.3.10 and 7.5.1.

use bytes::BufMut;

use crate::wire::{DecodeError, Reader};

/// Wire protocol version of OpenFlow 1.3.
pub const VERSION: u8 = 4;

/// Hello message: the protocol versions of the sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version of the message header: the highest that the sender supports.
    pub version: u8,
    /// Version bitmap, bit n for version n; `None` if the message has no bitmap.
    pub versions: Option<u32>,
}

impl Hello {
    /// Returns a hello that offers OpenFlow 1.3 only.
    pub fn openflow13() -> Hello {
        Hello { version: VERSION, versions: Some(1 << VERSION) }
    }

    /// Returns whether the sender supports OpenFlow 1.3.
    pub fn supports_openflow13(&self) -> bool {
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

    /// Ignores unknown and truncated elements, as section 7.5.1 requires.
    pub(crate) fn decode(version: u8, r: &mut Reader<'_>) -> Hello {
        let mut versions = None;
        while let Ok((kind, mut body)) = r.tlv("hello element") {
            let length = 4 + body.len();
            if kind == 1 {
                // The first word has the versions 0 to 31.
                versions = body.u32().ok().or(versions);
            }
            // The length does not include the padding of the element.
            r.skip_up_to(length.next_multiple_of(8) - length);
        }
        Hello { version, versions }
    }
}

/// Features of the switch (`ofp_switch_features`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// Datapath id: the low 48 bits are the Ethernet address of the bridge.
    pub datapath_id: u64,
    /// Packets that the switch can buffer.
    pub buffers: u32,
    /// Number of tables.
    pub tables: u8,
    /// Id of an auxiliary connection; 0 for the main connection.
    pub auxiliary_id: u8,
    /// `ofp_capabilities` bits.
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

/// Configuration of the switch (`ofp_switch_config`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Treatment of IP fragments (`ofp_config_flags`): 0 normal, 1 drop, 2 reassemble.
    pub flags: u16,
    /// Bytes of a packet that a table miss sends to the controller. Open vSwitch sends packet-ins on a passive connection
    /// only if this is not 0.
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

/// Role of a controller (`ofp_controller_role`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Query of the current role.
    NoChange,
    /// Full access, like all other equal controllers.
    Equal,
    /// Full access; the previous primary becomes secondary.
    Primary,
    /// Read-only access.
    Secondary,
}

/// Role request or reply (`ofp_role_request`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleMessage {
    /// Requested or current role.
    pub role: Role,
    /// Master election generation. The switch rejects requests that are older than the newest it has seen.
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

/// Filter of asynchronous messages (`ofp_async_config`). Each mask has one bit per reason; the first applies to a primary
/// or equal controller, the second to a secondary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsyncConfig {
    /// Reasons of packet-in messages.
    pub packet_in: [u32; 2],
    /// Reasons of port status messages.
    pub port_status: [u32; 2],
    /// Reasons of flow-removed messages.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements are padded by their own length, whatever of them is read.
    #[test]
    fn hello_elements_are_found_behind_each_other() {
        let bitmap = [0, 1, 0, 8, 0, 0, 0, 0x10];
        let long_bitmap = [0, 1, 0, 12, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0, 0, 0];
        let unknown = [0, 9, 0, 6, 1, 2, 0, 0];
        // A bitmap of another version, which the last one replaces.
        let other = [0, 1, 0, 8, 0, 0, 0, 0x20];
        for elements in [
            [&other[..], &bitmap].concat(),
            [&unknown[..], &bitmap].concat(),
            [&bitmap[..], &unknown].concat(),
            long_bitmap.to_vec(),
            [&long_bitmap[..], &unknown].concat(),
            [&other[..], &long_bitmap].concat(),
            [&[0, 1, 0, 12, 0, 0, 0, 0x20, 0, 0, 0, 1, 0, 0, 0, 0][..], &bitmap].concat(),
        ] {
            let hello = Hello::decode(VERSION, &mut Reader::new(&elements, "test"));
            assert_eq!(hello, Hello::openflow13(), "{elements:?}");
        }
    }
}
