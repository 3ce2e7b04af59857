//! Expansion of a policy's rule to directional rules on a group (INVENTORY section 4).

use std::collections::BTreeMap;

use super::DirectionalRule;
use crate::api::Rule;

#[derive(Clone, Copy)]
enum Direction {
    InRx,
    InTx,
    OutRx,
    OutTx,
}

impl Direction {
    /// Rules with a port also allow replies: the original's rules are stateless.
    fn of(rule: &Rule) -> &'static [Direction] {
        let answered = ["tcp", "udp"].contains(&rule.protocol.as_str()) && rule.port != 0;
        match (rule.direction.as_str(), answered) {
            ("in", true) => &[Direction::InRx, Direction::InTx],
            ("in", false) => &[Direction::InRx],
            (_, true) => &[Direction::OutRx, Direction::OutTx],
            (_, false) => &[Direction::OutTx],
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Direction::InRx => "inRx",
            Direction::InTx => "inTx",
            Direction::OutRx => "outRx",
            Direction::OutTx => "outTx",
        }
    }
}

/// Expands `rule` on the group with number `group`; `remote` is the number of the group that the
/// rule names, or 0. `attached` is the id of the policy on the group.
///
/// If the rule names a network, its address is the network's IPv4 subnet. If the network also has
/// an IPv6 subnet, `v6` is that subnet, and the rule expands to one more directional rule for new
/// connections (`inRx6`, `outTx6`; the original has none).
pub fn expand(
    attached: &str,
    group: i64,
    remote: i64,
    rule: &Rule,
    v6: Option<&str>,
) -> BTreeMap<String, DirectionalRule> {
    let one = |direction: &Direction, family: &str, rule: &Rule| {
        let id = format!("{attached}:{}:{}{family}", rule.key, direction.as_str());
        (id.clone(), DirectionalRule { rule_id: id, ..in_direction(*direction, group, remote, rule) })
    };
    let directions = Direction::of(rule);
    let more = v6.filter(|_| !rule.from_network.is_empty() || !rule.to_network.is_empty()).map(|v6| {
        let of = |network: &str, address: &str| {
            if network.is_empty() { address.to_owned() } else { v6.to_owned() }
        };
        Rule {
            from_ip_address: of(&rule.from_network, &rule.from_ip_address),
            to_ip_address: of(&rule.to_network, &rule.to_ip_address),
            ..rule.clone()
        }
    });
    let opening = |direction: &&Direction| matches!(direction, Direction::InRx | Direction::OutTx);
    let more = more.iter().flat_map(|rule| directions.iter().filter(opening).map(|way| one(way, "6", rule)));
    directions.iter().map(|direction| one(direction, "", rule)).chain(more).collect()
}

fn in_direction(direction: Direction, group: i64, remote: i64, rule: &Rule) -> DirectionalRule {
    let (from, to) = (rule.from_ip_address.clone(), rule.to_ip_address.clone());
    // The original keeps the low 16 bits.
    let port = (rule.port & 0xffff) as u16;
    // Without a port only packets that open a connection match.
    let opening = if rule.protocol == "tcp" && rule.port == 0 { "syn,!ack" } else { "" };
    let rest = DirectionalRule {
        priority: rule.priority,
        ip_protocol: protocol(&rule.protocol),
        action: rule.action.clone(),
        ..DirectionalRule::default()
    };
    match direction {
        Direction::InRx => DirectionalRule {
            src_endpoint_group: remote,
            dst_endpoint_group: group,
            src_ip_addr: from,
            dst_ip_addr: to,
            dst_port: port,
            tcp_flags: opening.into(),
            ..rest
        },
        Direction::InTx => DirectionalRule {
            src_endpoint_group: group,
            dst_endpoint_group: remote,
            src_ip_addr: to,
            dst_ip_addr: from,
            src_port: port,
            ..rest
        },
        Direction::OutRx => DirectionalRule {
            src_endpoint_group: remote,
            dst_endpoint_group: group,
            src_ip_addr: to,
            src_port: port,
            ..rest
        },
        Direction::OutTx => DirectionalRule {
            src_endpoint_group: group,
            dst_endpoint_group: remote,
            dst_ip_addr: to,
            dst_port: port,
            tcp_flags: opening.into(),
            ..rest
        },
    }
}

