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
            RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
            RouteType, RouteVia,
        },
    },
};

use super::family::{FAMILIES, is_without};

/// Routes that only the agent writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Set {
    /// Table that they are in.
    pub(super) table: u32,
    /// Metric in a table that others write, too: there the routes with [`PROTOCOL`] are the agent's.
    shared: Option<u32>,
}

/// Number of the protocol of the agent's routes. A routing daemon of the node, such as zebra of FRR, deletes routes with the numbers
/// of its own protocols when it starts, such as those of BGP.
const PROTOCOL: RouteProtocol = RouteProtocol::Other(98);

/// Host routes of this node's endpoints.
pub(super) const ENDPOINTS: Set = Set { table: 2981, shared: None };
/// Routes that BGP has learnt, and prefixes of the interface with the router IP.
pub(super) const FABRIC: Set = Set { table: 2982, shared: None };
/// Prefixes of the cluster that host access leads to none of.
pub(super) const CLUSTER: Set = Set { table: 2979, shared: None };
/// Routes of the node itself to networks of pods, in its main table. The node's own routes to the same prefixes have lower
/// metrics, and stay in use.
pub(super) const HOST: Set = Set { table: RouteHeader::RT_TABLE_MAIN as u32, shared: Some(2981) };

/// Where packets to a prefix go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hop {
    /// To the interface with this index, by the address of a next hop; `None` on the link. `mtu` is `None` for that of the
    /// interface.
    Via { interface: u32, gateway: Option<IpAddr>, mtu: Option<u32> },
    /// Nowhere.
    Blackhole,
}

impl Hop {
    fn gateway(&self) -> Option<IpAddr> {
        match self {
            Hop::Via { gateway, .. } => *gateway,
            Hop::Blackhole => None,
        }
    }

    fn mtu(&self) -> Option<u32> {
        match self {
            Hop::Via { mtu, .. } => *mtu,
            Hop::Blackhole => None,
        }
    }
}

/// Routes of a table.
pub(super) type Table = BTreeMap<IpNet, Hop>;

/// Metric of an IPv6 route that is added without one.
const DEFAULT_METRIC: u32 = 1024;

/// A route of a set in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Installed {
    hop: Hop,
    protocol: RouteProtocol,
    key: Key,
}

/// What tells routes of a table to the same prefix apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    metric: u32,
    /// Type of service of the packets; 0 for all. The agent's routes have none.
    tos: u8,
    /// Sources of IPv6 packets; `None` for all. The agent's routes have none.
    source: Option<IpNet>,
}

impl Installed {
    /// Whether the kernel puts a route with this hop and the same metric in the place of this one, so that there is a route at any time. An IPv6
    /// route is replaced by one of the same kind only: with a gateway, or without.
    fn is_replaceable(&self, prefix: &IpNet, hop: &Hop) -> bool {
        prefix.addr().is_ipv4() || self.hop.gateway().is_some() && hop.gateway().is_some()
    }

    /// Whether the route is as the agent writes it. Earlier releases wrote other protocols.
    fn is(&self, hop: &Hop) -> bool {
        self.hop == *hop && self.protocol == PROTOCOL
    }
}

/// Reads the routes of a set. Other programs may have added some to its table.
async fn installed(handle: &Handle, set: Set) -> Result<BTreeMap<IpNet, Vec<Installed>>, rtnetlink::Error> {
    let mut routes = BTreeMap::<IpNet, Vec<Installed>>::new();
    for family in FAMILIES {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        // With strict checks the kernel sends the routes of this table and protocol only.
        request.attributes.push(RouteAttribute::Table(set.table));
        if set.shared.is_some() {
            request.header.protocol = PROTOCOL;
        }
        let messages: Result<Vec<RouteMessage>, _> =
            handle.route().get(request).execute().try_collect().await;
        let messages = match messages {
            Err(error) if is_without(&error) || is_no_table(&error) => continue,
            messages => messages?,
        };
        let of_set = messages.iter().filter(|message| set.has(message)).filter_map(parsed);
        for (prefix, route) in
            of_set.filter(|(prefix, route)| set.shared.is_none() || route.key == set.key(prefix))
        {
            routes.entry(prefix).or_default().push(route);
        }
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
    /// Key of the routes that the agent writes.
    fn key(self, prefix: &IpNet) -> Key {
        let default = match prefix {
            IpNet::V4(_) => 0,
            IpNet::V6(_) => DEFAULT_METRIC,
        };
        Key { metric: self.shared.unwrap_or(default), tos: 0, source: None }
    }

    fn has(self, message: &RouteMessage) -> bool {
        let is_own = self.shared.is_none() || message.header.protocol == PROTOCOL;
        table_of(message) == self.table && is_own
    }
}

fn address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some(IpAddr::V4(*ip)),
        RouteAddress::Inet6(ip) => Some(IpAddr::V6(*ip)),
        _ => None,
    }
}

