//! Groups of a multipart reply (`OFPMP_GROUP_DESC`).

use crate::action::group_ids;
use crate::group::Group;
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

    /// The groups of other programs may have any action. They must not hide the others.
    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Groups, DecodeError> {
        let mut found = Groups::default();
        while !r.is_empty() {
            let mut start = *r;
            match Group::decode_desc(r) {
                Ok(group) => found.known.push(group),
                // The reader is at the next group.
                Err(DecodeError::Field { .. } | DecodeError::Value { .. }) => {
                    let length = start.len() - r.len();
                    found.unknown.push(UnknownGroup::read(start.bytes(length)?)?);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}

/// A group with an action or a value that this library does not know (`ofp_group_desc`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownGroup {
    id: u32,
    /// The whole structure.
    bytes: Box<[u8]>,
}

impl UnknownGroup {
    fn read(bytes: &[u8]) -> Result<UnknownGroup, DecodeError> {
        let mut r = Reader::new(bytes, "group");
        // Length, type, padding.
        r.skip(4)?;
        Ok(UnknownGroup { id: r.u32()?, bytes: bytes.into() })
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