fn protocol(name: &str) -> u8 {
    match name {
        "icmp" => 1,
        "igmp" => 2,
        "tcp" => 6,
        "udp" => 17,
        // 256 and more mean any protocol, as in the original.
        number => number.parse().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyState;

    #[test]
    fn rules_expand_as_in_the_original() {
        let body = r#"{"id":"default:eg:default:pe","EpgPolicyKey":"default:eg:default:pe","EndpointGroupID":3,"RuleMaps":{"default:pe:k1":{"Rule":{"key":"default:pe:k1","action":"allow","direction":"in","policyName":"pe","port":80,"priority":1,"protocol":"tcp","ruleId":"k1","tenantName":"default","toIpAddress":"41.1.0.2","link-sets":{"Policies":{"default:pe":{"type":"policy","key":"default:pe"}}},"links":{"MatchEndpointGroup":{}}},"OfnetRules":{"default:eg:default:pe:default:pe:k1:inRx":{"RuleId":"default:eg:default:pe:default:pe:k1:inRx","Priority":1,"SrcEndpointGroup":0,"DstEndpointGroup":3,"SrcIpAddr":"","DstIpAddr":"41.1.0.2","IpProtocol":6,"SrcPort":0,"DstPort":80,"TcpFlags":"","Action":"allow"},"default:eg:default:pe:default:pe:k1:inTx":{"RuleId":"default:eg:default:pe:default:pe:k1:inTx","Priority":1,"SrcEndpointGroup":3,"DstEndpointGroup":0,"SrcIpAddr":"41.1.0.2","DstIpAddr":"","IpProtocol":6,"SrcPort":80,"DstPort":0,"TcpFlags":"","Action":"allow"}}}}}"#;
        let state: PolicyState = serde_json::from_str(body).unwrap();
        let expanded = &state.rules["default:pe:k1"];
        assert_eq!(expand(&state.id, state.group, 0, &expanded.rule, None), expanded.directed);
    }

    #[test]
    fn out_rules_are_reversed_for_replies() {
        let rule = Rule {
            key: "t:p:5".into(),
            action: "deny".into(),
            direction: "out".into(),
            port: 8080,
            priority: 1,
            protocol: "tcp".into(),
            to_ip_address: "30.1.0.0/24".into(),
            ..Rule::default()
        };
        let directed = expand("t:g:t:p", 6, 7, &rule, None);
        let rx = &directed["t:g:t:p:t:p:5:outRx"];
        assert_eq!((rx.src_endpoint_group, rx.dst_endpoint_group, rx.src_port, rx.dst_port), (7, 6, 8080, 0));
        assert_eq!((rx.src_ip_addr.as_str(), rx.dst_ip_addr.as_str()), ("30.1.0.0/24", ""));
        let tx = &directed["t:g:t:p:t:p:5:outTx"];
        assert_eq!((tx.src_endpoint_group, tx.dst_endpoint_group, tx.src_port, tx.dst_port), (6, 7, 0, 8080));
        assert_eq!((tx.src_ip_addr.as_str(), tx.dst_ip_addr.as_str()), ("", "30.1.0.0/24"));
        assert_eq!(directed.len(), 2);
    }

    #[test]
    fn a_network_is_all_its_subnets() {
        let rule = Rule {
            key: "t:p:5".into(),
            action: "deny".into(),
            direction: "in".into(),
            priority: 1,
            from_network: "n".into(),
            from_ip_address: "30.1.0.0/24".into(),
            ..Rule::default()
        };
        let directed = expand("t:g:t:p", 6, 0, &rule, Some("2001:db8::/64"));
        let sources: Vec<_> =
            directed.iter().map(|(id, rule)| (id.as_str(), rule.src_ip_addr.as_str())).collect();
        assert_eq!(
            sources,
            [("t:g:t:p:t:p:5:inRx", "30.1.0.0/24"), ("t:g:t:p:t:p:5:inRx6", "2001:db8::/64")]
        );
        // An address is what it is.
        let rule = Rule { from_network: String::new(), ..rule };
        assert_eq!(expand("t:g:t:p", 6, 0, &rule, Some("2001:db8::/64")).len(), 1);
    }
}
