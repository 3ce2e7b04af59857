//! State derived from policies, rules and network profiles.

use std::collections::BTreeSet;

use contiv_model::policy::PolicyState;
use netmaster::cache::Content;
use netmaster::domain::attachment::restore_policies;
use serde_json::{Value, json};

use crate::fixture::Fixture;

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    fixture.put("policys", "default:p", &json!({"tenantName": "default", "policyName": "p"})).unwrap();
    fixture
}

fn rule(fixture: &mut Fixture, id: &str, more: Value) -> Result<Value, String> {
    let mut body = json!({"tenantName": "default", "policyName": "p", "ruleId": id, "direction": "in",
        "action": "allow"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fixture.put("rules", &format!("default:p:{id}"), &body).map_err(|problem| problem.text)
}

fn group(fixture: &mut Fixture, name: &str, more: Value) -> Result<Value, String> {
    let mut body = json!({"tenantName": "default", "groupName": name, "networkName": "net"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fixture.put("endpointGroups", &format!("default:{name}"), &body).map_err(|problem| problem.text)
}

/// Keys of directed rules, without the prefix.
fn directed(fixture: &Fixture) -> Vec<&str> {
    let prefix = "/contiv.io/state/policyRule/";
    fixture.keys(prefix).into_iter().map(|key| key.strip_prefix(prefix).unwrap()).collect()
}

fn stored(fixture: &Fixture, key: &str) -> Value {
    fixture.value(key).unwrap()
}

#[test]
fn rules_are_expanded_for_the_groups_of_their_policy() {
    let mut fixture = fixture();
    rule(&mut fixture, "1", json!({"protocol": "tcp", "port": 80})).unwrap();
    assert_eq!(directed(&fixture), [""; 0]);
    group(&mut fixture, "web", json!({"policies": ["p"]})).unwrap();
    group(&mut fixture, "app", json!({})).unwrap();
    rule(&mut fixture, "2", json!({"protocol": "tcp", "fromEndpointGroup": "app"})).unwrap();
    group(&mut fixture, "app", json!({"policies": ["p", "p"]})).unwrap();
    let web = ["1:inRx", "1:inTx", "2:inRx"].map(|rule| format!("default:web:default:p:default:p:{rule}"));
    let app = ["1:inRx", "1:inTx", "2:inRx"].map(|rule| format!("default:app:default:p:default:p:{rule}"));
    assert_eq!(directed(&fixture), [app.clone(), web.clone()].concat());
    let two = stored(&fixture, &format!("/contiv.io/state/policyRule/{}", web[2]));
    assert_eq!(
        two,
        json!({"id": "", "RuleId": web[2], "Priority": 1, "SrcEndpointGroup": 2, "DstEndpointGroup": 1,
            "SrcIpAddr": "", "DstIpAddr": "", "IpProtocol": 6, "SrcPort": 0, "DstPort": 0,
            "TcpFlags": "syn,!ack", "Action": "allow"})
    );
    let state = stored(&fixture, "/contiv.io/state/policy/default:web:default:p");
    assert_eq!(state["EndpointGroupID"], 1);
    assert_eq!(
        state["RuleMaps"]["default:p:2"]["Rule"],
        stored(&fixture, "/contiv.io/obj/modeldb/rule/default:p:2")
    );

    fixture.delete("rules", "default:p:1").unwrap();
    group(&mut fixture, "web", json!({})).unwrap();
    assert_eq!(directed(&fixture), [&app[2]]);
    assert_eq!(fixture.delete("policys", "default:p").unwrap_err().text, "Policy is being used");
    assert_eq!(fixture.loaded().content(), fixture.content());
    fixture.delete("endpointGroups", "default:app").unwrap();
    fixture.delete("policys", "default:p").unwrap();
    for prefix in ["state/policy", "obj/modeldb/rule", "obj/modeldb/policy"] {
        assert_eq!(fixture.keys(&format!("/contiv.io/{prefix}")), [""; 0]);
    }
}

/// A policy may have thousands of rules. The expansions of a netmaster that has just started are unread until one is needed.
#[test]
fn policies_that_stay_on_a_group_are_not_expanded_again() {
    let mut fixture = fixture();
    fixture.put("policys", "default:q", &json!({"tenantName": "default", "policyName": "q"})).unwrap();
    rule(&mut fixture, "1", json!({"protocol": "tcp", "port": 80})).unwrap();
    group(&mut fixture, "web", json!({"policies": ["p"]})).unwrap();
    let profile = json!({"tenantName": "default", "profileName": "gold", "DSCP": 46});
    fixture.put("netprofiles", "default:gold", &profile).unwrap();
    let mut fixture = fixture.starting();
    let is_unread = |fixture: &Fixture| {
        let mut known = fixture.cache.derived::<PolicyState>();
        known.any(|(id, content)| id == "default:web:default:p" && content == Content::Unread)
    };
    for more in [json!({"policies": ["p"]}), json!({"policies": ["q", "p"], "netProfile": "gold"})] {
        group(&mut fixture, "web", more).unwrap();
        assert!(is_unread(&fixture));
    }
    assert_eq!(fixture.group_state("web").dscp, 46);
    let q = stored(&fixture, "/contiv.io/state/policy/default:web:default:q");
    assert_eq!(q["EndpointGroupID"], 1);
    assert_eq!(fixture.loaded().restore(), (0, 0));
    group(&mut fixture, "web", json!({"policies": ["q"]})).unwrap();
    assert_eq!(directed(&fixture), [""; 0]);
}

#[test]
fn a_rule_for_a_deleted_group_has_no_effect() {
    let mut fixture = fixture();
    group(&mut fixture, "web", json!({"policies": ["p"]})).unwrap();
    group(&mut fixture, "db", json!({})).unwrap();
    rule(&mut fixture, "1", json!({"fromEndpointGroup": "db", "action": "deny"})).unwrap();
    assert_eq!(directed(&fixture).len(), 1);
    fixture.delete("endpointGroups", "default:db").unwrap();
    assert_eq!(directed(&fixture), [""; 0]);
    let link = |fixture: &Fixture| {
        stored(fixture, "/contiv.io/obj/modeldb/rule/default:p:1")["links"]["MatchEndpointGroup"].clone()
    };
    assert_eq!(link(&fixture), json!({}));

    // A new group of the same name with another id.
    group(&mut fixture, "db", json!({"policies": ["p"]})).unwrap();
    assert_eq!(link(&fixture), json!({"type": "endpointGroup", "key": "default:db"}));
    let id = "default:web:default:p:default:p:1:inRx";
    assert_eq!(stored(&fixture, &format!("/contiv.io/state/policyRule/{id}"))["SrcEndpointGroup"], 3);
    assert_eq!(directed(&fixture), ["default:db:default:p:default:p:1:inRx", id]);
    assert_eq!(fixture.loaded().content(), fixture.content());
}

#[test]
fn networks_in_rules_are_resolved_when_attached() {
    let mut fixture = fixture();
    fixture.network("other", "10.2.0.0/24", json!({}));
    let made = rule(&mut fixture, "1", json!({"fromNetwork": "other"})).unwrap();
    assert_eq!(made["fromIpAddress"], Value::Null);
    group(&mut fixture, "web", json!({"policies": ["p"]})).unwrap();
    assert_eq!(stored(&fixture, "/contiv.io/obj/modeldb/rule/default:p:1")["fromIpAddress"], "10.2.0.0/24");
    let made = rule(&mut fixture, "2", json!({"direction": "out", "toNetwork": "other"})).unwrap();
    assert_eq!(made["toIpAddress"], "10.2.0.0/24");
    group(&mut fixture, "web", json!({})).unwrap();

    rule(&mut fixture, "3", json!({"fromNetwork": "other"})).unwrap();
    fixture.delete("networks", "default:other").unwrap();
    let refused = group(&mut fixture, "web", json!({"policies": ["p"]}));
    assert_eq!(refused.unwrap_err(), "from Network not found");
    fixture.delete("rules", "default:p:3").unwrap();
    // The rules that were resolved before are refused like this one.
    let refused = group(&mut fixture, "web", json!({"policies": ["p"]}));
    assert_eq!(refused.unwrap_err(), "from Network not found");
    fixture.network("other", "10.3.0.0/24", json!({}));
    group(&mut fixture, "web", json!({"policies": ["p"]})).unwrap();
    for (rule, field) in [("1", "fromIpAddress"), ("2", "toIpAddress")] {
        let rule = stored(&fixture, &format!("/contiv.io/obj/modeldb/rule/default:p:{rule}"));
        assert_eq!(rule[field], "10.3.0.0/24");
    }
    // A group that has the policy can be changed without the network.
    fixture.delete("networks", "default:other").unwrap();
    group(&mut fixture, "web", json!({"policies": ["p", "p"]})).unwrap();
    assert_eq!(directed(&fixture), [""; 0]);
}

#[test]
fn a_network_in_a_rule_includes_its_ipv6_subnet() {
    let mut fixture = fixture();
    fixture.network("six", "10.2.0.0/24", json!({"ipv6Subnet": "2001:db8::/64"}));
    group(&mut fixture, "web", json!({"policies": ["p"]})).unwrap();
    rule(&mut fixture, "1", json!({"direction": "out", "toNetwork": "six"})).unwrap();
    let ids = ["default:web:default:p:default:p:1:outTx", "default:web:default:p:default:p:1:outTx6"];
    assert_eq!(directed(&fixture), ids);
    let more = stored(&fixture, &format!("/contiv.io/state/policyRule/{}", ids[1]));
    assert_eq!(more["DstIpAddr"], "2001:db8::/64");
    group(&mut fixture, "web", json!({})).unwrap();
    assert!(directed(&fixture).is_empty());
}

/// Without the network they match nothing: another network may have its addresses.
#[test]
fn rules_have_the_subnets_of_the_network_that_exists() {
    let rules = |fixture: &Fixture| -> Vec<Value> {
        let keys = fixture.keys("/contiv.io/state/policyRule/");
        keys.into_iter().map(|key| stored(fixture, key)).collect()
    };
    let check = |fixture: &mut Fixture, expected: [&str; 2]| {
        let known = rules(fixture);
        let addresses = known.iter().flat_map(|rule| [&rule["SrcIpAddr"], &rule["DstIpAddr"]]);
        let addresses = addresses.filter_map(Value::as_str).filter(|address| !address.is_empty());
        let expected: BTreeSet<_> = expected.into_iter().filter(|subnet| !subnet.is_empty()).collect();
        assert_eq!(addresses.collect::<BTreeSet<_>>(), expected);
        assert_eq!(known.is_empty(), expected.is_empty());
        let restored = fixture.run(|staged| {
            restore_policies(staged);
            Ok(vec![])
        });
        restored.unwrap();
        assert_eq!(rules(fixture), known);
    };
    let mut fixture = fixture();
    fixture.network("six", "10.2.0.0/24", json!({"ipv6Subnet": "2001:db8::/64"}));
    group(&mut fixture, "web", json!({"policies": ["p"]})).unwrap();
    rule(&mut fixture, "1", json!({"direction": "out", "toNetwork": "six"})).unwrap();
    rule(&mut fixture, "2", json!({"fromNetwork": "six", "action": "deny"})).unwrap();
    check(&mut fixture, ["10.2.0.0/24", "2001:db8::/64"]);
    for (subnet, subnet6) in
        [("10.2.0.0/24", "2001:db8:1::/64"), ("10.3.0.0/24", ""), ("10.2.0.0/24", "2001:db8::/64")]
    {
        fixture.delete("networks", "default:six").unwrap();
        check(&mut fixture, ["", ""]);
        fixture.network("six", subnet, json!({"ipv6Subnet": subnet6}));
        check(&mut fixture, [subnet, subnet6]);
        assert_eq!(stored(&fixture, "/contiv.io/obj/modeldb/rule/default:p:1")["toIpAddress"], subnet);
    }
}

#[test]
fn a_rule_for_one_endpoint_requires_its_group() {
    let mut fixture = fixture();
    let about = |ip: &str| json!({"toIpAddress": ip});
    let refused = rule(&mut fixture, "1", about("10.1.0.1")).unwrap_err();
    assert_eq!(refused, "failed to configure 10.1.0.1, 0 endpoint groups linked to policy p ");
    group(&mut fixture, "web", json!({"policies": ["p"]})).unwrap();
    let refused = rule(&mut fixture, "1", about("10.1.0.1")).unwrap_err();
    assert_eq!(refused, "failed to configure 10.1.0.1, unable to read endpoint state");
    fixture.create("net", "a", "web", "10.1.0.1", "").unwrap();
    let refused = rule(&mut fixture, "1", about("10.1.0.2")).unwrap_err();
    assert_eq!(refused, "failed to configure 10.1.0.2, ip address is not in epg web:default");
    rule(&mut fixture, "1", about("10.1.0.1/32")).unwrap();
    assert_eq!(directed(&fixture), ["default:web:default:p:default:p:1:inRx"]);
}

/// The original stores links of requests as they are.
#[test]
fn a_link_that_is_no_key_of_a_group_has_no_endpoints() {
    let mut fixture = fixture();
    fixture.create("net", "a", "", "10.1.0.1", "").unwrap();
    let links = json!({"EndpointGroups": {"default": {"type": "endpointGroup", "key": "default"}}});
    let policy = json!({"tenantName": "default", "policyName": "q", "link-sets": links});
    fixture.put("policys", "default:q", &policy).unwrap();
    let body = json!({"tenantName": "default", "policyName": "q", "ruleId": "1", "direction": "in", "action": "allow",
        "toIpAddress": "10.1.0.1"});
    let refused = fixture.put("rules", "default:q:1", &body).unwrap_err().text;
    assert_eq!(refused, "failed to configure 10.1.0.1, ip address is not in epg ");
}

#[test]
fn a_rule_with_a_reversed_range_is_refused() {
    let mut fixture = fixture();
    let refused = |range: &str| format!("{range}: the last address of the range precedes the first");
    let from = rule(&mut fixture, "1", json!({"fromIpAddress": "1.2.3.9-4"}));
    assert_eq!(from.unwrap_err(), refused("fromIpAddress 1.2.3.9-4"));
    let to = rule(&mut fixture, "1", json!({"direction": "out", "toIpAddress": "10.1.1.1-0/24"}));
    assert_eq!(to.unwrap_err(), refused("toIpAddress 10.1.1.1-0/24"));
    rule(&mut fixture, "1", json!({"fromIpAddress": "1.2.3.4-9"})).unwrap();
    rule(&mut fixture, "2", json!({"fromIpAddress": "1.2.3.0-0"})).unwrap();
}

#[test]
fn groups_have_the_settings_of_their_profile() {
    let mut fixture = fixture();
    let profile = |fixture: &mut Fixture, name: &str, dscp: i64| {
        let body = json!({"tenantName": "default", "profileName": name, "DSCP": dscp, "bandwidth": "10 mbps",
            "burst": 100});
        fixture.put("netprofiles", &format!("default:{name}"), &body).unwrap();
    };
    let carried = |fixture: &Fixture| {
        let state = fixture.group_state("web");
        (state.dscp, state.bandwidth, state.burst)
    };
    profile(&mut fixture, "a", 10);
    profile(&mut fixture, "b", 20);
    group(&mut fixture, "web", json!({"netProfile": "a"})).unwrap();
    assert_eq!(carried(&fixture), (10, "10 mbps".into(), 100));
    profile(&mut fixture, "a", 11);
    assert_eq!(carried(&fixture), (11, "10 mbps".into(), 100));
    assert_eq!(fixture.delete("netprofiles", "default:a").unwrap_err().text, "NetProfile is being used");
    group(&mut fixture, "web", json!({"netProfile": "b"})).unwrap();
    fixture.delete("netprofiles", "default:a").unwrap();
    assert_eq!(carried(&fixture), (20, "10 mbps".into(), 100));
    assert_eq!(fixture.loaded().content(), fixture.content());
    group(&mut fixture, "web", json!({})).unwrap();
    assert_eq!(carried(&fixture), (0, String::new(), 0));
    assert_eq!(group(&mut fixture, "web", json!({"netProfile": "x"})).unwrap_err(), "netprofile not found");
    fixture.delete("netprofiles", "default:b").unwrap();
    assert_eq!(fixture.loaded().content(), fixture.content());
}
