//! Checksums that come to zero, which is 0xffff in one's complement: UDP writes the one, because the other means "none"
//! (RFC 768, RFC 8200 8.1), TCP and ICMP the other. In each way of rewriting, in packets and in what errors quote of them.
//!
//! The bytes that come to zero are found by trying; every checksum is the kit's own.

use anyhow::{Context as _, Result};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use crate::{
    node::Who,
    shortcuts::rig::{HERE, OTHER, Rig, VIP},
};

const ACK: u8 = tcp_flags::ACK;

/// A family of addresses, and where a packet of it has its checksums.
#[derive(Clone, Copy)]
struct Family {
    ip6: bool,
    /// Where the transport begins.
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

    /// From one to another, by Ethernet between `macs`.
    fn packet(self, macs: ([u8; 6], [u8; 6]), from: Who, to: Who) -> Packet {
        let eth = Packet::eth(macs.1, macs.0);
        if self.ip6 { eth.ipv6(from.ip6(), to.ip6()) } else { eth.ipv4(from.ip(), to.ip()) }
    }

    /// Of the service, by Ethernet.
    fn vip_mac(self) -> [u8; 6] {
        let [.., a, b, c, d] = VIP.ip6().octets();
        if self.ip6 { [2, 2, a, b, c, d] } else { VIP.mac() }
    }

    /// From the client, as it is sent and as it arrives.
    fn there(self) -> [Packet; 2] {
        [
            self.packet((HERE.mac(), self.vip_mac()), HERE, VIP),
            self.packet((HERE.mac(), OTHER.mac()), HERE, OTHER),
        ]
    }

    /// From the backend, likewise.
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

    /// The place of the checksum in the header.
    fn sum_at(self) -> usize {
        match self {
            Transport::Udp => 6,
            Transport::Tcp => 16,
        }
    }

    /// How it writes a checksum that is zero.
    fn zero(self) -> [u8; 2] {
        match self {
            Transport::Udp => [0xff; 2],
            Transport::Tcp => [0; 2],
        }
    }

    fn is_zero(self, frame: &[u8], at: usize) -> bool {
        frame[at + self.sum_at()..][..2] == self.zero()
    }
}

/// Makes a packet with this payload, as it is sent and as it arrives.
type Packets<'a> = dyn Fn(&[u8]) -> (Packet, Packet) + 'a;

/// A word of which this is true.
fn word(is: impl Fn([u8; 2]) -> bool) -> Result<[u8; 2]> {
    (0..=u16::MAX).map(u16::to_be_bytes).find(|word| is(*word)).context("no word does it")
}

/// Packets to a service and from it, which come to zero as they are sent or as they arrive.
fn packets_that_come_to_zero(label: &str, family: Family, transport: Transport) -> Result<()> {
    let rig = family.rig(label)?;
    let both = |[sent, arrives]: [Packet; 2], [(a, b), (c, d)]: [(u16, u16); 2], payload: &[u8]| {
        (transport.of(sent, a, b).payload(payload), transport.of(arrives, c, d).payload(payload))
    };
    let there = |payload: &[u8]| both(family.there(), [(4000, 80), (4000, 8080)], payload);
    let back = |payload: &[u8]| both(family.back(), [(8080, 4000), (80, 4000)], payload);
    let ways: [(Who, &Packets<'_>); 2] = [(HERE, &there), (OTHER, &back)];
    let mut zeros = vec![];
    for (from, packets) in ways {
        for side in [0, 1] {
            let word = word(|word| {
                let (sent, arrives) = packets(&word);
                transport.is_zero(&[sent, arrives][side].build(), family.transport)
            })?;
            zeros.push((from, packets, word));
        }
    }
    // Through the stages, with and without what makes the header one that is not plain.
    for (from, packets, word) in &zeros {
        let (sent, arrives) = packets(word);
        rig.becomes(*from, &sent, &arrives);
        rig.becomes(*from, &sent.ip_options(&[1; 4]), &arrives.ip_options(&[1; 4]));
    }
    for (from, packets, word) in &zeros {
        rig.until_taken(*from, |_| packets(word))?;
    }
    Ok(())
}

#[test]
fn checksums_of_packets_may_come_to_zero() -> Result<()> {
    needs!(root());
    for family in [V4, V6] {
        packets_that_come_to_zero("sum-udp", family, Transport::Udp)?;
        packets_that_come_to_zero("sum-tcp", family, Transport::Tcp)?;
    }
    Ok(())
}

/// Errors about packets with such checksums, which come to zero themselves.
fn errors_that_come_to_zero(label: &str, family: Family, transport: Transport) -> Result<()> {
    let rig = family.rig(label)?;
    let [to_vip, to_pod] = family.there();
    let (sent, arrived) = (transport.of(to_vip, 4000, 80), transport.of(to_pod, 4000, 8080));
    rig.becomes(HERE, &sent, &arrived);
    let [error, shown] = family.back();
    // Unreachable. What has room for an MTU in other errors is zero here by the book, and is not looked at.
    let say = |packet: Packet, rest: [u8; 2], quoted: &Packet| {
        let rest = [0, 0, rest[0], rest[1]];
        let packet = if family.ip6 { packet.icmpv6(1, 4, rest) } else { packet.icmp(3, 3, rest) };
        packet.payload(&quoted.build()[14..])
    };
    for side in [0, 1] {
        let quoted = word(|word| {
            let pair = [arrived.clone(), sent.clone()].map(|packet| packet.payload(&word).build());
            transport.is_zero(&pair[side], family.transport)
        })?;
        let quoted = [arrived.clone(), sent.clone()].map(|packet| packet.payload(&quoted));
        for zero in [0, 1] {
            let frames = |rest| [say(error.clone(), rest, &quoted[0]), say(shown.clone(), rest, &quoted[1])];
            let is_zero = |packet: &Packet| packet.build()[family.transport + 2..][..2] == [0; 2];
            let rest = word(|rest| is_zero(&frames(rest)[zero]))?;
            let [error, shown] = frames(rest);
            rig.becomes(OTHER, &error, &shown);
        }
    }
    Ok(())
}

#[test]
fn checksums_in_what_errors_quote_may_come_to_zero() -> Result<()> {
    needs!(root());
    for family in [V4, V6] {
        errors_that_come_to_zero("sum-equdp", family, Transport::Udp)?;
        errors_that_come_to_zero("sum-eqtcp", family, Transport::Tcp)?;
    }
    Ok(())
}

/// UDP may do without, over IPv6 where both ends know that (RFC 6935): what has none is not given one.
#[test]
fn datagrams_without_a_checksum_are_left_without() -> Result<()> {
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
        rig.until_taken(HERE, |_| (sent.clone(), arrived.clone()))?;
    }
    Ok(())
}
