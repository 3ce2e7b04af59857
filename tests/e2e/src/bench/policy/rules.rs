//! Rules by the thousand, as netmaster writes them.

use std::{net::Ipv4Addr, ops::Range};

use anyhow::Result;
use clap::ValueEnum;
use contiv_model::policy::{DirectionalRule, ExpandedRule, PolicyState};
use serde::Serialize;
use serde_json::Value;

use crate::bench::pinned::spread;

/// In one policy, so that its body is no larger than a store takes.
const PER_POLICY: usize = 1000;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Of a group that one pod is in, and what no rule but the first names. Groups have numbers in the order in which they are made.
const MEMBERS: i64 = 1;
/// The last of the ports that no rule names.
pub(super) const OPEN: u16 = 1000;
const FIRST_PORT: u16 = 2000;
const FIRST_GROUP: i64 = 2000;

/// What rules are about. All deny, and none says anything of the ports up to [`OPEN`] of a pod without a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Sort {
    /// Single addresses, all over
    Hosts,
    /// Prefixes of 8 to 32 bits, many of them in others, all over
    Prefixes,
    /// The same, for TCP, UDP or ICMP
    Protocols,
    /// Ports of TCP, from anywhere
    Ports,
    /// Groups of the other end
    Groups,
    /// Prefixes for any protocol, for TCP, for a port of TCP; half of them for a group of the other end
    All,
}

/// Pods that connections are for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers<T> {
    /// In no group.
    pub(super) server: T,
    /// In the group [`MEMBERS`].
    pub(super) member: T,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Hosts => "hosts",
            Sort::Prefixes => "prefixes",
            Sort::Protocols => "protocols",
            Sort::Ports => "ports",
            Sort::Groups => "groups",
            Sort::All => "all",
        }
    }

    fn length(self, number: usize) -> u32 {
        if self == Sort::Hosts { 32 } else { 8 + number as u32 % 25 }
    }

    /// In the prefix of the rule with this number; no pod is.
    fn address(number: usize) -> Ipv4Addr {
        Ipv4Addr::from_bits(1 << 31 | spread(number as u32) >> 2)
    }

    /// The rule with this number. The first one asks for all that others of the sort do.
    fn rule(self, number: usize) -> DirectionalRule {
        let length = self.length(number);
        // What is in another prefix comes before what is around, or it would not count.
        let directed = DirectionalRule {
            priority: i64::from(length),
            action: "deny".to_owned(),
            ..DirectionalRule::default()
        };
        let prefix = Sort::address(number).to_bits() >> (32 - length) << (32 - length);
        let dst_ip_addr = format!("{}/{length}", Ipv4Addr::from_bits(prefix));
        match self {
            Sort::Hosts | Sort::Prefixes => DirectionalRule { dst_ip_addr, ..directed },
            Sort::Protocols => {
                DirectionalRule { dst_ip_addr, ip_protocol: [TCP, UDP, 1][number % 3], ..directed }
            }
            Sort::Ports => {
                DirectionalRule { ip_protocol: TCP, dst_port: FIRST_PORT + number as u16, ..directed }
            }
            Sort::Groups if number == 0 => DirectionalRule { dst_endpoint_group: MEMBERS, ..directed },
            Sort::Groups => DirectionalRule { dst_endpoint_group: FIRST_GROUP + number as i64, ..directed },
            Sort::All if number == 0 => DirectionalRule {
                dst_ip_addr: "0.0.0.0/1".to_owned(),
                dst_endpoint_group: MEMBERS,
                ip_protocol: TCP,
                dst_port: FIRST_PORT,
                ..directed
            },
            Sort::All => {
                let kind = number / 25;
                DirectionalRule {
                    dst_ip_addr,
                    dst_endpoint_group: if kind.is_multiple_of(2) { 0 } else { MEMBERS + number as i64 % 3 },
                    ip_protocol: if kind.is_multiple_of(3) { 0 } else { TCP },
                    dst_port: if kind % 3 == 2 { FIRST_PORT + number as u16 % 1000 } else { 0 },
                    ..directed
                }
            }
        }
    }

    /// Whom a packet of TCP is for, and for which port, that the rule with this number denies, or one that comes before it.
    pub(super) fn denied(self, number: usize, peers: &Peers<Ipv4Addr>) -> (Ipv4Addr, u16) {
        match self {
            Sort::Groups => (peers.member, OPEN),
            Sort::All if number == 0 => (peers.member, FIRST_PORT),
            Sort::Ports => (peers.server, FIRST_PORT + number as u16),
            Sort::All => (Sort::address(number), FIRST_PORT + number as u16 % 1000),
            Sort::Hosts | Sort::Prefixes | Sort::Protocols => (Sort::address(number), OPEN),
        }
    }

    /// Whether there are packets to many ends that rules deny, and the rule with this number is about one.
    pub(super) fn denies_many(self, number: usize) -> bool {
        match self {
            Sort::Groups => false,
            Sort::Protocols => number.is_multiple_of(3),
            Sort::All => number > 0 && (number / 25).is_multiple_of(2),
            Sort::Hosts | Sort::Prefixes | Sort::Ports => true,
        }
    }

    /// What is to be written so that a group has so many rules instead of so many: policies of which none has too many.
    pub(super) fn change(self, group: usize, before: usize, after: usize) -> Result<Vec<(String, Value)>> {
        let part = |number: usize, count: usize| {
            let first = number * PER_POLICY;
            first.min(count)..(first + PER_POLICY).min(count)
        };
        (0..before.max(after).div_ceil(PER_POLICY))
            .filter(|number| part(*number, before) != part(*number, after))
            .map(|number| policy(group, number, part(number, after), |number| self.rule(number)))
            .collect()
    }

    /// So many rules on many groups.
    pub(super) fn among(self, groups: &[usize], each: usize) -> Result<Vec<(String, Value)>> {
        let of_group = |(place, group): (usize, &usize)| {
            policy(*group, 0, 0..each, |number| self.rule(place * each + number))
        };
        groups.iter().enumerate().map(of_group).collect()
    }
}

/// A policy on a group as it is in the store.
fn policy(
    group: usize,
    number: usize,
    rules: Range<usize>,
    rule: impl Fn(usize) -> DirectionalRule,
) -> Result<(String, Value)> {
    let id = format!("bench:g{group}:bench:p{number}");
    let rules = rules.map(|place| {
        let key = format!("bench:p{number}:{place}");
        let directed = DirectionalRule {
            rule_id: format!("{id}:{key}:outTx"),
            src_endpoint_group: group as i64,
            ..rule(place)
        };
        let mut expanded = ExpandedRule::default();
        expanded.rule.key.clone_from(&key);
        expanded.rule.direction = "out".to_owned();
        expanded.directed.insert(directed.rule_id.clone(), directed);
        (key, expanded)
    });
    let body = PolicyState { id: id.clone(), key: id.clone(), group: group as i64, rules: rules.collect() };
    Ok((format!("/contiv.io/state/policy/{id}"), serde_json::to_value(body)?))
}
