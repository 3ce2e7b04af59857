//! Headers in wire format, for reading and writing.

use contiv_abi::{Be16, Mac};

use crate::frame;

/// The fixed header of IPv4 (RFC 791 3.1).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ipv4 {
    pub(crate) version_and_length: u8,
    pub(crate) service: u8,
    pub(crate) total: Be16,
    pub(crate) identification: Be16,
    pub(crate) fragment: Be16,
    pub(crate) ttl: u8,
    pub(crate) protocol: u8,
    pub(crate) checksum: Be16,
    pub(crate) source: [u8; 4],
    pub(crate) destination: [u8; 4],
}
const _: () = assert!(size_of::<Ipv4>() == 20);

/// The fixed header of IPv6 (RFC 8200 3).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ipv6 {
    pub(crate) version_class_label: [u8; 4],
    pub(crate) payload: Be16,
    pub(crate) next: u8,
    pub(crate) hops: u8,
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
}
const _: () = assert!(size_of::<Ipv6>() == 40);

/// ARP for IPv4 over Ethernet (RFC 826), behind the Ethernet header.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Arp {
    pub(crate) form: ArpForm,
    pub(crate) operation: Be16,
    pub(crate) sender_mac: Mac,
    pub(crate) sender_ip: [u8; 4],
    pub(crate) target_mac: Mac,
    pub(crate) target_ip: [u8; 4],
}

/// Types and lengths of the addresses.
#[derive(Clone, Copy, PartialEq)]
#[repr(C)]
pub(crate) struct ArpForm {
    hardware: Be16,
    protocol: Be16,
    address_lengths: Be16,
}

impl Arp {
    pub(crate) const ETHERNET_IPV4: ArpForm =
        ArpForm { hardware: Be16::new(1), protocol: frame::IPV4, address_lengths: Be16::new(0x0604) };
    pub(crate) const REQUEST: Be16 = Be16::new(1);
    pub(crate) const REPLY: Be16 = Be16::new(2);
}
const _: () = assert!(size_of::<Arp>() == 28);

/// Ports of TCP and UDP.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Ports {
    pub(crate) source: Be16,
    pub(crate) destination: Be16,
}

/// A header of TCP without options (RFC 9293 3.1).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Tcp {
    pub(crate) ports: Ports,
    pub(crate) sequence: [Be16; 2],
    pub(crate) acknowledged: [Be16; 2],
    pub(crate) offset_and_flags: [u8; 2],
    pub(crate) window: Be16,
    pub(crate) checksum: Be16,
    pub(crate) urgent: Be16,
}
const _: () = assert!(size_of::<Tcp>() == 20);
