//! Changes of the kernel.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::{IpNet, Ipv4Net};
use rtnetlink::Handle;

use super::{
    access::HostAccess,
    desired::{Desired, Learnt},
    error::{Error, interface, netlink},
    forwarding,
    host::{self, HostRoutes},
    interface::{self, Uplink, is_mapped},
    mtu,
    nat_table::NatTable,
    retention::Retention,
    routes::{self, CLUSTER, ENDPOINTS, FABRIC, Hop, Table},
    rules,
};
use crate::{datapath::KERNEL_PORT, error::one_line, sysctl};

/// Makes the kernel forward as desired. What `retention` keeps stays. Returns the number of changes, and what is not in effect, one
/// line each.
pub(super) async fn sync(
    handle: &Handle,
    access: &mut HostAccess,
    (desired, learnt): (&Desired, &Learnt),
    retention: &Retention,
) -> Result<(usize, Vec<String>), Error> {
    // The speaker runs with its last valid settings while the record is invalid.
    let leaf = learnt.session.and_then(|(_, neighbor)| match neighbor {
        IpAddr::V4(neighbor) => Some(neighbor),
        IpAddr::V6(_) => None,
    });
    let wanted = desired.access.clone().map(|mut table| {
        table.leaves.extend(leaf);
        table
    });
    // First: pods must not use the routes of the node.
    let access = sync_access(handle, access, (wanted.as_ref(), desired), retention).await;
    let host = sync_host(handle, &desired.host, retention).await;
    let vlans = match desired.is_routing {
        true => sync_vlans(handle, (desired, learnt), retention).await,
        false => delete_vlans(handle).await.map(|changes| (changes, vec![])),
    };
    // They do not depend on each other: one that fails must not keep the others from being written.
    let (mut changes, mut warnings) = access?;
    for (changed, more) in [host?, vlans?] {
        changes += changed;
        warnings.extend(more);
    }
    Ok((changes, warnings))
}

/// Makes the kernel give host access, which leads to none of the prefixes of the cluster, or none.
async fn sync_access(
    handle: &Handle,
    access: &mut HostAccess,
    (wanted, desired): (Option<&NatTable>, &Desired),
    retention: &Retention,
) -> Result<(usize, Vec<String>), Error> {
    if wanted.is_none() && retention.keeps_access() {
        return Ok((0, vec![]));
    }
    let close = || netlink("close the networks of the cluster to host access");
    let (mut changes, mut rejected) = (0, None);
    // Before pods are led there, and until they are not any more.
    if wanted.is_some() {
        let blackholes = desired.cluster.iter().map(|prefix| (*prefix, Hop::Blackhole)).collect();
        let keeps = |prefix: &IpNet| retention.keeps(prefix);
        (changes, rejected) = routes::sync(handle, CLUSTER, &blackholes, keeps).await.map_err(close())?;
    }
    let (changed, mut warnings) = access.sync(handle, wanted, &desired.pods).await?;
    changes += changed;
    warnings.extend(rejected);
    if wanted.is_none() && !access.is_ending() {
        changes += routes::sync(handle, CLUSTER, &Table::new(), |_| false).await.map_err(close())?.0;
    }
    Ok((changes, warnings))
}

async fn sync_host(
    handle: &Handle,
    wanted: &HostRoutes,
    retention: &Retention,
) -> Result<(usize, Vec<String>), Error> {
    let synced = host::sync(handle, wanted, retention).await;
    let (changes, rejected) = synced.map_err(netlink("write the routes of the node"))?;
    Ok((changes, wanted.missing.iter().cloned().chain(rejected).collect()))
}

