//! Objects and allocation records that cannot be decoded: what is derived from them stays as it is.

use netmaster::objects::Defaults;
use serde_json::{Value, json};

use crate::fixture::Fixture;

const RULE: &str = "/contiv.io/obj/modeldb/rule/default:p:1";
const PEERS: &str = "/contiv.io/obj/modeldb/network/default:peers";
const DB: &str = "/contiv.io/state/endpointGroups/db:default";
const WEB: &str = "/contiv.io/state/endpointGroups/web:default";
const GLOBAL: &str = "/contiv.io/obj/modeldb/global/global";
const CONFIG: &str = "/contiv.io/master/config/global";
const ON_WEB: &str = "/contiv.io/state/policy/default:web:default:p";
const Q_ON_WEB: &str = "/contiv.io/state/policy/default:web:default:q";

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
    let mut good = fixture();
    let kept = good.value(ON_WEB);
    let expected = good.value(Q_ON_WEB);
    good.edit(Q_ON_WEB, None);
    let mut fixture = broken(&good.loaded(), RULE).starting();
    fixture.restore();
    assert_eq!((fixture.value(ON_WEB), fixture.value(Q_ON_WEB)), (kept.clone(), expected));
    fixture.edit(RULE, None);
    fixture = fixture.loaded();
    fixture.restore();
    assert_eq!(rules(&kept.unwrap()), ["default:p:1", "default:p:2"]);
    assert_eq!(rules(&fixture.value(ON_WEB).unwrap()), ["default:p:2"]);
}

/// Keys of the rules that a policy has on a group.
fn rules(expansion: &Value) -> Vec<&str> {
    expansion["RuleMaps"].as_object().unwrap().keys().map(String::as_str).collect()
}

/// Sends a request about policies `p` and `q`, which are on group `web`. Returns why it was refused.
fn request(fixture: &mut Fixture, name: &str) -> Result<(), String> {
    let answer = match name {
        "create" => return rule(fixture, "p:9", json!({})),
        "create q" => return rule(fixture, "q:9", json!({})),
        "delete" => fixture.delete("rules", "default:p:2"),
        "attach" => {
            let db = json!({"tenantName": "default", "groupName": "db", "networkName": "net",
                "policies": ["p"]});
            fixture.put("endpointGroups", "default:db", &db)
        }
        _ => fixture.put("endpointGroups", "default:web", &web(&["p", "q"])),
    };
    answer.map(drop).map_err(|problem| problem.text)
}

fn refused(change: &str, key: &str) -> Result<(), String> {
    Err(format!("{change}: the record {key} cannot be decoded; repair or delete it first"))
}

/// The record of a policy on a group has all of its rules.
#[test]
fn requests_that_would_derive_without_them_are_refused() {
    let good = fixture();
    for (key, requests) in [
        (RULE, vec!["create", "delete", "attach"]),
        (PEERS, vec!["create", "attach"]),
        (DB, vec!["create", "delete", "attach"]),
        // On another group, the policy does not depend on it.
        (WEB, vec!["create", "delete", "create q"]),
        // The object has the mode of the cluster, too.
        (CONFIG, vec![]),
    ] {
        for name in ["create", "delete", "attach", "keep", "create q"] {
            let watching = broken(&good, key);
            for mut fixture in [watching.loaded(), watching] {
                let change = match name {
                    "attach" => "attach policy default:p to group default:db",
                    "create q" => "change policy default:q on its groups",
                    _ => "change policy default:p on its groups",
                };
                let expected = if requests.contains(&name) { refused(change, key) } else { Ok(()) };
                assert_eq!(request(&mut fixture, name), expected, "{name} {key}");
                if expected.is_err() || name == "keep" {
                    assert_eq!(fixture.value(ON_WEB), good.value(ON_WEB), "{name} {key}");
                }
                assert_eq!(fixture.loaded().restore(), (0, 0), "{name} {key}");
            }
        }
    }
    // A policy is taken off a group with all of its rules. On no group, its rules can be changed.
    let mut fixture = broken(&good, RULE).loaded();
    fixture.put("endpointGroups", "default:web", &web(&["q"])).unwrap();
    assert_eq!(fixture.value(ON_WEB), None);
    assert_eq!(request(&mut fixture, "create"), Ok(()));
    assert_eq!(request(&mut fixture, "delete"), Ok(()));
}

/// A change of a group does not depend on what its policies are derived from, unless it attaches them.
#[test]
fn policies_are_taken_off_groups_with_them() {
    let good = fixture();
    for key in [RULE, PEERS, DB, WEB] {
        let watching = broken(&good, key);
        for mut fixture in [watching.loaded(), watching] {
            fixture.put("endpointGroups", "default:web", &web(&["q"])).unwrap();
            assert_eq!(fixture.value(ON_WEB), None, "{key}");
            assert_eq!(fixture.value(Q_ON_WEB), good.value(Q_ON_WEB), "{key}");
            let attached = fixture.put("endpointGroups", "default:web", &web(&["p", "q"])).map(drop);
            let expected = refused("attach policy default:p to group default:web", key);
            assert_eq!(attached.map_err(|problem| problem.text), expected, "{key}");
            assert_eq!(fixture.loaded().restore(), (0, 0), "{key}");
        }
    }
}

