//! MTU of the kernel's routes to pods: with host access, and on routed VLAN networks.
//!
//! The interfaces to an eBPF datapath take packets of any size, and the pair of a pod drops without a word what the pod's end is too
//! small for. By the MTU of the route the kernel divides such packets, or tells their senders. The interfaces to OVS need none: they
//! have the least MTU of the bridge. A pod keeps the MTU that its interface was made with, so that of the underlay does not tell.

use std::{collections::BTreeSet, net::Ipv4Addr};

use futures::{StreamExt as _, TryStreamExt as _};
use ipnet::Ipv4Net;
use rtnetlink::{
    Handle, RouteMessageBuilder,
    packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload},
    packet_route::{
        AddressFamily, RouteNetlinkMessage,
        link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage},
        route::{RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope},
    },
};

use crate::datapath::host_access::kernel_address;

/// Gives the kernel's route to the private subnet by an interface the least MTU of the pods' interfaces. Returns whether it had
/// another one.
pub(super) async fn sync(
    handle: &Handle,
    link: &LinkMessage,
    subnet: Ipv4Net,
    pods: &BTreeSet<String>,
) -> Result<bool, rtnetlink::Error> {
    if !is_veth(link) {
        return Ok(false);
    }
    let Some(mtu) = least(handle, pods).await? else { return Ok(false) };
    // Instead of the one that the kernel has made with the address.
    let mut route = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(subnet.network(), subnet.prefix_len())
        .output_interface(link.header.index)
        .pref_source(kernel_address(subnet))
        .scope(RouteScope::Link)
        .protocol(RouteProtocol::Kernel)
        .build();
    route.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
    let (wanted, others): (Vec<_>, Vec<_>) =
        present(handle, &route, link.header.index).await?.into_iter().partition(|found| has(found, &route));
    let is_changed = wanted.is_empty() || !others.is_empty();
    if wanted.is_empty() {
        append(handle, route).await?;
    }
    for other in others {
        handle.route().del(other).execute().await?;
    }
    Ok(is_changed)
}

fn is_veth(link: &LinkMessage) -> bool {
    let veth = LinkInfo::Kind(InfoKind::Veth);
    link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => info.contains(&veth),
        _ => false,
    })
}

/// The least MTU of the interfaces with these names, if `link` leads to an eBPF datapath and takes larger packets.
pub(super) async fn least_below(
    handle: &Handle,
    link: &LinkMessage,
    names: &BTreeSet<String>,
) -> Result<Option<u32>, rtnetlink::Error> {
    if !is_veth(link) {
        return Ok(None);
    }
    let own = link.attributes.iter().find_map(mtu_of);
    Ok(least(handle, names).await?.filter(|mtu| own.is_none_or(|own| *mtu < own)))
}

fn mtu_of(attribute: &LinkAttribute) -> Option<u32> {
    match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    }
}

/// The least MTU of the interfaces with these names; `None` if there are none.
async fn least(handle: &Handle, names: &BTreeSet<String>) -> Result<Option<u32>, rtnetlink::Error> {
    let links: Vec<LinkMessage> = handle.link().get().execute().try_collect().await?;
    let is_named = |attribute: &LinkAttribute| match attribute {
        LinkAttribute::IfName(name) => names.contains(name),
        _ => false,
    };
    let named = links.iter().filter(|link| link.attributes.iter().any(is_named));
    Ok(named.filter_map(|link| link.attributes.iter().find_map(mtu_of)).min())
}

/// The kernel's routes to the same prefix by an interface.
async fn present(
    handle: &Handle,
    route: &RouteMessage,
    interface: u32,
) -> Result<Vec<RouteMessage>, rtnetlink::Error> {
    let mut request = RouteMessage::default();
    request.header.address_family = AddressFamily::Inet;
    request.header.protocol = RouteProtocol::Kernel;
    request.attributes.push(RouteAttribute::Table(RouteHeader::RT_TABLE_MAIN.into()));
    let mut routes: Vec<RouteMessage> = handle.route().get(request).execute().try_collect().await?;
    let is_to = |attribute: &&RouteAttribute| matches!(attribute, RouteAttribute::Destination(_));
    let to = route.attributes.iter().find(is_to);
    routes.retain(|found| {
        found.header.destination_prefix_length == route.header.destination_prefix_length
            && found.attributes.iter().find(is_to) == to
            && found.attributes.contains(&RouteAttribute::Oif(interface))
    });
    Ok(routes)
}