fn mtu_of(metric: &RouteMetric) -> Option<u32> {
    match metric {
        RouteMetric::Mtu(mtu) => Some(*mtu),
        _ => None,
    }
}

fn parsed(message: &RouteMessage) -> Option<(IpNet, Installed)> {
    let any = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let (mut to, mut from, mut interface, mut gateway, mut mtu) = (any, any, 0, None, None);
    let mut metric = 0;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(destination) => to = address(destination)?,
            RouteAttribute::Source(source) => from = address(source)?,
            RouteAttribute::Gateway(next) => gateway = Some(address(next)?),
            // The gateway of an IPv4 route, if it is an IPv6 address.
            RouteAttribute::Via(RouteVia::Inet6(next)) => gateway = Some(IpAddr::V6(*next)),
            RouteAttribute::Oif(index) => interface = *index,
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::Metrics(metrics) => mtu = metrics.iter().find_map(mtu_of),
            _ => {}
        }
    }
    let hop = match message.header.kind {
        RouteType::BlackHole => Hop::Blackhole,
        _ => Hop::Via { interface, gateway, mtu },
    };
    let source = IpNet::new(from, message.header.source_prefix_length).ok()?;
    let key =
        Key { metric, tos: message.header.tos, source: Some(source).filter(|net| net.prefix_len() > 0) };
    Some((
        IpNet::new(to, message.header.destination_prefix_length).ok()?,
        Installed { hop, protocol: message.header.protocol, key },
    ))
}

fn message(set: Set, prefix: IpNet, hop: Hop) -> RouteMessage {
    let common = |mut message: RouteMessage| {
        message.header.table = RouteHeader::RT_TABLE_UNSPEC;
        message.attributes.push(RouteAttribute::Table(set.table));
        message.header.protocol = PROTOCOL;
        message.header.kind = match hop {
            Hop::Via { .. } => RouteType::Unicast,
            Hop::Blackhole => RouteType::BlackHole,
        };
        message.attributes.extend(set.shared.map(RouteAttribute::Priority));
        message.attributes.extend(hop.mtu().map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])));
        message.header.scope = match (prefix, hop) {
            (IpNet::V4(_), Hop::Via { gateway: None, .. }) => RouteScope::Link,
            _ => RouteScope::Universe,
        };
        message
    };
    match prefix {
        IpNet::V4(net) => {
            let route =
                RouteMessageBuilder::<Ipv4Addr>::new().destination_prefix(net.network(), net.prefix_len());
            common(match hop {
                Hop::Via { interface, gateway, .. } => {
                    let route = route.output_interface(interface);
                    match gateway {
                        Some(IpAddr::V4(gateway)) => route.gateway(gateway).onlink().build(),
                        Some(IpAddr::V6(gateway)) => route.via(gateway).onlink().build(),
                        None => route.build(),
                    }
                }
                Hop::Blackhole => route.build(),
            })
        }
        IpNet::V6(net) => {
            let route =
                RouteMessageBuilder::<Ipv6Addr>::new().destination_prefix(net.network(), net.prefix_len());
            common(match hop {
                Hop::Via { interface, gateway, .. } => {
                    let route = route.output_interface(interface);
                    match gateway {
                        Some(IpAddr::V6(gateway)) => route.gateway(gateway).onlink().build(),
                        _ => route.build(),
                    }
                }
                Hop::Blackhole => route.build(),
            })
        }
    }
}

