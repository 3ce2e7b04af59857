//! Addresses and ports of packets.

use crate::{Address, Be16};

/// Addresses, ports and protocol of a packet, in its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Tuple {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Source port of TCP, UDP and SCTP; the identifier of an ICMP echo; else zero.
    pub source_port: Be16,
    /// Destination port, likewise.
    pub destination_port: Be16,
    /// IP protocol number; for IPv6 that of the last header.
    pub protocol: u8,
    /// Zero.
    pub zero: [u8; 3],
}

impl Tuple {
    /// Assigns words of the addresses, see [`Address::words`], ports as of [`Tuple::ports`], and the
    /// protocol. By words, as [`Address::set_words`].
    #[inline(always)]
    pub fn set(&mut self, [source, destination]: [[u64; 2]; 2], ports: u32, protocol: u8) {
        self.source.set_words(source);
        self.destination.set_words(destination);
        let at_ports = &raw mut self.source_port;
        // SAFETY: both ports are an aligned word.
        unsafe { at_ports.cast::<u32>().write_volatile(ports.to_le()) };
        self.set_protocol(protocol);
    }

    /// Assigns the protocol, and the zeros behind it, as one word.
    #[inline(always)]
    pub fn set_protocol(&mut self, protocol: u8) {
        let at = &raw mut self.protocol;
        // SAFETY: the protocol with three zeros is an aligned word.
        unsafe { at.cast::<u32>().write_volatile(u32::from_ne_bytes([protocol, 0, 0, 0])) };
    }

    /// The tuple of the reply direction.
    #[inline(always)]
    pub fn reversed(&self) -> Tuple {
        let mut tuple = *self;
        tuple.reverse();
        tuple
    }

    /// Changes the tuple to that of the reply direction.
    #[inline(always)]
    pub fn reverse(&mut self) {
        let (source, port) = (self.source.words(), self.source_port);
        self.source.set_words(self.destination.words());
        self.source_port = self.destination_port;
        self.destination.set_words(source);
        self.destination_port = port;
    }

    /// Both ports in one number: the source port in the lower half.
    #[inline(always)]
    pub const fn ports(&self) -> u32 {
        self.source_port.wire() as u32 | (self.destination_port.wire() as u32) << 16
    }

    /// Compares by words.
    #[inline(always)]
    pub const fn same(&self, other: &Tuple) -> bool {
        let ([a, b], [c, d]) = (self.source.words(), self.destination.words());
        let ([e, f], [g, h]) = (other.source.words(), other.destination.words());
        let ports = self.ports() ^ other.ports() | (self.protocol ^ other.protocol) as u32;
        (a ^ e) | (b ^ f) | (c ^ g) | (d ^ h) | ports as u64 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_has_two_directions() {
        let (client, backend) = (Address::v4([10, 1, 1, 1]), Address::v4([10, 1, 1, 2]));
        let ends = [(client, 4000), (client, 80), (backend, 80), (Address([0xfd; 16]), 80)];
        for source in ends {
            for destination in ends {
                let there = Tuple {
                    source: source.0,
                    destination: destination.0,
                    source_port: Be16::new(source.1),
                    destination_port: Be16::new(destination.1),
                    protocol: crate::TCP,
                    zero: [0; 3],
                };
                assert!(there.same(&there) && there.reversed().reversed() == there);
                assert_eq!(there.same(&there.reversed()), there == there.reversed());
            }
        }
    }
}
