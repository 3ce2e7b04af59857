//! Memory of the cluster cache. The program has an allocator of its own, which counts, so these tests
//! are not among the others.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

use std::alloc::System;

use cap::Cap;
use contiv_model::api::{Link, Rule};
use contiv_model::event::Event;
use contiv_model::key::{Key, ObjectType, POLICY_RULES};
use contiv_model::policy::{DirectionalRuleState, ExpandedRule, PolicyState, expand};
use contiv_store::{KeyValue, Listing, Update};
use netmaster::cache::{ClusterCache, DerivedKeys, DerivedValues};
use serde::Serialize;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const RULES: usize = 400;
/// Bytes for a rule of a policy on one group, with all that is derived from it.
const BYTES_PER_RULE: usize = 1300;

fn load(cache: &mut ClusterCache, key: &Key, value: &impl Serialize) {
    let kv = KeyValue {
        key: key.to_string(),
        value: serde_json::to_vec(value).unwrap().into(),
        create_revision: 1,
        mod_revision: 1,
        version: 1,
        lease: 0,
    };
    cache.apply_update(&Update { revision: 1, event: Event::InitApply(kv.key.clone(), kv) });
}

fn rule(policy: &str, number: usize) -> Rule {
    let key = format!("scale:{policy}:{number}");
    let policy_key = format!("scale:{policy}");
    let mut rule = Rule {
        key,
        action: "allow".to_owned(),
        direction: "in".to_owned(),
        from_ip_address: format!("10.{}.{}.0/24", number % 200, number / 200),
        policy_name: policy.to_owned(),
        port: 1000 + number as i64,
        priority: 1,
        protocol: "tcp".to_owned(),
        rule_id: number.to_string(),
        tenant_name: "scale".to_owned(),
        ..Rule::default()
    };
    rule.link_sets.policies.insert(policy_key.clone(), Link::to(ObjectType::Policy, policy_key));
    rule
}

/// Loads a policy with [`RULES`] rules on a group.
fn load_policy(cache: &mut ClusterCache, number: usize) {
    let policy = format!("policy{number}");
    let id = format!("scale:group{number}:scale:{policy}");
    let mut state = PolicyState { id: id.clone(), key: id.clone(), group: 1, ..PolicyState::default() };
    for number in 0..RULES {
        let rule = rule(&policy, number);
        load(cache, &Key::Object(ObjectType::Rule, rule.key.clone()), &rule);
        let directed = expand(&id, 1, 0, &rule, None);
        for (id, rule) in &directed {
            let rule = DirectionalRuleState { id: String::new(), rule: rule.clone() };
            load(cache, &Key::PolicyRule(id.as_str().into()), &rule);
        }
        state.rules.insert(rule.key.clone(), ExpandedRule { rule, directed });
    }
    load(cache, &Key::Policy(id.as_str().into()), &state);
}

#[test]
fn a_rule_on_a_group_takes_little_memory() {
    let mut cache = ClusterCache::default();
    // As if all rules had been read.
    let (keys, none) =
        (DerivedKeys::Below(POLICY_RULES.to_owned()), Listing { cluster: 1, revision: 0, items: vec![] });
    cache.complete_derived(DerivedValues::decode(keys, &none));
    load_policy(&mut cache, 0);
    let before = ALLOCATOR.allocated();
    for number in 1..6 {
        load_policy(&mut cache, number);
    }
    assert_eq!(cache.derived::<DirectionalRuleState>().count(), 6 * 2 * RULES);
    let each = (ALLOCATOR.allocated() - before) / (5 * RULES);
    assert!(each <= BYTES_PER_RULE, "{each} bytes");
}
