//! Ethernet addresses, and IP addresses as keys.

/// An Ethernet address, octets in transmission order.
pub type Mac = [u8; 6];

/// An IPv6 address, or an IPv4 address mapped into `::ffff:0:0/96`, in network byte order. Aligned,
/// so that programs copy and compare it in two words; bytes, so that a map dump is readable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(8))]
pub struct Address(pub [u8; 16]);

impl Address {
    /// Length in bits.
    pub const BITS: u32 = 128;

    /// The mapped address `::ffff:a.b.c.d`.
    #[inline(always)]
    pub const fn v4(ip: [u8; 4]) -> Self {
        // By words: a BPF program would otherwise assemble it byte by byte.
        Address::from_words([0, u64::from_ne_bytes([0, 0, 0xff, 0xff, ip[0], ip[1], ip[2], ip[3]])])
    }

    /// The address as two words in memory order; for comparison, not for arithmetic.
    #[inline(always)]
    pub const fn words(&self) -> [u64; 2] {
        // SAFETY: of the same size and alignment, and every bit pattern is two numbers.
        unsafe { *(&raw const *self).cast::<[u64; 2]>() }
    }

    /// The inverse of [`Address::words`].
    #[inline(always)]
    pub const fn from_words(words: [u64; 2]) -> Self {
        let [a, b, c, d, e, f, g, h] = words[0].to_ne_bytes();
        let [i, j, k, l, m, n, o, p] = words[1].to_ne_bytes();
        Address([a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p])
    }

    /// Assigns an address by words. An assignment between two places in memory would be a loop over
    /// bytes in a BPF program if the compiler cannot prove that they do not overlap; volatile, so
    /// that it does not create such a loop.
    #[inline(always)]
    pub fn set_words(&mut self, words: [u64; 2]) {
        let place = (&raw mut *self).cast::<u64>();
        // SAFETY: two words have the size and alignment of an address, and every bit pattern is one.
        unsafe {
            place.write_volatile(words[0]);
            place.add(1).write_volatile(words[1]);
        }
    }

    /// Returns true for a mapped IPv4 address.
    #[inline(always)]
    pub const fn is_v4(&self) -> bool {
        self.same(&Address::v4(self.low()))
    }

    /// Returns true for the address whose bits are all zero.
    #[inline(always)]
    pub const fn is_zero(&self) -> bool {
        let [high, low] = self.words();
        high | low == 0
    }

    /// Returns true for an address of several hosts: IPv6 multicast, and IPv4 multicast, broadcast and reserved addresses.
    #[inline(always)]
    pub const fn is_group(&self) -> bool {
        let [first, ..] = self.low();
        self.0[0] == 0xff || first >= 224 && self.is_v4()
    }

    /// Returns true for an address that no host outside of the node has: a link-local one, and for IPv4 an address of "this
    /// network", a loopback, multicast, broadcast or reserved address (RFC 6890).
    #[inline(always)]
    pub const fn is_no_host(&self) -> bool {
        let [first, second, ..] = self.low();
        self.is_v4() && (first == 0 || first == 127 || first >= 224 || first == 169 && second == 254)
            || self.is_link_local()
    }

    /// Returns true for a link-local address of IPv6, whose packets stay on their link (RFC 4291 2.5.6).
    #[inline(always)]
    pub const fn is_link_local(&self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// The link-local address that a kernel forms from an Ethernet address (RFC 4291 appendix A).
    #[inline(always)]
    pub const fn link_local(mac: &Mac) -> Self {
        let [a, b, c, d, e, f] = *mac;
        // By words, as `v4`.
        Address::from_words([
            u64::from_ne_bytes([0xfe, 0x80, 0, 0, 0, 0, 0, 0]),
            u64::from_ne_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]),
        ])
    }

    /// The last four bytes: the IPv4 address if it is mapped.
    #[inline(always)]
    pub const fn low(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// Compares by words.
    #[inline(always)]
    pub const fn same(&self, other: &Address) -> bool {
        let ([a, b], [c, d]) = (self.words(), other.words());
        a == c && b == d
    }
}

#[cfg(feature = "user")]
impl From<std::net::IpAddr> for Address {
    fn from(ip: std::net::IpAddr) -> Self {
        match ip {
            std::net::IpAddr::V4(ip) => Address::v4(ip.octets()),
            std::net::IpAddr::V6(ip) => Address(ip.octets()),
        }
    }
}

#[cfg(feature = "user")]
impl From<Address> for std::net::IpAddr {
    fn from(address: Address) -> Self {
        std::net::Ipv6Addr::from(address.0).to_canonical()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_are_the_same() {
        let ip = Address::v4([10, 1, 2, 3]);
        assert_eq!(ip.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(Address::from_words(ip.words()), ip);
        let mut copy = Address::default();
        copy.set_words(ip.words());
        assert_eq!(copy, ip);
        assert_eq!(ip.low(), [10, 1, 2, 3]);
        assert!(ip.same(&ip) && !ip.same(&Address([0; 16])));
    }

    #[test]
    fn link_local_addresses_are_those_of_the_kernel() {
        let expected = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0x0a, 0xff, 0xfe, 1, 1, 9];
        assert_eq!(Address::link_local(&[2, 2, 0x0a, 1, 1, 9]).0, expected);
        let with = |first, second| {
            let mut ip = Address([0; 16]);
            (ip.0[0], ip.0[1]) = (first, second);
            ip.is_link_local()
        };
        assert!(Address(expected).is_link_local() && with(0xfe, 0xbf));
        assert!(!with(0xfe, 0xc0) && !with(0xfe, 0x7f) && !with(0xfd, 0x80));
        assert!(!Address::v4([254, 128, 0, 1]).is_link_local());
    }
}
