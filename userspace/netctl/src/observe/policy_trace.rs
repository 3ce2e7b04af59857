//! Evaluates a connection against the policies of the REST API, with the oracle of `contiv-model`.

use std::{collections::BTreeMap, net::IpAddr};

use contiv_model::{
    api::{EndpointGroup, EndpointOper, Netprofile, Network, Rule},
    group::{Dscp, GroupNumber},
    policy::{
        self, Connection, ExpandedRule, Outcome, Packet, Party, Policy, PolicyState, Priority, Side, expand,
    },
};
use ipnet::IpNet;
use serde_json::{Value, json};

/// Policies of the groups of all tenants.
#[derive(Debug)]
pub struct PolicySet {
    groups: BTreeMap<String, (GroupNumber, EndpointGroup)>,
    rules: Vec<Rule>,
    profiles: Vec<Netprofile>,
    networks: Vec<Network>,
}

/// One end of a connection: an endpoint, or an address that no endpoint has.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address of the connection.
    pub address: IpAddr,
    /// Endpoint with this address; none for an address outside of the cluster.
    pub endpoint: Option<EndpointOper>,
}

/// Result of an evaluation.
#[derive(Debug)]
pub struct PolicyTrace {
    /// Whether the connection is allowed.
    pub allowed: bool,
    /// Decision on the source's node, by `out` rules.
    pub out: SideTrace,
    /// Decision on the destination's node, by `in` rules.
    pub into: SideTrace,
    /// DSCP of packets from the source, 0 to 63; none if it is not set.
    pub dscp: Option<u8>,
}

/// Decision on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideTrace {
    /// `<tenant>:<group>`; none for a peer that is in no group.
    pub group: Option<String>,
    /// Deciding rule; none if no rule matches, which allows the connection, or if the source is unknown.
    pub rule: Option<DecidingRule>,
    /// Denied because the source may be in any group, and rules name groups ([`Outcome::UnknownSource`]).
    pub is_source_unknown: bool,
}

/// The rule that decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecidingRule {
    /// `<tenant>:<policy>:<rule>`.
    pub key: String,
    /// `allow` or `deny`.
    pub action: policy::Action,
    /// 1 to 100.
    pub priority: Option<u8>,
}

/// Group, rules and DSCP of one side: the data that [`Side`] borrows.
struct SideConfig {
    group: Option<String>,
    party: Party,
    rules: Vec<policy::Rule>,
    dscp: Option<Dscp>,
}

impl PolicySet {
    /// Collects the objects. The API does not contain group numbers, so each group gets an arbitrary unique one.
    pub fn new(
        groups: Vec<EndpointGroup>,
        rules: Vec<Rule>,
        profiles: Vec<Netprofile>,
        networks: Vec<Network>,
    ) -> PolicySet {
        let numbers = (1..).filter_map(|number: u32| GroupNumber::try_from(number).ok());
        let numbered = numbers.zip(groups).map(|(number, group)| (group.key.clone(), (number, group)));
        PolicySet { groups: numbered.collect(), rules, profiles, networks }
    }

