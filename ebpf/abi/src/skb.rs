//! Fields of `struct sk_buff` that the programs read from the kernel's memory.

/// Location of the fields with the checksum offset that the kernel will write to. The agent sets it, in the read-only global
/// [`SkbLayout::GLOBAL`], before it loads the programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SkbLayout {
    /// Offset in bytes of a block of [`SkbLayout::BLOCK`] bytes, a multiple of 4.
    pub block: u32,
    /// The bits of `ip_summed` in the first 32-bit word of the block; zero if the layout is unknown.
    pub summed: u32,
    /// Offset in bytes of `csum_start` in the block, a multiple of 4; `csum_offset` follows it.
    pub start: u32,
    /// Offset in bytes of `head`, which `data` follows.
    pub head: u32,
}

const _: () = assert!(size_of::<SkbLayout>() == 16);

impl SkbLayout {
    /// Name of the global in the object file.
    pub const GLOBAL: &'static str = "CTV_SKB";
    /// Bytes of the block that is read at once.
    pub const BLOCK: usize = 24;
    /// Value for a kernel with an unknown layout: the programs read nothing.
    pub const UNKNOWN: SkbLayout = SkbLayout { block: 0, summed: 0, start: 0, head: 0 };

    /// The fields in order, as they lie in the global.
    pub const fn words(self) -> [u32; 4] {
        [self.block, self.summed, self.start, self.head]
    }
}
