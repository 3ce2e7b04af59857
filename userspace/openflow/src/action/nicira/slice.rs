//! Bits of a field that an action reads or sets.

use crate::field::Field;

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

    /// Returns whether offset and width fit into one number.
    pub(crate) fn is_packable(self) -> bool {
        (1..=64).contains(&self.width) && self.offset < 1 << 10
    }

    /// Returns offset and width in one number (`ofs_nbits`: offset << 6 | width - 1).
    pub(super) fn packed(self) -> u16 {
        self.offset << 6 | (self.width.wrapping_sub(1) & 0x3f)
    }

    pub(super) fn unpack(field: Field, packed: u16) -> Slice {
        Slice { field, offset: packed >> 6, width: (packed & 0x3f) + 1 }
    }
}

impl From<Field> for Slice {
    fn from(field: Field) -> Self {
        Slice::whole(field)
    }
}
