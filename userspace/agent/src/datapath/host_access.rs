//! Host access: pods reach addresses outside of the cluster's networks through the kernel of their node.
//!
//! The addresses of tenants overlap, so each endpoint has an address of a private subnet towards the kernel (INVENTORY
//! section 5.6):
//!
//! ```text
//!  pod 10.1.0.5, vvport7 ─ datapath ─ 172.19.0.7 ─ contivh0 172.19.255.254 ─ kernel: masquerade ─ physical network
//! ```

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;

/// Interface of the node's kernel on the datapath. It exists while the node has a route with
/// [`NextHop::Host`](contiv_model::route::NextHop::Host). Its Ethernet address is [`KERNEL_MAC`](super::KERNEL_MAC).
pub const HOST_PORT: &str = "contivh0";

/// IPv4 destinations outside of the cluster for which the node's kernel receives no packets of pods. They are not
/// addresses of hosts (RFC 6890), or they are link-local (RFC 3927 section 7), where the node may provide services that
/// are not meant for pods.
pub(crate) const NO_HOST: [Ipv4Net; 4] = [
    Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 8),
    Ipv4Net::new_assert(Ipv4Addr::new(127, 0, 0, 0), 8),
    Ipv4Net::new_assert(Ipv4Addr::new(169, 254, 0, 0), 16),
    Ipv4Net::new_assert(Ipv4Addr::new(224, 0, 0, 0), 3),
];

/// Reports whether no host outside of the node has this address: an IPv4 address in [`NO_HOST`], or a link-local IPv6
/// address, which stays on its link.
pub(crate) fn is_no_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => NO_HOST.iter().any(|prefix| prefix.contains(&ip)),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Host part of the kernel's address.
const KERNEL: u32 = 0xfffe;

/// Address of the kernel in the private subnet, a /16.
pub fn kernel_address(subnet: Ipv4Net) -> Ipv4Addr {
    Ipv4Addr::from(subnet.network().to_bits() | KERNEL)
}

/// Returns the number of the interface with this name, `vvport<N>`, which is the host part of its endpoint's address.
/// `None` for another name.
pub fn endpoint_number(port: &str) -> Option<u32> {
    let number: u32 = port.strip_prefix("vvport")?.parse().ok()?;
    (1..KERNEL).contains(&number).then_some(number)
}

/// Address in the private subnet of the endpoint whose interface on the node has this name. `None` for a name without a
/// [number](endpoint_number).
pub fn endpoint_address(subnet: Ipv4Net, port: &str) -> Option<Ipv4Addr> {
    endpoint_number(port).map(|number| Ipv4Addr::from(subnet.network().to_bits() | number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_know_the_same_addresses() {
        let ends = |prefix: Ipv4Net| [prefix.network(), prefix.broadcast()];
        let closed = NO_HOST.iter().copied().flat_map(ends);
        let beside = NO_HOST.iter().copied().flat_map(ends).flat_map(|ip| {
            let (before, after) = (ip.to_bits().checked_sub(1), ip.to_bits().checked_add(1));
            before.into_iter().chain(after).map(Ipv4Addr::from)
        });
        let six = [
            "::",
            "::1",
            "2001:db8::1",
            "::7f00:1",
            "ff02::1",
            "fe80::1",
            "febf:ffff::1",
            "fec0::",
            "fe7f::1",
        ];
        let six = six.map(|ip| ip.parse::<IpAddr>().unwrap());
        for ip in closed.chain(beside).map(IpAddr::V4).chain(six) {
            assert_eq!(contiv_abi::Address::from(ip).is_no_host(), is_no_host(ip), "{ip}");
        }
        assert!(is_no_host("fe80::1".parse().unwrap()) && !is_no_host("fec0::".parse().unwrap()));
    }

    #[test]
    fn the_number_of_a_port_is_its_address() {
        let subnet = "172.19.0.0/16".parse().unwrap();
        assert_eq!(kernel_address(subnet).to_string(), "172.19.255.254");
        let address = |port| endpoint_address(subnet, port).map(|address| address.to_string());
        assert_eq!(address("vvport7").as_deref(), Some("172.19.0.7"));
        assert_eq!(address("vvport65533").as_deref(), Some("172.19.255.253"));
        for other in ["vvport0", "vvport65534", "vvport", "vvport-1", "contivh1"] {
            assert_eq!(address(other), None, "{other}");
        }
    }
}
