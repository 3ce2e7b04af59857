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

/// Which of a group's connections a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// Those that others open to the group's endpoints.
    In,
    /// Those that the group's endpoints open.
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

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// It is let through, and so are its answers.
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

/// 1 to 100; of the rules that match, the highest decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The number, 1 to 100.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A number that is no priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("priority {0}: expected 1 to 100")]
pub struct InvalidPriority(u8);

impl TryFrom<u8> for Priority {
    type Error = InvalidPriority;

    fn try_from(number: u8) -> Result<Self, InvalidPriority> {
        if (1..=100).contains(&number) { Ok(Priority(number)) } else { Err(InvalidPriority(number)) }
    }
}

/// The other end of a connection: when both are given, both must match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer {
    /// The group that it is in, or any, also none.
    pub group: Option<GroupNumber>,
    /// Where its address is, or anywhere. Host bits are cleared.
    pub subnet: Option<IpNet>,
}

/// A rule of a policy on a group, about new connections of one direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// Its name under `state/policyRule`, for people. Rules that come of one that has a range of addresses share it,
    /// and differ in nothing but the subnets.
    pub id: RuleId,
    /// Which way.
    pub direction: Direction,
    /// With whom.
    pub peer: Peer,
    /// Which of the group's endpoints, by address; all if not given. Host bits are cleared.
    pub own: Option<IpNet>,
    /// The number in the IP header (or the last of the IPv6 headers), or any. [`ICMP`] stands for ICMP of either
    /// family: it matches [`ICMPV6`], too.
    pub protocol: Option<u8>,
    /// The destination port, or any; only given when the protocol is [`TCP`] or [`UDP`].
    pub port: Option<u16>,
    /// What becomes of the connection.
    pub action: Action,
    /// Which rule decides.
    pub priority: Priority,
}

impl Rule {
    /// Whether the protocol and port are the rule's.
    pub fn matches_protocol(&self, protocol: u8, port: Option<u16>) -> bool {
        let same = |wanted| wanted == protocol || (wanted == ICMP && protocol == ICMPV6);
        self.protocol.is_none_or(same) && self.port.is_none_or(|wanted| port == Some(wanted))
    }

    /// Whether the endpoint is one that the rule is about.
    pub fn selects(&self, own: IpAddr) -> bool {
        self.own.is_none_or(|subnet| subnet.contains(&own))
    }
}

impl Peer {
    /// Whether the other end is the one meant.
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
