//! IP protocol numbers, and ports with a meaning.

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;
/// IP protocol number of SCTP.
pub const SCTP: u8 = 132;
/// IP protocol number of ICMP.
pub const ICMP: u8 = 1;
/// IP protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// UDP port of DHCP clients (RFC 2131 section 4.1, RFC 8415 section 7.2). They do not check the source port of a message.
#[inline(always)]
pub const fn dhcp_client(ip6: bool) -> u16 {
    if ip6 { 546 } else { 68 }
}
