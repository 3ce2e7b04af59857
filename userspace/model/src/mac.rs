//! Ethernet addresses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use serde::{Deserialize, Serialize};

/// A 48-bit Ethernet address, octets in transmission order, written `02:02:0a:01:01:05`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mac(pub [u8; 6]);

/// A text that is not six hexadecimal octets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("MAC address {0:?}: expected six hexadecimal octets such as 02:02:0a:01:01:05")]
pub struct MacError(String);

impl Mac {
    /// The Ethernet address with which every node answers for the gateways of routed networks: that of the original.
    pub const ROUTER: Mac = Mac([0x00, 0x00, 0x11, 0x11, 0x11, 0x11]);

    /// The Ethernet address of the endpoint with the IPv4 address `ip`: `02:02:` and the four
    /// octets (INVENTORY 2.5).
    pub const fn of_endpoint(ip: Ipv4Addr) -> Mac {
        let [a, b, c, d] = ip.octets();
        Mac([2, 2, a, b, c, d])
    }

    /// The Ethernet address with which nodes answer for the address of a service: `02:02:` and its last four octets.
    pub const fn of_service(vip: IpAddr) -> Mac {
        Mac::of_endpoint(match vip {
            IpAddr::V4(vip) => vip,
            IpAddr::V6(vip) => Ipv4Addr::from_bits(vip.to_bits() as u32),
        })
    }

    /// The IPv6 link-local address that a kernel forms from the address (RFC 4291 appendix A).
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let words = [[a ^ 2, b], [c, 0xff], [0xfe, d], [e, f]];
        let [g, h, i, j] = [
            u16::from_be_bytes(words[0]),
            u16::from_be_bytes(words[1]),
            u16::from_be_bytes(words[2]),
            u16::from_be_bytes(words[3]),
        ];
        Ipv6Addr::new(0xfe80, 0, 0, 0, g, h, i, j)
    }

    /// Returns true for multicast and broadcast addresses (the I/G bit is set).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let bad = || MacError(text.to_owned());
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts.next().filter(|p| (1..=2).contains(&p.len())).ok_or_else(bad)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Mac(octets)) }
    }
}

impl TryFrom<String> for Mac {
    type Error = MacError;
    fn try_from(text: String) -> Result<Self, MacError> {
        text.parse()
    }
}

impl From<Mac> for String {
    fn from(mac: Mac) -> String {
        mac.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoints_address_is_derived_from_its_ip() {
        assert_eq!(Mac::of_endpoint(Ipv4Addr::new(41, 1, 0, 254)).to_string(), "02:02:29:01:00:fe");
    }

    #[test]
    fn a_services_address_has_the_end_of_its_ip() {
        for (vip, mac) in [("41.1.0.254", "02:02:29:01:00:fe"), ("2001:db8::1:203:405", "02:02:02:03:04:05")]
        {
            assert_eq!(Mac::of_service(vip.parse().unwrap()).to_string(), mac);
        }
    }

    #[test]
    fn the_link_local_address_is_that_of_the_kernel() {
        assert_eq!(Mac([2, 2, 10, 1, 1, 9]).link_local().to_string(), "fe80::2:aff:fe01:109");
    }

    #[test]
    fn text_and_back() {
        assert_eq!("02:02:29:01:00:fe".parse::<Mac>().unwrap().0, [2, 2, 0x29, 1, 0, 0xfe]);
        for bad in ["", "02:02:29:01:00", "02:02:29:01:00:fe:00", "02:02:29:01:00:100", "g2:02:29:01:00:fe"] {
            assert!(bad.parse::<Mac>().is_err(), "{bad}");
        }
    }
}