    /// Evaluates a new connection.
    ///
    /// # Errors
    ///
    /// Names the rule that is invalid.
    pub fn evaluate(
        &self,
        from: &Peer,
        to: &Peer,
        packet: Packet,
    ) -> Result<PolicyTrace, contiv_model::Invalid> {
        let (mut source, destination) = (self.config(from)?, self.config(to)?);
        if self.is_unknown_inside(from, to) {
            source.party = Party::UnknownInside;
        }
        let side = |peer: &Peer, config| side(peer.address, config);
        let connection =
            Connection { source: side(from, &source), destination: side(to, &destination), packet };
        let decision = policy::decide(&connection);
        let trace = |config: &SideConfig, outcome: Outcome<'_>| SideTrace {
            group: config.group.clone(),
            rule: outcome.rule().map(|rule| DecidingRule {
                key: rule_key(rule.id.as_str()).to_owned(),
                action: rule.action,
                priority: rule.tier.priority().map(Priority::get),
            }),
            is_source_unknown: outcome == Outcome::UnknownSource,
        };
        Ok(PolicyTrace {
            allowed: decision.action == policy::Action::Allow,
            out: trace(&source, decision.out),
            into: trace(&destination, decision.into),
            dscp: decision.dscp.map(Dscp::get),
        })
    }

    /// Whether no endpoint has the address of the source, which is in the network of the destination: it may be one that a node does not
    /// know yet. Not so for the gateway.
    fn is_unknown_inside(&self, from: &Peer, to: &Peer) -> bool {
        let (None, Some(receiver)) = (&from.endpoint, &to.endpoint) else { return false };
        let has = |network: &&Network| {
            format!("{}.{}", network.network_name, network.tenant_name) == receiver.network
        };
        let Some(network) = self.networks.iter().find(has) else { return false };
        let gateways = [&network.gateway, &network.ipv6_gateway];
        let is_gateway = gateways.into_iter().any(|gateway| gateway.parse() == Ok(from.address));
        let subnets = [&network.subnet, &network.ipv6_subnet];
        !is_gateway
            && subnets.into_iter().filter_map(|text| prefix(text)).any(|net| net.contains(&from.address))
    }

    fn config(&self, peer: &Peer) -> Result<SideConfig, contiv_model::Invalid> {
        let without_group = |party| SideConfig { group: None, party, rules: vec![], dscp: None };
        let Some(endpoint) = &peer.endpoint else { return Ok(without_group(Party::Outside)) };
        let key =
            endpoint.endpoint_group_key.split_once(':').map(|(name, tenant)| format!("{tenant}:{name}"));
        let Some((number, group)) = key.as_ref().and_then(|key| self.groups.get(key)) else {
            return Ok(without_group(Party::Endpoint(None)));
        };
        let mut rules = vec![];
        for policy in &group.policies {
            rules.extend(Policy::try_from(&self.attached(*number, group, policy))?.rules);
        }
        let profile = self.profiles.iter().find(|profile| {
            profile.tenant_name == group.tenant_name && profile.profile_name == group.net_profile
        });
        let dscp = profile.and_then(|profile| u8::try_from(profile.dscp).ok()?.try_into().ok());
        let party = Party::Endpoint(Some((*number).into()));
        Ok(SideConfig { group: key, party, rules, dscp })
    }

    /// Expands a policy on a group as netmaster does, with the same ids.
    fn attached(&self, number: GroupNumber, group: &EndpointGroup, policy: &str) -> PolicyState {
        let id = format!("{}:{}:{policy}", group.key, group.tenant_name);
        let of = |rule: &&Rule| rule.tenant_name == group.tenant_name && rule.policy_name == policy;
        let number = i64::from(number.get());
        let rules = self.rules.iter().filter(of).map(|rule| {
            let network = self.network(rule);
            let v6 = network.map(|network| network.ipv6_subnet.as_str()).filter(|subnet| !subnet.is_empty());
            // A rule whose group or network does not exist matches nothing.
            let has_network = network_name(rule).is_empty() || network.is_some();
            let directed = match self.remote(rule).filter(|_| has_network) {
                Some(remote) => expand(&id, number, remote, rule, v6),
                None => BTreeMap::new(),
            };
            (rule.key.clone(), ExpandedRule { rule: rule.clone(), directed })
        });
        PolicyState { rules: rules.collect(), key: id.clone(), group: number, id }
    }

    /// Network that a rule names.
    fn network(&self, rule: &Rule) -> Option<&Network> {
        let name = network_name(rule);
        let matches =
            |network: &&Network| network.tenant_name == rule.tenant_name && network.network_name == name;
        self.networks.iter().find(matches)
    }

    /// Number of the group that a rule names: 0 if it names none, `None` if the group does not exist.
    fn remote(&self, rule: &Rule) -> Option<i64> {
        if rule.from_endpoint_group.is_empty() && rule.to_endpoint_group.is_empty() {
            return Some(0);
        }
        let (number, _) = self.groups.get(&rule.links.match_endpoint_group.key)?;
        Some(i64::from(number.get()))
    }
}

