//! Policies on groups while the cluster enters and leaves ACI mode.

use serde_json::json;

use crate::fixture::Fixture;
use crate::restore::restored;

/// A cluster with this fabric type, and a policy with a rule on a group.
fn with_policy(infra: &str) -> Fixture {
    let mut fixture = Fixture::at(infra);
    fixture.network("net", "10.1.0.0/24", json!({"encap": "vlan"}));
    fixture.put("policys", "default:p", &json!({"tenantName": "default", "policyName": "p"})).unwrap();
    let body = json!({"tenantName": "default", "groupName": "web", "networkName": "net", "policies": ["p"]});
    fixture.put("endpointGroups", "default:web", &body).unwrap();
    let rule = json!({"tenantName": "default", "policyName": "p", "ruleId": "1", "direction": "in",
        "action": "allow", "protocol": "tcp", "port": 80});
    fixture.put("rules", "default:p:1", &rule).unwrap();
    fixture
}

/// Number of keys of policies on groups and of their rules.
fn expanded(fixture: &Fixture) -> usize {
    fixture.keys("/contiv.io/state/policy").len()
}

fn set_infra(fixture: &mut Fixture, infra: &str) -> usize {
    let body = json!({"name": "global", "networkInfraType": infra, "vlans": "1-4094", "vxlans": "1-10000",
        "fwdMode": "bridge", "arpMode": "proxy", "pvtSubnet": "172.19.0.0/16"});
    fixture.put("globals", "global", &body).unwrap();
    expanded(fixture)
}

#[test]
fn policies_are_not_expanded_in_aci_mode() {
    let mut fixture = with_policy("aci");
    assert_eq!(expanded(&fixture), 0);
    assert_eq!(fixture.loaded().content(), fixture.content());
    assert_eq!((set_infra(&mut fixture, "default"), set_infra(&mut fixture, "aci")), (3, 0));
}

/// Nodes would let pass what the rule denies.
#[test]
fn a_cluster_with_a_rule_that_cannot_be_decoded_stays_in_aci_mode() {
    const RULE: &str = "/contiv.io/obj/modeldb/rule/default:p:1";
    let mut fixture = with_policy("aci");
    fixture.break_key(RULE, Some(&json!("{")));
    let mut fixture = fixture.loaded();
    let refused = fixture.delete("globals", "global").unwrap_err().text;
    let why = "cannot be decoded; repair or delete it first";
    assert_eq!(refused, format!("change all policies on groups: the record {RULE} {why}"));
}

/// The object has the mode, too.
#[test]
fn the_mode_is_known_while_the_settings_of_agents_cannot_be_decoded() {
    const CONFIG: &str = "/contiv.io/master/config/global";
    for (from, to, keys) in [("aci", "default", [0, 5, 0]), ("default", "aci", [5, 0, 5])] {
        let mut fixture = with_policy(from);
        fixture.break_key(CONFIG, Some(&json!("{")));
        let mut fixture = fixture.loaded();
        let rule = json!({"tenantName": "default", "policyName": "p", "ruleId": "2", "direction": "in",
            "action": "allow", "protocol": "tcp", "port": 443});
        fixture.put("rules", "default:p:2", &rule).unwrap();
        let before = expanded(&fixture);
        assert_eq!([before, set_infra(&mut fixture, to), set_infra(&mut fixture, from)], keys, "{from} {to}");
        assert_eq!(fixture.loaded().content(), fixture.content(), "{from} {to}");
        assert_eq!(restored(&mut fixture.loaded()), "(0, 0)", "{from} {to}");
    }
}

#[test]
fn settings_that_are_deleted_and_created_again_change_the_mode() {
    for (from, to, keys) in [
        ("aci", "default", [0, 3, 3]),
        ("aci", "aci", [0, 3, 0]),
        ("default", "aci", [3, 3, 0]),
        ("default", "default", [3, 3, 3]),
    ] {
        // A netmaster that starts has not read the expansions yet.
        for mut fixture in [with_policy(from).loaded(), with_policy(from).starting()] {
            let before = expanded(&fixture);
            fixture.delete("globals", "global").unwrap();
            let between = expanded(&fixture);
            let after = set_infra(&mut fixture, to);
            assert_eq!([before, between, after], keys, "{from} {to}");
            assert_eq!(fixture.loaded().content(), fixture.content(), "{from} {to}");
            assert_eq!(restored(&mut fixture.loaded()), "(0, 0)", "{from} {to}");
        }
    }
}