/// The message that deletes the route of a set to a prefix with a key, wherever it leads: what another process changed is deleted,
/// too.
fn deletion(set: Set, prefix: IpNet, key: Key) -> RouteMessage {
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
    message.header.protocol = set.shared.map_or(RouteProtocol::Unspec, |_| PROTOCOL);
    message.attributes.push(RouteAttribute::Priority(key.metric));
    message.header.tos = key.tos;
    if let Some(source) = key.source {
        message.header.source_prefix_length = source.prefix_len();
        message.attributes.push(RouteAttribute::Source(source.addr().into()));
    }
    // Of any type and scope.
    message.header.kind = RouteType::Unspec;
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
    for (prefix, hop) in wanted {
        let all = present.get(prefix).into_iter().flatten();
        let (own, others): (Vec<&Installed>, Vec<&Installed>) =
            all.partition(|route| route.key == set.key(prefix));
        if !matches!(own[..], [route] if route.is(hop)) {
            let refusal = write(handle, set, (*prefix, *hop), &own).await?;
            changes += usize::from(refusal.is_none());
            rejected = rejected.or(refusal);
        }
        for route in others {
            delete(handle, set, *prefix, route.key).await?;
            changes += 1;
        }
    }
    // Last: packets to a prefix that is divided, or becomes part of another one, have a route at any time.
    for (prefix, routes) in present {
        if wanted.contains_key(&prefix) || keeps(&prefix) {
            continue;
        }
        for route in routes {
            delete(handle, set, prefix, route.key).await?;
            changes += 1;
        }
    }
    Ok((changes, rejected))
}

/// Writes a route in the place of those that are there with its key. Returns why the kernel rejects it.
async fn write(
    handle: &Handle,
    set: Set,
    (prefix, hop): (IpNet, Hop),
    present: &[&Installed],
) -> Result<Option<String>, rtnetlink::Error> {
    let is_replaced = matches!(present, [route] if route.is_replaceable(&prefix, &hop));
    if !is_replaced {
        for route in present {
            delete(handle, set, prefix, route.key).await?;
        }
    }
    match handle.route().add(message(set, prefix, hop)).replace().execute().await {
        Ok(()) => Ok(None),
        Err(rtnetlink::Error::NetlinkError(error)) => {
            // What it leads to is no longer the next hop.
            if is_replaced {
                delete(handle, set, prefix, set.key(&prefix)).await?;
            }
            Ok(Some(format!("add route {prefix}: {error}")))
        }
        Err(error) => Err(error),
    }
}

