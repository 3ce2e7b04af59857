//! Frames that announce the Ethernet address of an IP address on a VLAN, so that switches learn its port.
//!
//! Announcements are replies, not requests: the previous owner of an address may still answer for a moment, and its reply to
//! a request would make the switches learn its port again.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

type Mac = [u8; 6];

/// Numbers of announcements, by result.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    sent: AtomicU64,
    failed: AtomicU64,
    left_out: AtomicU64,
}

impl Outcomes {
    /// Counts an announcement that was sent or failed.
    pub(crate) fn count(&self, is_sent: bool) {
        let counter = if is_sent { &self.sent } else { &self.failed };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts announcements for which the queue had no space.
    pub(crate) fn leave_out(&self, announcements: u64) {
        self.left_out.fetch_add(announcements, Relaxed);
    }

    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let Outcomes { sent, failed, left_out } = self;
        [("sent", sent), ("failed", failed), ("left-out", left_out)]
            .map(|(name, count)| (name, count.load(Relaxed)))
            .into()
    }
}

const BROADCAST: Mac = [0xff; 6];
const VLAN: u16 = 0x8100;

/// A gratuitous ARP reply (RFC 5227, section 3) or an unsolicited neighbour advertisement (RFC 4861, section 7.2.6), with a
/// VLAN tag.
pub(crate) fn frame(vlan: u16, mac: Mac, ip: IpAddr) -> Vec<u8> {
    framed(&[VLAN, vlan], mac, ip)
}

/// Like [`frame`], without a tag: as the endpoint would send it.
pub(crate) fn untagged(mac: Mac, ip: IpAddr) -> Vec<u8> {
    framed(&[], mac, ip)
}

fn framed(tag: &[u16], mac: Mac, ip: IpAddr) -> Vec<u8> {
    let (to, kind, body) = match ip {
        IpAddr::V4(ip) => (BROADCAST, 0x0806_u16, arp(mac, ip)),
        IpAddr::V6(ip) => ([0x33, 0x33, 0, 0, 0, 1], 0x86dd, advertisement(mac, ip)),
    };
    let mut frame = [&to[..], &mac].concat();
    for word in tag.iter().chain([&kind]) {
        frame.extend(word.to_be_bytes());
    }
    frame.extend(body);
    frame
}

fn arp(mac: Mac, ip: Ipv4Addr) -> Vec<u8> {
    const ETHERNET_IPV4_REPLY: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 2];
    [&ETHERNET_IPV4_REPLY[..], &mac, &ip.octets(), &BROADCAST, &ip.octets()].concat()
}

fn advertisement(mac: Mac, ip: Ipv6Addr) -> Vec<u8> {
    const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    const LEN: u8 = 32;
    const ICMPV6: u8 = 58;
    const HOPS: u8 = 255;
    const OVERRIDE: u8 = 0x20;
    let mut message = [&[136, 0, 0, 0, OVERRIDE, 0, 0, 0][..], &ip.octets(), &[2, 1], &mac].concat();
    let pseudo = [&ip.octets()[..], &ALL_NODES.octets(), &[0, 0, 0, LEN, 0, 0, 0, ICMPV6]].concat();
    let words = pseudo.chunks_exact(2).chain(message.chunks_exact(2));
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    message[2..4].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    let header = [&[0x60, 0, 0, 0, 0, LEN, ICMPV6, HOPS][..], &ip.octets(), &ALL_NODES.octets()].concat();
    [header, message].concat()
}
