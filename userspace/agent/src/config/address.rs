use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use nix::ifaddrs::{InterfaceAddress, getifaddrs};

/// The address that this host has on the way out, else the first that is not loopback.
pub(super) fn own() -> IpAddr {
    routed().or_else(first).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

fn routed() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Sends nothing: connecting a UDP socket only looks up the route. The address is from the documentation range.
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_unspecified())
}

fn first() -> Option<IpAddr> {
    let v4 = |interface: InterfaceAddress| Some(interface.address?.as_sockaddr_in()?.ip());
    getifaddrs().ok()?.filter_map(v4).find(|ip| !ip.is_loopback()).map(IpAddr::V4)
}
