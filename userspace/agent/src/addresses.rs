//! Addresses of the node's interfaces.

use std::{io, net::IpAddr};

use ipnet::IpNet;
use nix::{ifaddrs::getifaddrs, sys::socket::SockaddrStorage};

/// The addresses in the network namespace of the calling thread, with the names of their interfaces and the lengths of their
/// prefixes.
pub(crate) fn read() -> io::Result<Vec<(String, IpNet)>> {
    let ip = |address: Option<SockaddrStorage>| {
        let address = address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    };
    let addresses = getifaddrs()?.filter_map(|interface| {
        let net = IpNet::with_netmask(ip(interface.address)?, ip(interface.netmask)?).ok()?;
        Some((of_label(&interface.interface_name).to_owned(), net))
    });
    Ok(addresses.collect())
}

/// The interface of an address label (`IFA_LABEL`), which getifaddrs(3) returns for IPv4: `eth1` of `eth1:bgp`. Names of interfaces
/// have no colon.
fn of_label(label: &str) -> &str {
    label.split_once(':').map_or(label, |(interface, _)| interface)
}

#[cfg(test)]
mod tests {
    use testkit::{Netns, needs};

    use super::*;

    #[test]
    fn addresses_have_their_interfaces_and_prefixes() {
        needs!(root(), binary("ip"));
        let (node, other) = (Netns::new("addresses").unwrap(), Netns::new("other").unwrap());
        node.veth("contivh0", &other, "eth0").unwrap();
        for address in ["172.19.255.254/16", "2001:db8::1/64"] {
            node.address("contivh0", address).unwrap();
        }
        node.ip("address add 50.1.1.1/24 dev contivh0 label contivh0:bgp").unwrap();
        let found = node.run(|| Ok(read()?)).unwrap();
        for (interface, address) in [
            ("lo", "127.0.0.1/8"),
            ("contivh0", "172.19.255.254/16"),
            ("contivh0", "50.1.1.1/24"),
            ("contivh0", "2001:db8::1/64"),
        ] {
            assert!(
                found.contains(&(interface.to_owned(), address.parse().unwrap())),
                "{address}: {found:?}"
            );
        }
    }
}
