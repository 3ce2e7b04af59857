//! Next hops of endpoints and routes.

use std::{collections::BTreeSet, fmt, net::IpAddr};

use ipnet::Ipv4Net;

use crate::{
    name::EndpointId,
    tag::{Encap, Vlan, Vni},
};

/// Where packets leave the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NextHop {
    /// An endpoint on this node.
    Local {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// A VXLAN tunnel to another node.
    Vtep {
        /// IPv4 or IPv6 address of the other node's VTEP.
        address: IpAddr,
        /// VNI on the wire.
        vni: Vni,
    },
    /// The physical network.
    Uplink {
        /// 802.1Q tag on the wire.
        vlan: Vlan,
        /// Name of the uplink; `None` for any uplink of the node.
        link: Option<String>,
    },
    /// The node's kernel, which forwards packets as its own (host access).
    Host {
        /// Private subnet, in which each endpoint of the node has an address towards the kernel.
        subnet: Ipv4Net,
    },
}

impl NextHop {
    /// The next hop to an endpoint on another node, on a network with this encapsulation: the
    /// physical network, or a tunnel to the node's VTEP. Returns `None` if the tunnel has no VTEP.
    pub fn on(encap: Encap, vtep: Option<IpAddr>) -> Option<Self> {
        match encap {
            Encap::Vlan(vlan) => Some(NextHop::Uplink { vlan, link: None }),
            Encap::Vxlan { vni, .. } => vtep.map(|address| NextHop::Vtep { address, vni }),
        }
    }

    /// Address of the VTEP; `None` if the next hop is no tunnel.
    pub fn vtep(&self) -> Option<IpAddr> {
        match self {
            NextHop::Vtep { address, .. } => Some(*address),
            NextHop::Local { .. } | NextHop::Uplink { .. } | NextHop::Host { .. } => None,
        }
    }

    /// Returns true if frames to the next hop have the tag of a network with this encapsulation,
    /// and may use any uplink: the next hop that [`on`](Self::on) returns.
    pub fn is_on(&self, encap: Encap) -> bool {
        NextHop::on(encap, self.vtep()).as_ref() == Some(self)
    }
}

impl fmt::Display for NextHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NextHop::Local { endpoint } => write!(f, "endpoint {endpoint}"),
            NextHop::Vtep { address, vni } => write!(f, "vtep {address} vni {vni}"),
            NextHop::Uplink { vlan, link: None } => write!(f, "vlan {vlan}"),
            NextHop::Uplink { vlan, link: Some(link) } => write!(f, "vlan {vlan} of {link}"),
            NextHop::Host { subnet } => write!(f, "host by {subnet}"),
        }
    }
}

/// Next hops of a route, at least one. Several share the flows (ECMP).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHops(BTreeSet<NextHop>);

impl NextHops {
    /// Collects next hops. Returns `None` without any.
    pub fn new(next_hops: impl IntoIterator<Item = NextHop>) -> Option<Self> {
        let next_hops: BTreeSet<NextHop> = next_hops.into_iter().collect();
        (!next_hops.is_empty()).then_some(NextHops(next_hops))
    }

    /// The next hops, in a stable order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &NextHop> {
        self.0.iter()
    }
}

impl From<NextHop> for NextHops {
    fn from(next_hop: NextHop) -> Self {
        NextHops(BTreeSet::from([next_hop]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encapsulation_decides_the_next_hop() {
        let vlan: Vlan = 5.try_into().unwrap();
        let vxlan = Encap::Vxlan { vni: 7.try_into().unwrap(), local: vlan };
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        let tunnel = NextHop::on(vxlan, Some(address)).unwrap();
        assert_eq!((tunnel.to_string().as_str(), tunnel.vtep()), ("vtep 2001:db8::1 vni 7", Some(address)));
        assert_eq!(NextHop::on(vxlan, None), None);
        let wire = NextHop::on(Encap::Vlan(vlan), Some(address)).unwrap();
        assert_eq!((wire.to_string().as_str(), wire.vtep()), ("vlan 5", None));
        assert!(tunnel.is_on(vxlan) && wire.is_on(Encap::Vlan(vlan)));
        assert!(!tunnel.is_on(Encap::Vlan(vlan)) && !wire.is_on(vxlan));
        assert!(!NextHop::Uplink { vlan, link: Some("eth1".into()) }.is_on(Encap::Vlan(vlan)));
    }

    #[test]
    fn a_route_has_next_hops() {
        assert_eq!(NextHops::new([]), None);
        let hop = NextHop::Local { endpoint: "e".into() };
        assert_eq!(NextHops::new([hop.clone(), hop.clone()]), Some(NextHops::from(hop)));
    }
}
