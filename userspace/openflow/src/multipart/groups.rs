//! Groups of a multipart reply (`OFPMP_GROUP_DESC`).

use crate::action::group_ids;
use crate::group::{DESC_FIXED, Group};
use crate::wire::{DecodeError, Reader};

/// Groups of a multipart reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// Decoded groups.
    pub known: Vec<Group>,
    /// Groups that this library does not decode.
    pub unknown: Vec<UnknownGroup>,
}

impl From<Vec<Group>> for Groups {
    fn from(known: Vec<Group>) -> Groups {
        Groups { known, unknown: vec![] }
    }
}

impl Groups {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.known.iter().for_each(|group| group.encode_desc(out));
        self.unknown.iter().for_each(|group| out.extend_from_slice(&group.bytes));
    }

    /// The groups of other programs may have any bucket. Whatever is in one of them, it must not hide the others.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Groups, DecodeError> {
        let mut found = Groups::default();
        while !r.is_empty() {
            let whole = r.sized(DESC_FIXED, "group")?;
            match Group::decode_desc(whole) {
                Ok(group) => found.known.push(group),
                Err(_) => found.unknown.push(UnknownGroup::read(whole)?),
            }
        }
        Ok(found)
    }
}

/// A group that this library does not decode, such as one with an unknown field in an action (`ofp_group_desc`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownGroup {
    id: u32,
    /// The whole structure.
    bytes: Box<[u8]>,
}

impl UnknownGroup {
    fn read(whole: Reader<'_>) -> Result<UnknownGroup, DecodeError> {
        let mut r = whole;
        // Length, type, padding.
        r.skip(4)?;
        Ok(UnknownGroup { id: r.u32()?, bytes: whole.as_slice().into() })
    }

    /// Group id, 0 to 0xffff_ff00.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// As [`UnknownFlow::used_groups`](super::UnknownFlow::used_groups).
    pub fn used_groups(&self) -> Vec<u32> {
        group_ids(&self.bytes)
    }
}