async fn sync_vlans(
    handle: &Handle,
    (desired, learnt): (&Desired, &Learnt),
    retention: &Retention,
) -> Result<(usize, Vec<String>), Error> {
    let mut warnings = desired.refused.clone();
    let switch =
        interface::find(handle, KERNEL_PORT).await.map_err(netlink("find the port of the switch"))?;
    let mut changes = rules::add(handle).await.map_err(netlink("add routing rules"))?;
    let mut forwards_ipv6 = true;
    let mut endpoints = Table::new();
    if let Some(link) = &switch {
        let silenced = interface::silence(KERNEL_PORT).map_err(interface(KERNEL_PORT));
        or_report(silenced, &mut warnings);
        interface::bring_up(handle, link).await.map_err(netlink("bring up the port of the switch"))?;
        let forwarding = interface::forward(KERNEL_PORT).map_err(interface(KERNEL_PORT));
        forwards_ipv6 = or_report(forwarding, &mut warnings).unwrap_or(true);
        let mtu = mtu::least_below(handle, link, &desired.ports).await;
        let mtu = mtu.map_err(netlink("read the MTU of endpoints"))?;
        let hop = Hop::Via { interface: link.header.index, gateway: None, mtu };
        endpoints = desired.endpoints.iter().map(|address| (IpNet::from(*address), hop)).collect();
    }
    let synced = routes::sync(handle, ENDPOINTS, &endpoints, |prefix| retention.keeps(prefix)).await;
    let (changed, rejected) = synced.map_err(netlink("write the routes of endpoints"))?;
    changes += changed;
    warnings.extend(rejected);

    let earlier = learnt.session.map(|(router, _)| router);
    let router = desired.router.or(earlier).map(|router| router.addr());
    let uplink = match router {
        Some(router) => Uplink::with(router).map_err(Error::Addresses)?,
        None => None,
    };
    // Without one, that of an earlier process stays as long as its routes.
    if uplink.is_some() || learnt.is_complete {
        let synced = forwarding::sync(handle, uplink.as_ref().map(|uplink| &*uplink.name)).await;
        let (changed, forwards) = or_report(synced, &mut warnings).unwrap_or((0, true));
        changes += changed;
        forwards_ipv6 &= forwards;
    }
    warnings.extend(unrouted(uplink.as_ref(), router, desired));
    let has_ipv6 = desired.endpoints.iter().any(IpAddr::is_ipv6);
    let (fabric, unusable) = uplink.map(|uplink| fabric(&uplink, learnt, has_ipv6)).unwrap_or_default();
    warnings.extend(unusable);
    let synced = routes::sync(handle, FABRIC, &fabric, |_| !learnt.is_complete).await;
    let (changed, rejected) = synced.map_err(netlink("write the routes of the leaf switch"))?;
    changes += changed;
    warnings.extend(rejected);
    if !forwards_ipv6 && has_ipv6 {
        warnings.push(
            "IPv6 of VLAN networks is not routed to other nodes: the kernel cannot forward for single interfaces; set \
             net.ipv6.conf.all.forwarding to 1"
                .to_owned(),
        );
    }
    Ok((changes, warnings))
}

/// Reports an error that does not keep the routes from being written: other packets need them.
fn or_report<T>(result: Result<T, Error>, warnings: &mut Vec<String>) -> Option<T> {
    result.inspect_err(|error| warnings.push(format!("routing in the kernel: {}", one_line(error)))).ok()
}

/// Why VLAN networks are not routed to other nodes, or not all packets of these arrive.
fn unrouted(uplink: Option<&Uplink>, router: Option<Ipv4Addr>, desired: &Desired) -> Option<String> {
    match (uplink, router) {
        (Some(uplink), _) => strict_filter(&uplink.name),
        (None, Some(router)) => Some(format!(
            "VLAN networks are not routed to other nodes: no interface of this node has the router IP {router}"
        )),
        (None, None) if !desired.endpoints.is_empty() => Some(
            "VLAN networks are not routed to other nodes: this node has no Bgp object; create one with netctl bgp create"
                .to_owned(),
        ),
        (None, None) => None,
    }
}

