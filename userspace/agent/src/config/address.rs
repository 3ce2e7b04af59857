use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};

/// Source address of the default route, otherwise the first IPv4 address that is not a loopback address.
pub(super) fn default_address() -> IpAddr {
    routed().or_else(first).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

fn routed() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Connecting a UDP socket sends no packet; it only looks up the route. The address is from a documentation range.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

fn first() -> Option<IpAddr> {
    let v4 = |interface: InterfaceAddress| Some(interface.address?.as_sockaddr_in()?.ip());
    getifaddrs().ok()?.filter_map(v4).find(|ip| !ip.is_loopback()).map(IpAddr::V4)
}
