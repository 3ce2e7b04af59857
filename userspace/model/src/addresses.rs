//! IP addresses of an endpoint.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

/// Addresses of an endpoint: at least one, each once, IPv4 before IPv6. Within a family they keep
/// the order in which they were given; the first is the primary one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addresses(Arc<[IpAddr]>);

impl Addresses {
    /// Collects addresses. Returns `None` without any.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Option<Self> {
        let mut unique: Vec<IpAddr> = vec![];
        for address in addresses {
            if !unique.contains(&address) {
                unique.push(address);
            }
        }
        unique.sort_by_key(IpAddr::is_ipv6);
        (!unique.is_empty()).then(|| Addresses(unique.into()))
    }

    /// All addresses, IPv4 first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = IpAddr> + '_ {
        self.0.iter().copied()
    }

    /// Returns true if `address` is one of them.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// The IPv4 addresses.
    pub fn v4(&self) -> impl Iterator<Item = Ipv4Addr> + '_ {
        self.iter().filter_map(|address| match address {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        })
    }

    /// The IPv6 addresses.
    pub fn v6(&self) -> impl Iterator<Item = Ipv6Addr> + '_ {
        self.iter().filter_map(|address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(address),
        })
    }

    /// The addresses, if they are one IPv4 address and at most one IPv6 address.
    pub fn dual_stack(&self) -> Option<(Ipv4Addr, Option<Ipv6Addr>)> {
        match self.0[..] {
            [IpAddr::V4(ip)] => Some((ip, None)),
            [IpAddr::V4(ip), IpAddr::V6(ip6)] => Some((ip, Some(ip6))),
            _ => None,
        }
    }
}

impl From<Ipv4Addr> for Addresses {
    fn from(ip: Ipv4Addr) -> Self {
        Addresses([IpAddr::V4(ip)].into())
    }
}

impl From<(Ipv4Addr, Option<Ipv6Addr>)> for Addresses {
    fn from((ip, ip6): (Ipv4Addr, Option<Ipv6Addr>)) -> Self {
        match ip6 {
            Some(ip6) => Addresses([IpAddr::V4(ip), IpAddr::V6(ip6)].into()),
            None => ip.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[&str]) -> Option<Addresses> {
        Addresses::new(list.iter().map(|text| text.parse().unwrap()))
    }

    #[test]
    fn ipv4_precedes_ipv6_and_the_order_is_kept_otherwise() {
        let found = addresses(&["fd00::2", "10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"]).unwrap();
        let texts: Vec<_> = found.iter().map(|address| address.to_string()).collect();
        assert_eq!(texts, ["10.0.0.2", "10.0.0.1", "fd00::2", "fd00::1"]);
        assert_eq!((found.v4().count(), found.v6().count(), found.dual_stack()), (2, 2, None));
        assert_eq!(addresses(&[]), None);
    }

    #[test]
    fn dual_stack_is_one_address_per_family() {
        let (ip, ip6): (Ipv4Addr, Ipv6Addr) = ([10, 0, 0, 1].into(), "fd00::1".parse().unwrap());
        assert_eq!(Addresses::from(ip).dual_stack(), Some((ip, None)));
        assert_eq!(Addresses::from((ip, Some(ip6))).dual_stack(), Some((ip, Some(ip6))));
        assert_eq!(Addresses::from((ip, Some(ip6))), addresses(&["fd00::1", "10.0.0.1"]).unwrap());
        assert_eq!(addresses(&["fd00::1"]).unwrap().dual_stack(), None);
    }
}
