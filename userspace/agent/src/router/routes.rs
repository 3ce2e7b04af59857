use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use rtnetlink::{
    Handle, RouteMessageBuilder,
    packet_route::{
        AddressFamily,
        route::{
            RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
            RouteVia,
        },
    },
};

use super::family::{FAMILIES, is_without};

/// Routes that only the agent writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Set {
    /// Table that they are in.
    pub(super) table: u32,
    /// Number of the protocol and metric in a table that others write, too.
    shared: Option<(RouteProtocol, u32)>,
}

/// Host routes of this node's endpoints.
pub(super) const ENDPOINTS: Set = Set { table: 2981, shared: None };
/// Routes that BGP has learnt, and prefixes of the interface with the router IP.
pub(super) const FABRIC: Set = Set { table: 2982, shared: None };
/// Routes of the node itself to networks of pods, in its main table. The node's own routes to the same prefixes have lower
/// metrics, and stay in use.
pub(super) const HOST: Set =
    Set { table: RouteHeader::RT_TABLE_MAIN as u32, shared: Some((RouteProtocol::Other(98), 2981)) };

/// Where packets to a prefix go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    /// Index of the interface.
    pub(super) interface: u32,
    /// Address of the next hop; `None` on the link.
    pub(super) gateway: Option<IpAddr>,
}

/// Routes of a table.
pub(super) type Table = BTreeMap<IpNet, Hop>;

/// Reads the routes of a set.
pub(super) async fn installed(handle: &Handle, set: Set) -> Result<Table, rtnetlink::Error> {
    let mut routes = Table::new();
    for family in FAMILIES {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        // With strict checks the kernel sends the routes of this table and protocol only.
        request.attributes.push(RouteAttribute::Table(set.table));
        if let Some((protocol, _)) = set.shared {
            request.header.protocol = protocol;
        }
        let messages: Result<Vec<RouteMessage>, _> =
            handle.route().get(request).execute().try_collect().await;
        let messages = match messages {
            Err(error) if is_without(&error) || is_no_table(&error) => continue,
            messages => messages?,
        };
        routes.extend(messages.iter().filter(|message| set.has(message)).filter_map(parsed));
    }
    Ok(routes)
}

/// Whether a table does not exist yet, which a dump with strict checks reports.
fn is_no_table(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(error) if error.raw_code() == -libc::ENOENT)
}

fn table_of(message: &RouteMessage) -> u32 {
    let table = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or_else(|| message.header.table.into())
}

impl Set {
    fn has(self, message: &RouteMessage) -> bool {
        let is_own = |(protocol, _)| message.header.protocol == protocol;
        table_of(message) == self.table && self.shared.is_none_or(is_own)
    }
}

fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

fn parsed(message: &RouteMessage) -> Option<(IpNet, Hop)> {
    let any = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let (mut to, mut hop) = (any, Hop { interface: 0, gateway: None });
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(destination) => to = address(destination)?,
            RouteAttribute::Gateway(gateway) => hop.gateway = Some(address(gateway)?),
            // The gateway of an IPv4 route, if it is an IPv6 address.
            RouteAttribute::Via(RouteVia::Inet6(gateway)) => hop.gateway = Some(IpAddr::V6(*gateway)),
            RouteAttribute::Oif(index) => hop.interface = *index,
            _ => {}
        }
    }
    Some((IpNet::new(to, message.header.destination_prefix_length).ok()?, hop))
}

fn message(set: Set, prefix: IpNet, hop: Hop) -> RouteMessage {
    let protocol = match (set.shared, hop.gateway) {
        (Some((protocol, _)), _) => protocol,
        (None, Some(_)) => RouteProtocol::Bgp,
        (None, None) => RouteProtocol::Static,
    };
    let common = |mut message: RouteMessage| {
        message.header.table = RouteHeader::RT_TABLE_UNSPEC;
        message.attributes.push(RouteAttribute::Table(set.table));
        message.header.protocol = protocol;
        message.header.kind = RouteType::Unicast;
        message.attributes.extend(set.shared.map(|(_, metric)| RouteAttribute::Priority(metric)));
        message.header.scope = match (prefix, hop.gateway) {
            (IpNet::V4(_), None) => RouteScope::Link,
            _ => RouteScope::Universe,
        };
        message
    };
    match prefix {
        IpNet::V4(net) => {
            let route = RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .output_interface(hop.interface);
            common(match hop.gateway {
                Some(IpAddr::V4(gateway)) => route.gateway(gateway).onlink().build(),
                Some(IpAddr::V6(gateway)) => route.via(gateway).onlink().build(),
                None => route.build(),
            })
        }
        IpNet::V6(net) => {
            let route = RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(net.network(), net.prefix_len())
                .output_interface(hop.interface);
            common(match hop.gateway {
                Some(IpAddr::V6(gateway)) => route.gateway(gateway).onlink().build(),
                _ => route.build(),
            })
        }
    }
}

