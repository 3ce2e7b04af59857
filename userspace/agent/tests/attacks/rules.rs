//! The endpoints of a node under attack, and the rules that protect them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use contiv_model::{
    api,
    policy::{Action, Direction, ExpandedRule, Identity, Peer, Policy, PolicyState, Rule, TCP, UDP, expand},
};
use netplugin::datapath::{Backend, Group, Local, Object, Remote, Scope, Service, fake::Origin};
use testkit::packet::Mac;

use crate::{
    attack::{Family, Place},
    node::topology::{self, Net, pod},
};

/// Port of TCP and UDP that [`Rules::DenyPort`] denies. All rules that deny at all deny this one.
pub(crate) const PORT: u16 = 5000;
/// Port that [`Rules::DenyPort`] does not deny.
pub(crate) const OTHER_PORT: u16 = 5001;

/// Rules between attacker and victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rules {
    /// The victim's group denies all that comes in.
    DenyAll,
    /// The victim's group denies what comes in from the attacker's group.
    DenyGroup,
    /// The victim's group denies TCP and UDP to [`PORT`].
    DenyPort,
    /// The attacker's group denies what goes out to the victim's group, which has no rules.
    DenyOut,
    /// The same for a victim on another node.
    DenyOutFar,
    /// The victim's group denies what comes in from the addresses of the network.
    DenyNetwork,
    /// The victim's group denies what comes in to the addresses of the victim.
    DenyAddress,
    /// The attacker's group denies what goes out to the address of an endpoint without a group on another node.
    DenyOutAddress,
    /// The victim's group denies all that comes in, except from the group of [`FRIEND`] and [`FAR_FRIEND`].
    FriendsOnly,
    /// The victim has no group.
    Unprotected,
    /// The victim's group allows all that comes in.
    AllowAll,
}

impl Rules {
    /// Those that deny a datagram or segment to [`PORT`].
    pub(crate) const DENIES: &'static [Rules] = &[
        Rules::DenyAll,
        Rules::DenyGroup,
        Rules::DenyPort,
        Rules::DenyOut,
        Rules::DenyOutFar,
        Rules::FriendsOnly,
    ];
    /// Those that deny any packet, whatever its protocol.
    pub(crate) const DENIES_ANY: &'static [Rules] =
        &[Rules::DenyAll, Rules::DenyGroup, Rules::DenyOut, Rules::DenyOutFar, Rules::FriendsOnly];
    /// Rules about ports alone.
    pub(crate) const PORTS: &'static [Rules] = &[Rules::DenyPort];
    /// Rules about addresses of endpoints here.
    pub(crate) const ADDRESSES: &'static [Rules] = &[Rules::DenyNetwork, Rules::DenyAddress];
    /// Rules that tell peers apart.
    pub(crate) const PEERS: &'static [Rules] = &[Rules::DenyGroup, Rules::FriendsOnly];
    /// For attacks that no rule is needed to forbid.
    pub(crate) const ANY: &'static [Rules] = &[Rules::Unprotected, Rules::DenyAll, Rules::FriendsOnly];
    pub(crate) const NONE: &'static [Rules] = &[Rules::Unprotected];

    pub(crate) fn victim(self) -> Station {
        let (port, last) = match self {
            Rules::DenyAll => ("deny-all", 21),
            Rules::DenyGroup => ("deny-group", 22),
            Rules::DenyPort => ("deny-port", 23),
            Rules::DenyOut => ("deny-out", 24),
            Rules::FriendsOnly => ("friends-only", 25),
            Rules::Unprotected => ("unprotected", 26),
            Rules::AllowAll => ("allow-all", 27),
            Rules::DenyNetwork => ("deny-network", 28),
            Rules::DenyAddress => ("deny-address", 29),
            Rules::DenyOutFar => return Station::far(1, 37),
            Rules::DenyOutAddress => return Station::far(1, 38),
        };
        Station::pod(port, last)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attacker {
    /// Has no group.
    Plain,
    /// Has the group that [`Rules::DenyGroup`] denies.
    Named,
    /// Has the group that must not reach the victim of [`Rules::DenyOut`].
    Bound,
    /// Has the group that must not reach the address of the victim of [`Rules::DenyOutAddress`].
    Kept,
    /// Has no record on the node.
    Unknown,
}

/// Returns the attackers that send from a place and that these rules deny.
pub(crate) fn attackers(place: Place, rules: Rules) -> &'static [Attacker] {
    use Attacker::{Bound, Kept, Named, Plain, Unknown};
    match (place, rules) {
        (Place::Stranger, _) => &[Plain],
        (Place::Pod, Rules::DenyOut | Rules::DenyOutFar) => &[Bound],
        // The other node enforces what its endpoints may send.
        (Place::Outside, Rules::DenyOut | Rules::DenyOutFar | Rules::DenyOutAddress) => &[],
        (Place::Pod, Rules::DenyOutAddress) => &[Kept],
        (Place::Pod, Rules::DenyGroup) => &[Named],
        (Place::Outside, Rules::DenyGroup) => &[Named, Unknown],
        (Place::Outside, Rules::DenyAll | Rules::FriendsOnly) => &[Plain, Named, Unknown],
        (_, Rules::DenyAll | Rules::DenyPort | Rules::FriendsOnly) => &[Plain, Named],
        (_, Rules::DenyNetwork | Rules::DenyAddress) => &[Plain, Named],
        (_, Rules::Unprotected | Rules::AllowAll) => &[Plain, Named],
    }
}

