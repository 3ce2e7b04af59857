use std::{cmp::Reverse, net::IpAddr};

use super::{Action, Direction, Identity, Rule};
use crate::group::Dscp;

/// What is known about one end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// An endpoint whose record is known; `None` for one without an identity.
    Endpoint(Option<Identity>),
    /// An address outside of the cluster's networks.
    Outside,
    /// An address in a network of the cluster. The record of its endpoint has not arrived, or does
    /// not exist: the identity is unknown.
    UnknownInside,
}

impl Party {
    /// The identity, if there is one and it is known.
    pub fn identity(self) -> Option<Identity> {
        match self {
            Party::Endpoint(identity) => identity,
            Party::Outside | Party::UnknownInside => None,
        }
    }
}

/// One end of a connection, with the facts that policies depend on.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// IP address. For a service the backend's: policies do not see the service's address.
    pub address: IpAddr,
    /// The endpoint with the address in this VRF, or its absence.
    pub party: Party,
    /// Rules of all policies on the endpoint, in any order.
    pub rules: &'a [Rule],
    /// DSCP of the endpoint's packets.
    pub dscp: Option<Dscp>,
}

impl<'a> Side<'a> {
    /// An endpoint with these rules.
    pub fn endpoint(address: IpAddr, identity: Option<Identity>, rules: &'a [Rule]) -> Self {
        Side { address, party: Party::Endpoint(identity), rules, dscp: None }
    }
}

impl Side<'_> {
    /// An address outside of the cluster's networks.
    pub fn outside(address: IpAddr) -> Side<'static> {
        Side { address, party: Party::Outside, rules: &[], dscp: None }
    }

    /// An address in a network of the cluster whose endpoint is not known.
    pub fn unknown_inside(address: IpAddr) -> Side<'static> {
        Side { party: Party::UnknownInside, ..Side::outside(address) }
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

/// What decides on one side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// The first of the matching rules.
    Rule(&'a Rule),
    /// Denied as `unknown-source`: the source is [`Party::UnknownInside`] and a rule of the
    /// destination names an identity, which the source may have. Evaluated again when its record
    /// arrives.
    UnknownSource,
    /// Allowed: no rule matches.
    Default,
}

impl<'a> Outcome<'a> {
    /// Whether this side allows the connection.
    pub fn action(self) -> Action {
        match self {
            Outcome::Rule(rule) => rule.action,
            Outcome::UnknownSource => Action::Deny,
            Outcome::Default => Action::Allow,
        }
    }

    /// The rule that decides, if a rule does.
    pub fn rule(self) -> Option<&'a Rule> {
        match self {
            Outcome::Rule(rule) => Some(rule),
            Outcome::UnknownSource | Outcome::Default => None,
        }
    }
}

impl<'a> From<Option<&'a Rule>> for Outcome<'a> {
    fn from(rule: Option<&'a Rule>) -> Self {
        rule.map_or(Outcome::Default, Outcome::Rule)
    }
}

/// Result of the evaluation of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision<'a> {
    /// Whether the connection is allowed.
    pub action: Action,
    /// What decides on the source's node.
    pub out: Outcome<'a>,
    /// What decides on the destination's node. Also set if the source's side denies, although the
    /// packet then does not arrive there.
    pub into: Outcome<'a>,
    /// DSCP of the packets of the source.
    pub dscp: Option<Dscp>,
}

impl<'a> Decision<'a> {
    /// Rule of the source that decides on the source's node.
    pub fn out_rule(&self) -> Option<&'a Rule> {
        self.out.rule()
    }

    /// Rule of the destination that decides on the destination's node.
    pub fn in_rule(&self) -> Option<&'a Rule> {
        self.into.rule()
    }
}

/// Evaluates the policies for `connection`: it is allowed unless one of the two sides denies it,
/// each by the deciding rule of its endpoint. Without a matching rule it is allowed.
///
/// Each connection is evaluated once, and again when the rules change; replies of an allowed
/// connection, and ICMP errors about it, are allowed. The sides are the endpoints with the
/// addresses in the packet, regardless of the Ethernet addresses: a packet to a multicast or
/// broadcast address has no destination with rules. ARP, neighbour discovery and packets that are
/// not IP are not evaluated.
///
/// A source of which only the network is known has no identity. If an `in` rule of the destination
/// names identities, whatever else it matches, such a source is denied: its rules cannot be
/// evaluated without the identity.
pub fn decide<'a>(connection: &Connection<'a>) -> Decision<'a> {
    let Connection { source, destination, packet } = connection;
    let out = deciding_rule(source.rules, Direction::Out, source.address, destination, *packet).into();
    let into = if source.party == Party::UnknownInside && names_identity(destination.rules, Direction::In) {
        Outcome::UnknownSource
    } else {
        deciding_rule(destination.rules, Direction::In, destination.address, source, *packet).into()
    };
    let denied = [out, into].into_iter().any(|outcome| outcome.action() == Action::Deny);
    let action = if denied { Action::Deny } else { Action::Allow };
    Decision { action, out, into, dscp: source.dscp }
}

/// Whether the evaluation of the rules of one direction depends on the peer's identity.
fn names_identity(rules: &[Rule], direction: Direction) -> bool {
    rules.iter().any(|rule| rule.direction == direction && rule.peer.names_identity())
}

/// The rule that decides on one side. Of the matching rules one of the first [layer](super::Layer);
/// of these the one with the highest priority; among equals one with the
/// [preferred action](super::Tier::preferred_action); among those the one with the lowest id.
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
            && rule.peer.matches(peer.address, peer.party.identity())
            && rule.matches_protocol(packet.protocol, packet.port)
    };
    rules.iter().filter(matches).max_by_key(|rule| {
        let is_preferred = rule.action == rule.tier.preferred_action();
        (Reverse(rule.tier.layer()), rule.tier.priority(), is_preferred, Reverse(&rule.id))
    })
}

#[cfg(test)]
mod tests;