/// Routes of the leaf switch whose next hops are on the link of the uplink, and why others are not used. The kernel takes any next hop
/// with `onlink`, and packets to one that does not answer are lost, although a shorter prefix may lead to their destination.
///
/// A leaf switch without an IPv6 address on the link announces IPv4-mapped next hops, which matter if the node `has_ipv6` endpoints.
fn fabric(uplink: &Uplink, learnt: &Learnt, has_ipv6: bool) -> (Table, Option<String>) {
    let via = |gateway| Hop::Via { interface: uplink.index, gateway, mtu: None };
    let leaf = learnt.session.filter(|(router, leaf)| is_beside(uplink, router, leaf)).map(|(_, leaf)| leaf);
    let is_of_others = |(_, next_hop): &(&IpNet, &IpAddr)| !uplink.addresses.contains(next_hop);
    // RFC 4271 section 6.3.
    let is_usable =
        |(_, next_hop): &(&IpNet, &IpAddr)| Some(**next_hop) == leaf || uplink.is_on_link(**next_hop);
    let (usable, unusable): (Vec<_>, Vec<_>) = learnt.routes.iter().filter(is_of_others).partition(is_usable);
    // One of them, without their number: the warning is logged whenever it changes.
    let warning = unusable.iter().find(|(_, next_hop)| has_ipv6 || !is_mapped(next_hop)).map(|(prefix, next_hop)| {
        let link = &uplink.name;
        let advice = match learnt.session {
            _ if is_mapped(next_hop) => {
                "give the leaf switch an IPv6 address on its link to this node, or let it announce no IPv6 routes"
            }
            Some((_, leaf)) if leaf == **next_hop => {
                "set neighbor of the Bgp object to the address of the leaf switch on that network"
            }
            _ => "make the leaf switch announce itself as next hop (next-hop-self)",
        };
        format!(
            "routes of the leaf switch are not used: next hop {next_hop} of {prefix} is not on the network of interface {link}; {advice}"
        )
    });
    let usable = usable.into_iter().map(|(prefix, next_hop)| (*prefix, via(Some(*next_hop))));
    (usable.chain(uplink.prefixes.iter().map(|prefix| (*prefix, via(None)))).collect(), warning)
}

/// Whether the leaf switch is in the subnet of the router IP. Without a subnet it may be any host on the link.
fn is_beside(uplink: &Uplink, router: &Ipv4Net, leaf: &IpAddr) -> bool {
    let has_no_subnet = |router: &IpNet| router.prefix_len() == router.max_prefix_len();
    let alone = IpNet::from(IpAddr::V4(router.addr()));
    let router = IpNet::V4(*router);
    router.contains(leaf) || has_no_subnet(&router) || uplink.prefixes.contains(&alone)
}

/// Why packets of other nodes' endpoints may be dropped: the node itself may have no route, or another one, to their sources.
fn strict_filter(uplink: &str) -> Option<String> {
    let is_strict = sysctl::has_strict_filter(uplink);
    is_strict.then(|| {
        format!(
            "interface {uplink} drops packets whose source has another route (rp_filter 1); set net.ipv4.conf.{uplink}.rp_filter and \
             net.ipv4.conf.all.rp_filter to 0 or 2"
        )
    })
}

async fn delete_vlans(handle: &Handle) -> Result<usize, Error> {
    // Forwarding may stay on because a parameter is read-only, with the rule that confines it.
    let stopped = forwarding::sync(handle, None).await;
    let mut changes = rules::delete(handle).await.map_err(netlink("delete routing rules"))?;
    for table in [ENDPOINTS, FABRIC] {
        let deleted = routes::sync(handle, table, &Table::new(), |_| false).await;
        changes += deleted.map_err(netlink("delete routes"))?.0;
    }
    Ok(changes + stopped?.0)
}

/// Opens a connection that reads single tables.
pub(super) fn connect() -> Result<Handle, Error> {
    let (connection, handle, _) = rtnetlink::new_connection_with_strict_check().map_err(Error::Connect)?;
    tokio::spawn(connection);
    Ok(handle)
}

/// Removes the rules and routes that any process of the agent has created on this node.
///
/// # Errors
///
/// If the kernel refuses.
pub async fn remove() -> Result<(), Error> {
    let handle = connect()?;
    let host = sync_host(&handle, &HostRoutes::default(), &Retention::over()).await;
    let access = remove_access(&handle).await;
    let vlans = delete_vlans(&handle).await;
    host?;
    access?;
    vlans.map(drop)
}

async fn remove_access(handle: &Handle) -> Result<(), Error> {
    HostAccess::remove(handle).await?;
    let closed = routes::sync(handle, CLUSTER, &Table::new(), |_| false).await;
    closed.map(drop).map_err(netlink("delete routes"))
}

#[cfg(test)]
mod tests {
    use testkit::{Netns, needs};

    use super::*;
    use crate::router::desired::Desired;