impl Attacker {
    pub(crate) fn at(self, place: Place) -> Station {
        match (self, place) {
            (Attacker::Plain, Place::Pod) => Station::pod("plain", 1),
            (Attacker::Named, Place::Pod) => Station::pod("named", 2),
            (Attacker::Bound, _) => Station::pod("bound", 3),
            (Attacker::Kept, _) => Station::pod("kept", 7),
            (Attacker::Plain, _) => FAR,
            (Attacker::Named, _) => Station::far(0, 32),
            (Attacker::Unknown, _) => Station::far(0, 77),
        }
    }
}

/// An endpoint, or an address without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Station {
    pub(crate) last: u8,
    /// Its interface on the node.
    pub(crate) port: Option<&'static str>,
    /// Index of its node, if that is another one.
    pub(crate) node: usize,
}

/// A pod without a group, where frames arrive that show that earlier ones have been processed.
pub(crate) const WITNESS: Station = Station::pod("witness", 4);
/// A pod of the group that [`Rules::FriendsOnly`] allows.
pub(crate) const FRIEND: Station = Station::pod("friend", 5);
/// An endpoint of that group, on another node than the attackers.
pub(crate) const FAR_FRIEND: Station = Station::far(1, 33);
/// An endpoint without a group on the node of the attackers.
pub(crate) const FAR: Station = Station::far(0, 31);
/// An address of the subnet that no endpoint has.
pub(crate) const UNUSED: Station = Station::far(0, 99);
/// A pod whose place another one takes.
pub(crate) const HANDOVER: Station = Station::pod("handover", 6);
/// The pod that takes its place, which has an interface of its own.
pub(crate) const HEIR: Station = Station::pod("heir", 6);
/// The first one on another node.
pub(crate) const FAR_HANDOVER: Station = Station::far(0, 36);
/// The network's gateway, which has no record.
pub(crate) const GATEWAY: Station = Station::far(0, 254);

impl Station {
    const fn pod(port: &'static str, last: u8) -> Station {
        Station { last, port: Some(port), node: 0 }
    }

    const fn far(node: usize, last: u8) -> Station {
        Station { last, port: None, node }
    }

    pub(crate) fn mac(self) -> Mac {
        topology::mac(self.last)
    }

    pub(crate) fn ip(self) -> Ipv4Addr {
        topology::ip(self.last)
    }

    pub(crate) fn ip6(self) -> Ipv6Addr {
        topology::ip6(self.last)
    }

    pub(crate) fn address(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.ip().into(),
            Family::V6 => self.ip6().into(),
        }
    }

    /// The link-local address that its kernel makes of its Ethernet address (RFC 4291, appendix A).
    pub(crate) fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.mac();
        Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    pub(crate) fn origin(self, net: &Net) -> Origin {
        match self.port {
            Some(port) => pod(port),
            None => net.outside(self.node),
        }
    }
}

