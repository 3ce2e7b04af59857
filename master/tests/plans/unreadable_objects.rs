//! Objects and allocation records that cannot be decoded: what is derived from them stays as it is.

use netmaster::objects::Defaults;
use serde_json::{Value, json};

use crate::fixture::Fixture;

const RULE: &str = "/contiv.io/obj/modeldb/rule/default:p:1";
const ON_WEB: &str = "/contiv.io/state/policy/default:web:default:p";

/// Two policies on a group, with rules about another group and a network, and a service with a provider.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({"ipv6Subnet": "2001:db8:1::/64"}));
    fixture.network("peers", "10.2.0.0/24", json!({"ipv6Subnet": "2001:db8:2::/64"}));
    put(
        &mut fixture,
        "netprofiles",
        "gold",
        json!({"profileName": "gold", "DSCP": 46, "bandwidth": "10 mbps"}),
    );
    let contracts = json!({"contractsGroupName": "c", "contractsType": "provided",
        "contracts": ["uni/tn-common/brc-x"]});
    put(&mut fixture, "extContractsGroups", "c", contracts);
    for policy in ["p", "q"] {
        put(&mut fixture, "policys", policy, json!({"policyName": policy}));
    }
    put(&mut fixture, "endpointGroups", "db", json!({"groupName": "db", "networkName": "net"}));
    put(&mut fixture, "endpointGroups", "web", web(&["p", "q"]));
    put(&mut fixture, "appProfiles", "shop", json!({"appProfileName": "shop", "endpointGroups": ["web"]}));
    rule(&mut fixture, "p:1", json!({"protocol": "tcp", "port": 80, "fromEndpointGroup": "db"})).unwrap();
    rule(&mut fixture, "p:2", json!({"fromNetwork": "peers", "action": "deny"})).unwrap();
    rule(&mut fixture, "q:1", json!({"direction": "out", "toIpAddress": "10.9.0.0/16"})).unwrap();
    let service = json!({"serviceName": "s", "networkName": "net", "selectors": ["app=web"],
        "ports": ["80:80:TCP"]});
    put(&mut fixture, "serviceLBs", "s", service);
    fixture.create("net", "a", "web", "", "").unwrap();
    let start = json!({"Event": "start", "Tenant": "default", "Network": "net", "EndpointID": "a",
        "ContainerID": "a", "Labels": {"app": "web"}});
    fixture.call("updateEndpoint", &start).unwrap();
    fixture
}

fn put(fixture: &mut Fixture, types: &str, name: &str, mut body: Value) {
    body["tenantName"] = json!("default");
    fixture.put(types, &format!("default:{name}"), &body).unwrap();
}

fn web(policies: &[&str]) -> Value {
    json!({"groupName": "web", "networkName": "net", "policies": policies, "netProfile": "gold",
        "extContractsGrps": ["c"], "tenantName": "default"})
}

