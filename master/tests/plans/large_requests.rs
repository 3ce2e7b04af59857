//! The work of a request is proportional to its size. The sizes are those that a body of 1 MiB can have: with
//! work for each pair of entries, a test would not end.

use contiv_model::api::{EndpointGroup, Network, Policy, Rule};
use contiv_model::{group, network};
use netmaster::cache::StagedTxn;
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// Names of two bytes in a body of 1 MiB.
const ENTRIES: usize = 260_000;

fn fixture(infra: &str) -> Fixture {
    let mut fixture = Fixture::at(infra);
    fixture.network("net", "10.1.0.0/24", json!({"encap": "vlan"}));
    fixture
}

fn group(more: &Value) -> Value {
    let mut body = json!({"tenantName": "default", "groupName": "g", "networkName": "net"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Puts policies, each with so many rules.
fn put_policies(fixture: &mut Fixture, names: &[String], rules: usize) {
    let plan = |staged: &mut StagedTxn<'_>| {
        for name in names {
            let (key, tenant_name) = (format!("default:{name}"), "default".to_owned());
            let policy = Policy { key: key.clone(), tenant_name: tenant_name.clone(), ..Policy::default() };
            staged.put(&key, Policy { policy_name: name.clone(), ..policy });
            for id in 0..rules {
                let rule = Rule {
                    key: format!("{key}:{id}"),
                    tenant_name: tenant_name.clone(),
                    policy_name: name.clone(),
                    rule_id: id.to_string(),
                    direction: "in".to_owned(),
                    action: "allow".to_owned(),
                    priority: 1,
                    ..Rule::default()
                };
                staged.put(&format!("{key}:{id}"), rule);
            }
        }
        Ok(vec![])
    };
    fixture.run(plan).unwrap();
}

#[test]
fn lists_have_a_limited_number_of_entries() {
    let mut fixture = fixture("default");
    let service = |field: &str, entries: &[String]| {
        let mut body = json!({"tenantName": "default", "serviceName": "s", "networkName": "net",
            "selectors": ["a=b"], "ports": ["80:80:TCP"]});
        body[field] = json!(entries);
        body
    };
    let put = |fixture: &mut Fixture, field: &str, entries: &[String]| {
        let (types, key, body) = match field {
            "policies" | "extContractsGrps" => {
                ("endpointGroups", "default:g", group(&json!({field: entries})))
            }
            "endpointGroups" => {
                let body = json!({"tenantName": "default", "appProfileName": "a", field: entries});
                ("appProfiles", "default:a", body)
            }
            "contracts" => {
                let body = json!({"tenantName": "default", "contractsGroupName": "c", "contractsType": "provided",
                    field: entries});
                ("extContractsGroups", "default:c", body)
            }
            _ => ("serviceLBs", "default:s", service(field, entries)),
        };
        fixture.put(types, key, &body).map_err(|problem| problem.text)
    };
    for field in ["policies", "extContractsGrps", "endpointGroups", "contracts", "ports", "selectors"] {
        for count in [1025, ENTRIES] {
            let refused = put(&mut fixture, field, &vec!["p".to_owned(); count]).unwrap_err();
            assert_eq!(refused, format!("{field} has {count} entries; the limit is 1024"));
        }
    }
    let refused = put(&mut fixture, "contracts", &["x".repeat(1025)]).unwrap_err();
    assert_eq!(refused, "contracts of default:c has an entry of 1025 bytes; accepted: at most 1024");
    put(&mut fixture, "contracts", &["x".repeat(1024)]).unwrap();
    fixture.delete("extContractsGroups", "default:c").unwrap();
    let texts = |text: &dyn Fn(usize) -> String| (1..=1024).map(text).collect::<Vec<_>>();
    put(&mut fixture, "contracts", &texts(&|n| format!("uni/tn-common/brc-{n}"))).unwrap();
    put(&mut fixture, "ports", &texts(&|n| format!("{n}:80:TCP"))).unwrap();
    put(&mut fixture, "selectors", &texts(&|n| format!("label-{n}=x"))).unwrap();
}

#[test]
fn a_policy_that_is_named_often_is_checked_once() {
    let mut fixture = fixture("default");
    put_policies(&mut fixture, &["p".to_owned()], 2000);
    let body = group(&json!({"policies": vec!["p"; ENTRIES]}));
    fixture.put_unchecked("endpointGroups", "default:g", &body).unwrap();
    assert_eq!(fixture.keys("/contiv.io/state/policy/"), ["/contiv.io/state/policy/default:g:default:p"]);
}

#[test]
fn a_group_may_have_many_policies() {
    const POLICIES: usize = 20_000;
    let mut fixture = fixture("default");
    let names: Vec<String> = (0..POLICIES).map(|n| format!("p{n}")).collect();
    put_policies(&mut fixture, &names, 0);
    let policies = |fixture: &Fixture| fixture.keys("/contiv.io/state/policy/").len();
    fixture.put_unchecked("endpointGroups", "default:g", &group(&json!({"policies": names}))).unwrap();
    assert_eq!(policies(&fixture), POLICIES);
    let half = group(&json!({"policies": &names[..POLICIES / 2]}));
    fixture.put_unchecked("endpointGroups", "default:g", &half).unwrap();
    assert_eq!(policies(&fixture), POLICIES / 2);
}

#[test]
fn ports_are_compared_with_those_of_the_same_number() {
    let mut fixture = fixture("default");
    let ports = ["TCP", "UDP"].map(|protocol| (1..=65_535).map(move |port| format!("{port}:80:{protocol}")));
    let mut ports: Vec<String> = ports.into_iter().flatten().collect();
    let put = |fixture: &mut Fixture, ports: &[String]| {
        let body = json!({"tenantName": "default", "serviceName": "s", "networkName": "net",
            "selectors": ["a=b"], "ports": ports});
        fixture.put_unchecked("serviceLBs", "default:s", &body).map_err(|problem| problem.text)
    };
    put(&mut fixture, &ports).unwrap();
    ports.push("9:9:udp".to_owned());
    let refused = put(&mut fixture, &ports).unwrap_err();
    assert!(refused.ends_with("; duplicate port 9 of UDP"), "{refused}");
}

#[test]
fn contracts_that_are_named_often_are_evaluated_once() {
    let mut fixture = fixture("aci");
    let contracts: Vec<String> = (0..2000).map(|n| format!("uni/tn-common/brc-{n}")).collect();
    let body = json!({"tenantName": "default", "contractsGroupName": "c", "contractsType": "provided",
        "contracts": contracts});
    fixture.put_unchecked("extContractsGroups", "default:c", &body).unwrap();
    fixture.group("g", "net", "");
    let profile = json!({"tenantName": "default", "appProfileName": "a", "endpointGroups": ["g"]});
    fixture.put("appProfiles", "default:a", &profile).unwrap();
    let pending = |fixture: &Fixture| fixture.keys("/contiv.io/state/aci-pending/").len();
    assert_eq!(pending(&fixture), 0);
    let body = group(&json!({"extContractsGrps": vec!["c"; ENTRIES]}));
    fixture.put_unchecked("endpointGroups", "default:g", &body).unwrap();
    assert_eq!(pending(&fixture), 1);
}

#[test]
fn a_policy_has_a_limited_number_of_rules() {
    const RULES: usize = 4096;
    let mut fixture = fixture("default");
    put_policies(&mut fixture, &["p".to_owned(), "q".to_owned()], RULES - 1);
    let rule = |fixture: &mut Fixture, policy: &str, id: &str| {
        let body = json!({"tenantName": "default", "policyName": policy, "ruleId": id, "direction": "in",
            "action": "allow"});
        fixture.put("rules", &format!("default:{policy}:{id}"), &body).map_err(|problem| problem.text)
    };
    rule(&mut fixture, "p", "a").unwrap();
    let refused = "policy p has reached the limit of 4096 rules; distribute the rules over several policies";
    assert_eq!(rule(&mut fixture, "p", "b").unwrap_err(), refused);
    rule(&mut fixture, "q", "a").unwrap();
    fixture.delete("rules", "default:p:0").unwrap();
    rule(&mut fixture, "p", "b").unwrap();
    assert_eq!(rule(&mut fixture, "p", "c").unwrap_err(), refused);
}

#[test]
fn the_policies_of_a_group_have_a_limited_number_of_rules() {
    const LIMIT: usize = 16_384;
    let mut fixture = fixture("default");
    let names = ["a", "b", "c", "d", "few"].map(str::to_owned);
    put_policies(&mut fixture, &names[..4], LIMIT / 4);
    put_policies(&mut fixture, &names[4..], 1);
    let put = |fixture: &mut Fixture, policies: &[String]| {
        let body = group(&json!({"policies": policies}));
        fixture.put("endpointGroups", "default:g", &body).map_err(|problem| problem.text)
    };
    let rule = |fixture: &mut Fixture, id: &str| {
        let body = json!({"tenantName": "default", "policyName": "few", "ruleId": id, "direction": "in",
            "action": "allow"});
        fixture.put("rules", &format!("default:few:{id}"), &body).map_err(|problem| problem.text)
    };
    let refused =
        "the policies of group g have more than 16384 rules, which is the limit; attach fewer policies";
    assert_eq!(put(&mut fixture, &names).unwrap_err(), refused);
    put(&mut fixture, &names[..4]).unwrap();
    assert_eq!(put(&mut fixture, &names).unwrap_err(), refused);
    // A rule of a policy that is attached counts like a policy with a rule.
    fixture.delete("rules", "default:few:0").unwrap();
    put(&mut fixture, &names).unwrap();
    let reached =
        "the policies of group g have reached the limit of 16384 rules; attach fewer policies to it";
    assert_eq!(rule(&mut fixture, "x").unwrap_err(), reached);
    fixture.delete("rules", "default:a:0").unwrap();
    rule(&mut fixture, "x").unwrap();
    assert_eq!(rule(&mut fixture, "y").unwrap_err(), reached);
}

/// A change of one rule writes all rules of the policy once for each of its groups.
#[test]
fn a_policy_has_a_limited_number_of_rules_on_all_its_groups() {
    const RULES: usize = 4095;
    let mut fixture = fixture("default");
    put_policies(&mut fixture, &["p".to_owned()], 0);
    let put = |fixture: &mut Fixture, number: usize, policies: &[&str]| {
        let body = json!({"tenantName": "default", "groupName": format!("g{number}"), "networkName": "net",
            "policies": policies});
        fixture.put("endpointGroups", &format!("default:g{number}"), &body).map_err(|problem| problem.text)
    };
    for number in 0..129 {
        put(&mut fixture, number, &["p"]).unwrap();
    }
    put_policies(&mut fixture, &["p".to_owned()], RULES);
    let rule = json!({"tenantName": "default", "policyName": "p", "ruleId": "one", "direction": "in",
        "action": "allow"});
    assert_eq!(
        fixture.put("rules", "default:p:one", &rule).unwrap_err().text,
        "policy p on 129 groups has reached the limit of 524288 rules on all of them; distribute the groups over several policies"
    );
    let refused = "policy p has 4095 rules and is on 129 groups; with one more it would have more than 524288 rules on all of them, which is the limit; attach another policy";
    assert_eq!(put(&mut fixture, 129, &["p"]).unwrap_err(), refused);
    // What has the policy may be changed.
    put(&mut fixture, 0, &["p"]).unwrap();
    for number in [0, 1] {
        put(&mut fixture, number, &[]).unwrap();
    }
    put(&mut fixture, 129, &["p"]).unwrap();
    assert_eq!(put(&mut fixture, 0, &["p"]).unwrap_err(), refused.replace("129 groups", "128 groups"));
}

/// A change of a group writes all policies with rules that refer to it, on all their groups, and so does one of a network.
#[test]
fn a_group_or_network_that_too_many_rules_depend_on_is_neither_created_nor_deleted() {
    const RULES: usize = 4094;
    let mut fixture = fixture("default");
    let names = ["p", "q"].map(str::to_owned);
    put_policies(&mut fixture, &names, 0);
    let put = |fixture: &mut Fixture, name: &str, policies: &[&str]| {
        let body =
            json!({"tenantName": "default", "groupName": name, "networkName": "net", "policies": policies});
        fixture.put("endpointGroups", &format!("default:{name}"), &body).map_err(|problem| problem.text)
    };
    put(&mut fixture, "db", &[]).unwrap();
    fixture.network("six", "10.2.0.0/24", json!({"ipv6Subnet": "2001:db8::/64"}));
    for number in 0..65 {
        put(&mut fixture, &format!("g{number}"), &["p", "q"]).unwrap();
    }
    for policy in &names {
        let rule = json!({"tenantName": "default", "policyName": policy, "ruleId": "db", "direction": "in",
            "action": "allow", "fromEndpointGroup": "db"});
        fixture.put("rules", &format!("default:{policy}:db"), &rule).unwrap();
        let rule = json!({"tenantName": "default", "policyName": policy, "ruleId": "six", "direction": "in",
            "action": "allow", "fromNetwork": "six"});
        fixture.put("rules", &format!("default:{policy}:six"), &rule).unwrap();
    }
    put_policies(&mut fixture, &names, RULES);
    let refused = "group db: the 2 policies whose rules refer to it have 532480 rules on all their groups, and this change writes all of them; the limit is 524288; delete some of the rules that refer to the group first";
    assert_eq!(fixture.delete("endpointGroups", "default:db").unwrap_err().text, refused);
    // An earlier release had no limit.
    let deleted = fixture.run(|staged| {
        staged.delete::<EndpointGroup>("default:db");
        staged.delete_allocation::<group::State>("db:default");
        Ok(vec![])
    });
    deleted.unwrap();
    assert_eq!(put(&mut fixture, "db", &[]).unwrap_err(), refused);
    let refused = refused.replace("group db", "network six").replace("to the group", "to the network");
    assert_eq!(fixture.delete("networks", "default:six").unwrap_err().text, refused);
    let deleted = fixture.run(|staged| {
        staged.delete::<Network>("default:six");
        staged.delete_allocation::<network::State>("six.default");
        Ok(vec![])
    });
    deleted.unwrap();
    for subnet6 in ["2001:db8::/64", ""] {
        let six = json!({"tenantName": "default", "networkName": "six", "encap": "vxlan", "subnet": "10.2.0.0/24",
            "ipv6Subnet": subnet6});
        assert_eq!(fixture.put("networks", "default:six", &six).unwrap_err().text, refused);
    }
    let deleted = fixture.run(|staged| {
        names.iter().for_each(|policy| staged.delete::<Rule>(&format!("default:{policy}:six")));
        Ok(vec![])
    });
    deleted.unwrap();
    fixture.network("six", "10.2.0.0/24", json!({}));
    put(&mut fixture, "other", &["p"]).unwrap();
    fixture.delete("endpointGroups", "default:other").unwrap();
}

/// It writes all policies on all groups, by an update of the settings or by their deletion.
#[test]
fn a_cluster_with_too_many_rules_on_groups_stays_in_aci_mode() {
    const RULES: usize = 4095;
    let mut fixture = fixture("aci");
    let names = ["p", "q"].map(str::to_owned);
    put_policies(&mut fixture, &names, RULES);
    let put = |fixture: &mut Fixture, number: usize, policies: &[&str]| {
        let body = json!({"tenantName": "default", "groupName": format!("g{number}"), "networkName": "net",
            "policies": policies});
        fixture.put("endpointGroups", &format!("default:g{number}"), &body).unwrap();
    };
    for number in 0..65 {
        put(&mut fixture, number, &["p", "q"]);
    }
    let leave = |fixture: &mut Fixture| {
        let body = json!({"name": "global", "networkInfraType": "default", "vlans": "1-4094",
            "vxlans": "1-10000", "fwdMode": "bridge", "arpMode": "proxy", "pvtSubnet": "172.19.0.0/16"});
        fixture.put("globals", "global", &body).map(drop).map_err(|problem| problem.text)
    };
    let refused = "leave ACI mode: the policies have 532350 rules on all their groups, and this change writes all of them; the limit is 524288; take policies off groups first";
    assert_eq!(leave(&mut fixture).unwrap_err(), refused);
    assert_eq!(fixture.delete("globals", "global").unwrap_err().text, refused);
    assert_eq!(fixture.keys("/contiv.io/state/policy/"), [""; 0]);
    for number in 1..65 {
        put(&mut fixture, number, &[]);
    }
    leave(&mut fixture).unwrap();
    assert_eq!(fixture.keys("/contiv.io/state/policy/").len(), names.len());
}

/// Earlier releases had no limit.
#[test]
fn a_stored_group_with_more_rules_can_be_reduced() {
    let mut fixture = fixture("default");
    let names = ["a", "b", "c", "d", "e"].map(str::to_owned);
    put_policies(&mut fixture, &names, 0);
    put_policies(&mut fixture, &["one".to_owned()], 1);
    let put = |fixture: &mut Fixture, policies: &[&str]| {
        fixture.put("endpointGroups", "default:g", &group(&json!({"policies": policies})))
    };
    put(&mut fixture, &["a", "b", "c", "d", "e"]).unwrap();
    put_policies(&mut fixture, &names, 4096);
    put(&mut fixture, &["a", "b", "c", "d", "e"]).unwrap();
    put(&mut fixture, &["a", "b", "c", "d", "e", "one"]).unwrap_err();
    put(&mut fixture, &["a", "b", "c", "d", "one"]).unwrap();
    put(&mut fixture, &["a", "b", "c", "d"]).unwrap();
    put(&mut fixture, &["a", "b", "c", "d", "one"]).unwrap_err();
}