/// The message that deletes the route of a set to a prefix, wherever it leads: what another process changed is deleted, too.
fn deletion(set: Set, prefix: IpNet) -> RouteMessage {
    let mut message = match prefix {
        IpNet::V4(net) => {
            RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(net.network(), net.prefix_len()).build()
        }
        IpNet::V6(net) => {
            RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(net.network(), net.prefix_len()).build()
        }
    };
    message.header.table = RouteHeader::RT_TABLE_UNSPEC;
    message.attributes.push(RouteAttribute::Table(set.table));
    message.header.protocol = set.shared.map_or(RouteProtocol::Unspec, |(protocol, _)| protocol);
    message.attributes.extend(set.shared.map(|(_, metric)| RouteAttribute::Priority(metric)));
    // Of any scope.
    message.header.scope = RouteScope::NoWhere;
    message
}

/// Makes a set have these routes; others stay if `keeps` is true for their prefix. Returns the number of changes, and the first
/// route that the kernel rejects.
pub(super) async fn sync(
    handle: &Handle,
    set: Set,
    wanted: &Table,
    keeps: impl Fn(&IpNet) -> bool,
) -> Result<(usize, Option<String>), rtnetlink::Error> {
    let present = installed(handle, set).await?;
    let (mut changes, mut rejected) = (0, None);
    let others = present.keys().filter(|prefix| !wanted.contains_key(prefix) && !keeps(prefix));
    for prefix in others.copied().collect::<Vec<IpNet>>() {
        delete(handle, set, prefix).await?;
        changes += 1;
    }
    for (prefix, hop) in wanted.iter().filter(|(prefix, hop)| present.get(prefix) != Some(hop)) {
        // The kernel replaces the first IPv6 route of a prefix only if their kinds are equal.
        if present.contains_key(prefix) {
            delete(handle, set, *prefix).await?;
        }
        match handle.route().add(message(set, *prefix, *hop)).replace().execute().await {
            Ok(()) => changes += 1,
            Err(rtnetlink::Error::NetlinkError(error)) => {
                rejected.get_or_insert_with(|| format!("add route {prefix}: {error}"));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((changes, rejected))
}

async fn delete(handle: &Handle, set: Set, prefix: IpNet) -> Result<(), rtnetlink::Error> {
    match handle.route().del(deletion(set, prefix)).execute().await {
        // Removed in between, with its interface.
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ESRCH => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_back() {
        let routes = [
            ("0.0.0.0/0", Some("50.1.1.2")),
            ("10.1.0.5/32", None),
            ("10.1.0.0/16", Some("2001:db8::2")),
            ("::/0", Some("2001:db8::2")),
            ("2001:db8::5/128", None),
        ];
        for (prefix, gateway) in routes {
            let prefix: IpNet = prefix.parse().unwrap();
            let hop = Hop { interface: 7, gateway: gateway.map(|gateway| gateway.parse().unwrap()) };
            let message = message(FABRIC, prefix, hop);
            assert!(FABRIC.has(&message) && !ENDPOINTS.has(&message) && !HOST.has(&message));
            assert_eq!(parsed(&message), Some((prefix, hop)));
        }
    }

    #[test]
    fn deletions_name_the_prefix_and_not_where_it_leads() {
        for prefix in ["0.0.0.0/0", "10.1.0.5/32", "2001:db8::/64"] {
            let prefix: IpNet = prefix.parse().unwrap();
            let message = deletion(FABRIC, prefix);
            assert_eq!(parsed(&message), Some((prefix, Hop { interface: 0, gateway: None })));
            assert_eq!(table_of(&message), FABRIC.table);
            assert_eq!(message.header.protocol, RouteProtocol::Unspec);
            // Those of others in the main table stay.
            let message = deletion(HOST, prefix);
            assert!(HOST.has(&message));
            assert!(message.attributes.contains(&RouteAttribute::Priority(2981)));
        }
    }

    #[test]
    fn routes_of_others_in_the_main_table_are_left_alone() {
        let prefix: IpNet = "10.1.0.0/16".parse().unwrap();
        let hop = Hop { interface: 7, gateway: Some("10.9.0.254".parse().unwrap()) };
        let mut message = message(HOST, prefix, hop);
        assert!(HOST.has(&message));
        assert_eq!(parsed(&message), Some((prefix, hop)));
        assert!(message.attributes.contains(&RouteAttribute::Priority(2981)));
        message.header.protocol = RouteProtocol::Static;
        assert!(!HOST.has(&message));
    }
}
