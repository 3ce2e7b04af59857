//! The pod's end of a veth pair.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt as _;
use rtnetlink::{
    Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::{
        address::{AddressAttribute, AddressFlags, AddressMessage},
        link::{InfoData, InfoVeth, LinkAttribute, LinkFlags, LinkMessage},
        route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType},
    },
};

use super::{
    error::{Error, errno},
    interface::{DefaultRoutes, ExpectedLink, PodInterface},
    netns::Netns,
    query,
};
use crate::{netdevice, sysctl};

/// Interface group of an incomplete host end. It is set on creation, so a port that a crashed agent left behind can be
/// distinguished from another program's.
pub(super) const INCOMPLETE_GROUP: u32 = 0x0043_5456;

/// Request that creates a pair with the other end directly in the pod's network namespace.
pub(super) fn pair(port: &str, netns: &Netns, pod: &PodInterface) -> LinkMessage {
    let peer = LinkMessageBuilder::<LinkUnspec>::new()
        .name(&pod.name)
        .address(pod.mac.0.to_vec())
        .mtu(pod.mtu)
        .setns_by_fd(netns.fd())
        .build();
    LinkMessageBuilder::<LinkVeth>::new(port, &pod.name)
        .mtu(pod.mtu)
        .link_group(INCOMPLETE_GROUP)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .build()
}

/// Configures the pod's end without bringing it up. Runs in the pod's network namespace.
pub(super) async fn configure(handle: &Handle, pod: &PodInterface) -> Result<(), Error> {
    if pod.disable_tx_offload {
        netdevice::disable_tx_checksum(&pod.name)
            .map_err(Error::setting("disable TX checksum offload of", &pod.name))?;
    }
    // The gateway is configured. No router advertisement of another pod or host may change it.
    sysctl::disable_ra(&pod.name).map_err(Error::setting("disable router advertisements on", &pod.name))?;
    // The datapath accepts only this link-local address from the pod.
    sysctl::link_local_from_mac(&pod.name)
        .map_err(Error::setting("set the form of link-local addresses on", &pod.name))?;
    if pod.ip6.is_some() {
        // Docker's sandboxes, and nodes with such a kernel parameter, disable IPv6 by default.
        sysctl::enable_ipv6(&pod.name).map_err(Error::setting("enable IPv6 on", &pod.name))?;
    }
    let index = find(handle, &pod.name).await?;
    let (ip, length) = pod.ip;
    address(handle, index, pod, ip.into(), length).await?;
    if let Some((ip, length)) = pod.ip6 {
        address(handle, index, pod, ip.into(), length).await?;
    }
    Ok(())
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
        // netmaster allocates addresses uniquely: duplicate address detection would only delay the pod by a second.
        let message = request.message_mut();
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    request.execute().await.map_err(Error::netlink("add an address to", &pod.name))
}

/// Brings up the pod's end and its loopback interface, then sets the default routes. Runs in the pod's network namespace.
pub(super) async fn raise(handle: &Handle, pod: &PodInterface) -> Result<DefaultRoutes, Error> {
    up(handle, "lo").await?;
    up(handle, &pod.name).await?;
    let index = find(handle, &pod.name).await?;
    let mut routes = DefaultRoutes::default();
    if let Some(gateway) = pod.gateway {
        routes.ipv4 = set_default_route(handle, (index, &pod.name), gateway.into()).await?;
    }
    if let Some(gateway) = pod.gateway6 {
        routes.ipv6 = set_default_route(handle, (index, &pod.name), gateway.into()).await?;
    }
    Ok(routes)
}

/// Sets a default route, unless another interface of the pod has one: the route of the first interface applies, whatever
/// its metric is. Returns whether the route is set.
async fn set_default_route(
    handle: &Handle,
    (index, name): (u32, &str),
    gateway: IpAddr,
) -> Result<bool, Error> {
    let interface = (index, name);
    if let Some(is_own) = has_default_route(handle, interface, gateway).await? {
        return Ok(is_own);
    }
    let failed = Error::netlink("set the default route of", name);
    match handle.route().add(default_route(index, gateway)).execute().await {
        Ok(()) => return Ok(true),
        Err(error) if errno(&error) == Some(libc::EEXIST) => {}
        Err(error) => return Err(failed(error)),
    }
    // Another interface may have set a default route meanwhile.
    if let Some(is_own) = has_default_route(handle, interface, gateway).await? {
        return Ok(is_own);
    }
    let replaced = handle.route().add(default_route(index, gateway)).replace().execute().await;
    replaced.map(|()| true).map_err(failed)
}

/// Reports whether the pod has the interface's default route through the gateway; `None` if no interface has a default
/// route.
async fn has_default_route(
    handle: &Handle,
    (index, name): (u32, &str),
    gateway: IpAddr,
) -> Result<Option<bool>, Error> {
    let routes = default_routes(handle, name, gateway).await?;
    let is_own = routes.iter().any(|route| leads_to(route, index, gateway));
    let is_known = is_own || routes.iter().any(|route| is_of_other(route, index));
    Ok(is_known.then_some(is_own))
}

