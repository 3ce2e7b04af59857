use std::collections::BTreeMap;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::{Direction, Identity, Peer, Rule, TCP, UDP, prefixes, prefixes::Named};
use crate::{Invalid, api, group::GroupNumber, name::PolicyId};

/// The body of `/contiv.io/state/policy/<tenant>:<group>:<tenant>:<policy>`: a whole policy
/// attached to one group (INVENTORY section 4).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PolicyState {
    /// Last part of the key.
    pub id: String,
    /// The same as `id`.
    #[serde(rename = "EpgPolicyKey")]
    pub key: String,
    /// Number of the group.
    #[serde(rename = "EndpointGroupID")]
    pub group: i64,
    /// Rules, by their keys.
    #[serde(rename = "RuleMaps", default)]
    pub rules: BTreeMap<String, ExpandedRule>,
}

/// A rule, and its directional rules on one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExpandedRule {
    /// The rule as the user wrote it.
    #[serde(rename = "Rule")]
    pub rule: api::Rule,
    /// Directional rules, by their ids. Empty if the rule names a group or a network that was deleted.
    #[serde(rename = "OfnetRules", default)]
    pub directed: BTreeMap<String, DirectionalRule>,
}

/// A rule for packets of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DirectionalRule {
    /// `<policy on the group>:<rule's key>:<inRx, inTx, outRx or outTx>`; with a suffix `6` for the
    /// IPv6 subnet of a network.
    pub rule_id: String,
    /// 1 to 100; the highest decides.
    pub priority: i64,
    /// Number of the sender's group, 0 for any.
    pub src_endpoint_group: i64,
    /// Number of the receiver's group, 0 for any.
    pub dst_endpoint_group: i64,
    /// Address or subnet of the sender, or empty.
    pub src_ip_addr: String,
    /// Address or subnet of the receiver, or empty.
    pub dst_ip_addr: String,
    /// IP protocol number, 0 for any.
    pub ip_protocol: u8,
    /// Source port, 0 for any.
    pub src_port: u16,
    /// Destination port, 0 for any.
    pub dst_port: u16,
    /// `syn,!ack` for packets that open a connection, or empty.
    pub tcp_flags: String,
    /// `allow` or `deny`.
    pub action: String,
}

/// The body of `/contiv.io/state/policyRule/<id>`: a directional rule, for operators. Agents read
/// whole policies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "DirectionalRuleFields")]
pub struct DirectionalRuleState {
    /// Always empty.
    pub id: String,
    /// The rule.
    #[serde(flatten)]
    pub rule: DirectionalRule,
}

/// The fields of [`DirectionalRuleState`] and of its rule. serde does not report unknown fields of a
/// flattened structure, and those of other releases must be noticed.
#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DirectionalRuleFields {
    #[serde(rename = "id")]
    id: String,
    rule_id: String,
    priority: i64,
    src_endpoint_group: i64,
    dst_endpoint_group: i64,
    src_ip_addr: String,
    dst_ip_addr: String,
    ip_protocol: u8,
    src_port: u16,
    dst_port: u16,
    tcp_flags: String,
    action: String,
}

impl From<DirectionalRuleFields> for DirectionalRuleState {
    fn from(fields: DirectionalRuleFields) -> Self {
        DirectionalRuleState {
            id: fields.id,
            rule: DirectionalRule {
                rule_id: fields.rule_id,
                priority: fields.priority,
                src_endpoint_group: fields.src_endpoint_group,
                dst_endpoint_group: fields.dst_endpoint_group,
                src_ip_addr: fields.src_ip_addr,
                dst_ip_addr: fields.dst_ip_addr,
                ip_protocol: fields.ip_protocol,
                src_port: fields.src_port,
                dst_port: fields.dst_port,
                tcp_flags: fields.tcp_flags,
                action: fields.action,
            },
        }
    }
}

/// A policy on a group, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Last part of the key.
    pub id: PolicyId,
    /// Group that the policy is attached to.
    pub group: GroupNumber,
    /// Rules, in the order of their ids.
    pub rules: Vec<Rule>,
}

impl TryFrom<&PolicyState> for Policy {
    type Error = Invalid;

    fn try_from(state: &PolicyState) -> Result<Self, Invalid> {
        let object = format!("policy {}", state.id);
        let group = GroupNumber::read(state.group)
            .ok_or_else(|| Invalid::new(object, "EndpointGroupID", state.group, GroupNumber::EXPECTED))?;
        let mut rules = vec![];
        for expanded in state.rules.values() {
            rules_of(expanded, group, &mut rules)?;
        }
        Ok(Policy { id: state.id.as_str().into(), group, rules })
    }
}

