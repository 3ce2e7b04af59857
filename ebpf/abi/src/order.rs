//! Integers in network byte order. Arithmetic needs `get`, so mixing byte orders does not compile.

/// A 16-bit integer in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(transparent)]
pub struct Be16(u16);

/// A 32-bit integer in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(transparent)]
pub struct Be32(u32);

impl Be16 {
    /// Converts from host byte order.
    pub const fn new(host: u16) -> Self {
        Be16(host.to_be())
    }

    /// Converts to host byte order.
    pub const fn get(self) -> u16 {
        u16::from_be(self.0)
    }

    /// From the bytes as read from a frame.
    pub const fn from_wire(wire: u16) -> Self {
        Be16(wire)
    }

    /// The bytes in memory order, as kernel helpers take them.
    pub const fn wire(self) -> u16 {
        self.0
    }
}

impl Be32 {
    /// Converts from host byte order.
    pub const fn new(host: u32) -> Self {
        Be32(host.to_be())
    }

    /// Converts to host byte order.
    pub const fn get(self) -> u32 {
        u32::from_be(self.0)
    }

    /// The bytes in memory order, as kernel helpers take them.
    pub const fn wire(self) -> u32 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_network_byte_order() {
        assert_eq!(Be16::new(0x8100).wire().to_ne_bytes(), [0x81, 0x00]);
        assert_eq!(Be32::new(0x0a01_0102).wire().to_ne_bytes(), [10, 1, 1, 2]);
        assert_eq!(Be16::new(0x8100).get(), 0x8100);
        assert_eq!(Be32::new(7).get(), 7);
    }
}
