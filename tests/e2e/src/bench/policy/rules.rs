//! Generates thousands of rules in the form that netmaster writes.

use std::{net::Ipv4Addr, ops::Range};

use anyhow::Result;
use clap::ValueEnum;
use contiv_model::policy::{DirectionalRule, ExpandedRule, PolicyState};
use serde::Serialize;
use serde_json::Value;

use crate::bench::pinned::spread;

/// Rules per policy, limited by the size of a value in the store.
const PER_POLICY: usize = 1000;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Id of a group with one pod, which only the first rule references. Group ids follow the order of creation.
const MEMBERS: i64 = 1;
/// Highest port that no rule matches.
pub(super) const OPEN: u16 = 1000;
const FIRST_PORT: u16 = 2000;
const FIRST_GROUP: i64 = 2000;

/// Kind of rules. All rules deny; none matches ports up to [`OPEN`] of a pod without a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(in crate::bench) enum Sort {
    /// Single addresses
    Hosts,
    /// Nested prefixes of 8 to 32 bits
    Prefixes,
    /// Nested prefixes for TCP, UDP or ICMP
    Protocols,
    /// TCP ports, any address
    Ports,
    /// Peer groups
    Groups,
    /// Prefixes for any protocol, TCP or a TCP port; half of them for a peer group
    All,
}

/// Destinations of connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peers<T> {
    /// Pod without a group.
    pub(super) server: T,
    /// Pod of the group [`MEMBERS`].
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

    /// Address in the prefix of rule `number`; no pod has it.
    fn address(number: usize) -> Ipv4Addr {
        Ipv4Addr::from_bits(1 << 31 | spread(number as u32) >> 2)
    }

    /// Rule `number`. The first one has all match fields of the kind.
    fn rule(self, number: usize) -> DirectionalRule {
        let length = self.length(number);
        // Longer prefixes have a higher priority, or they would have no effect.
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

    /// Destination of a TCP packet that rule `number` or one of higher priority denies.
    pub(super) fn denied(self, number: usize, peers: &Peers<Ipv4Addr>) -> (Ipv4Addr, u16) {
        match self {
            Sort::Groups => (peers.member, OPEN),
            Sort::All if number == 0 => (peers.member, FIRST_PORT),
            Sort::Ports => (peers.server, FIRST_PORT + number as u16),
            Sort::All => (Sort::address(number), FIRST_PORT + number as u16 % 1000),
            Sort::Hosts | Sort::Prefixes | Sort::Protocols => (Sort::address(number), OPEN),
        }
    }

    /// Whether rules of this kind deny many destinations, and rule `number` denies one of them.
    pub(super) fn denies_many(self, number: usize) -> bool {
        match self {
            Sort::Groups => false,
            Sort::Protocols => number.is_multiple_of(3),
            Sort::All => number > 0 && (number / 25).is_multiple_of(2),
            Sort::Hosts | Sort::Prefixes | Sort::Ports => true,
        }
    }

    /// Policies to write to change the number of rules of a group.
    pub(in crate::bench) fn change(
        self,
        group: usize,
        before: usize,
        after: usize,
    ) -> Result<Vec<(String, Value)>> {
        let part = |number: usize, count: usize| {
            let first = number * PER_POLICY;
            first.min(count)..(first + PER_POLICY).min(count)
        };
        (0..before.max(after).div_ceil(PER_POLICY))
            .filter(|number| part(*number, before) != part(*number, after))
            .map(|number| policy(group, number, part(number, after), |number| self.rule(number)))
            .collect()
    }

    /// Policies with `each` rules on each group.
    pub(super) fn among(self, groups: &[usize], each: usize) -> Result<Vec<(String, Value)>> {
        let of_group = |(place, group): (usize, &usize)| {
            policy(*group, 0, 0..each, |number| self.rule(place * each + number))
        };
        groups.iter().enumerate().map(of_group).collect()
    }
}

/// Name of the group with a number.
pub(super) fn group_name(number: usize) -> String {
    format!("g{number}")
}

/// Expanded policy on a group, with its key in the store.
fn policy(
    group: usize,
    number: usize,
    rules: Range<usize>,
    rule: impl Fn(usize) -> DirectionalRule,
) -> Result<(String, Value)> {
    let id = format!("bench:{}:bench:p{number}", group_name(group));
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
