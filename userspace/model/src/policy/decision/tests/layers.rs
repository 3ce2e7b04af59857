//! The order of the layers.

use super::*;

/// A pod that a NetworkPolicy selects in one direction: allowed by some policy, else denied, in
/// this direction only.
#[test]
fn isolation_is_per_direction() {
    let here: IpAddr = [10, 0, 0, 1].into();
    let there: IpAddr = [10, 0, 0, 2].into();
    let allow = |id, number| Rule {
        peer: Peer::identity(identity(number)),
        protocol: Some(TCP),
        ports: PortRange::new(8000, 8099),
        ..Rule::new(id, Direction::In, Action::Allow, Tier::NetworkPolicy)
    };
    let rules = [Rule::isolation("isolated", Direction::In), allow("one", 1), allow("two", 2)];
    let packet = |port| Packet { protocol: TCP, port: Some(port) };
    let into = |number, port| {
        let (source, destination) = (side(there, number, &[]), side(here, 9, &rules));
        let connection = Connection { source, destination, packet: packet(port) };
        decide(&connection).in_rule().map(|rule| rule.id.to_string())
    };
    assert_eq!(into(1, 8000), Some("one".into()));
    assert_eq!(into(2, 8099), Some("two".into()));
    assert_eq!((into(3, 8000), into(1, 8100)), (Some("isolated".into()), Some("isolated".into())));
    let (source, destination) = (side(here, 9, &rules), side(there, 3, &[]));
    let decision = decide(&Connection { source, destination, packet: packet(1) });
    assert_eq!((decision.action, decision.out), (Action::Allow, Outcome::Default));
}

/// Contiv rules before and after the NetworkPolicies.
#[test]
fn network_policies_are_between_contiv_rules() {
    use Action::{Allow, Deny};
    let own: IpAddr = [10, 0, 0, 1].into();
    let peer = Side::outside([10, 0, 0, 2].into());
    let any = Packet { protocol: UDP, port: Some(1) };
    let contiv_rule = |priority, action| Rule::new("contiv", Direction::In, action, contiv(priority));
    let isolation = || Rule::isolation("isolation", Direction::In);
    let allow = || Rule::new("allow", Direction::In, Allow, Tier::NetworkPolicy);
    for (rules, winner) in [
        (vec![contiv_rule(51, Allow), isolation()], "contiv"),
        (vec![contiv_rule(51, Deny), isolation(), allow()], "contiv"),
        (vec![contiv_rule(50, Allow), isolation()], "isolation"),
        (vec![contiv_rule(50, Deny), isolation(), allow()], "allow"),
        (vec![contiv_rule(50, Deny)], "contiv"),
        (vec![isolation(), allow()], "allow"),
    ] {
        let decided = deciding_rule(&rules, Direction::In, own, &peer, any).unwrap();
        assert_eq!(decided.id.as_str(), winner, "{rules:?}");
    }
}

/// A source of which only the network is known: denied where an identity counts, also if a rule that
/// names none would decide.
#[test]
fn unknown_sources_are_denied_where_an_identity_counts() {
    let (inside, here): (IpAddr, IpAddr) = ([10, 0, 0, 9].into(), [10, 0, 0, 1].into());
    let packet = Packet { protocol: TCP, port: Some(80) };
    let into = |source, rules: &[Rule]| {
        decide(&Connection { source, destination: side(here, 2, rules), packet }).into.action()
    };
    let everyone = Rule { tier: contiv(100), ..rule("everyone", Direction::In, Action::Allow) };
    let group = |direction| Rule {
        peer: Peer::identity(identity(1)),
        protocol: Some(UDP),
        ..rule("group", direction, Action::Deny)
    };
    let unknown = Side::unknown_inside(inside);
    assert_eq!(into(unknown, std::slice::from_ref(&everyone)), Action::Allow);
    assert_eq!(into(unknown, &[everyone.clone(), group(Direction::Out)]), Action::Allow);
    let rules = [everyone, group(Direction::In)];
    assert_eq!(into(unknown, &rules), Action::Deny);
    assert_eq!(into(side(inside, 0, &[]), &rules), Action::Allow);
    assert_eq!(into(Side::outside([192, 0, 2, 1].into()), &rules), Action::Allow);
}
