//! Checksums that become zero, which is 0xffff in one's complement. UDP writes 0xffff because zero means "no
//! checksum" (RFC 768; RFC 8200, section 8.1); TCP and ICMP write zero. Covers every kind of rewriting, in packets
//! and in packets quoted by ICMP errors.
//!
//! The kit computes every expected checksum, and so the payloads.

use anyhow::{Result, ensure};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use crate::{
    established::rig::{HERE, OTHER, Rig, VIP},
    node::Endpoint,
};

const ACK: u8 = tcp_flags::ACK;

/// An address family, and the offsets of the checksums.
#[derive(Clone, Copy)]
struct Family {
    ip6: bool,
    /// Offset of the L4 header.
    transport: usize,
}

const V4: Family = Family { ip6: false, transport: 34 };
const V6: Family = Family { ip6: true, transport: 54 };

impl Family {
    fn rig(self, label: &str) -> Result<Rig> {
        if self.ip6 {
            Rig::at(&format!("{label}6"), VIP.ip6().into(), OTHER.ip6().into())
        } else {
            Rig::new(label)
        }
    }

    /// A packet between two endpoints with the MAC addresses `macs`.
    fn packet(self, macs: ([u8; 6], [u8; 6]), from: Endpoint, to: Endpoint) -> Packet {
        let eth = Packet::eth(macs.1, macs.0);
        if self.ip6 { eth.ipv6(from.ip6(), to.ip6()) } else { eth.ipv4(from.ip(), to.ip()) }
    }

    /// MAC address of the service.
    fn vip_mac(self) -> [u8; 6] {
        let [.., a, b, c, d] = VIP.ip6().octets();
        if self.ip6 { [2, 2, a, b, c, d] } else { VIP.mac() }
    }

    /// A packet from the client, as sent and as received.
    fn there(self) -> [Packet; 2] {
        [
            self.packet((HERE.mac(), self.vip_mac()), HERE, VIP),
            self.packet((HERE.mac(), OTHER.mac()), HERE, OTHER),
        ]
    }

    /// A packet from the backend, as sent and as received.
    fn back(self) -> [Packet; 2] {
        [
            self.packet((OTHER.mac(), HERE.mac()), OTHER, HERE),
            self.packet((OTHER.mac(), HERE.mac()), VIP, HERE),
        ]
    }
}

#[derive(Clone, Copy, Debug)]
enum Transport {
    Udp,
    Tcp,
}

impl Transport {
    fn of(self, packet: Packet, from: u16, to: u16) -> Packet {
        match self {
            Transport::Udp => packet.udp(from, to),
            Transport::Tcp => packet.tcp(from, to, ACK),
        }
    }

    /// Offset of the checksum in the header.
    fn sum_at(self) -> usize {
        match self {
            Transport::Udp => 6,
            Transport::Tcp => 16,
        }
    }

    /// Representation of a zero checksum.
    fn zero(self) -> [u8; 2] {
        match self {
            Transport::Udp => [0xff; 2],
            Transport::Tcp => [0; 2],
        }
    }

    /// Checksum of a frame whose header is at `at`.
    fn sum(self, frame: &[u8], at: usize) -> [u8; 2] {
        let at = at + self.sum_at();
        [frame[at], frame[at + 1]]
    }
}

/// Builds a packet with this payload, as sent and as received.
type Packets<'a> = dyn Fn(&[u8]) -> (Packet, Packet) + 'a;

/// The word with which a packet's checksum becomes `zero`: the checksum that the packet has with a word of zeros.
fn word(sum: impl Fn([u8; 2]) -> [u8; 2], zero: [u8; 2]) -> Result<[u8; 2]> {
    let word = sum([0; 2]);
    ensure!(sum(word) == zero, "with {word:x?} the checksum is {:x?}", sum(word));
    Ok(word)
}

