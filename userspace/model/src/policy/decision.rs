use std::{cmp::Reverse, net::IpAddr};

use super::{Action, Direction, Rule};
use crate::group::{Dscp, GroupNumber};

/// One end of a connection, with all that policies know of it.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// Its address. Of a service, the backend's: policies do not see the service's own.
    pub address: IpAddr,
    /// The group of the endpoint that has the address on this network; none for endpoints without a group, and for the
    /// outside.
    pub group: Option<GroupNumber>,
    /// The rules of all policies on the group, in any order.
    pub rules: &'a [Rule],
    /// How the group's packets are marked.
    pub dscp: Option<Dscp>,
}

impl Side<'_> {
    /// What is in no group: nothing is known of it but its address.
    pub fn outside(address: IpAddr) -> Side<'static> {
        Side { address, group: None, rules: &[], dscp: None }
    }
}

/// What opens a connection: the protocol and the destination port, which only TCP and UDP have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The number in the IP header, or the last of the IPv6 headers.
    pub protocol: u8,
    /// The destination port.
    pub port: Option<u16>,
}

/// A connection that `source` opens to `destination`.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// Who sends the first packet.
    pub source: Side<'a>,
    /// Who is to have it.
    pub destination: Side<'a>,
    /// What it is.
    pub packet: Packet,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// Whether it is let through.
    pub action: Action,
    /// The rule of the source's group that decided where the source lives; none if none matched.
    pub out_rule: Option<&'a Rule>,
    /// The rule of the destination's group that decided where the destination lives. Told also when the source's
    /// side denies, though the packet then never comes there.
    pub in_rule: Option<&'a Rule>,
    /// How the packets of the source are marked.
    pub dscp: Option<Dscp>,
}

/// What becomes of `connection`: it is let through unless one of the two sides denies it, each by the rule of its group
/// that decides. Where no rule matches, it is let through.
///
/// It is asked once for each connection, and for those that are there when the rules change; the answers of what is let
/// through, and ICMP errors about it, are let through. The sides are the endpoints that have the addresses in the
/// packet, whatever the Ethernet addresses say: a packet to an address of many has no destination with rules. ARP and
/// neighbour discovery are not asked about, nor packets that are not IP.
pub fn decide<'a>(connection: &Connection<'a>) -> Decision<'a> {
    let Connection { source, destination, packet } = connection;
    let out_rule = deciding_rule(source.rules, Direction::Out, source.address, destination, *packet);
    let in_rule = deciding_rule(destination.rules, Direction::In, destination.address, source, *packet);
    let denied = [out_rule, in_rule].into_iter().flatten().any(|rule| rule.action == Action::Deny);
    let action = if denied { Action::Deny } else { Action::Allow };
    Decision { action, out_rule, in_rule, dscp: source.dscp }
}

/// The rule that decides on one side: of those that match the one with the highest priority; of several with that one
/// a rule that denies; of several of those the one whose id comes first.
pub fn deciding_rule<'a>(
    rules: &'a [Rule],
    direction: Direction,
    own: IpAddr,
    peer: &Side<'_>,
    packet: Packet,
) -> Option<&'a Rule> {
    let matches = |rule: &&Rule| {
        rule.direction == direction
            && rule.selects(own)
            && rule.peer.matches(peer.address, peer.group)
            && rule.matches_protocol(packet.protocol, packet.port)
    };
    rules
        .iter()
        .filter(matches)
        .max_by_key(|rule| (rule.priority, rule.action == Action::Deny, Reverse(&rule.id)))
}

#[cfg(test)]
mod tests;