/// Whether a route has all attributes of another one.
fn has(found: &RouteMessage, route: &RouteMessage) -> bool {
    route.attributes.iter().all(|attribute| found.attributes.contains(attribute))
}

/// Adds a route behind those to the same prefix. `RTM_NEWROUTE` with `NLM_F_REPLACE` would take the place of the first one, whatever
/// interface it has.
async fn append(handle: &Handle, route: RouteMessage) -> Result<(), rtnetlink::Error> {
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewRoute(route));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_APPEND;
    let mut responses = handle.clone().request(request)?;
    while let Some(response) = responses.next().await {
        if let NetlinkPayload::Error(error) = response.payload {
            return Err(rtnetlink::Error::NetlinkError(error));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use testkit::{
        Netns,
        capture::Tap,
        needs,
        packet::{Packet, ethertype, protocol},
    };

    use crate::{
        datapath::{KERNEL_PORT, host_access::HOST_PORT},
        router::{
            access::HostAccess,
            desired::{Desired, Learnt},
            kernel,
            nat_table::NatTable,
            retention::Retention,
        },
    };

    const SOON: Duration = Duration::from_secs(10);
    /// Length of the headers of IPv4 and UDP.
    const HEADERS: usize = 28;

    /// Makes the kernel give host access to pods with these interfaces. Returns the number of changes.
    fn give(node: &Netns, pods: &[&str]) -> usize {
        let access = NatTable {
            subnet: "172.19.0.0/16".parse().unwrap(),
            closed: [].into(),
            tunnels: [].into(),
            leaves: [].into(),
            pods: 16,
        };
        let pods = pods.iter().map(|name| (*name).to_owned()).collect();
        let desired = Desired { access: Some(access), pods, ..Desired::default() };
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (mut access, learnt) = (HostAccess::default(), Learnt::default());
                let both = (&desired, &learnt);
                let synced = kernel::sync(&kernel::connect()?, &mut access, both, &Retention::over()).await?;
                anyhow::Ok(synced.0)
            })
        };
        node.run(work).unwrap()
    }

    /// Another program may have a network with the prefix of the private subnet.
    #[test]
    fn routes_by_other_interfaces_stay() {
        needs!(root(), binary("ip"), binary("nft"));
        let [node, outside] = ["routes", "out"].map(|label| Netns::new(label).unwrap());
        for (link, peer) in [(HOST_PORT, "pods"), ("br-1", "container"), ("vvport7", "pod7")] {
            node.veth(link, &outside, peer).unwrap();
            node.up(link).unwrap();
            outside.up(peer).unwrap();
        }
        node.ip("route add 172.19.0.0/16 dev br-1").unwrap();
        for mtu in [1450, 1400] {
            node.mtu("vvport7", mtu).unwrap();
            assert_ne!(give(&node, &["vvport7"]), 0);
            assert_eq!(give(&node, &["vvport7"]), 0);
            let routes = node.ip("route show").unwrap();
            let to_pods = routes.lines().filter(|route| route.starts_with("172.19.0.0/16"));
            let (own, others): (Vec<_>, Vec<_>) = to_pods.partition(|route| route.contains("dev contivh0"));
            assert!(matches!(own[..], [own] if own.contains(&format!("mtu {mtu}"))), "{routes}");
            assert!(matches!(others[..], [other] if other.contains("dev br-1")), "{routes}");
        }
    }

    /// The MTU of each route to an endpoint on a routed VLAN network with these interfaces.
    fn routed(node: &Netns, ports: &[&str]) -> Vec<Option<String>> {
        let desired = Desired {
            is_routing: true,
            endpoints: ["10.9.0.1", "2001:db8:9::1"].map(|ip| ip.parse().unwrap()).into(),
            ports: ports.iter().map(|name| (*name).to_owned()).collect(),
            ..Desired::default()
        };
        let learnt = Learnt { is_complete: true, ..Learnt::default() };
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (mut access, both) = (HostAccess::default(), (&desired, &learnt));
                let handle = kernel::connect()?;
                kernel::sync(&handle, &mut access, both, &Retention::over()).await?;
                let again = kernel::sync(&handle, &mut access, both, &Retention::over()).await?;
                anyhow::Ok(again.0)
            })
        };
        assert_eq!(node.run(work).unwrap(), 0, "the routes are read as they were written");
        let mtu = |family: &str| {
            let routes = node.ip(&format!("{family} route show table 2981")).unwrap();
            routes.split_once(" mtu ").and_then(|(_, mtu)| mtu.split_whitespace().next()).map(str::to_owned)
        };
        ["-4", "-6"].map(mtu).into()
    }

    #[test]
    fn routes_to_endpoints_have_the_mtu_of_their_interfaces() {
        needs!(root(), binary("ip"));
        let [node, outside] = ["vlans", "out"].map(|label| Netns::new(label).unwrap());
        for (link, peer) in [(KERNEL_PORT, "switch"), ("vvport7", "pod7"), ("vvport8", "pod8")] {
            node.veth(link, &outside, peer).unwrap();
            node.up(link).unwrap();
            outside.up(peer).unwrap();
        }
        node.mtu(KERNEL_PORT, 65535).unwrap();
        node.mtu("vvport7", 1500).unwrap();
        node.mtu("vvport8", 1400).unwrap();
        let of = |mtu: &str| [Some(mtu.to_owned()), Some(mtu.to_owned())];
        assert_eq!(routed(&node, &[]), [None, None]);
        assert_eq!(routed(&node, &["vvport7"]), of("1500"));
        assert_eq!(routed(&node, &["vvport7", "vvport8"]), of("1400"));
        // The interface itself takes no more.
        node.mtu(KERNEL_PORT, 1400).unwrap();
        assert_eq!(routed(&node, &["vvport7", "vvport8"]), [None, None]);
    }

    /// What follows an IPv4 header without options, of packets of a protocol.
    fn content(frame: &[u8], of: u8) -> Option<&[u8]> {
        let is_ipv4 = frame.get(12..14) == Some(&ethertype::IPV4.to_be_bytes()[..]);
        frame.get(34..).filter(|_| is_ipv4 && frame.get(23) == Some(&of))
    }

    #[test]
    fn senders_learn_how_much_pods_take() {
        needs!(root(), binary("ip"), binary("nft"));
        let [node, outside] = ["mtu", "out"].map(|label| Netns::new(label).unwrap());
        for (link, peer, mac) in [
            (HOST_PORT, "pods", "02:00:00:00:00:01"),
            ("eth1", "host", "02:00:00:00:00:02"),
            ("vvport7", "pod7", "02:00:00:00:00:03"),
            ("vvport8", "pod8", "02:00:00:00:00:04"),
        ] {
            node.veth(link, &outside, peer).unwrap();
            node.mac(link, mac).unwrap();
            node.up(link).unwrap();
            outside.up(peer).unwrap();
        }
        node.mtu("vvport7", 1450).unwrap();
        node.mtu("vvport8", 1400).unwrap();
        node.address("eth1", "192.0.2.1/24").unwrap();
        node.ip("neigh add 192.0.2.9 lladdr 02:00:00:00:00:09 dev eth1").unwrap();
        node.sysctl("net/ipv4/ip_forward", "1").unwrap();
        assert_ne!(give(&node, &[]), 0);
        assert_ne!(give(&node, &["vvport7"]), 0);
        assert_eq!(give(&node, &["vvport7"]), 0);

        let [pods, host] = ["pods", "host"].map(|link| Tap::open(&outside, link).unwrap());
        let request = Packet::eth([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 7]);
        let request = request.ipv4([172, 19, 0, 7], [192, 0, 2, 9]).udp(4000, 53);
        pods.send(&request.build()).unwrap();
        let source = |frame: &[u8]| {
            content(frame, protocol::UDP).map(|datagram| u16::from_be_bytes([datagram[0], datagram[1]]))
        };
        let port = host.expect(SOON, "the request", source).unwrap();

        // With the length of the IP packet, and DF.
        let reply = |length: usize| {
            let frame = Packet::eth([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 9]);
            let frame = frame.ipv4([192, 0, 2, 9], [192, 0, 2, 1]).udp(53, port);
            host.send(&frame.payload(&vec![0; length - HEADERS]).build()).unwrap();
        };
        let told = || {
            let needed = |frame: &[u8]| {
                let error = content(frame, protocol::ICMP)?;
                // Fragmentation is needed, and the MTU of the next hop.
                (error[..2] == [3, 4]).then(|| u16::from_be_bytes([error[6], error[7]]))
            };
            host.expect(SOON, "an error", needed).unwrap()
        };
        reply(1450);
        let length = |frame: &[u8]| content(frame, protocol::UDP).map(<[u8]>::len);
        assert_eq!(pods.expect(SOON, "the reply", length).unwrap(), 1450 - 20);
        reply(1451);
        assert_eq!(told(), 1450);
        assert_eq!(give(&node, &["vvport7", "vvport8"]), 1);
        reply(1401);
        assert_eq!(told(), 1400);
    }
}
