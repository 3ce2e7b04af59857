//! Addresses and default routes of the node on VLAN uplinks.
//!
//! A port of the kernel datapath gives all frames that it receives to the bridge: the network stack of the node gets none. With the
//! userspace datapath, which reads them by a packet socket, it gets them, too.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use nix::net::if_::if_nametoindex;
use rtnetlink::{
    RouteMessageBuilder,
    packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType},
};

use super::{ovsdb::Database, uplink};
use crate::{
    addresses,
    datapath::ovs::options::{DatapathType, Options},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("read the addresses of this node")]
    Addresses(#[source] io::Error),
    #[error("open a netlink socket")]
    Connect(#[source] io::Error),
    #[error("read the default routes of this node")]
    Routes(#[source] rtnetlink::Error),
    #[error(
        "{uplink} has the address {address} of this node, and the node receives no packets by a port of the bridge; give the address \
         to another interface, or set another uplink in --vlan-uplinks"
    )]
    Address { uplink: String, address: IpNet },
    #[error(
        "the default route of this node leads through {uplink} ({addresses}), and the node receives no packets by a port of the \
         bridge; give the route and the addresses to another interface, or set another uplink in --vlan-uplinks"
    )]
    DefaultRoute { uplink: String, addresses: String },
}

/// Fails if an uplink that is no port of the bridge yet has the control address or the VTEP of the node, or its default route.
/// Other addresses, such as link-local ones, may be on uplinks: they do not connect the node.
pub(crate) async fn check(database: &Database, options: &Options) -> Result<(), Error> {
    let added = uplink::missing(database, &options.uplinks);
    if added.is_empty() || options.datapath_type == DatapathType::Netdev {
        return Ok(());
    }
    let node: BTreeSet<IpAddr> = options.control.into_iter().chain(options.vtep).collect();
    let addresses = addresses::read().map_err(Error::Addresses)?;
    let default = interfaces(&default_routes(&node).await?);
    for name in added {
        let has_default = if_nametoindex(name).is_ok_and(|index| default.contains(&index));
        check_uplink(name, &node, &addresses, has_default)?;
    }
    Ok(())
}

fn check_uplink(
    name: &str,
    node: &BTreeSet<IpAddr>,
    addresses: &[(String, IpNet)],
    has_default: bool,
) -> Result<(), Error> {
    // An address may have a label (ip-address(8)), which begins with the name of its interface.
    let is_on_it = |label: &str| label.split(':').next() == Some(name);
    let own = || addresses.iter().filter(|(label, _)| is_on_it(label)).map(|(_, address)| *address);
    let uplink = name.to_owned();
    if let Some(address) = own().find(|address| node.contains(&address.addr())) {
        return Err(Error::Address { uplink, address });
    }
    if has_default {
        let addresses: Vec<String> = own().map(|address| address.to_string()).collect();
        return Err(Error::DefaultRoute { uplink, addresses: addresses.join(", ") });
    }
    Ok(())
}

/// Default routes in use, of the address families that the addresses of the node have: router advertisements on an uplink do not
/// matter to a node that is reached by IPv4.
async fn default_routes(node: &BTreeSet<IpAddr>) -> Result<Vec<RouteMessage>, Error> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(Error::Connect)?;
    tokio::spawn(connection);
    let mut requests = vec![];
    if node.iter().any(IpAddr::is_ipv4) {
        requests.push(RouteMessageBuilder::<Ipv4Addr>::new().build());
    }
    if node.iter().any(IpAddr::is_ipv6) {
        requests.push(RouteMessageBuilder::<Ipv6Addr>::new().build());
    }
    let mut routes = vec![];
    for request in requests {
        let found = handle.route().get(request).execute().try_collect::<Vec<_>>().await;
        routes.extend(preferred(&found.map_err(Error::Routes)?).cloned());
    }
    Ok(routes)
}

