//! The interfaces of the node that carry the endpoints' frames.

use std::{collections::BTreeSet, net::IpAddr};

use futures::TryStreamExt as _;
use rtnetlink::packet_route::{
    address::AddressAttribute,
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
};

use super::{
    error::Error,
    links::Links,
    query::{self, mtu, name},
};

/// MTU of a node without interfaces of its own.
const DEFAULT_MTU: u32 = 1500;

/// Name prefixes of interfaces that serve pods and containers, or that do not carry their traffic.
const EXCLUDED_PREFIXES: [&str; 11] = [
    "lo",
    "docker",
    "veth",
    "vport",
    "vvport",
    "vxif",
    "contiv",
    "inb01",
    "ovs-",
    "vxlan_sys_",
    "genev_sys_",
];

/// Properties of the node's interfaces that endpoints depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// MTU in bytes of the interface with the VTEP address.
    pub vtep_mtu: u32,
    /// Lowest MTU in bytes of the VLAN uplinks.
    pub uplink_mtu: u32,
    /// Whether an interface has the VTEP address.
    pub has_vtep: bool,
}

impl Links {
    /// Reads the interfaces. If an address or an uplink does not identify the interface that carries the frames, the
    /// lowest MTU of the node's own interfaces applies, without tunnels of other programs.
    pub async fn underlay(&self, vtep: IpAddr, uplinks: &[String]) -> Result<Underlay, Error> {
        let owner = self.owner_of(vtep).await?;
        let links = self.list().await?;
        // Excludes infra endpoints: their MTU comes from this function.
        let ends: BTreeSet<u32> = links.iter().filter_map(query::node_end).collect();
        let own = links.iter().filter(|link| is_node_interface(link) && !ends.contains(&link.header.index));
        let lowest = own.filter_map(mtu).min().unwrap_or(DEFAULT_MTU);
        let of_vtep = links.iter().find(|link| Some(link.header.index) == owner && carries_frames(link));
        let is_uplink =
            |link: &&LinkMessage| name(link).is_some_and(|name| uplinks.iter().any(|it| it == name));
        Ok(Underlay {
            vtep_mtu: of_vtep.and_then(mtu).unwrap_or(lowest),
            uplink_mtu: links.iter().filter(is_uplink).filter_map(mtu).min().unwrap_or(lowest),
            has_vtep: owner.is_some(),
        })
    }

    /// Index of the interface with this address.
    async fn owner_of(&self, address: IpAddr) -> Result<Option<u32>, Error> {
        let _guard = self.dump_lock().await;
        let mut addresses = self.handle().address().get().execute();
        let failed = Error::netlink("list the addresses of", "the node's interfaces");
        let mut owner = None;
        loop {
            match addresses.try_next().await {
                Ok(Some(message)) => {
                    let is_it = |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Address(ip) | AddressAttribute::Local(ip) if *ip == address);
                    if message.attributes.iter().any(is_it) {
                        owner = Some(message.header.index);
                    }
                }
                Ok(None) => return Ok(owner),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// A VTEP address on a loopback or dummy interface is reached through other interfaces.
fn carries_frames(link: &LinkMessage) -> bool {
    !link.header.flags.contains(LinkFlags::Loopback) && !matches!(kind(link), Some(InfoKind::Dummy))
}

fn kind(link: &LinkMessage) -> Option<&InfoKind> {
    let info = link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::LinkInfo(info) => Some(info),
        _ => None,
    });
    info?.iter().find_map(|info| match info {
        LinkInfo::Kind(kind) => Some(kind),
        _ => None,
    })
}

fn is_node_interface(link: &LinkMessage) -> bool {
    let excluded = |name: &str| EXCLUDED_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    name(link).is_some_and(|name| !excluded(name)) && carries_frames(link) && !is_tunnel(link)
}

/// Tunnels of other programs do not carry frames of endpoints, unless they have the VTEP address.
fn is_tunnel(link: &LinkMessage) -> bool {
    use InfoKind::{
        Amt, BareUdp, ErSpan, Geneve, GreTap, GreTap6, GreTun, GreTun6, Gtp, Ip6ErSpan, Ip6Tnl, IpIp, SitTun,
        Tun, Vti, Vti6, Vxlan, Wireguard, Xfrm,
    };
    matches!(
        kind(link),
        Some(
            Amt | BareUdp
                | ErSpan
                | Geneve
                | GreTap
                | GreTap6
                | GreTun
                | GreTun6
                | Gtp
                | Ip6ErSpan
                | Ip6Tnl
                | IpIp
                | SitTun
                | Tun
                | Vti
                | Vti6
                | Vxlan
                | Wireguard
                | Xfrm
        )
    )
}
