//! Forwarding of what arrives at the interface with the router IP.
//!
//! The kernel forwards from an interface to all networks of the node. On a node that forwards for the agent only, a rule behind the
//! routes of endpoints drops everything else that arrives there: the neighbors of that interface must not use the node as a router into
//! its other networks. The rule is added before the kernel forwards, and deleted after it has stopped. So the next process knows whether
//! the agent has turned forwarding on.

use std::io;

use rtnetlink::{Handle, packet_route::AddressFamily};

use super::{
    error::{self, Error, netlink},
    family::FAMILIES,
    interface,
    rules::{self, Confinement},
};
use crate::sysctl;

/// Makes the kernel forward what arrives at this interface, and at no other one for which the agent has turned that on. Returns the
/// number of changes, and whether the kernel forwards IPv6.
pub(super) async fn sync(handle: &Handle, uplink: Option<&str>) -> Result<(usize, bool), Error> {
    let mut changes = 0;
    for family in FAMILIES {
        changes += confine(handle, uplink, family).await?;
    }
    let forwards_ipv6 = match uplink {
        Some(name) => interface::forward(name).map_err(error::interface(name)),
        None => Ok(true),
    };
    // An earlier interface that cannot be stopped keeps its rule, and does not keep this one from forwarding.
    for family in FAMILIES {
        changes += release(handle, uplink, family).await?;
    }
    Ok((changes, forwards_ipv6?))
}

/// Makes the kernel drop what arrives at this interface and is not for endpoints of the node, unless the node forwards at all its
/// interfaces. Returns the number of changes.
async fn confine(handle: &Handle, uplink: Option<&str>, family: AddressFamily) -> Result<usize, Error> {
    let wanted = Wanted::read(handle, uplink, family).await?;
    // What is for the node is delivered at any time.
    let added = add(handle, Confinement::Delivered, wanted.delivered, family).await?;
    Ok(added + add(handle, Confinement::Dropped, wanted.dropped, family).await?)
}

/// Ends forwarding of other interfaces, and deletes their rules. Returns the number of changes.
async fn release(handle: &Handle, uplink: Option<&str>, family: AddressFamily) -> Result<usize, Error> {
    let wanted = Wanted::read(handle, uplink, family).await?;
    let mut changes = 0;
    for name in others(handle, Confinement::Dropped, wanted.dropped, family).await? {
        stop(&name, family).map_err(error::interface(&name))?;
        rules::release(handle, Confinement::Dropped, &name, family).await.map_err(failed())?;
        changes += 1;
    }
    for name in others(handle, Confinement::Delivered, wanted.delivered, family).await? {
        rules::release(handle, Confinement::Delivered, &name, family).await.map_err(failed())?;
        changes += 1;
    }
    Ok(changes)
}

/// The interface that needs each kind of rule.
struct Wanted<'a> {
    delivered: Option<&'a str>,
    dropped: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    async fn read(
        handle: &Handle,
        uplink: Option<&'a str>,
        family: AddressFamily,
    ) -> Result<Wanted<'a>, Error> {
        // What the node itself sends comes from the loopback interface.
        let dropped = uplink.filter(|name| *name != rules::LOOPBACK && !is_forwarding(family));
        let is_local_first = match dropped {
            Some(_) => rules::has_local_first(handle, family).await.map_err(failed())?,
            None => true,
        };
        Ok(Wanted { delivered: dropped.filter(|_| !is_local_first), dropped })
    }
}

fn failed() -> impl FnOnce(rtnetlink::Error) -> Error {
    netlink("write the rule about the interface with the router IP")
}

/// Adds a rule about an interface, if it is missing. Returns the number of changes.
async fn add(
    handle: &Handle,
    kind: Confinement,
    wanted: Option<&str>,
    family: AddressFamily,
) -> Result<usize, Error> {
    let Some(name) = wanted else { return Ok(0) };
    let present = rules::confined(handle, kind, family).await.map_err(failed())?;
    match present.iter().any(|confined| confined == name) {
        true => Ok(0),
        false => rules::confine(handle, kind, name, family).await.map_err(failed()),
    }
}