async fn delete(handle: &Handle, set: Set, prefix: IpNet, key: Key) -> Result<(), rtnetlink::Error> {
    match handle.route().del(deletion(set, prefix, key)).execute().await {
        // Removed in between, with its interface.
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ESRCH => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use rtnetlink::{
        MulticastGroup,
        packet_core::NetlinkPayload,
        packet_route::RouteNetlinkMessage::{DelRoute, NewRoute},
    };
    use testkit::{Netns, needs};

    use super::*;
    use crate::router::kernel;

    fn key(metric: u32) -> Key {
        Key { metric, tos: 0, source: None }
    }

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
            let gateway = gateway.map(|gateway| gateway.parse().unwrap());
            for mtu in [None, Some(1450)] {
                let hop = Hop::Via { interface: 7, gateway, mtu };
                let message = message(FABRIC, prefix, hop);
                assert!(FABRIC.has(&message) && !ENDPOINTS.has(&message) && !HOST.has(&message));
                assert_eq!(
                    parsed(&message),
                    Some((prefix, Installed { hop, protocol: PROTOCOL, key: key(0) }))
                );
            }
        }
        let (prefix, hop) = ("10.1.0.0/16".parse().unwrap(), Hop::Blackhole);
        let installed = Installed { hop, protocol: PROTOCOL, key: key(0) };
        assert_eq!(parsed(&message(CLUSTER, prefix, hop)), Some((prefix, installed)));
    }

    #[test]
    fn deletions_name_the_prefix_and_not_where_it_leads() {
        for prefix in ["0.0.0.0/0", "10.1.0.5/32", "2001:db8::/64"] {
            let prefix: IpNet = prefix.parse().unwrap();
            let message = deletion(FABRIC, prefix, key(7));
            let hop = Hop::Via { interface: 0, gateway: None, mtu: None };
            let installed = Installed { hop, protocol: RouteProtocol::Unspec, key: key(7) };
            assert_eq!(parsed(&message), Some((prefix, installed)));
            assert_eq!(table_of(&message), FABRIC.table);
            assert_eq!(message.header.protocol, RouteProtocol::Unspec);
            // Those of others in the main table stay.
            let message = deletion(HOST, prefix, HOST.key(&prefix));
            assert!(HOST.has(&message));
            assert!(message.attributes.contains(&RouteAttribute::Priority(2981)));
        }
    }

    #[test]
    fn routes_of_others_in_the_main_table_are_left_alone() {
        let prefix: IpNet = "10.1.0.0/16".parse().unwrap();
        let hop = Hop::Via { interface: 7, gateway: Some("10.9.0.254".parse().unwrap()), mtu: None };
        let mut message = message(HOST, prefix, hop);
        assert!(HOST.has(&message));
        assert_eq!(parsed(&message), Some((prefix, Installed { hop, protocol: PROTOCOL, key: key(2981) })));
        message.header.protocol = RouteProtocol::Static;
        assert!(!HOST.has(&message));
    }

    /// Gateway of each prefix; `None` on the link.
    fn table(interface: u32, routes: &[(&str, Option<&str>)]) -> Table {
        let gateway = |text: &str| text.parse().unwrap();
        let hop = |to: Option<&str>| Hop::Via { interface, gateway: to.map(gateway), mtu: None };
        routes.iter().map(|(prefix, to)| (prefix.parse().unwrap(), hop(*to))).collect()
    }

    /// Makes the set have each of these tables in turn. Returns which routes were deleted and which ones were added or replaced, in order,
    /// after the first table.
    async fn changes(set: Set, tables: &[Table]) -> anyhow::Result<Vec<String>> {
        let handle = kernel::connect()?;
        let (first, others) = tables.split_first().unwrap();
        assert_eq!(sync(&handle, set, first, |_| false).await?.1, None);
        let groups = [MulticastGroup::Ipv4Route, MulticastGroup::Ipv6Route];
        let (connection, _, mut events) = rtnetlink::new_multicast_connection(&groups)?;
        tokio::spawn(connection);
        for table in others {
            assert_eq!(sync(&handle, set, table, |_| false).await?.1, None);
            assert_eq!(sync(&handle, set, table, |_| false).await?, (0, None));
        }
        // The last event.
        let end = table(1, &[("192.0.2.1/32", None)]);
        sync(&handle, ENDPOINTS, &end, |_| false).await?;
        let mut seen = vec![];
        while let Some((event, _)) = futures::StreamExt::next(&mut events).await {
            let (verb, route) = match event.payload {
                NetlinkPayload::InnerMessage(NewRoute(route)) => ("set", route),
                NetlinkPayload::InnerMessage(DelRoute(route)) => ("delete", route),
                _ => continue,
            };
            let prefix = parsed(&route).map(|(prefix, _)| prefix);
            match prefix {
                Some(prefix) if set.has(&route) => seen.push(format!("{verb} {prefix}")),
                Some(prefix) if ENDPOINTS.has(&route) && end.contains_key(&prefix) => break,
                _ => {}
            }
        }
        Ok(seen)
    }

    /// A namespace whose interface `eth1` has the number 7.
    fn node() -> Netns {
        let node = Netns::new("hops").unwrap();
        for words in [
            "link set lo up",
            "link add eth1 index 7 type veth peer name wire",
            "addr add 50.1.1.1/24 dev eth1",
            "addr add 2001:db8::1/64 dev eth1 nodad",
            "link set eth1 up",
            "link set wire up",
        ] {
            node.ip(words).unwrap();
        }
        node
    }

    /// Makes a set have this table, and returns the number of changes.
    fn sync_in(node: &Netns, set: Set, wanted: &Table) -> usize {
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (changes, rejected) = sync(&kernel::connect()?, set, wanted, |_| false).await?;
                assert_eq!(rejected, None);
                anyhow::Ok(changes)
            })
        };
        node.run(work).unwrap()
    }

    /// A routing daemon that starts on the node deletes those with the number of BGP.
    #[test]
    fn routes_of_earlier_releases_get_another_protocol() {
        needs!(root(), binary("ip"));
        let node = node();
        let wanted = [("10.1.0.0/16", Some("50.1.1.2")), ("2001:db8:1::/64", Some("2001:db8::2"))];
        for words in [
            "route add 10.1.0.0/16 via 50.1.1.2 dev eth1 table 2982 proto bgp",
            "route add 2001:db8:1::/64 via 2001:db8::2 dev eth1 table 2982 proto bgp",
            "route add 10.2.0.0/16 via 50.1.1.2 dev eth1 table 2982 proto static",
        ] {
            node.ip(words).unwrap();
        }
        let wanted = table(7, &wanted);
        assert_eq!((sync_in(&node, FABRIC, &wanted), sync_in(&node, FABRIC, &wanted)), (3, 0));
        for family in ["-4", "-6"] {
            let routes = node.ip(&format!("{family} route show table 2982")).unwrap();
            assert_eq!(routes.lines().filter(|route| route.contains("proto 98")).count(), 1, "{routes}");
            assert_eq!(routes.lines().count(), 1, "{routes}");
        }
    }

    /// By mistake, or of another release.
    #[test]
    fn a_foreign_route_to_a_prefix_is_deleted_once() {
        needs!(root(), binary("ip"));
        let node = node();
        let wanted = [("10.1.0.0/16", Some("50.1.1.2")), ("2001:db8:1::/64", Some("2001:db8::2"))];
        let wanted = table(7, &wanted);
        assert_eq!(sync_in(&node, FABRIC, &wanted), 2);
        let routes =
            |family: &str| node.ip(&format!("{family} route show table 2982")).unwrap().trim().to_owned();
        let before = ["-4", "-6"].map(routes);
        for words in [
            "route add 10.1.0.0/16 via 50.1.1.9 dev eth1 table 2982 metric 7",
            "route append 10.1.0.0/16 via 50.1.1.8 dev eth1 table 2982",
            "route add 10.1.0.0/16 via 50.1.1.9 dev eth1 table 2982 tos 0x10",
            "route add 2001:db8:1::/64 via 2001:db8::9 dev eth1 table 2982 metric 7",
            "route add 2001:db8:1::/64 via 2001:db8::9 dev eth1 table 2982 metric 2000",
        ] {
            node.ip(words).unwrap();
        }
        assert_ne!(sync_in(&node, FABRIC, &wanted), 0);
        assert_eq!((sync_in(&node, FABRIC, &wanted), ["-4", "-6"].map(routes)), (0, before));
        // In the main table it is of another program.
        node.ip("route add 10.1.0.0/16 via 50.1.1.9 dev eth1 proto 98 metric 7").unwrap();
        assert_eq!((sync_in(&node, HOST, &wanted), sync_in(&node, HOST, &wanted)), (2, 0));
        sync_in(&node, HOST, &Table::new());
        assert!(node.ip("route show 10.1.0.0/16").unwrap().contains("metric 7"));
    }

    #[test]
    fn a_prefix_has_a_route_at_any_time() {
        needs!(root(), binary("ip"));
        let node = node();
        let tables = [
            &[("10.1.0.0/16", Some("50.1.1.2")), ("2001:db8:1::/64", Some("2001:db8::2"))][..],
            &[("10.1.0.0/16", Some("50.1.1.3")), ("2001:db8:1::/64", Some("2001:db8::3"))],
            // Divided.
            &[("10.1.0.0/17", Some("50.1.1.3")), ("10.1.128.0/17", Some("50.1.1.3"))],
        ];
        let tables = tables.map(|routes| table(7, routes));
        for set in [FABRIC, HOST] {
            let work = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async {
                    let seen = changes(set, &tables).await?;
                    // For the next set.
                    sync(&kernel::connect()?, ENDPOINTS, &Table::new(), |_| false).await?;
                    anyhow::Ok(seen)
                })
            };
            let expected = [
                "set 10.1.0.0/16",
                "set 2001:db8:1::/64",
                "set 10.1.0.0/17",
                "set 10.1.128.0/17",
                "delete 10.1.0.0/16",
                "delete 2001:db8:1::/64",
            ];
            assert_eq!(node.run(work).unwrap(), expected, "{set:?}");
        }
    }
}
