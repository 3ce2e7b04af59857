//! What policies say of a connection: the oracle of `contiv-model`, asked about what the REST API gives.

use std::{collections::BTreeMap, net::IpAddr};

use contiv_model::{
    api::{EndpointGroup, EndpointOper, Netprofile, Network, Rule},
    group::{Dscp, GroupNumber},
    policy::{self, Connection, ExpandedRule, Packet, Policy, PolicyState, Side, expand},
};
use serde_json::{Value, json};

/// The groups of all tenants with their policies.
#[derive(Debug)]
pub struct Rulebook {
    groups: BTreeMap<String, (GroupNumber, EndpointGroup)>,
    rules: Vec<Rule>,
    profiles: Vec<Netprofile>,
    networks: Vec<Network>,
}

/// One end of a connection: an endpoint, or an address that no endpoint has.
#[derive(Clone, Debug)]
pub struct End {
    /// Its address.
    pub address: IpAddr,
    /// None outside.
    pub endpoint: Option<EndpointOper>,
}

/// What is said of a connection.
#[derive(Debug)]
pub struct Ruling {
    /// Whether it is let through.
    pub allowed: bool,
    /// Where the sender lives.
    pub out: Said,
    /// Where the receiver lives.
    pub into: Said,
    /// How the sender's packets are marked.
    pub dscp: Option<u8>,
}

/// What one side says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// `<tenant>:<group>`; none of what is in no group.
    pub group: Option<String>,
    /// The rule that decides; none if none matches, which lets the connection through.
    pub rule: Option<Deciding>,
}

/// A rule that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deciding {
    /// `<tenant>:<policy>:<rule>`.
    pub key: String,
    /// `allow` or `deny`.
    pub action: policy::Action,
    /// 1 to 100.
    pub priority: u8,
}

/// A side's own: what [`Side`] borrows.
struct Home {
    group: Option<String>,
    number: Option<GroupNumber>,
    rules: Vec<policy::Rule>,
    dscp: Option<Dscp>,
}

impl Rulebook {
    /// The API does not tell the groups' numbers; which they are does not matter, as long as each has its own.
    pub fn new(
        groups: Vec<EndpointGroup>,
        rules: Vec<Rule>,
        profiles: Vec<Netprofile>,
        networks: Vec<Network>,
    ) -> Rulebook {
        let numbers = (1..).filter_map(|number: u32| GroupNumber::try_from(number).ok());
        let numbered = numbers.zip(groups).map(|(number, group)| (group.key.clone(), (number, group)));
        Rulebook { groups: numbered.collect(), rules, profiles, networks }
    }

    /// What becomes of a connection. The error names a rule that cannot be read.
    pub fn decide(&self, from: &End, to: &End, packet: Packet) -> Result<Ruling, contiv_model::Invalid> {
        let (source, destination) = (self.home(from)?, self.home(to)?);
        let side = |end: &End, home| side(end.address, home);
        let connection =
            Connection { source: side(from, &source), destination: side(to, &destination), packet };
        let decision = policy::decide(&connection);
        let said = |home: &Home, rule: Option<&policy::Rule>| Said {
            group: home.group.clone(),
            rule: rule.map(|rule| Deciding {
                key: rule_key(rule.id.as_str()).to_owned(),
                action: rule.action,
                priority: rule.priority.get(),
            }),
        };
        Ok(Ruling {
            allowed: decision.action == policy::Action::Allow,
            out: said(&source, decision.out_rule),
            into: said(&destination, decision.in_rule),
            dscp: decision.dscp.map(Dscp::get),
        })
    }

    fn home(&self, end: &End) -> Result<Home, contiv_model::Invalid> {
        let nowhere = Home { group: None, number: None, rules: vec![], dscp: None };
        let Some(endpoint) = &end.endpoint else { return Ok(nowhere) };
        let key =
            endpoint.endpoint_group_key.split_once(':').map(|(name, tenant)| format!("{tenant}:{name}"));
        let Some((number, group)) = key.as_ref().and_then(|key| self.groups.get(key)) else {
            return Ok(nowhere);
        };
        let mut rules = vec![];
        for policy in &group.policies {
            rules.extend(Policy::try_from(&self.attached(*number, group, policy))?.rules);
        }
        let profile = self.profiles.iter().find(|profile| {
            profile.tenant_name == group.tenant_name && profile.profile_name == group.net_profile
        });
        let dscp = profile.and_then(|profile| u8::try_from(profile.dscp).ok()?.try_into().ok());
        Ok(Home { group: key, number: Some(*number), rules, dscp })
    }