    /// Such a route would lead nowhere, although the default route reaches the prefix.
    #[test]
    fn routes_whose_next_hop_is_not_on_the_link_are_left_out() {
        let routes = [
            ("0.0.0.0/0", "50.1.1.2"),
            ("20.1.0.0/16", "50.1.1.9"),
            ("20.2.0.0/16", "192.0.2.9"),
            ("20.3.0.0/16", "50.1.1.1"),
            ("2001:db8:1::/48", "2001:db8:50::2"),
            ("2001:db8:2::/48", "2001:db8:51::2"),
        ]
        .map(|(prefix, next_hop)| (prefix.parse::<IpNet>().unwrap(), next_hop.parse::<IpAddr>().unwrap()));
        let learnt = Learnt {
            routes: routes.into(),
            is_complete: true,
            session: Some(("50.1.1.1/24".parse().unwrap(), [50, 1, 1, 2].into())),
        };
        let used = |own: [&str; 2]| {
            let own = own.map(|address| address.parse::<IpNet>().unwrap());
            let uplink = Uplink {
                name: "eth1".to_owned(),
                index: 7,
                prefixes: own.map(|address| address.trunc()).into(),
                addresses: own.map(|address| address.addr()).into(),
            };
            let (table, warning) = fabric(&uplink, &learnt, true);
            let used = routes.iter().filter(|(prefix, _)| table.contains_key(prefix));
            (used.map(|(prefix, _)| prefix.to_string()).collect::<Vec<_>>(), warning.unwrap_or_default())
        };
        let (prefixes, warning) = used(["50.1.1.1/24", "2001:db8:50::1/64"]);
        assert_eq!(prefixes, ["0.0.0.0/0", "20.1.0.0/16", "2001:db8:1::/48"]);
        let why = "next hop 192.0.2.9 of 20.2.0.0/16 is not on the network of interface eth1";
        assert!(warning.contains(why), "{warning}");
        // Without subnets: the neighbor, and any IPv6 address.
        let (prefixes, warning) = used(["50.1.1.1/32", "2001:db8:50::1/128"]);
        assert_eq!(prefixes, ["0.0.0.0/0", "2001:db8:1::/48", "2001:db8:2::/48"]);
        assert!(warning.contains("50.1.1.9 of 20.1.0.0/16"), "{warning}");
    }

    /// A leaf switch without an IPv6 address announces them in sessions over IPv4.
    #[test]
    fn next_hops_that_are_mapped_ipv4_addresses_are_not_used() {
        let learnt = Learnt {
            routes: [("2001:db8:1::/48".parse().unwrap(), "::ffff:50.1.1.2".parse().unwrap())].into(),
            is_complete: true,
            session: Some(("50.1.1.1/24".parse().unwrap(), [50, 1, 1, 2].into())),
        };
        let uplink = Uplink {
            name: "eth1".to_owned(),
            index: 7,
            prefixes: ["50.1.1.0/24".parse().unwrap()].into(),
            addresses: [[50, 1, 1, 1].into()].into(),
        };
        let (table, warning) = fabric(&uplink, &learnt, true);
        assert_eq!(table.keys().map(ToString::to_string).collect::<Vec<_>>(), ["50.1.1.0/24"]);
        assert_eq!(
            warning.unwrap(),
            "routes of the leaf switch are not used: next hop ::ffff:50.1.1.2 of 2001:db8:1::/48 is not on the network of interface \
             eth1; give the leaf switch an IPv6 address on its link to this node, or let it announce no IPv6 routes"
        );
        assert_eq!(fabric(&uplink, &learnt, false).1, None, "the node has no IPv6 endpoints");
    }