/// The default routes in use, of routes of one address family: those in the main table with the lowest metric.
fn preferred(routes: &[RouteMessage]) -> impl Iterator<Item = &RouteMessage> {
    let is_default = |route: &&RouteMessage| {
        let header = &route.header;
        header.table == RouteHeader::RT_TABLE_MAIN
            && header.destination_prefix_length == 0
            && header.kind == RouteType::Unicast
    };
    let defaults = routes.iter().filter(is_default);
    let lowest = defaults.clone().map(metric).min();
    defaults.filter(move |route| Some(metric(route)) == lowest)
}

fn metric(route: &RouteMessage) -> u32 {
    let metric = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Priority(metric) => Some(*metric),
        _ => None,
    });
    metric.unwrap_or_default()
}

/// Indexes of the interfaces that routes lead through.
fn interfaces(routes: &[RouteMessage]) -> BTreeSet<u32> {
    let mut indexes = BTreeSet::new();
    for attribute in routes.iter().flat_map(|route| &route.attributes) {
        match attribute {
            RouteAttribute::Oif(index) => drop(indexes.insert(*index)),
            RouteAttribute::MultiPath(hops) => indexes.extend(hops.iter().map(|hop| hop.interface_index)),
            _ => {}
        }
    }
    indexes
}

#[cfg(test)]
mod tests {
    use rtnetlink::RouteNextHopBuilder;

    use super::*;

    fn refusal(uplink: &str, has_default: bool) -> Option<String> {
        let node: BTreeSet<IpAddr> =
            ["192.0.2.7", "2001:db8::7"].into_iter().map(|ip| ip.parse().unwrap()).collect();
        let addresses = [
            ("eth0", "192.0.2.7/24"),
            ("eth1", "fe80::1/64"),
            ("eth2:1", "192.0.2.7/32"),
            ("eth3", "2001:db8::7/64"),
            ("eth4", "198.51.100.7/24"),
            ("eth10", "192.0.2.7/24"),
        ];
        let addresses = addresses.map(|(name, address)| (name.to_owned(), address.parse::<IpNet>().unwrap()));
        check_uplink(uplink, &node, &addresses, has_default).err().map(|error| error.to_string())
    }

    #[test]
    fn an_uplink_with_the_address_of_the_node_is_refused() {
        for (uplink, address) in
            [("eth0", "192.0.2.7/24"), ("eth2", "192.0.2.7/32"), ("eth3", "2001:db8::7/64")]
        {
            let why = refusal(uplink, false).unwrap();
            assert!(why.starts_with(&format!("{uplink} has the address {address} of this node")), "{why}");
            assert!(why.contains("; give the address to another interface, or"), "{why}");
        }
        // Without an address, with a link-local one, with one that does not connect the node.
        for uplink in ["eth9", "eth1", "eth4"] {
            assert_eq!(refusal(uplink, false), None, "{uplink}");
        }
        let why = refusal("eth4", true).unwrap();
        assert!(
            why.starts_with("the default route of this node leads through eth4 (198.51.100.7/24)"),
            "{why}"
        );
    }

    #[test]
    fn default_routes_in_use_are_those_with_the_lowest_metric() {
        let route = |interface: u32, metric: u32| {
            RouteMessageBuilder::<Ipv4Addr>::new().output_interface(interface).priority(metric).build()
        };
        let found = |routes: &[RouteMessage]| {
            let preferred: Vec<RouteMessage> = preferred(routes).cloned().collect();
            Vec::from_iter(interfaces(&preferred))
        };
        assert_eq!(found(&[]), Vec::<u32>::new());
        assert_eq!(found(&[route(2, 100), route(3, 200)]), [2]);
        let mut subnet = route(4, 0);
        subnet.header.destination_prefix_length = 24;
        let mut other_table = route(5, 0);
        other_table.header.table = 100;
        let mut unreachable = route(6, 0);
        unreachable.header.kind = RouteType::Unreachable;
        assert_eq!(found(&[subnet, other_table, unreachable, route(3, 200)]), [3]);
        let hops = [7, 8].map(|index| RouteNextHopBuilder::new_ipv4().interface(index).build());
        let multipath = RouteMessageBuilder::<Ipv4Addr>::new().multipath(hops.into()).build();
        assert_eq!(found(&[multipath, route(3, 200)]), [7, 8]);
    }
}