    /// What netmaster makes of a policy on a group, with the same names.
    fn attached(&self, number: GroupNumber, group: &EndpointGroup, policy: &str) -> PolicyState {
        let id = format!("{}:{}:{policy}", group.key, group.tenant_name);
        let of = |rule: &&Rule| rule.tenant_name == group.tenant_name && rule.policy_name == policy;
        let number = i64::from(number.get());
        let rules = self.rules.iter().filter(of).map(|rule| {
            let directed = match self.remote(rule) {
                Some(remote) => expand(&id, number, remote, rule, self.v6_of_network(rule)),
                None => BTreeMap::new(),
            };
            (rule.key.clone(), ExpandedRule { rule: rule.clone(), directed })
        });
        PolicyState { rules: rules.collect(), key: id.clone(), group: number, id }
    }

    /// The IPv6 subnet of the network that a rule names.
    fn v6_of_network(&self, rule: &Rule) -> Option<&str> {
        let name = if rule.from_network.is_empty() { &rule.to_network } else { &rule.from_network };
        let is_it = |it: &&Network| it.tenant_name == rule.tenant_name && it.network_name == *name;
        let network = self.networks.iter().find(is_it)?;
        Some(network.ipv6_subnet.as_str()).filter(|subnet| !subnet.is_empty())
    }

    /// The number of the group that a rule names: 0 if it names none, nothing if that is gone.
    fn remote(&self, rule: &Rule) -> Option<i64> {
        if rule.from_endpoint_group.is_empty() && rule.to_endpoint_group.is_empty() {
            return Some(0);
        }
        let (number, _) = self.groups.get(&rule.links.match_endpoint_group.key)?;
        Some(i64::from(number.get()))
    }
}

fn side(address: IpAddr, home: &Home) -> Side<'_> {
    Side { address, group: home.number, rules: &home.rules, dscp: home.dscp }
}

/// `<tenant>:<policy>:<rule>` of `<policy on the group>:<tenant>:<policy>:<rule>:<direction>`.
fn rule_key(id: &str) -> &str {
    let rule = id.rsplit_once(':').map_or(id, |(rule, _)| rule);
    rule.match_indices(':').map(|(at, _)| at).nth_back(2).map_or(rule, |at| &rule[at + 1..])
}

impl Ruling {
    /// As JSON.
    pub fn json(&self, from: &End, to: &End, packet: Packet) -> Value {
        json!({
            "action": if self.allowed { "allow" } else { "deny" },
            "decidedBy": self.decided_by(),
            "source": from.json(&self.out),
            "destination": to.json(&self.into),
            "protocol": packet.protocol,
            "port": packet.port,
            "out": self.out.json(),
            "in": self.into.json(),
            "dscp": self.dscp,
        })
    }

    /// `out` or `in` of what is denied: the side where its packets end.
    pub fn decided_by(&self) -> Option<&'static str> {
        let denies = |said: &Said| said.rule.as_ref().is_some_and(|rule| rule.action == policy::Action::Deny);
        match (denies(&self.out), denies(&self.into)) {
            (true, _) => Some("out"),
            (false, true) => Some("in"),
            (false, false) => None,
        }
    }
}

impl Said {
    fn json(&self) -> Value {
        let rule = self.rule.as_ref();
        json!(rule.map(|rule| json!({
            "rule": rule.key, "action": rule.action.to_string(), "priority": rule.priority,
        })))
    }
}

impl End {
    fn json(&self, said: &Said) -> Value {
        let endpoint = self.endpoint.as_ref();
        json!({
            "address": self.address,
            "endpoint": endpoint.map(|endpoint| &endpoint.endpoint_id),
            "group": said.group,
            "network": endpoint.map(|endpoint| &endpoint.network),
            "node": endpoint.map(|endpoint| &endpoint.homing_host),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rules_key_is_found_in_its_name_on_a_group() {
        assert_eq!(rule_key("blue:web:blue:p1:blue:p1:10:inRx"), "blue:p1:10");
    }
}