fn default_route(index: u32, gateway: IpAddr) -> RouteMessage {
    match gateway {
        IpAddr::V4(via) => {
            RouteMessageBuilder::<Ipv4Addr>::new().gateway(via).output_interface(index).onlink().build()
        }
        IpAddr::V6(via) => {
            RouteMessageBuilder::<Ipv6Addr>::new().gateway(via).output_interface(index).onlink().build()
        }
    }
}

/// Returns how the pod's end differs from what [`configure`] and [`raise`] set, or its link from what is expected. Runs
/// in the pod's network namespace.
pub(super) async fn difference(
    handle: &Handle,
    pod: &PodInterface,
    expected: ExpectedLink,
) -> Result<Option<String>, Error> {
    let name = &pod.name;
    let Some(link) = query::find(handle, name).await? else {
        return Ok(Some(format!("{name} does not exist")));
    };
    if !link.header.flags.contains(LinkFlags::Up) {
        return Ok(Some(format!("interface {name} of the pod is down")));
    }
    if let Some(mac) = expected.mac
        && !link.attributes.contains(&LinkAttribute::Address(mac.0.to_vec()))
    {
        return Ok(Some(format!("interface {name} of the pod does not have the Ethernet address {mac}")));
    }
    let largest = expected.largest_mtu;
    if let Some(mtu) = query::mtu(&link).filter(|mtu| *mtu > largest) {
        return Ok(Some(format!(
            "interface {name} of the pod has an MTU of {mtu} bytes instead of {largest}"
        )));
    }
    let addresses = handle.address().get().set_link_index_filter(link.header.index).execute();
    let addresses: Vec<_> =
        addresses.try_collect().await.map_err(Error::netlink("list the addresses of", name))?;
    let wanted = [Some((IpAddr::from(pod.ip.0), pod.ip.1)), pod.ip6.map(|(ip, length)| (ip.into(), length))];
    for (ip, length) in wanted.into_iter().flatten() {
        let has = |message: &AddressMessage| {
            message.header.prefix_len == length && message.attributes.contains(&AddressAttribute::Address(ip))
        };
        if !addresses.iter().any(has) {
            return Ok(Some(format!("interface {name} of the pod does not have the address {ip}/{length}")));
        }
    }
    let gateways = [pod.gateway.map(IpAddr::V4), pod.gateway6.map(IpAddr::V6)];
    for gateway in gateways.into_iter().flatten() {
        let index = link.header.index;
        let routes = default_routes(handle, name, gateway).await?;
        if !routes.iter().any(|route| leads_to(route, index, gateway) || is_of_other(route, index)) {
            return Ok(Some(format!("the pod has no default route by {gateway} on {name}")));
        }
    }
    Ok(None)
}

/// Default routes of the gateway's address family, in all tables.
async fn default_routes(handle: &Handle, name: &str, gateway: IpAddr) -> Result<Vec<RouteMessage>, Error> {
    let all = match gateway {
        IpAddr::V4(_) => RouteMessageBuilder::<Ipv4Addr>::new().build(),
        IpAddr::V6(_) => RouteMessageBuilder::<Ipv6Addr>::new().build(),
    };
    let routes = handle.route().get(all).execute().try_collect::<Vec<_>>().await;
    let mut routes = routes.map_err(Error::netlink("list the routes of", name))?;
    routes.retain(|route| {
        route.header.destination_prefix_length == 0 && route.header.kind == RouteType::Unicast
    });
    Ok(routes)
}

fn leads_to(route: &RouteMessage, index: u32, gateway: IpAddr) -> bool {
    let via = match gateway {
        IpAddr::V4(ip) => RouteAddress::Inet(ip),
        IpAddr::V6(ip) => RouteAddress::Inet6(ip),
    };
    route.attributes.contains(&RouteAttribute::Oif(index))
        && route.attributes.contains(&RouteAttribute::Gateway(via))
}

/// Whether the main table's default route leads through another interface.
fn is_of_other(route: &RouteMessage, index: u32) -> bool {
    let is_other = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Oif(oif) => *oif != index,
        RouteAttribute::MultiPath(hops) => hops.iter().any(|hop| hop.interface_index != index),
        _ => false,
    };
    route.header.table == RouteHeader::RT_TABLE_MAIN && route.attributes.iter().any(is_other)
}

/// Whether `name` exists and is the other end of the node's interface `index`. Runs in the pod's network namespace.
pub(super) async fn is_other_end(handle: &Handle, name: &str, index: u32) -> Result<bool, Error> {
    let link = query::find(handle, name).await?;
    Ok(link.is_some_and(|link| link.attributes.contains(&LinkAttribute::Link(index))))
}

async fn up(handle: &Handle, name: &str) -> Result<(), Error> {
    let message = LinkMessageBuilder::<LinkUnspec>::new().name(name).up().build();
    handle.link().set(message).execute().await.map_err(Error::netlink("bring up", name))
}

async fn find(handle: &Handle, name: &str) -> Result<u32, Error> {
    let gone = || std::io::Error::from_raw_os_error(libc::ENODEV);
    query::index(handle, name).await?.ok_or_else(|| Error::setting("look up", name)(gone()))
}
