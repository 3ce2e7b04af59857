//! A rule without its local subnet.

use contiv_abi::policy::RuleEntry;
use contiv_model::policy::{ICMP, ICMPV6, IpBlock, PortRange, Rule};
use ipnet::IpNet;

/// Conditions of a rule on the peer and the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Match {
    pub(super) group: Option<u16>,
    pub(super) l4: L4Match,
    pub(super) subnet: Option<IpNet>,
}

/// Condition on protocol and destination ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum L4Match {
    Any,
    Protocol(u8),
    Ports(u8, PortRange),
}

/// A condition, and the rule that decides among rules with exactly this condition.
pub(super) type Clause = (Match, RuleEntry);

impl Match {
    /// The conditions of a rule: one for each identity and each prefix of the peer. A rule for ICMP also matches ICMPv6.
    pub(super) fn of(rule: &Rule) -> impl Iterator<Item = Match> {
        let icmpv6 = (rule.protocol == Some(ICMP)).then_some(Some(ICMPV6));
        let l4s = std::iter::once(rule.protocol).chain(icmpv6).map(|protocol| match (protocol, rule.ports) {
            (None, _) => L4Match::Any,
            (Some(protocol), None) => L4Match::Protocol(protocol),
            (Some(protocol), Some(ports)) => L4Match::Ports(protocol, ports),
        });
        let groups: Vec<Option<u16>> = match &rule.peer.identities {
            None => vec![None],
            Some(set) => set.iter().map(|identity| Some(identity.get() as u16)).collect(),
        };
        let subnets: Vec<Option<IpNet>> = match &rule.peer.blocks {
            None => vec![None],
            Some(blocks) => blocks.iter().flat_map(IpBlock::prefixes).map(Some).collect(),
        };
        l4s.flat_map(move |l4| {
            let subnets = subnets.clone();
            groups.clone().into_iter().flat_map(move |group| {
                subnets.clone().into_iter().map(move |subnet| Match { group, l4, subnet })
            })
        })
    }
}
