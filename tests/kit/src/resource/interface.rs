//! Interfaces in the network namespace of the calling thread. Requests of rtnetlink(7) and not the program `ip`: a test makes
//! dozens of them, and on an emulated kernel each program costs 60 ms.

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd as _,
};

use anyhow::{Context as _, Result, bail};
use nix::{errno::Errno, net::if_::if_nametoindex};
use rtnetlink::{
    AddressMessageBuilder, LinkMessageBuilder, LinkUnspec, LinkVeth,
    packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        address::{AddressAttribute, AddressFlags},
        link::{InfoData, InfoVeth, LinkAttribute, LinkFlags, State},
    },
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};

const NEW: u16 = NLM_F_CREATE | NLM_F_EXCL;
/// Bytes. The kernel describes an interface in less than two pages.
const ANSWER: usize = 16 * 1024;

/// What the kernel says of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    pub index: u32,
    /// As the kernel prints it: `02:00:00:00:00:01`. Empty if it has none.
    pub mac: String,
    /// Index of the other end of a veth pair.
    pub peer: Option<u32>,
    /// Whether it forwards frames: some time after both ends of a veth pair are up.
    pub carries: bool,
}

pub(super) fn up(link: &str) -> Result<()> {
    change(LinkUnspec::new_with_name(link).up())
}

/// Sets down all interfaces that are in no group of their own.
pub(super) fn all_down() -> Result<()> {
    let group = LinkMessageBuilder::<LinkUnspec>::new().link_group(0).down().build();
    request(RouteNetlinkMessage::NewLink(group), 0).map(drop)
}

pub(super) fn mtu(link: &str, mtu: u16) -> Result<()> {
    change(LinkUnspec::new_with_name(link).mtu(mtu.into()))
}

pub(super) fn mac(link: &str, mac: &str) -> Result<()> {
    let bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<Vec<_>, _>>();
    change(LinkUnspec::new_with_name(link).address(bytes.with_context(|| format!("MAC address {mac}"))?))
}

/// Creates a veth pair, both ends down: `name` here, `peer_name` in the namespace `peer`.
pub(super) fn veth(name: &str, peer: &File, peer_name: &str) -> Result<()> {
    let end = LinkUnspec::new_with_name(peer_name).setns_by_fd(peer.as_raw_fd()).build();
    let pair = LinkVeth::new(name, peer_name).set_info_data(InfoData::Veth(InfoVeth::Peer(end)));
    request(RouteNetlinkMessage::NewLink(pair.build()), NEW).map(drop)
}

/// Adds an address with prefix length; IPv6 addresses skip duplicate address detection.
pub(super) fn address(link: &str, address: &str) -> Result<()> {
    let (ip, length) = address.split_once('/').unwrap_or((address, ""));
    let ip: IpAddr = ip.parse().with_context(|| format!("address {address}"))?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    let length = if length.is_empty() {
        longest
    } else {
        length.parse().with_context(|| format!("address {address}"))?
    };
    let index = if_nametoindex(link)?;
    let message = match ip {
        IpAddr::V4(ip) => AddressMessageBuilder::<Ipv4Addr>::new().index(index).address(ip, length).build(),
        IpAddr::V6(ip) => {
            let mut message =
                AddressMessageBuilder::<Ipv6Addr>::new().index(index).address(ip, length).build();
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            message
        }
    };
    request(RouteNetlinkMessage::NewAddress(message), NEW).map(drop)
}

pub(super) fn find(link: &str) -> Result<Interface> {
    let message = LinkUnspec::new_with_name(link).build();
    let Some(RouteNetlinkMessage::NewLink(found)) = request(RouteNetlinkMessage::GetLink(message), 0)? else {
        bail!("the kernel answered with something else");
    };
    let mut interface =
        Interface { index: found.header.index, mac: String::new(), peer: None, carries: false };
    let (mut forwards, mut queues) = (false, false);
    for attribute in found.attributes {
        match attribute {
            LinkAttribute::Address(bytes) => {
                let digits: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                interface.mac = digits.join(":");
            }
            LinkAttribute::Link(index) => interface.peer = Some(index),
            LinkAttribute::OperState(state) => forwards = state == State::Up,
            // Until a queueing discipline is attached, the interface drops what it should send.
            LinkAttribute::Qdisc(name) => queues = name != "noop",
            _ => {}
        }
    }
    interface.carries = forwards && queues && found.header.flags.contains(LinkFlags::Up);
    Ok(interface)
}

fn change(link: LinkMessageBuilder<LinkUnspec>) -> Result<()> {
    request(RouteNetlinkMessage::SetLink(link.build()), 0).map(drop)
}

/// Sends one request; returns the kernel's answer, if there is one besides that it is done.
fn request(message: RouteNetlinkMessage, flags: u16) -> Result<Option<RouteNetlinkMessage>> {
    let mut request = NetlinkMessage::from(message);
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let socket = Socket::new(NETLINK_ROUTE).context("open a netlink socket")?;
    socket.connect(&SocketAddr::new(0, 0)).context("connect to the kernel")?;
    socket.send(&bytes, 0).context("send a netlink request")?;
    let mut found = None;
    loop {
        let mut answer = Vec::with_capacity(ANSWER);
        socket.recv(&mut answer, 0).context("receive a netlink answer")?;
        let mut rest = &answer[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::deserialize(rest).context("decode a netlink answer")?;
            let length = (message.header.length as usize).next_multiple_of(4).max(4);
            rest = rest.get(length..).unwrap_or_default();
            match message.payload {
                NetlinkPayload::Error(error) => match error.code {
                    None => return Ok(found),
                    Some(code) => return Err(Errno::from_raw(-code.get()).into()),
                },
                NetlinkPayload::InnerMessage(inner) => found = Some(inner),
                other => bail!("the kernel answered {other:?}"),
            }
        }
    }
}