/// Packets to and from a service whose checksum is zero as sent or as received.
fn packets_that_come_to_zero(label: &str, family: Family, transport: Transport) -> Result<()> {
    let rig = family.rig(label)?;
    let both = |[sent, arrives]: [Packet; 2], [(a, b), (c, d)]: [(u16, u16); 2], payload: &[u8]| {
        (transport.of(sent, a, b).payload(payload), transport.of(arrives, c, d).payload(payload))
    };
    let there = |payload: &[u8]| both(family.there(), [(4000, 80), (4000, 8080)], payload);
    let back = |payload: &[u8]| both(family.back(), [(8080, 4000), (80, 4000)], payload);
    let ways: [(Endpoint, &Packets<'_>); 2] = [(HERE, &there), (OTHER, &back)];
    let mut zeros = vec![];
    for (from, packets) in ways {
        for side in [0, 1] {
            let sum = |word: [u8; 2]| {
                let (sent, arrives) = packets(&word);
                transport.sum(&[sent, arrives][side].build(), family.transport)
            };
            let word = word(sum, transport.zero())?;
            zeros.push((from, packets, word));
        }
    }
    // Through the slow path, with and without a header option that prevents caching.
    for (from, packets, word) in &zeros {
        let (sent, arrives) = packets(word);
        rig.becomes(*from, &sent, &arrives);
        rig.becomes(*from, &sent.ip_options(&[1; 4]), &arrives.ip_options(&[1; 4]));
    }
    for (from, packets, word) in &zeros {
        rig.repeat(*from, |_| packets(word));
    }
    Ok(())
}

#[test]
fn translated_packets_may_have_a_zero_checksum() -> Result<()> {
    needs!(root());
    for family in [V4, V6] {
        packets_that_come_to_zero("sum-udp", family, Transport::Udp)?;
        packets_that_come_to_zero("sum-tcp", family, Transport::Tcp)?;
    }
    Ok(())
}

/// ICMP errors about packets with such checksums, whose own checksum is zero.
fn errors_that_come_to_zero(label: &str, family: Family, transport: Transport) -> Result<()> {
    let rig = family.rig(label)?;
    let [to_vip, to_pod] = family.there();
    let (sent, arrived) = (transport.of(to_vip, 4000, 80), transport.of(to_pod, 4000, 8080));
    rig.becomes(HERE, &sent, &arrived);
    let [error, shown] = family.back();
    // Unreachable. The field for the MTU is zero here (RFC 792) and ignored.
    let say = |packet: Packet, rest: [u8; 2], quoted: &Packet| {
        let rest = [0, 0, rest[0], rest[1]];
        let packet = if family.ip6 { packet.icmpv6(1, 4, rest) } else { packet.icmp(3, 3, rest) };
        packet.payload(&quoted.build()[14..])
    };
    for side in [0, 1] {
        let sum = |word: [u8; 2]| {
            let pair = [arrived.clone(), sent.clone()].map(|packet| packet.payload(&word).build());
            transport.sum(&pair[side], family.transport)
        };
        let quoted = word(sum, transport.zero())?;
        let quoted = [arrived.clone(), sent.clone()].map(|packet| packet.payload(&quoted));
        for zero in [0, 1] {
            let frames = |rest| [say(error.clone(), rest, &quoted[0]), say(shown.clone(), rest, &quoted[1])];
            let sum = |rest| {
                let frame = frames(rest)[zero].build();
                [frame[family.transport + 2], frame[family.transport + 3]]
            };
            let rest = word(sum, [0; 2])?;
            let [error, shown] = frames(rest);
            rig.becomes(OTHER, &error, &shown);
        }
    }
    Ok(())
}

#[test]
fn packets_quoted_in_icmp_errors_may_have_a_zero_checksum() -> Result<()> {
    needs!(root());
    for family in [V4, V6] {
        errors_that_come_to_zero("sum-equdp", family, Transport::Udp)?;
        errors_that_come_to_zero("sum-eqtcp", family, Transport::Tcp)?;
    }
    Ok(())
}

/// UDP without checksum, over IPv6 by agreement of both ends (RFC 6935): the programs add none.
#[test]
fn datagrams_without_checksum_stay_without() -> Result<()> {
    needs!(root());
    for family in [V4, V6] {
        let rig = family.rig("sum-none")?;
        let [sent, arrived] = family.there();
        let (sent, arrived) = (sent.udp_unchecked(4000, 80), arrived.udp_unchecked(4000, 8080));
        rig.becomes(HERE, &sent, &arrived);
        let [error, shown] = family.back();
        let say = |packet: Packet, quoted: &Packet| {
            let packet = if family.ip6 { packet.icmpv6(1, 4, [0; 4]) } else { packet.icmp(3, 3, [0; 4]) };
            packet.payload(&quoted.build()[14..])
        };
        rig.becomes(OTHER, &say(error, &arrived), &say(shown, &sent));
        let [answer, shown] = family.back();
        rig.becomes(OTHER, &answer.udp_unchecked(8080, 4000), &shown.udp_unchecked(80, 4000));
        rig.repeat(HERE, |_| (sent.clone(), arrived.clone()));
    }
    Ok(())
}