/// Other interfaces with a rule of this kind.
async fn others(
    handle: &Handle,
    kind: Confinement,
    wanted: Option<&str>,
    family: AddressFamily,
) -> Result<Vec<String>, Error> {
    let mut present = rules::confined(handle, kind, family).await.map_err(failed())?;
    present.retain(|name| Some(name.as_str()) != wanted);
    Ok(present)
}

/// Whether the node forwards at all its interfaces.
fn is_forwarding(family: AddressFamily) -> bool {
    match family {
        AddressFamily::Inet => sysctl::forwards_ipv4(),
        _ => sysctl::forwards_ipv6(),
    }
}

fn stop(name: &str, family: AddressFamily) -> io::Result<()> {
    match family {
        AddressFamily::Inet => sysctl::stop_forwarding_ipv4(name),
        _ => sysctl::stop_forwarding_ipv6(name),
    }
}

#[cfg(test)]
mod tests {
    use testkit::{Netns, needs};

    use crate::{
        datapath::KERNEL_PORT,
        router::{
            access::HostAccess,
            desired::{Desired, Learnt},
            kernel,
            retention::Retention,
            task::tests::protect,
        },
    };

    /// A node with a management network on `eth2`, whose router IP is on `eth1`.
    fn node() -> Netns {
        let node = Netns::new("uplink").unwrap();
        for words in [
            "link set lo up",
            "link add inb01 type veth peer name switch",
            "link add eth1 type veth peer name leaf",
            "link add eth2 type veth peer name management",
            "link set switch up",
            "link set leaf up",
            "link set management up",
            "link set eth1 up",
            "link set eth2 up",
            "addr add 50.1.1.1/24 dev eth1",
            "addr add 2001:db8:50::1/64 dev eth1 nodad",
            "addr add 10.0.0.1/24 dev eth2",
            "addr add 2001:db8:2::1/64 dev eth2 nodad",
        ] {
            node.ip(words).unwrap();
        }
        node.sysctl("net/ipv4/ip_forward", "0").unwrap();
        node.sysctl("net/ipv6/conf/all/forwarding", "0").unwrap();
        node
    }

    /// As a process that has just been started. Returns the number of changes.
    fn sync(node: &Netns, is_routing: bool) -> usize {
        sync_after(node, is_routing, || Ok(())).0
    }

    /// As [`sync`], after what `prepare` does on the same thread. The leaf switch has a default route. Returns also the warnings.
    fn sync_after(
        node: &Netns,
        is_routing: bool,
        prepare: fn() -> anyhow::Result<()>,
    ) -> (usize, Vec<String>) {
        try_sync(node, is_routing, prepare).unwrap()
    }

