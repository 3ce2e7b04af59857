//! A rule without its local subnet.

use contiv_abi::policy::RuleEntry;
use contiv_model::policy::{ICMP, ICMPV6, Rule};
use ipnet::IpNet;

/// Conditions of a rule on the peer and the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Match {
    pub(super) group: Option<u16>,
    pub(super) l4: L4Match,
    pub(super) subnet: Option<IpNet>,
}

/// Condition on protocol and destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum L4Match {
    Any,
    Protocol(u8),
    Port(u8, u16),
}

/// A condition, and the rule that decides among rules with exactly this condition.
pub(super) type Clause = (Match, RuleEntry);

impl Match {
    /// The conditions of a rule. A rule for ICMP has two: it also matches ICMPv6.
    pub(super) fn of(rule: &Rule) -> impl Iterator<Item = Match> {
        let icmpv6 = (rule.protocol == Some(ICMP)).then_some(Some(ICMPV6));
        std::iter::once(rule.protocol).chain(icmpv6).map(|protocol| Match {
            group: rule.peer.group.map(|group| group.get() as u16),
            l4: match (protocol, rule.port) {
                (None, _) => L4Match::Any,
                (Some(protocol), None) => L4Match::Protocol(protocol),
                (Some(protocol), Some(port)) => L4Match::Port(protocol, port),
            },
            subnet: rule.peer.subnet,
        })
    }
}
