use std::net::{Ipv4Addr, Ipv6Addr};

/// RFC 1071: one's complement of the one's complement sum of 16-bit words; an odd last byte is padded with zero.
pub fn internet_checksum(parts: &[&[u8]]) -> u16 {
    let mut sum: u64 = 0;
    for part in parts {
        for word in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Addresses of the pseudo header that L4 checksums cover.
#[derive(Debug, Clone, Copy)]
pub(super) enum Addresses {
    V4(Ipv4Addr, Ipv4Addr),
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    /// The pseudo header of RFC 793 and RFC 8200.
    pub(super) fn pseudo_header(self, protocol: u8, length: usize) -> Vec<u8> {
        // Segments of these tests fit in 16 bits.
        let length = length as u32;
        match self {
            Addresses::V4(src, dst) => {
                let mut header = [src.octets(), dst.octets()].concat();
                header.extend([0, protocol]);
                header.extend((length as u16).to_be_bytes());
                header
            }
            Addresses::V6(src, dst) => {
                let mut header = [src.octets(), dst.octets()].concat();
                header.extend(length.to_be_bytes());
                header.extend([0, 0, 0, protocol]);
                header
            }
        }
    }

    pub(super) fn checksum(self, protocol: u8, segment: &[u8]) -> u16 {
        internet_checksum(&[&self.pseudo_header(protocol, segment.len()), segment])
    }
}

#[cfg(test)]
mod tests {
    use super::internet_checksum;

    #[test]
    fn example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(internet_checksum(&[&bytes]), !0xddf2);
        assert_eq!(internet_checksum(&[&bytes[..4], &bytes[4..]]), !0xddf2);
    }
}
