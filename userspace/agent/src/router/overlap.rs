//! Networks of the node that have addresses of the private subnet, such as those of containers that Kubernetes does not run.
//!
//! The kernel has one route for an address. With host access, the rules would drop what the node forwards to such a network, and the
//! table what comes from it. So host access does not begin there. Where it was first, pods keep it.

use std::{fmt, io};

use ipnet::{IpNet, Ipv4Net};

use crate::{
    addresses,
    datapath::host_access::{HOST_PORT, kernel_address},
};

/// A network with addresses of the private subnet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Overlap {
    subnet: Ipv4Net,
    interface: String,
    network: Ipv4Net,
    /// Whether the node already gave host access with this private subnet: the kernel keeps the address of its interface.
    pub(super) is_later: bool,
}

impl Overlap {
    /// The first network of this node; `None` if there is none.
    pub(super) fn find(subnet: Ipv4Net) -> io::Result<Option<Overlap>> {
        Ok(Overlap::among(subnet, &addresses::read()?))
    }

    fn among(subnet: Ipv4Net, addresses: &[(String, IpNet)]) -> Option<Overlap> {
        let own = IpNet::V4(Ipv4Net::new(kernel_address(subnet), subnet.prefix_len()).ok()?);
        let is_later = addresses.iter().any(|(interface, address)| interface == HOST_PORT && *address == own);
        let others = addresses.iter().filter(|(interface, _)| interface != HOST_PORT);
        let mut networks = others.filter_map(|(interface, address)| match address {
            IpNet::V4(address) => Some((interface.clone(), address.trunc())),
            IpNet::V6(_) => None,
        });
        let overlaps = |network: &Ipv4Net| network.contains(&subnet) || subnet.contains(network);
        let (interface, network) = networks.find(|(_, network)| overlaps(network))?;
        Some(Overlap { subnet, interface, network, is_later })
    }
}

/// What is not in effect, and what to do.
impl fmt::Display for Overlap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Overlap { subnet, interface, network, is_later } = self;
        let effect = match is_later {
            true => {
                "some addresses are those of pods with host access and of other hosts, whose packets are dropped"
            }
            false => "pods do not reach addresses outside of the cluster",
        };
        write!(
            out,
            "{effect}: network {network} of interface {interface} overlaps the private subnet {subnet}; give the interface another \
             network, choose another private subnet before networks are created (netctl global set --private-subnet), or start the \
             agent with --no-host-access"
        )
    }
}

#[cfg(test)]
mod tests {
    use testkit::{Netns, needs};

    use super::*;
    use crate::router::{
        access::HostAccess,
        desired::{Desired, Learnt},
        kernel,
        nat_table::NatTable,
        retention::Retention,
    };

    const SUBNET: Ipv4Net = Ipv4Net::new_assert(std::net::Ipv4Addr::new(172, 19, 0, 0), 16);

    fn among(addresses: &[(&str, &str)]) -> Option<(String, bool)> {
        let parsed =
            |(interface, address): &(&str, &str)| ((*interface).to_owned(), address.parse().unwrap());
        let addresses: Vec<(String, IpNet)> = addresses.iter().map(parsed).collect();
        Overlap::among(SUBNET, &addresses).map(|overlap| (overlap.interface, overlap.is_later))
    }

    #[test]
    fn networks_with_addresses_of_the_private_subnet_are_found() {
        let own = (HOST_PORT, "172.19.255.254/16");
        for (other, is_found) in [
            ("172.19.0.1/16", true),
            ("172.19.7.1/24", true),
            ("172.19.7.1/32", true),
            ("172.16.0.1/12", true),
            ("172.18.0.1/16", false),
            ("2001:db8::1/64", false),
        ] {
            let expected = |is_later| is_found.then(|| ("br-1".to_owned(), is_later));
            assert_eq!(among(&[("br-1", other)]), expected(false), "{other}");
            assert_eq!(among(&[own, ("br-1", other)]), expected(true), "{other}");
            // Of another private subnet.
            assert_eq!(
                among(&[(HOST_PORT, "172.20.255.254/16"), ("br-1", other)]),
                expected(false),
                "{other}"
            );
        }
        assert_eq!(among(&[own]), None);
    }

    /// Makes the kernel give host access. Returns what is not in effect.
    fn give(node: &Netns) -> String {
        let access =
            NatTable { subnet: SUBNET, closed: [].into(), tunnels: [].into(), leaves: [].into(), pods: 16 };
        let desired = Desired { access: Some(access), ..Desired::default() };
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let (mut access, learnt) = (HostAccess::default(), Learnt::default());
                let both = (&desired, &learnt);
                let synced = kernel::sync(&kernel::connect()?, &mut access, both, &Retention::over()).await?;
                anyhow::Ok(synced.1.join("\n"))
            })
        };
        node.run(work).unwrap()
    }

    /// Docker gives its second network the default private subnet.
    #[test]
    fn a_network_of_containers_is_left_alone() {
        needs!(root(), binary("ip"), binary("nft"));
        let node = Netns::new("overlap").unwrap();
        for words in [
            "link set lo up",
            "link add contivh0 type veth peer name pods",
            "link add br-1 type veth peer name container",
            "link add eth1 type veth peer name wire",
            "addr add 172.19.0.1/16 dev br-1",
            "addr add 192.0.2.1/24 dev eth1",
            "link set pods up",
            "link set container up",
            "link set br-1 up",
            "link set wire up",
            "link set eth1 up",
        ] {
            node.ip(words).unwrap();
        }
        node.sysctl("net/ipv4/ip_forward", "1").unwrap();
        let reaches_containers = || {
            node.ip("route get 172.19.0.7 from 192.0.2.9 iif eth1")
                .is_ok_and(|route| route.contains("dev br-1"))
        };
        let has_table = || node.output("nft", &["list", "tables"]).unwrap().contains("contiv-host-access");
        let warning = give(&node);
        let why = "pods do not reach addresses outside of the cluster: network 172.19.0.0/16 of interface br-1 overlaps";
        assert!(warning.starts_with(why), "{warning}");
        assert!(reaches_containers() && !has_table());
        // Nothing that pods send is forwarded, whatever the interface forwards.
        node.ip("link set contivh0 up").unwrap();
        let from_pod = node.ip("route get 192.0.2.9 from 172.19.0.7 iif contivh0");
        assert!(from_pod.is_err(), "{from_pod:?}");

        node.ip("addr del 172.19.0.1/16 dev br-1").unwrap();
        assert_eq!(give(&node), "");
        assert!(has_table());
        // Pods had it first.
        node.ip("addr add 172.19.0.1/16 dev br-1").unwrap();
        let warning = give(&node);
        assert!(warning.contains("interface br-1 overlaps the private subnet 172.19.0.0/16"), "{warning}");
        assert!(has_table() && !reaches_containers());
        // The interface is made again with the datapath.
        for words in ["link del contivh0", "link add contivh0 type veth peer name pods", "link set pods up"] {
            node.ip(words).unwrap();
        }
        let warning = give(&node);
        assert!(warning.starts_with("some addresses are those of pods with host access"), "{warning}");
        assert!(has_table() && !reaches_containers());
    }
}