/// Rules whose victims are pods.
const VICTIMS: [Rules; 9] = [
    Rules::DenyAll,
    Rules::DenyGroup,
    Rules::DenyPort,
    Rules::DenyOut,
    Rules::DenyNetwork,
    Rules::DenyAddress,
    Rules::FriendsOnly,
    Rules::Unprotected,
    Rules::AllowAll,
];

/// All pods on the network under attack.
pub(crate) fn pods() -> Vec<Station> {
    let attackers = [Attacker::Plain, Attacker::Named, Attacker::Bound, Attacker::Kept];
    let attackers = attackers.map(|one| one.at(Place::Pod));
    [WITNESS, FRIEND, HANDOVER, HEIR].into_iter().chain(attackers).chain(VICTIMS.map(Rules::victim)).collect()
}

const NAMED: u32 = 1;
const BOUND: u32 = 2;
const FRIENDS: u32 = 3;
const KEPT: u32 = 4;

/// Objects of the node: all attackers and victims are on it at the same time.
pub(crate) fn objects(net: &Net, other: &Net) -> Result<Vec<Object>> {
    let here =
        |station: Station, group| in_group(net.local(station.port.unwrap_or_default(), station.last), group);
    let victim = |rules: Rules, group| here(rules.victim(), group);
    let mut objects = vec![
        net.network(),
        here(Attacker::Plain.at(Place::Pod), None),
        here(Attacker::Named.at(Place::Pod), Some(NAMED)),
        here(Attacker::Bound.at(Place::Pod), Some(BOUND)),
        here(Attacker::Kept.at(Place::Pod), Some(KEPT)),
        here(WITNESS, None),
        here(FRIEND, Some(FRIENDS)),
        here(HANDOVER, None),
        victim(Rules::DenyAll, Some(21)),
        victim(Rules::DenyGroup, Some(22)),
        victim(Rules::DenyPort, Some(23)),
        victim(Rules::DenyOut, Some(24)),
        victim(Rules::DenyNetwork, Some(28)),
        victim(Rules::DenyAddress, Some(29)),
        victim(Rules::FriendsOnly, Some(25)),
        victim(Rules::Unprotected, None),
        victim(Rules::AllowAll, Some(27)),
        remote(net, FAR, None),
        remote(net, FAR_HANDOVER, None),
        remote(net, Rules::DenyOutFar.victim(), Some(24)),
        remote(net, Rules::DenyOutAddress.victim(), None),
        remote(net, Attacker::Named.at(Place::Outside), Some(NAMED)),
        remote(net, FAR_FRIEND, Some(FRIENDS)),
        remote(net, Station::far(1, 34), None),
        group(BOUND, [about(rule(Direction::Out, Action::Deny, 1)?, 24)?])?,
        group(21, [rule(Direction::In, Action::Deny, 1)?])?,
        group(22, [about(rule(Direction::In, Action::Deny, 1)?, NAMED)?])?,
        group(
            23,
            [
                to_port(rule(Direction::In, Action::Deny, 1)?, UDP),
                to_port(rule(Direction::In, Action::Deny, 2)?, TCP),
            ],
        )?,
        group(
            25,
            [rule(Direction::In, Action::Deny, 1)?, about(rule(Direction::In, Action::Allow, 2)?, FRIENDS)?],
        )?,
        group(27, [rule(Direction::In, Action::Allow, 1)?])?,
        group(28, about_addresses(28, "in", [Some("10.7.0.0/24"), Some("2001:db8:7::/64")], [None, None])?)?,
        group(29, about_addresses(29, "in", [None, None], [Some("10.7.0.29"), Some("2001:db8:7::1d")])?)?,
        group(
            KEPT,
            about_addresses(KEPT, "out", [None, None], [Some("10.7.0.38"), Some("2001:db8:7::26")])?,
        )?,
        // The same addresses in a network of the same kind, without rules.
        other.network(),
        other.local("elsewhere", Rules::DenyAll.victim().last),
    ];
    for victim in VICTIMS.map(Rules::victim).into_iter().chain([Rules::DenyOutFar.victim()]) {
        objects.push(service(net, victim)?);
    }
    objects.extend(topology::peers());
    objects.extend(net.subnets()?);
    Ok(objects)
}

