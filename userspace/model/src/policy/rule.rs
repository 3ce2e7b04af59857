use std::{fmt, net::IpAddr, str::FromStr};

use ipnet::IpNet;

use crate::{group::GroupNumber, name::RuleId};

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

/// What a rule does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// The connection and its replies are allowed.
    Allow,
    /// Its packets are dropped.
    Deny,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Allow => "allow",
            Action::Deny => "deny",
        })
    }
}

impl FromStr for Action {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "allow" => Ok(Action::Allow),
            "deny" => Ok(Action::Deny),
            _ => Err(()),
        }
    }
}

/// Priority of a rule, 1 to 100; the highest matching rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The number, 1 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A number that is not a valid priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("priority {0}: expected 1 to 100")]
pub struct InvalidPriority(u8);

impl TryFrom<u8> for Priority {
    type Error = InvalidPriority;

    fn try_from(number: u8) -> Result<Self, InvalidPriority> {
        if (1..=100).contains(&number) { Ok(Priority(number)) } else { Err(InvalidPriority(number)) }
    }
}

/// The other end of a connection. If both are given, both must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// Group of the peer; `None` for any peer, also without a group.
    pub group: Option<GroupNumber>,
    /// Prefix with the peer's address, host bits cleared; `None` for any address.
    pub subnet: Option<IpNet>,
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
    /// Destination port; `None` for any. Only given if the protocol is [`TCP`] or [`UDP`].
    pub port: Option<u16>,
    /// What the rule does with the connection.
    pub action: Action,
    /// Priority of the rule.
    pub priority: Priority,
}

impl Rule {
    /// Returns true if protocol and port match.
    pub fn matches_protocol(&self, protocol: u8, port: Option<u16>) -> bool {
        let same = |wanted| wanted == protocol || (wanted == ICMP && protocol == ICMPV6);
        self.protocol.is_none_or(same) && self.port.is_none_or(|wanted| port == Some(wanted))
    }

    /// Returns true if the rule applies to the endpoint with the address `own`.
    pub fn selects(&self, own: IpAddr) -> bool {
        self.own.is_none_or(|subnet| subnet.contains(&own))
    }
}

impl Peer {
    /// Returns true if address and group match.
    pub fn matches(&self, address: IpAddr, group: Option<GroupNumber>) -> bool {
        self.group.is_none_or(|wanted| group == Some(wanted))
            && self.subnet.is_none_or(|subnet| subnet.contains(&address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_1_to_100() {
        assert_eq!(Priority::try_from(100).unwrap().get(), 100);
        assert_eq!(Priority::try_from(0).unwrap_err().to_string(), "priority 0: expected 1 to 100");
        assert!(Priority::try_from(101).is_err());
    }
}
