//! Random sequences of requests about rules, groups and policies: the expansions in the store are always
//! those that a new leader derives.

use netmaster::access::Scope;
use netmaster::objects::{Cluster, Type};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::restore::restored;

const GROUPS: [&str; 2] = ["web", "web-2"];
const POLICIES: [&str; 2] = ["p", "p-2"];

#[derive(Clone, Debug)]
enum Step {
    /// Creates the rule, or deletes it if it exists.
    Rule(Rule),
    /// Deletes the group, or creates it with these policies.
    Group(usize, [bool; 2]),
    /// Gives a group these policies.
    Attach(usize, [bool; 2]),
    /// Several rules in one transaction.
    Rules(Vec<Rule>),
    /// A new leader loads the state from the store.
    TakeOver,
}

#[derive(Clone, Debug)]
struct Rule {
    policy: usize,
    number: u8,
    peer: Option<usize>,
    port: u16,
}

fn rule() -> impl Strategy<Value = Rule> {
    let peer = prop::option::of(0..GROUPS.len());
    (0..POLICIES.len(), 1u8..5, peer, 0u16..2).prop_map(|(policy, number, peer, port)| Rule {
        policy,
        number,
        peer,
        port,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => rule().prop_map(Step::Rule),
        2 => (0..GROUPS.len(), any::<[bool; 2]>()).prop_map(|(group, policies)| Step::Group(group, policies)),
        3 => (0..GROUPS.len(), any::<[bool; 2]>()).prop_map(|(group, policies)| Step::Attach(group, policies)),
        3 => prop::collection::vec(rule(), 1..6).prop_map(Step::Rules),
        1 => Just(Step::TakeOver),
    ]
}

fn exists(fixture: &Fixture, key: &str) -> bool {
    fixture.value(&format!("/contiv.io/obj/modeldb/{key}")).is_some()
}

fn group(policies: [bool; 2], group: usize) -> Value {
    let policies: Vec<_> =
        POLICIES.iter().zip(policies).filter(|(_, attached)| *attached).map(|(name, _)| name).collect();
    json!({"tenantName": "default", "groupName": GROUPS[group], "networkName": "net", "policies": policies})
}

impl Rule {
    fn key(&self) -> String {
        format!("default:{}:{}", POLICIES[self.policy], self.number)
    }

    fn body(&self) -> Value {
        let peer = self.peer.map_or("", |peer| GROUPS[peer]);
        json!({"tenantName": "default", "policyName": POLICIES[self.policy], "ruleId": self.number.to_string(),
            "direction": "in", "action": "allow", "protocol": "tcp", "port": self.port, "fromEndpointGroup": peer})
    }
}

/// Creates those of the rules that do not exist, and deletes the others, in one transaction.
fn change(fixture: &mut Fixture, rules: &[Rule]) {
    let known: Vec<bool> =
        rules.iter().map(|rule| exists(fixture, &format!("rule/{}", rule.key()))).collect();
    let operations = Type::by_plural("rules").unwrap().operations;
    let answer = fixture.run(|staged| {
        for (rule, known) in rules.iter().zip(&known) {
            // A rule that is twice in the list may be refused.
            let _refused = match known {
                true => (operations.delete)(&rule.key(), &Scope::All, staged),
                false => {
                    let request = (operations.check)(&rule.key(), rule.body().to_string().as_bytes())?;
                    (operations.put)(&request, &Scope::All, &Cluster::default(), staged)
                }
            };
        }
        Ok(vec![])
    });
    answer.unwrap();
}

fn carry_out(fixture: &mut Fixture, step: &Step) {
    match step {
        Step::Rule(rule) => change(fixture, std::slice::from_ref(rule)),
        Step::Rules(rules) => change(fixture, rules),
        Step::Group(number, policies) => {
            let key = format!("default:{}", GROUPS[*number]);
            match exists(fixture, &format!("endpointGroup/{key}")) {
                true => drop(fixture.delete("endpointGroups", &key).unwrap()),
                false => drop(fixture.put("endpointGroups", &key, &group(*policies, *number)).unwrap()),
            }
        }
        Step::Attach(number, policies) => {
            let key = format!("default:{}", GROUPS[*number]);
            fixture.put("endpointGroups", &key, &group(*policies, *number)).unwrap();
        }
        Step::TakeOver => *fixture = fixture.starting(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn expansions_follow_every_request(steps in prop::collection::vec(step(), 1..30)) {
        let mut fixture = Fixture::new();
        fixture.network("net", "10.1.0.0/24", json!({}));
        for policy in POLICIES {
            let body = json!({"tenantName": "default", "policyName": policy});
            fixture.put("policys", &format!("default:{policy}"), &body).unwrap();
        }
        for step in &steps {
            carry_out(&mut fixture, step);
            let mut next = fixture.loaded();
            prop_assert_eq!(next.content(), fixture.content());
            prop_assert_eq!(restored(&mut next), "(0, 0)", "after {:?}", step);
            prop_assert_eq!(restored(&mut fixture.starting()), "(0, 0)", "after {:?}", step);
        }
    }
}