/// Creates a rule, `id` is that of its policy and its own. Returns why it was refused.
fn rule(fixture: &mut Fixture, id: &str, more: Value) -> Result<(), String> {
    let (policy, number) = id.split_once(':').unwrap();
    let mut body = json!({"tenantName": "default", "policyName": policy, "ruleId": number, "direction": "in",
        "action": "allow"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fixture.put("rules", &format!("default:{id}"), &body).map(drop).map_err(|problem| problem.text)
}

/// A netmaster that has known the record while it was valid, and the store with an invalid one.
fn broken(good: &Fixture, key: &str) -> Fixture {
    assert!(good.value(key).is_some(), "{key}");
    let mut fixture = good.loaded();
    fixture.edit(key, Some(&json!("{")));
    let update = fixture.changes.last().unwrap().clone();
    fixture.cache.apply_update(&update);
    fixture
}

#[test]
fn a_new_leader_changes_nothing_that_is_derived_from_them() {
    let good = fixture();
    assert_eq!(good.loaded().restore(), (0, 0));
    for key in [
        "obj/modeldb/tenant/default",
        "obj/modeldb/network/default:net",
        "obj/modeldb/network/default:peers",
        "obj/modeldb/netprofile/default:gold",
        "obj/modeldb/extContractsGroup/default:c",
        "obj/modeldb/policy/default:p",
        "obj/modeldb/rule/default:p:1",
        "obj/modeldb/rule/default:p:2",
        "obj/modeldb/endpointGroup/default:web",
        "obj/modeldb/endpointGroup/default:db",
        "obj/modeldb/appProfile/default:shop",
        "obj/modeldb/serviceLB/default:s",
        "obj/modeldb/global/global",
        "master/config/global",
        "state/nets/net.default",
        "state/endpointGroups/web:default",
        "state/endpointGroups/db:default",
    ] {
        let key = format!("/contiv.io/{key}");
        let watching = broken(&good, &key);
        for mut fixture in [watching.loaded(), watching.starting(), watching] {
            let before = fixture.changes.len();
            assert_eq!((fixture.restore(), fixture.changes.len()), ((0, 0), before), "{key}");
            assert_eq!(fixture.cache.unreadable_keys().collect::<Vec<_>>(), [&key]);
            // Once it is valid again, nothing has to be restored.
            fixture.edit(&key, Some(&good.value(&key).unwrap()));
            let mut repaired = fixture.loaded();
            assert_eq!((repaired.restore(), repaired.content()), ((0, 0), good.content()), "{key}");
        }
    }
}

/// What is derived from others is restored, and deletions of objects are carried out.
#[test]
fn others_are_restored_beside_them() {
    const OTHER: &str = "/contiv.io/state/policy/default:web:default:q";
    let mut good = fixture();
    let kept = good.value(ON_WEB);
    let expected = good.value(OTHER);
    good.edit(OTHER, None);
    let mut fixture = broken(&good.loaded(), RULE).starting();
    fixture.restore();
    assert_eq!((fixture.value(ON_WEB), fixture.value(OTHER)), (kept.clone(), expected));
    fixture.edit(RULE, None);
    fixture = fixture.loaded();
    fixture.restore();
    let rules = |value: &Value| value["RuleMaps"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(rules(&kept.unwrap()), ["default:p:1", "default:p:2"]);
    assert_eq!(rules(&fixture.value(ON_WEB).unwrap()), ["default:p:2"]);
}

/// The record of a policy on a group has all of its rules.
#[test]
fn requests_that_would_derive_without_them_are_refused() {
    let good = fixture();
    for (key, of_q) in [
        (RULE, false),
        ("/contiv.io/obj/modeldb/network/default:peers", false),
        ("/contiv.io/state/endpointGroups/db:default", false),
        ("/contiv.io/state/endpointGroups/web:default", true),
        ("/contiv.io/master/config/global", true),
    ] {
        let watching = broken(&good, key);
        for mut fixture in [watching.loaded(), watching] {
            let refused = |policy: &str| -> Result<(), String> {
                let why = "cannot be decoded; repair or delete it first";
                Err(format!("change policy default:{policy} on its groups: the record {key} {why}"))
            };
            assert_eq!(rule(&mut fixture, "p:9", json!({})), refused("p"), "{key}");
            let deleted = fixture.delete("rules", "default:p:2").map(drop).map_err(|problem| problem.text);
            assert_eq!(deleted, refused("p"), "{key}");
            let attached = fixture.put("endpointGroups", "default:web", &web(&["p"])).map(drop);
            assert_eq!(attached.map_err(|problem| problem.text), refused("p"), "{key}");
            let other = if of_q { refused("q") } else { Ok(()) };
            assert_eq!(rule(&mut fixture, "q:9", json!({})), other, "{key}");
            assert_eq!(fixture.value(ON_WEB), good.value(ON_WEB), "{key}");
        }
    }
    // A policy is taken off a group with all of its rules.
    let mut fixture = broken(&good, RULE).loaded();
    fixture.put("endpointGroups", "default:web", &web(&["q"])).unwrap();
    assert_eq!(fixture.value(ON_WEB), None);
}

#[test]
fn global_settings_that_cannot_be_decoded_are_not_replaced() {
    let mut fixture = broken(&fixture(), "/contiv.io/obj/modeldb/global/global").loaded();
    let before = fixture.changes.len();
    let defaults = Defaults { infra: "default".into(), fwd_mode: "bridge".into() };
    fixture.run(|staged| defaults.put(staged).map(|()| vec![])).unwrap();
    assert_eq!(fixture.changes.len(), before);
}
