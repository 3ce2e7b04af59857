use std::{
    io,
    net::{IpAddr, Ipv4Addr},
};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use nix::net::if_::if_nametoindex;
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec,
    packet_route::link::{LinkFlags, LinkMessage},
};

use crate::{addresses, sysctl};

/// The interface with the router IP, on which the leaf switch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Uplink {
    pub(super) name: String,
    pub(super) index: u32,
    /// Prefixes of its addresses, without link-local ones.
    pub(super) prefixes: Vec<IpNet>,
    /// Its addresses.
    pub(super) addresses: Vec<IpAddr>,
}

impl Uplink {
    /// `None` if no interface has the address.
    pub(super) fn with(router: Ipv4Addr) -> io::Result<Option<Uplink>> {
        let all = addresses::read()?;
        let owner = all.iter().find(|(_, address)| address.addr() == IpAddr::V4(router));
        let Some((name, _)) = owner.cloned() else { return Ok(None) };
        let own = || all.iter().filter(|(of, _)| *of == name).map(|(_, address)| *address);
        let is_global = |address: &IpNet| match address {
            IpNet::V4(_) => true,
            IpNet::V6(address) => !address.addr().is_unicast_link_local(),
        };
        let mut prefixes: Vec<IpNet> = own().filter(is_global).map(|address| address.trunc()).collect();
        prefixes.sort_unstable();
        prefixes.dedup();
        let addresses = own().map(|address| address.addr()).collect();
        Ok(Some(Uplink { index: if_nametoindex(name.as_str())?, name, prefixes, addresses }))
    }

    /// Whether an address is in a subnet of the interface. One without an IPv6 subnet, such as with an address of DHCPv6 alone (/128),
    /// may have any IPv6 address on its link.
    pub(super) fn is_on_link(&self, address: IpAddr) -> bool {
        if is_mapped(&address) {
            return false;
        }
        let is_ipv6 = |prefix: &IpNet| matches!(prefix, IpNet::V6(subnet) if subnet.prefix_len() < 128);
        match address {
            IpAddr::V6(_) if !self.prefixes.iter().any(is_ipv6) => true,
            _ => self.prefixes.iter().any(|prefix| prefix.contains(&address)),
        }
    }
}

/// Whether an address is an IPv4 address in the form of IPv6 (`::ffff:a.b.c.d`), which no host on a link answers for.
pub(super) fn is_mapped(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

/// Index of an interface; `None` if it does not exist.
pub(super) async fn find(handle: &Handle, name: &str) -> Result<Option<LinkMessage>, rtnetlink::Error> {
    match handle.link().get().match_name(name.to_owned()).execute().try_next().await {
        Ok(link) => Ok(link),
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => Ok(None),
        Err(error) => Err(error),
    }
}

/// Brings up the interface to the switch. Without ARP and ND, the kernel sends all packets to its own Ethernet address: the switch
/// finds the endpoints.
pub(super) async fn bring_up(handle: &Handle, link: &LinkMessage) -> Result<(), rtnetlink::Error> {
    if link.header.flags.contains(LinkFlags::Up | LinkFlags::Noarp) {
        return Ok(());
    }
    let message = LinkMessageBuilder::<LinkUnspec>::new().index(link.header.index).arp(false).up().build();
    handle.link().set(message).execute().await
}

/// Makes the kernel forward what arrives at an interface. Returns whether it forwards IPv6.
pub(super) fn forward(name: &str) -> io::Result<bool> {
    sysctl::forward_ipv4(name)?;
    sysctl::forward_ipv6(name)
}

/// Prepares the interface to the switch, before it is up: it needs no address, and the kernel of the node is no station of it.
pub(super) fn silence(name: &str) -> io::Result<()> {
    sysctl::no_link_local(name)?;
    sysctl::disable_ra(name)?;
    sysctl::disable_redirects(name)
}