/// The record of an endpoint on another node.
fn remote(net: &Net, station: Station, group: Option<u32>) -> Object {
    in_group(net.remote(station.node, station.last), group)
}

/// The record of [`Attacker::Unknown`], in the group that [`Rules::DenyGroup`] denies or in none.
pub(crate) fn record(net: &Net, is_named: bool) -> Object {
    remote(net, Attacker::Unknown.at(Place::Outside), is_named.then_some(NAMED))
}

/// The object of a station with the group that victims allow or deny, or with none.
pub(crate) fn with_group(net: &Net, station: Station, membership: Membership) -> Object {
    let group = match membership {
        Membership::None => None,
        Membership::Named => Some(NAMED),
        Membership::Friends => Some(FRIENDS),
    };
    match station.port {
        Some(port) => in_group(net.local(port, station.last), group),
        None => remote(net, station, group),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Membership {
    None,
    Named,
    Friends,
}

/// The address of a service whose only backend is this pod.
pub(crate) fn vip(victim: Station) -> Ipv4Addr {
    topology::ip(victim.last + 100)
}

/// Port of the services; the backends' is [`PORT`].
pub(crate) const SERVICE_PORT: u16 = 80;

fn service(net: &Net, victim: Station) -> Result<Object> {
    let ports = ["UDP", "TCP"].map(|protocol| format!("{SERVICE_PORT}:{PORT}:{protocol}").parse());
    let id = format!("to{}:t", victim.last);
    Ok(Object::Service(Service {
        ports: ports.into_iter().collect::<Result<_, _>>()?,
        backends: vec![Backend::on(net.encap, victim.ip())],
        ..Service::new(id.as_str(), Scope::network(&net.plain()), vip(victim))
    }))
}

/// Without a group if the number is invalid, which fails the controls.
fn in_group(object: Object, number: Option<u32>) -> Object {
    let identity = number.and_then(|number| Identity::try_from(number).ok());
    match object {
        Object::Local(local) => Object::Local(Local { identity, ..local }),
        Object::Remote(remote) => Object::Remote(Remote { identity, ..remote }),
        other => other,
    }
}

fn group(number: u32, rules: impl IntoIterator<Item = Rule>) -> Result<Object> {
    Ok(Object::Group(Group::new(Identity::try_from(number)?, rules.into_iter().collect::<Vec<_>>())))
}

/// A rule that matches all traffic.
fn rule(direction: Direction, action: Action, priority: u8) -> Result<Rule> {
    let id = format!("{direction} {action} {priority}");
    Ok(Rule::new(id.as_str(), direction, action, priority.try_into()?))
}

fn about(rule: Rule, group: u32) -> Result<Rule> {
    Ok(Rule { peer: Peer::identity(group.try_into()?), ..rule })
}

/// What nodes make of rules of netmaster that deny packets from and to these addresses, two rules with one of each.
fn about_addresses(
    number: u32,
    direction: &str,
    from: [Option<&str>; 2],
    to: [Option<&str>; 2],
) -> Result<Vec<Rule>> {
    let id = format!("t:g{number}:t:p");
    let one = |(n, (from, to)): (usize, (Option<&str>, Option<&str>))| {
        let rule = api::Rule {
            key: format!("t:p:{n}"),
            action: "deny".into(),
            direction: direction.into(),
            priority: 1,
            from_ip_address: from.unwrap_or_default().into(),
            to_ip_address: to.unwrap_or_default().into(),
            ..api::Rule::default()
        };
        let directed = expand(&id, number.into(), 0, &rule, None);
        (rule.key.clone(), ExpandedRule { rule, directed })
    };
    let rules = from.into_iter().zip(to).enumerate().map(one).collect();
    let state = PolicyState { id: id.clone(), group: number.into(), rules, ..PolicyState::default() };
    Ok(Policy::try_from(&state)?.rules)
}

fn to_port(rule: Rule, protocol: u8) -> Rule {
    Rule { protocol: Some(protocol), ports: Some(PORT.into()), ..rule }
}
