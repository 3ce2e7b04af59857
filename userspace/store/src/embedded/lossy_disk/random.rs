//! Random numbers.

/// SplitMix64: a fault must be the same for the same seed on every machine.
#[derive(Clone, Debug)]
pub(in crate::embedded) struct Random(pub(in crate::embedded) u64);

impl Random {
    /// The next 64 bits.
    pub(in crate::embedded) fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub(in crate::embedded) fn below(&mut self, end: u64) -> u64 {
        self.next_bits().checked_rem(end).unwrap_or(0)
    }

    pub(super) fn split(&mut self) -> Random {
        Random(self.next_bits())
    }
}