    fn try_sync(
        node: &Netns,
        is_routing: bool,
        prepare: fn() -> anyhow::Result<()>,
    ) -> anyhow::Result<(usize, Vec<String>)> {
        let router = "50.1.1.1/24".parse().unwrap();
        let desired = Desired {
            is_routing,
            endpoints: ["10.9.0.1", "2001:db8:9::1"].map(|ip| ip.parse().unwrap()).into(),
            router: Some(router),
            ..Desired::default()
        };
        let leaf = [50, 1, 1, 2].into();
        let routes = [("0.0.0.0/0".parse().unwrap(), leaf)].into();
        let learnt = Learnt { routes, is_complete: true, session: Some((router, leaf)) };
        let work = || {
            prepare()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (mut access, both) = (HostAccess::default(), (&desired, &learnt));
                Ok(kernel::sync(&kernel::connect()?, &mut access, both, &Retention::over()).await?)
            })
        };
        node.run(work)
    }

    /// Whether packets from the leaf switch are forwarded by this interface.
    fn leads(node: &Netns, to: &str, link: &str) -> bool {
        let from = if to.contains(':') { "2001:db8:50::2" } else { "50.1.1.2" };
        let route = node.ip(&format!("route get {to} from {from} iif eth1"));
        route.is_ok_and(|route| route.contains(&format!("dev {link}")))
    }

    fn is_forwarding_at(node: &Netns, link: &str) -> bool {
        let parameter = format!("/proc/sys/net/ipv4/conf/{link}/forwarding");
        node.output("cat", &[&parameter]).unwrap().trim() == "1"
    }

    /// Else machines on the network of the leaf switch could reach the management network through the node.
    #[test]
    fn the_interface_with_the_router_ip_leads_to_endpoints_only() {
        needs!(root(), binary("ip"));
        let node = node();
        assert_ne!(sync(&node, true), 0);
        assert!(is_forwarding_at(&node, "eth1") && !is_forwarding_at(&node, "eth2"));
        for (endpoint, other) in [("10.9.0.1", "10.0.0.9"), ("2001:db8:9::1", "2001:db8:2::9")] {
            assert!(leads(&node, endpoint, KERNEL_PORT), "{endpoint}");
            assert!(!leads(&node, other, "eth2"), "{other}");
            assert!(node.ip(&format!("route get {other}")).unwrap().contains("dev eth2"), "the node itself");
        }
        assert!(leads(&node, "50.1.1.1", "lo"), "the addresses of the node");
        assert_eq!(sync(&node, true), 0);
        node.ip("rule del pref 2984").unwrap();
        assert!(leads(&node, "10.0.0.9", "eth2"));
        assert_eq!(sync(&node, true), 1);
        assert!(!leads(&node, "10.0.0.9", "eth2"));
        // As it was before.
        assert_ne!(sync(&node, false), 0);
        assert!(!is_forwarding_at(&node, "eth1"));
        for family in ["-4", "-6"] {
            assert!(!node.ip(&format!("{family} rule show")).unwrap().contains("2984"), "{family}");
        }
    }

    #[test]
    fn a_node_that_forwards_anyway_goes_on() {
        needs!(root(), binary("ip"));
        let node = node();
        sync(&node, true);
        // As the daemon of a container runtime does.
        node.sysctl("net/ipv4/ip_forward", "1").unwrap();
        assert_eq!(sync(&node, true), 1);
        assert!(leads(&node, "10.0.0.9", "eth2") && leads(&node, "10.9.0.1", KERNEL_PORT));
        assert!(!leads(&node, "2001:db8:2::9", "eth2"));
        sync(&node, false);
        assert!(is_forwarding_at(&node, "eth1"));
        // From now on it forwards for the agent alone.
        node.sysctl("net/ipv4/ip_forward", "0").unwrap();
        sync(&node, true);
        assert!(is_forwarding_at(&node, "eth1") && !leads(&node, "10.0.0.9", "eth2"));
    }

    /// As the kernel's documentation of VRF devices advises.
    #[test]
    fn a_node_that_looks_for_its_own_addresses_last_is_reached() {
        needs!(root(), binary("ip"));
        let node = node();
        for words in ["rule add pref 32765 table local", "rule del pref 0"] {
            node.ip(words).unwrap();
        }
        let is_confined = || {
            assert!(leads(&node, "50.1.1.1", "lo"), "the addresses of the node");
            assert!(leads(&node, "10.9.0.1", KERNEL_PORT) && !leads(&node, "10.0.0.9", "eth2"));
            node.ip("rule show").unwrap().contains("iif eth1 lookup local")
        };
        sync(&node, true);
        assert!(is_confined());
        assert!(!node.ip("-6 rule show").unwrap().contains("iif eth1 lookup local"));
        assert_eq!(sync(&node, true), 0);
        node.ip("rule add pref 0 table local").unwrap();
        assert_eq!(sync(&node, true), 1);
        assert!(!is_confined());
        node.ip("rule del pref 0").unwrap();
        // Not for all packets to the node.
        node.ip("rule add pref 100 ipproto tcp dport 22 lookup local").unwrap();
        node.ip("rule add pref 101 not iif eth2 lookup local").unwrap();
        assert_eq!(sync(&node, true), 1);
        assert!(is_confined());
        sync(&node, false);
        let rules = node.ip("rule show").unwrap();
        assert!(!rules.contains("iif eth1"), "{rules}");
    }

    /// The router IP is on another interface from now on.
    #[test]
    fn an_earlier_interface_forwards_no_more() {
        needs!(root(), binary("ip"));
        let node = node();
        sync(&node, true);
        node.ip("addr del 50.1.1.1/24 dev eth1").unwrap();
        node.ip("addr add 50.1.1.1/24 dev eth2").unwrap();
        assert_ne!(sync(&node, true), 0);
        assert!(!is_forwarding_at(&node, "eth1") && is_forwarding_at(&node, "eth2"));
        let rules = node.ip("rule show").unwrap();
        let own: Vec<_> = rules.lines().filter(|rule| rule.starts_with("2984:")).collect();
        assert!(matches!(own[..], [rule] if rule.contains("iif eth2")), "{rules}");
        // An interface that is gone.
        node.ip("link del eth2").unwrap();
        assert_ne!(sync(&node, false), 0);
        assert_eq!(sync(&node, false), 0);
    }

    /// Also in a container without the right to change parameters.
    #[test]
    fn routes_are_written_although_a_parameter_is_not() {
        needs!(root(), binary("ip"));
        let node = node();
        let (_, warnings) = sync_after(&node, true, || protect("/proc/sys/net/ipv4/conf/eth1/forwarding"));
        let why = "routing in the kernel: set parameters of interface eth1: ";
        assert!(warnings.iter().any(|line| line.starts_with(why)), "{warnings:?}");
        let routes = node.ip("route show table 2982").unwrap();
        assert!(routes.contains("default via 50.1.1.2 dev eth1"), "{routes}");
    }

    /// As in such a container after an agent that had the right.
    #[test]
    fn read_only_parameters_do_not_keep_routes_from_being_written_and_deleted() {
        needs!(root(), binary("ip"));
        let node = node();
        sync(&node, true);
        node.ip("route flush table 2982").unwrap();
        let (_, warnings) = sync_after(&node, true, || protect("/proc/sys"));
        assert_eq!(warnings, [""; 0], "all parameters have their values");
        assert!(node.ip("route show table 2982").unwrap().contains("default via 50.1.1.2 dev eth1"));
        let ended = try_sync(&node, false, || protect("/proc/sys"));
        assert!(format!("{:#}", ended.unwrap_err()).contains("interface eth1"));
        let rules = node.ip("rule show").unwrap();
        assert!(rules.contains("2984:") && !rules.contains("2981:"), "{rules}");
        assert!(!node.ip("route show table all").unwrap().contains("table 2982"));
    }

    /// The interface with the router IP before keeps its rule.
    #[test]
    fn an_interface_that_cannot_be_stopped_does_not_keep_the_next_one_from_forwarding() {
        needs!(root(), binary("ip"));
        let node = node();
        sync(&node, true);
        node.ip("address del 50.1.1.1/24 dev eth1").unwrap();
        node.ip("address add 50.1.1.1/24 dev eth2").unwrap();
        let (_, warnings) = sync_after(&node, true, || protect("/proc/sys/net/ipv4/conf/eth1/forwarding"));
        assert!(warnings.iter().any(|line| line.contains("interface eth1")), "{warnings:?}");
        let forwards = node.output("cat", &["/proc/sys/net/ipv4/conf/eth2/forwarding"]).unwrap();
        assert_eq!(forwards.trim(), "1");
        let rules = node.ip("rule show").unwrap();
        assert!(
            ["eth1", "eth2"].iter().all(|name| rules.contains(&format!("iif {name} blackhole"))),
            "{rules}"
        );
    }
}