/// Adds the rules of `expanded` for new connections. The rules for replies (`inTx`, `outRx`) are
/// for stateless switches; here connections are tracked, and replies are not evaluated.
fn rules_of(expanded: &ExpandedRule, group: GroupNumber, rules: &mut Vec<Rule>) -> Result<(), Invalid> {
    let text = &expanded.rule.direction;
    let (direction, way) = match text.as_str() {
        "in" => (Direction::In, ":inRx"),
        "out" => (Direction::Out, ":outTx"),
        _ => {
            let object = format!("rule {}", expanded.rule.key);
            return Err(Invalid::new(object, "direction", text, "in or out"));
        }
    };
    let opens = |id: &str| id.strip_suffix('6').unwrap_or(id).ends_with(way);
    for directed in expanded.directed.values().filter(|directed| opens(&directed.rule_id)) {
        add(directed, direction, group, rules)?;
    }
    Ok(())
}

fn add(
    directed: &DirectionalRule,
    direction: Direction,
    group: GroupNumber,
    rules: &mut Vec<Rule>,
) -> Result<(), Invalid> {
    let d = directed;
    let bad = |field, value: &dyn ToString, expected| {
        Invalid::new(format!("rule {}", d.rule_id), field, value.to_string(), expected)
    };
    let source = ("SrcEndpointGroup", d.src_endpoint_group, "SrcIpAddr", d.src_ip_addr.as_str());
    let destination = ("DstEndpointGroup", d.dst_endpoint_group, "DstIpAddr", d.dst_ip_addr.as_str());
    let (own, peer) = match direction {
        Direction::In => (destination, source),
        Direction::Out => (source, destination),
    };
    if own.1 != i64::from(group.get()) {
        return Err(bad(own.0, &own.1, "the number of the policy's group"));
    }
    let identity = match peer.1 {
        0 => None,
        number => Some(Identity::from(
            GroupNumber::read(number)
                .ok_or_else(|| bad(peer.0, &number, "0 for any, or a group's number"))?,
        )),
    };
    let nets = |field, text: &str| {
        prefixes::read(text).ok_or_else(|| bad(field, &text, "an address, a subnet, a range or nothing"))
    };
    let (owns, subnets) = (nets(own.2, own.3)?, nets(peer.2, peer.3)?);
    let ports = matches!(d.ip_protocol, TCP | UDP);
    let rule = Rule {
        id: d.rule_id.as_str().into(),
        direction,
        peer: Peer::any(),
        own: None,
        protocol: Some(d.ip_protocol).filter(|protocol| *protocol != 0),
        ports: Some(d.dst_port).filter(|port| ports && *port != 0).map(Into::into),
        action: d.action.parse().map_err(|()| bad("Action", &d.action, "allow or deny"))?,
        tier: u8::try_from(d.priority)
            .ok()
            .and_then(|priority| priority.try_into().ok())
            .ok_or_else(|| bad("Priority", &d.priority, "1 to 100"))?,
    };
    // A reversed range contains no address: the rule matches nothing, neither for allow nor for deny.
    let alternatives = |named: Named| -> Vec<Option<IpNet>> {
        match named {
            Named::Any => vec![None],
            Named::In(nets) => nets.into_iter().map(Some).collect(),
        }
    };
    let (owns, subnets) = (alternatives(owns), alternatives(subnets));
    let mut push = |own, subnet| rules.push(Rule { own, peer: Peer::new(identity, subnet), ..rule.clone() });
    for own in owns {
        for subnet in &subnets {
            push(own, *subnet);
            // An endpoint has a link-local address, too, which is no way around rules about its address.
            match (own.as_ref().map(prefixes::link_local), subnet.as_ref().map(prefixes::link_local)) {
                (None, None) | (Some(None), _) | (_, Some(None)) => {}
                (own, subnet) => push(own.flatten(), subnet.flatten()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Action, IpBlock};

    const BODY: &str = r#"{"id":"default:eg:default:pe","EpgPolicyKey":"default:eg:default:pe","EndpointGroupID":3,"RuleMaps":{"default:pe:k1":{"Rule":{"key":"default:pe:k1","action":"allow","direction":"in","policyName":"pe","port":80,"priority":1,"protocol":"tcp","ruleId":"k1","tenantName":"default","toIpAddress":"41.1.0.2","link-sets":{"Policies":{"default:pe":{"type":"policy","key":"default:pe"}}},"links":{"MatchEndpointGroup":{}}},"OfnetRules":{"default:eg:default:pe:default:pe:k1:inRx":{"RuleId":"default:eg:default:pe:default:pe:k1:inRx","Priority":1,"SrcEndpointGroup":0,"DstEndpointGroup":3,"SrcIpAddr":"","DstIpAddr":"41.1.0.2","IpProtocol":6,"SrcPort":0,"DstPort":80,"TcpFlags":"","Action":"allow"},"default:eg:default:pe:default:pe:k1:inTx":{"RuleId":"default:eg:default:pe:default:pe:k1:inTx","Priority":1,"SrcEndpointGroup":3,"DstEndpointGroup":0,"SrcIpAddr":"41.1.0.2","DstIpAddr":"","IpProtocol":6,"SrcPort":80,"DstPort":0,"TcpFlags":"","Action":"allow"}}}}}"#;

    fn state() -> PolicyState {
        serde_json::from_str(BODY).unwrap()
    }

    /// Of one rule, in the directions that netmaster makes of it.
    fn directed(change: impl Fn(&mut DirectionalRule)) -> Result<Vec<Rule>, Invalid> {
        let mut state = state();
        for expanded in state.rules.values_mut() {
            expanded.directed.values_mut().for_each(&change);
        }
        Policy::try_from(&state).map(|policy| policy.rules)
    }

    /// Prefixes of the rules' peers.
    fn subnets(rules: &[Rule]) -> Vec<String> {
        let blocks = rules.iter().filter_map(|rule| rule.peer.blocks.as_deref()).flatten();
        blocks.flat_map(IpBlock::prefixes).map(|net| net.to_string()).collect()
    }

    #[test]
    fn the_bodies_match_the_original_byte_for_byte() {
        assert_eq!(serde_json::to_string(&state()).unwrap(), BODY);
        let body = r#"{"id":"","RuleId":"default:web:default:p1:default:p1:8:outTx","Priority":1,"SrcEndpointGroup":6,"DstEndpointGroup":7,"SrcIpAddr":"","DstIpAddr":"","IpProtocol":6,"SrcPort":0,"DstPort":0,"TcpFlags":"syn,!ack","Action":"allow"}"#;
        let state: DirectionalRuleState = serde_json::from_str(body).unwrap();
        assert_eq!(serde_json::to_string(&state).unwrap(), body);
    }

    #[test]
    fn a_body_becomes_a_policy_for_new_connections() {
        let policy = Policy::try_from(&state()).unwrap();
        assert_eq!((policy.id.as_str(), policy.group.get()), ("default:eg:default:pe", 3));
        let rule = Rule {
            id: "default:eg:default:pe:default:pe:k1:inRx".into(),
            direction: Direction::In,
            peer: Peer::any(),
            own: Some("41.1.0.2/32".parse().unwrap()),
            protocol: Some(TCP),
            ports: Some(80.into()),
            action: Action::Allow,
            tier: 1.try_into().unwrap(),
        };
        // And for the endpoint's other address.
        let link_local = Rule { own: Some("fe80::2:29ff:fe01:2/128".parse().unwrap()), ..rule.clone() };
        assert_eq!(policy.rules, [rule, link_local]);
    }

    #[test]
    fn out_rules_match_destinations() {
        let mut state = state();
        let expanded = state.rules.get_mut("default:pe:k1").unwrap();
        expanded.rule.direction = "out".into();
        expanded.directed = [("x:outRx", 7, 3, "x"), ("x:outTx", 3, 7, "30.1.0.9/24")]
            .map(|(id, from, to, address)| {
                let directed = DirectionalRule {
                    rule_id: id.into(),
                    priority: 100,
                    src_endpoint_group: from,
                    dst_endpoint_group: to,
                    dst_ip_addr: address.into(),
                    ip_protocol: UDP,
                    dst_port: 53,
                    action: "deny".into(),
                    ..DirectionalRule::default()
                };
                (id.to_owned(), directed)
            })
            .into();
        let rules = Policy::try_from(&state).unwrap().rules;
        assert_eq!(subnets(&rules), ["30.1.0.0/24", "fe80::2:1eff:fe01:0/120"]);
        let rule = &rules[0];
        assert_eq!((rule.direction, rule.action, rule.own), (Direction::Out, Action::Deny, None));
        let peer = Peer::new(Identity::try_from(7).ok(), Some("30.1.0.0/24".parse().unwrap()));
        assert_eq!(rule.peer, peer);
        assert_eq!((rule.protocol, rule.ports), (Some(UDP), Some(53.into())));
    }

    #[test]
    fn both_subnets_of_a_network_count() {
        let rule = api::Rule {
            key: "t:p:5".into(),
            action: "deny".into(),
            direction: "out".into(),
            priority: 1,
            to_network: "n".into(),
            to_ip_address: "30.1.0.0/24".into(),
            ..api::Rule::default()
        };
        let directed = crate::policy::expand("t:g:t:p", 6, 0, &rule, Some("2001:db8::/64"));
        let state = PolicyState {
            id: "t:g:t:p".into(),
            group: 6,
            rules: [(rule.key.clone(), ExpandedRule { rule, directed })].into(),
            ..PolicyState::default()
        };
        let rules = Policy::try_from(&state).unwrap().rules;
        assert_eq!(subnets(&rules), ["30.1.0.0/24", "fe80::2:1eff:fe01:0/120", "2001:db8::/64"]);
    }

    #[test]
    fn a_port_needs_a_protocol_that_has_ports() {
        assert_eq!(directed(|d| d.ip_protocol = 0).unwrap()[0].ports, None);
        assert_eq!(directed(|d| d.ip_protocol = 1).unwrap()[0].ports, None);
        assert_eq!(directed(|d| d.dst_port = 0).unwrap()[0].ports, None);
        assert_eq!(directed(|_| ()).unwrap()[0].ports, Some(80.into()));
    }

    #[test]
    fn a_range_is_the_prefixes_that_it_is_made_of() {
        let rules = directed(|d| d.src_ip_addr = "10.1.1.10-10.1.1.12/24".into()).unwrap();
        let of_ipv4 = ["10.1.1.10/31", "10.1.1.12/32"];
        let link_local = ["fe80::2:aff:fe01:10a/127", "fe80::2:aff:fe01:10c/128"];
        assert_eq!(subnets(&rules), [of_ipv4[0], link_local[0], of_ipv4[1], link_local[1]]);
        assert_eq!(rules[0].id, rules[1].id);
    }

    /// Earlier releases of netmaster accept it. The other rules of the policy are in force.
    #[test]
    fn a_rule_with_a_reversed_range_matches_nothing() {
        for action in ["allow", "deny"] {
            let peer = directed(|d| (d.src_ip_addr, d.action) = ("10.1.1.9-4".into(), action.into()));
            assert_eq!(peer.unwrap(), [], "{action}");
            let own = directed(|d| (d.dst_ip_addr, d.action) = ("10.1.1.1-0".into(), action.into()));
            assert_eq!(own.unwrap(), [], "{action}");
        }
        let mut state = state();
        let mut other = state.rules["default:pe:k1"].clone();
        other.rule.key = "default:pe:k2".into();
        other.directed.values_mut().for_each(|d| d.src_ip_addr = "10.1.1.9-4".into());
        state.rules.insert(other.rule.key.clone(), other);
        assert_eq!(Policy::try_from(&state).unwrap().rules, directed(|_| ()).unwrap());
        // What else is wrong with it is not ignored.
        assert!(directed(|d| (d.src_ip_addr, d.action) = ("10.1.1.9-4".into(), "drop".into())).is_err());
    }

    #[test]
    fn a_rule_for_a_deleted_group_has_no_effect() {
        let mut state = state();
        state.rules.values_mut().for_each(|expanded| expanded.directed.clear());
        assert_eq!(Policy::try_from(&state).unwrap().rules, []);
    }

    #[test]
    fn errors_name_the_invalid_field() {
        let why = |change: fn(&mut DirectionalRule)| directed(change).unwrap_err().to_string();
        assert_eq!(
            why(|d| d.priority = 101),
            "rule default:eg:default:pe:default:pe:k1:inRx: Priority is \"101\", expected 1 to 100"
        );
        assert!(why(|d| d.action = "drop".into()).contains("Action is \"drop\", expected allow or deny"));
        assert!(why(|d| d.src_ip_addr = "10.1".into()).contains("SrcIpAddr is \"10.1\""));
        assert!(why(|d| d.src_endpoint_group = -1).contains("SrcEndpointGroup is \"-1\""));
        assert!(why(|d| d.dst_endpoint_group = 4).contains("DstEndpointGroup is \"4\""));
        let mut state = state();
        state.group = 0;
        assert!(Policy::try_from(&state).unwrap_err().to_string().contains("EndpointGroupID is \"0\""));
    }
}