/// Otherwise neither the rule nor the group that it refers to could be deleted.
#[test]
fn rules_that_refer_to_them_can_be_deleted() {
    let good = fixture();
    for (key, deleted, left) in [(DB, "default:p:1", "default:p:2"), (PEERS, "default:p:2", "default:p:1")] {
        let watching = broken(&good, key);
        for mut fixture in [watching.loaded(), watching] {
            fixture.delete("rules", deleted).unwrap();
            assert_eq!(rules(&fixture.value(ON_WEB).unwrap()), [left], "{key}");
            assert_eq!(fixture.loaded().restore(), (0, 0), "{key}");
        }
    }
    let mut fixture = broken(&good, DB).loaded();
    let why = fixture.delete("endpointGroups", "default:db").map(drop).map_err(|problem| problem.text);
    assert_eq!(why, refused("change policy default:p on its groups", DB));
    fixture.delete("rules", "default:p:1").unwrap();
    fixture.delete("endpointGroups", "default:db").unwrap();
    assert_eq!(rules(&fixture.value(ON_WEB).unwrap()), ["default:p:2"]);
}

#[test]
fn global_settings_that_cannot_be_decoded_are_not_replaced() {
    let without_object = broken(&without_mode(&fixture(), None), CONFIG);
    for mut fixture in [broken(&fixture(), GLOBAL).loaded(), without_object.loaded()] {
        let before = fixture.changes.len();
        let defaults = Defaults { infra: "default".into(), fwd_mode: "bridge".into() };
        fixture.run(|staged| defaults.put(staged).map(|()| vec![])).unwrap();
        assert_eq!(fixture.changes.len(), before);
    }
}

/// A netmaster whose store has another object `Global`, without the mode of the cluster.
fn without_mode(good: &Fixture, global: Option<&Value>) -> Fixture {
    let mut fixture = good.loaded();
    fixture.edit(GLOBAL, global);
    fixture.loaded()
}

#[test]
fn requests_replace_settings_of_agents_that_cannot_be_decoded() {
    let good = fixture();
    let watching = broken(&good, CONFIG);
    for mut fixture in [watching.loaded(), watching] {
        let mut global = good.value(GLOBAL).unwrap();
        fixture.put("globals", "global", &global).unwrap();
        assert_eq!(fixture.value(CONFIG), good.value(CONFIG));
        for netmaster in [&fixture.loaded(), &fixture.follower(), &fixture] {
            assert!(!netmaster.cache.has_unreadable());
        }
        global["arpMode"] = json!("flood");
        fixture.put("globals", "global", &global).unwrap();
        assert_eq!(fixture.value(CONFIG).unwrap()["arp-mode"], "flood");
        assert_eq!(fixture.loaded().restore(), (0, 0));
    }
    let watching = broken(&good, CONFIG);
    for mut fixture in [watching.loaded(), watching] {
        fixture.delete("globals", "global").unwrap();
        assert_eq!((fixture.value(CONFIG), fixture.value(GLOBAL)), (None, None));
        assert!(!fixture.cache.has_unreadable());
    }
}

/// Nodes enforce policies only outside of ACI mode.
#[test]
fn without_the_mode_policies_stay_until_it_is_set() {
    let good = fixture();
    let stored = good.value(GLOBAL).unwrap();
    let mut empty = stored.clone();
    empty["networkInfraType"] = json!("");
    for global in [None, Some(&empty)] {
        let mut fixture = broken(&without_mode(&good, global), CONFIG).loaded();
        assert_eq!(request(&mut fixture, "create"), refused("change policy default:p on its groups", CONFIG));
        assert_eq!(fixture.loaded().restore(), (0, 0));
        if global.is_some() {
            let text = fixture.put("globals", "global", &empty).unwrap_err().text;
            let why = "cannot be decoded; set networkInfraType, too";
            assert_eq!(text, format!("update the settings: the record {CONFIG} {why}"));
        }
        fixture.put("globals", "global", &stored).unwrap();
        assert_eq!((fixture.value(CONFIG), fixture.value(ON_WEB)), (good.value(CONFIG), good.value(ON_WEB)));
        assert_eq!(request(&mut fixture, "create"), Ok(()));
    }
    let mut fixture = without_mode(&broken(&good, CONFIG), Some(&json!("{")));
    assert_eq!(request(&mut fixture, "create"), refused("change policy default:p on its groups", CONFIG));
}
