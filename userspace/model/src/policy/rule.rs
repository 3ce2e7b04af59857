use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use super::{Action, Peer, PortRange, Tier};
use crate::name::RuleId;

/// The protocol number of ICMP.
pub const ICMP: u8 = 1;
/// The protocol number of TCP.
pub const TCP: u8 = 6;
/// The protocol number of UDP.
pub const UDP: u8 = 17;
/// The protocol number of ICMP for IPv6.
pub const ICMPV6: u8 = 58;

/// Direction of the connections that a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Connections to the group's endpoints.
    In,
    /// Connections from the group's endpoints.
    Out,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::In => "in",
            Direction::Out => "out",
        })
    }
}

/// A rule of a policy on a group, for new connections of one direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// Its name under `state/policyRule`, for people. Rules that come of one that has a range of addresses share it,
    /// and differ in nothing but the subnets.
    pub id: RuleId,
    /// Direction of the connections.
    pub direction: Direction,
    /// The other end.
    pub peer: Peer,
    /// Prefix that selects endpoints of the group by address, host bits cleared; `None` for all.
    pub own: Option<IpNet>,
    /// Protocol number in the IP header (or of the last IPv6 header); `None` for any. [`ICMP`]
    /// stands for ICMP of both families: it also matches [`ICMPV6`].
    pub protocol: Option<u8>,
    /// Destination ports; `None` for any. Only given if the protocol is [`TCP`] or [`UDP`].
    pub ports: Option<PortRange>,
    /// What the rule does with the connection.
    pub action: Action,
    /// Position of the rule in the order of evaluation.
    pub tier: Tier,
}

impl Rule {
    /// A rule for any connection of one direction.
    pub fn new(id: impl Into<RuleId>, direction: Direction, action: Action, tier: Tier) -> Self {
        let id = id.into();
        Rule { id, direction, peer: Peer::any(), own: None, protocol: None, ports: None, action, tier }
    }

    /// The isolation of endpoints that a Kubernetes NetworkPolicy selects in one direction: what no
    /// rule of [`Tier::NetworkPolicy`] allows is denied.
    pub fn isolation(id: impl Into<RuleId>, direction: Direction) -> Self {
        Rule::new(id, direction, Action::Deny, Tier::NetworkPolicy)
    }

    /// Returns true if protocol and port match.
    pub fn matches_protocol(&self, protocol: u8, port: Option<u16>) -> bool {
        let same = |wanted| wanted == protocol || (wanted == ICMP && protocol == ICMPV6);
        self.protocol.is_none_or(same)
            && self.ports.is_none_or(|wanted| port.is_some_and(|port| wanted.contains(port)))
    }

    /// Returns true if the rule applies to the endpoint with the address `own`.
    pub fn selects(&self, own: IpAddr) -> bool {
        self.own.is_none_or(|subnet| subnet.contains(&own))
    }
}
