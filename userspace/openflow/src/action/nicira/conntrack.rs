//! Connection tracking.

use bytes::BufMut;

use super::{CT, Slice};
use crate::action::{Action, decode_list, encode_list};
use crate::field::Field;
use crate::wire::{DecodeError, Reader};

/// Arguments of connection tracking (`nx_action_conntrack`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ct {
    /// Whether the connection is committed to the connection table.
    pub commit: bool,
    /// With `commit`: whether an existing connection in the opposite direction is deleted first.
    pub force: bool,
    /// Connection tracking zone.
    pub zone: Zone,
    /// Table that processes the packet with its connection state, in addition to the actions that follow; 0 to 254.
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

impl Ct {
    /// Returns whether the number of the table is not that of none.
    pub(crate) fn has_encodable_table(&self) -> bool {
        self.table != Some(CT_NO_TABLE)
    }
}

const CT_COMMIT: u16 = 1;
const CT_FORCE: u16 = 2;
const CT_NO_TABLE: u8 = 0xff;

pub(super) fn encode_ct(ct: &Ct, out: &mut Vec<u8>) {
    out.put_u16(CT);
    out.put_u16((u16::from(ct.commit) * CT_COMMIT) | (u16::from(ct.force) * CT_FORCE));
    match ct.zone {
        Zone::Number(zone) => {
            out.put_u32(0);
            out.put_u16(zone);
        }
        Zone::From(slice) => {
            slice.field.put_short_header(out);
            out.put_u16(slice.packed());
        }
    }
    out.put_u8(ct.table.unwrap_or(CT_NO_TABLE));
    out.put_bytes(0, 3);
    out.put_u16(ct.alg);
    encode_list(&ct.exec, out);
}

pub(super) fn decode_ct(r: &mut Reader<'_>) -> Result<Ct, DecodeError> {
    let flags = r.u16()?;
    let source = r.u32()?;
    let zone = r.u16()?;
    let zone = if source == 0 {
        Zone::Number(zone)
    } else {
        let header = source.to_be_bytes();
        Zone::From(Slice::unpack(Field::read_short_header(&mut Reader::new(&header, "ct zone"))?, zone))
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
