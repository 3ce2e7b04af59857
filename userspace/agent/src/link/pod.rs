//! The pod's end of a veth pair.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::{AddressAttribute, AddressFlags},
        link::{InfoData, InfoVeth, LinkAttribute, LinkMessage},
    },
};

use super::{Error, Netns, PodInterface, index, offload};
use crate::datapath::Owner;

/// The interface group of a node's end that is not complete yet. It is set together with the
/// interface, so no crash leaves a port that looks like somebody else's.
pub(super) const UNFINISHED: u32 = 0x0043_5456;

/// The request for a pair whose other end is made in the pod's namespace right away: it never shows
/// up on the node.
pub(super) fn pair(port: &str, netns: &Netns, pod: &PodInterface) -> LinkMessage {
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(&pod.name)
        .address(pod.mac.0.to_vec())
        .mtu(pod.mtu)
        .setns_by_fd(netns.fd())
        .build();
    LinkMessageBuilder::<LinkVeth>::new(port, &pod.name)
        .mtu(pod.mtu)
        .link_group(UNFINISHED)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .build()
}

/// Gives the pod's end its addresses; it stays down. Runs in the pod's namespace.
pub(super) async fn dress(handle: &Handle, pod: &PodInterface) -> Result<(), Error> {
    if pod.disable_tx_offload {
        offload::tx_checksum_off(&pod.name)
            .map_err(Error::setting("turn off transmit checksum offload of", &pod.name))?;
    }
    if pod.owner == Owner::Node {
        take_no_advice(&pod.name)?;
    }
    let index = find(handle, &pod.name).await?;
    let (ip, length) = pod.ip;
    address(handle, index, pod, ip.into(), length).await?;
    if let Some((ip, length)) = pod.ip6 {
        address(handle, index, pod, ip.into(), length).await?;
    }
    Ok(())
}

/// The node does not let pods tell it, by router advertisements, where its routes go.
fn take_no_advice(name: &str) -> Result<(), Error> {
    match std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), "0") {
        // A node without IPv6 hears none.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(Error::setting("turn off router advertisements on", name)),
    }
}

async fn address(
    handle: &Handle,
    index: u32,
    pod: &PodInterface,
    ip: IpAddr,
    length: u8,
) -> Result<(), Error> {
    let mut request = handle.address().add(index, ip, length);
    if ip.is_ipv6() {
        // The master hands an address out once: asking the network about it only costs a second.
        let message = request.message_mut();
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    request.execute().await.map_err(Error::netlink("give an address to", &pod.name))
}

/// Brings the pod's end and its loopback up, then sets the default routes. Runs in the pod's namespace.
pub(super) async fn raise(handle: &Handle, pod: &PodInterface) -> Result<(), Error> {
    up(handle, "lo").await?;
    up(handle, &pod.name).await?;
    let index = find(handle, &pod.name).await?;
    let routes = [
        pod.gateway.map(|via| {
            RouteMessageBuilder::<Ipv4Addr>::new().gateway(via).output_interface(index).onlink().build()
        }),
        pod.gateway6.map(|via| {
            RouteMessageBuilder::<Ipv6Addr>::new().gateway(via).output_interface(index).onlink().build()
        }),
    ];
    for route in routes.into_iter().flatten() {
        let added = handle.route().add(route).replace().execute().await;
        added.map_err(Error::netlink("set the default route of", &pod.name))?;
    }
    Ok(())
}

/// Whether `name` is there and the other end of the interface `index` of the node. Runs in the pod's namespace.
pub(super) async fn is_other_end(handle: &Handle, name: &str, index: u32) -> Result<bool, Error> {
    let link = super::find(handle, name).await?;
    Ok(link.is_some_and(|link| link.attributes.contains(&LinkAttribute::Link(index))))
}

async fn up(handle: &Handle, name: &str) -> Result<(), Error> {
    let message = LinkMessageBuilder::<LinkUnspec>::new().name(name).up().build();
    handle.link().set(message).execute().await.map_err(Error::netlink("bring up", name))
}

async fn find(handle: &Handle, name: &str) -> Result<u32, Error> {
    let gone = || std::io::Error::from_raw_os_error(libc::ENODEV);
    index(handle, name).await?.ok_or_else(|| Error::setting("look up", name)(gone()))
}
