use std::{cmp::Reverse, net::IpAddr};

use super::{Action, Direction, Rule};
use crate::group::{Dscp, GroupNumber};

/// One end of a connection, with the facts that policies depend on.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// IP address. For a service the backend's: policies do not see the service's address.
    pub address: IpAddr,
    /// Group of the endpoint with the address on this network; `None` for endpoints without a group
    /// and for outside addresses.
    pub group: Option<GroupNumber>,
    /// Rules of all policies attached to the group, in any order.
    pub rules: &'a [Rule],
    /// DSCP of the group's packets.
    pub dscp: Option<Dscp>,
}

impl Side<'_> {
    /// An end without a group: only its address is known.
    pub fn outside(address: IpAddr) -> Side<'static> {
        Side { address, group: None, rules: &[], dscp: None }
    }
}

/// Protocol and destination port of the packet that opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Protocol number in the IP header, or of the last IPv6 header.
    pub protocol: u8,
    /// Destination port; TCP and UDP only.
    pub port: Option<u16>,
}

/// A connection from `source` to `destination`.
#[derive(Clone, Copy, Debug)]
pub struct Connection<'a> {
    /// Sender of the first packet.
    pub source: Side<'a>,
    /// Receiver of the first packet.
    pub destination: Side<'a>,
    /// Protocol and port.
    pub packet: Packet,
}

/// Result of the evaluation of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// Whether the connection is allowed.
    pub action: Action,
    /// Rule of the source's group that decided on the source's node; `None` if none matched.
    pub out_rule: Option<&'a Rule>,
    /// Rule of the destination's group that decided on the destination's node. Also set if the
    /// source's side denies, although the packet then does not arrive there.
    pub in_rule: Option<&'a Rule>,
    /// DSCP of the packets of the source.
    pub dscp: Option<Dscp>,
}

/// Evaluates the policies for `connection`: it is allowed unless one of the two sides denies it,
/// each by the deciding rule of its group. Without a matching rule it is allowed.
///
/// Each connection is evaluated once, and again when the rules change; replies of an allowed
/// connection, and ICMP errors about it, are allowed. The sides are the endpoints with the
/// addresses in the packet, regardless of the Ethernet addresses: a packet to a multicast or
/// broadcast address has no destination with rules. ARP, neighbour discovery and packets that are
/// not IP are not evaluated.
pub fn decide<'a>(connection: &Connection<'a>) -> Decision<'a> {
    let Connection { source, destination, packet } = connection;
    let out_rule = deciding_rule(source.rules, Direction::Out, source.address, destination, *packet);
    let in_rule = deciding_rule(destination.rules, Direction::In, destination.address, source, *packet);
    let denied = [out_rule, in_rule].into_iter().flatten().any(|rule| rule.action == Action::Deny);
    let action = if denied { Action::Deny } else { Action::Allow };
    Decision { action, out_rule, in_rule, dscp: source.dscp }
}

/// The rule that decides on one side. Of the matching rules the one with the highest priority;
/// among equals one that denies; among those the one with the lowest id.
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