    /// A leaf switch behind a router, as with multihop sessions, answers no ARP requests.
    #[test]
    fn routes_of_a_leaf_switch_elsewhere_are_left_out() {
        let prefix: IpNet = "0.0.0.0/0".parse().unwrap();
        let used = |own: &str, router: &str, leaf: &str| {
            let (own, leaf) = (own.parse::<IpNet>().unwrap(), leaf.parse().unwrap());
            let learnt = Learnt {
                routes: [(prefix, leaf)].into(),
                is_complete: true,
                session: Some((router.parse().unwrap(), leaf)),
            };
            let uplink = Uplink {
                name: "eth1".to_owned(),
                index: 7,
                prefixes: [own.trunc()].into(),
                addresses: [own.addr()].into(),
            };
            let (table, warning) = fabric(&uplink, &learnt, true);
            assert_ne!(table.contains_key(&prefix), warning.is_some());
            warning
        };
        assert_eq!(used("50.1.1.1/24", "50.1.1.1/24", "50.1.1.2"), None);
        assert_eq!(
            used("50.1.1.1/24", "50.1.1.1/24", "192.0.2.9").unwrap(),
            "routes of the leaf switch are not used: next hop 192.0.2.9 of 0.0.0.0/0 is not on the network of interface eth1; set \
             neighbor of the Bgp object to the address of the leaf switch on that network"
        );
        // The interface, or the router IP, has no subnet.
        assert_eq!(used("50.1.1.1/32", "50.1.1.1/24", "192.0.2.9"), None);
        assert_eq!(used("50.1.1.1/24", "50.1.1.1/32", "192.0.2.9"), None);
    }

    /// The physical network leads to the pods of routed VLAN networks on other nodes: those of other tenants, whose rules would take the
    /// packets for the node's.
    #[test]
    fn host_access_leads_to_no_network_of_the_cluster() {
        needs!(root(), binary("ip"), binary("nft"));
        let node = Netns::new("cluster").unwrap();
        for words in [
            "link set lo up",
            "link add contivh0 type veth peer name pods",
            "link add eth1 type veth peer name wire",
            "addr add 192.0.2.1/24 dev eth1",
            "link set pods up",
            "link set eth1 up",
            "link set wire up",
            "route add default via 192.0.2.254",
        ] {
            node.ip(words).unwrap();
        }
        node.sysctl("net/ipv4/ip_forward", "1").unwrap();
        // The default of some distributions.
        node.sysctl("net/ipv4/conf/all/rp_filter", "2").unwrap();
        node.sysctl("net/ipv4/conf/eth1/rp_filter", "1").unwrap();
        let given = NatTable {
            subnet: "172.19.0.0/16".parse().unwrap(),
            closed: [].into(),
            tunnels: [].into(),
            leaves: [].into(),
            pods: 16,
        };
        let mut access = HostAccess::default();
        let mut sync = |given: Option<&NatTable>, cluster: &[&str]| {
            let cluster = cluster.iter().map(|prefix| prefix.parse().unwrap()).collect();
            let desired = Desired { access: given.cloned(), cluster, ..Desired::default() };
            let work = || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(async {
                    let learnt = Learnt::default();
                    let both = (&desired, &learnt);
                    anyhow::Ok(sync(&connect()?, &mut access, both, &Retention::over()).await?)
                })
            };
            let (changes, warnings) = node.run(work).unwrap();
            assert_eq!(warnings, [""; 0]);
            changes
        };
        let leads_to = |to: &str| {
            let words = format!("route get {to} from 172.19.0.7 iif contivh0 mark 0x2000");
            node.ip(&words).is_ok_and(|route| route.contains("dev eth1"))
        };
        sync(Some(&given), &["10.1.0.0/16", "10.2.0.0/16"]);
        assert!(leads_to("198.51.100.1"));
        let answer = node.ip("route get 172.19.0.7 from 198.51.100.1 iif eth1 mark 0x2000").unwrap();
        assert!(answer.contains("dev contivh0"), "{answer}");
        assert!(!leads_to("10.1.0.5") && !leads_to("10.2.0.5"));
        assert!(node.ip("route get 10.1.0.5").unwrap().contains("dev eth1"), "the node itself");
        assert_eq!(sync(Some(&given), &["10.1.0.0/16", "10.2.0.0/16"]), 0);
        sync(Some(&given), &["10.2.0.0/16"]);
        assert!(leads_to("10.1.0.5") && !leads_to("10.2.0.5"));
        // As long as the datapath may lead packets there.
        sync(None, &[]);
        assert!(leads_to("198.51.100.1") && !leads_to("10.2.0.5"));
        node.ip("link del contivh0").unwrap();
        assert_ne!(sync(None, &[]), 0);
        assert_eq!(sync(None, &[]), 0);
        assert!(node.ip("route show table all").unwrap().lines().all(|route| !route.contains("2979")));
    }
}
