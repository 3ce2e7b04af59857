//! A switch that refuses the rules of a group: its endpoints do not go on without rules.

use anyhow::Result;
use contiv_model::{
    global::ArpMode,
    policy::{Action, Direction, Identity, Rule},
};
use netplugin::datapath::{Group, Local, Network, Object};
use testkit::{needs, wait_until};

use crate::{
    node::{Node, Pod, SOON, network, vxlan},
    refusal::{RULES_IN, limit, set, unlimited},
};

/// Rules for identity 7 that deny some protocols, but no pings.
fn group() -> Result<(Identity, Object)> {
    let identity = Identity::try_from(7)?;
    let deny = |n: u32| Rule {
        protocol: Some(6 + n as u8),
        ..Rule::new(&*format!("r{n}"), Direction::In, Action::Deny, 1.try_into().unwrap())
    };
    Ok((identity, Object::Group(Group::new(identity, (0..8).map(deny).collect::<Vec<_>>()))))
}

/// A node with two pods, of which the second is in a group with rules. The group is not installed.
struct Grouped {
    node: Node,
    blue: Network,
    one: Pod,
    two: Pod,
    group: Object,
}

impl Grouped {
    fn new(label: &str) -> Result<Grouped> {
        let node = Node::new(label, &[])?;
        node.converge()?;
        let blue = network("blue", vxlan(5000), ArpMode::Proxy);
        node.add([Object::Network(blue.clone())])?;
        let one = node.run_pod(&blue, 1)?;
        let (identity, group) = group()?;
        let mut two = node.pod(&blue, 2)?;
        let Object::Local(local) = &two.object else { unreachable!() };
        two.object = Object::Local(Local { identity: Some(identity), ..local.clone() });
        Ok(Grouped { node, blue, one, two, group })
    }
}

/// A group whose rules are refused is denied everything; if even that is refused, the other objects are installed.
#[test]
fn refused_rules_deny_their_group() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let Grouped { node, blue, one, two, group } = Grouped::new("full-rules")?;

    limit(&node, RULES_IN, 0)?;
    let three = node.pod(&blue, 3)?;
    let failures = set(&node, &[group.clone(), three.object.clone()])?;
    assert_eq!(failures.iter().map(|(op, _)| *op).collect::<Vec<_>>(), [0], "{failures:?}");
    assert!(failures[0].1.contains("group 7") && failures[0].1.contains("TABLE_FULL"), "{failures:?}");
    one.reaches(3)?;

    unlimited(&node)?;
    limit(&node, RULES_IN, 2)?;
    let failures = set(&node, &[group.clone(), two.object.clone()])?;
    assert_eq!(failures.iter().map(|(op, _)| *op).collect::<Vec<_>>(), [0], "{failures:?}");
    one.cannot_reach(2)?;

    unlimited(&node)?;
    assert_eq!(set(&node, &[group])?, []);
    assert_eq!(node.converge()?, []);
    one.reaches(2)
}

/// The agent restarts while the switch has none of the rules of a group, and its objects are those that are desired.
#[test]
fn rules_that_are_refused_after_a_restart_deny_their_group() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let Grouped { node, one, two, group, .. } = Grouped::new("full-again")?;
    node.add([two.object.clone()])?;
    one.reaches(2)?;
    // Not even the denial fits.
    limit(&node, RULES_IN, 0)?;
    assert_eq!(set(&node, std::slice::from_ref(&group))?.len(), 1);
    node.restart_agent();
    node.observe()?;
    unlimited(&node)?;
    limit(&node, RULES_IN, 2)?;
    assert_eq!(set(&node, std::slice::from_ref(&group))?.len(), 1);
    wait_until(SOON, "the denial", || Ok(one.cannot_reach(2).ok()))?;

    unlimited(&node)?;
    assert_eq!(set(&node, &[group])?, []);
    assert_eq!(node.converge()?, []);
    one.reaches(2)
}

/// Not even the denial fits: the pods that the group has already are set down until the switch has the rules, also over a resync and a
/// restart of the agent.
#[test]
fn pods_whose_traffic_cannot_be_denied_are_set_down() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ip"));
    let Grouped { node, one, two, group, .. } = Grouped::new("full-denial")?;
    node.add([two.object.clone()])?;
    one.reaches(2)?;
    let Object::Local(local) = &two.object else { unreachable!() };
    let is_up = || -> Result<bool> {
        Ok(node.namespace.ip(&format!("-o link show {}", local.port))?.contains(",UP"))
    };
    limit(&node, RULES_IN, 0)?;
    let failures = set(&node, std::slice::from_ref(&group))?;
    let says = |text: &str| ["group 7", "set down", "TABLE_FULL"].iter().all(|word| text.contains(*word));
    assert!(matches!(&failures[..], [(0, text)] if says(text)), "{failures:?}");
    assert!(!is_up()?);
    one.cannot_reach(2)?;
    for restarts in [false, true] {
        if restarts {
            node.restart_agent();
        }
        let observed = node.observe()?;
        assert!([&group, &two.object].iter().all(|object| !observed.in_sync.contains(&object.id())));
        let failures = set(&node, &[group.clone(), two.object.clone()])?;
        assert!(matches!(&failures[..], [(0, text)] if says(text)), "{failures:?}");
        assert!(!is_up()?);
    }

    unlimited(&node)?;
    assert_eq!(set(&node, &[group])?, []);
    assert!(is_up()?);
    one.reaches(2)?;
    assert_eq!(node.converge()?, []);
    Ok(())
}