/// Prefix of a subnet, `ADDRESS/LENGTH` or `FIRST-LAST/LENGTH`; `None` if it has none.
fn prefix(subnet: &str) -> Option<IpNet> {
    let (addresses, length) = subnet.split_once('/')?;
    let (first, _) = addresses.split_once('-').unwrap_or((addresses, ""));
    IpNet::new(first.parse().ok()?, length.parse().ok()?).ok()
}

/// Name of the network that a rule names, or the empty string.
fn network_name(rule: &Rule) -> &str {
    if rule.from_network.is_empty() { &rule.to_network } else { &rule.from_network }
}

fn side(address: IpAddr, config: &SideConfig) -> Side<'_> {
    Side { address, party: config.party, rules: &config.rules, dscp: config.dscp }
}

/// Extracts `<tenant>:<policy>:<rule>` from `<policy on the group>:<tenant>:<policy>:<rule>:<direction>`.
fn rule_key(id: &str) -> &str {
    let rule = id.rsplit_once(':').map_or(id, |(rule, _)| rule);
    rule.match_indices(':').map(|(at, _)| at).nth_back(2).map_or(rule, |at| &rule[at + 1..])
}

impl PolicyTrace {
    /// JSON output of `netctl policy check`.
    pub fn json(&self, from: &Peer, to: &Peer, packet: Packet) -> Value {
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

    /// Side that denies the connection, `out` or `in`; `None` if it is allowed.
    pub fn decided_by(&self) -> Option<&'static str> {
        let denies = |side: &SideTrace| {
            side.is_source_unknown
                || side.rule.as_ref().is_some_and(|rule| rule.action == policy::Action::Deny)
        };
        match (denies(&self.out), denies(&self.into)) {
            (true, _) => Some("out"),
            (false, true) => Some("in"),
            (false, false) => None,
        }
    }
}

impl SideTrace {
    fn json(&self) -> Value {
        if self.is_source_unknown {
            return json!({"rule": null, "action": "deny", "priority": null, "reason": "unknown-source"});
        }
        let rule = self.rule.as_ref();
        json!(rule.map(|rule| json!({
            "rule": rule.key, "action": rule.action.to_string(), "priority": rule.priority,
        })))
    }
}

impl Peer {
    fn json(&self, side: &SideTrace) -> Value {
        let endpoint = self.endpoint.as_ref();
        json!({
            "address": self.address,
            "endpoint": endpoint.map(|endpoint| &endpoint.endpoint_id),
            "group": side.group,
            "network": endpoint.map(|endpoint| &endpoint.network),
            "node": endpoint.map(|endpoint| &endpoint.homing_host),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_key_is_extracted_from_the_expanded_id() {
        assert_eq!(rule_key("blue:web:blue:p1:blue:p1:10:inRx"), "blue:p1:10");
    }

    #[test]
    fn subnets_have_prefixes() {
        let of = |text| prefix(text).map(|net| net.trunc().to_string());
        assert_eq!(of("10.1.0.10-10.1.0.20/24").as_deref(), Some("10.1.0.0/24"));
        assert_eq!(of("2001:db8::/64").as_deref(), Some("2001:db8::/64"));
        assert_eq!([of(""), of("10.1.0.0"), of("10.1.0.0/33")], [None, None, None]);
    }

    #[test]
    fn a_rule_about_a_missing_network_matches_nothing() {
        let group = EndpointGroup { key: "t:g".into(), tenant_name: "t".into(), ..EndpointGroup::default() };
        let rule = Rule {
            key: "t:p:1".into(),
            tenant_name: "t".into(),
            policy_name: "p".into(),
            direction: "in".into(),
            from_network: "n".into(),
            from_ip_address: "10.1.0.0/16".into(),
            ..Rule::default()
        };
        let network = Network { tenant_name: "t".into(), network_name: "n".into(), ..Network::default() };
        for (networks, count) in [(vec![network], 1), (vec![], 0)] {
            let policies = PolicySet::new(vec![group.clone()], vec![rule.clone()], vec![], networks);
            let (number, group) = &policies.groups["t:g"];
            assert_eq!(policies.attached(*number, group, "p").rules["t:p:1"].directed.len(), count);
        }
    }
}
