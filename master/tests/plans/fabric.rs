//! Objects of ACI mode: application profiles, external contracts and gateway settings.

use std::sync::Arc;

use netmaster::access::Scope;
use netmaster::aci::{RepeatablePlan, unsent};
use netmaster::cache::{Pending, StagedTxn};
use netmaster::objects::{Cluster, Type};
use serde_json::{Value, json};

use crate::fixture::Fixture;

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    fixture
}

fn profile(fixture: &mut Fixture, name: &str, groups: &[&str]) -> Result<Value, String> {
    let body = json!({"tenantName": "default", "appProfileName": name, "endpointGroups": groups});
    fixture.put("appProfiles", &format!("default:{name}"), &body).map_err(|problem| problem.text)
}

fn contracts(fixture: &mut Fixture, name: &str, kind: &str) -> Result<Value, String> {
    let body = json!({"tenantName": "default", "contractsGroupName": name, "contractsType": kind,
        "contracts": ["uni/tn-common/brc-x"]});
    fixture.put("extContractsGroups", &format!("default:{name}"), &body).map_err(|problem| problem.text)
}

fn object(fixture: &Fixture, path: &str) -> Value {
    fixture.value(&format!("/contiv.io/obj/modeldb/{path}")).unwrap()
}

fn profile_of(fixture: &Fixture, group: &str) -> Value {
    object(fixture, &format!("endpointGroup/default:{group}"))["links"]["AppProfile"]["key"].clone()
}

#[test]
fn profiles_and_groups_are_linked() {
    let mut fixture = fixture();
    for group in ["web", "db"] {
        fixture.group(group, "net", "");
    }
    let link = |group: &str| json!({"type": "endpointGroup", "key": group});
    assert_eq!(
        profile(&mut fixture, "ap", &["web"]).unwrap(),
        json!({"key": "default:ap", "appProfileName": "ap", "endpointGroups": ["web"], "tenantName": "default",
            "link-sets": {"EndpointGroups": {"default:web": link("default:web")}},
            "links": {"Tenant": {"type": "tenant", "key": "default"}}})
    );
    assert_eq!(profile_of(&fixture, "web"), "default:ap");
    let in_use = fixture.delete("endpointGroups", "default:web").unwrap_err().text;
    assert_eq!(in_use, "Cannot delete web, associated to appProfile default:ap");
    assert_eq!(
        fixture.delete("tenants", "default").unwrap_err().text,
        "cannot delete default, has 1 app profiles"
    );

    // The response to an update is the request with links to its groups, without a tenant link.
    assert_eq!(
        profile(&mut fixture, "ap", &["db"]).unwrap(),
        json!({"key": "default:ap", "appProfileName": "ap", "endpointGroups": ["db"], "tenantName": "default",
            "link-sets": {"EndpointGroups": {"default:db": link("default:db")}}, "links": {"Tenant": {}}})
    );
    assert_eq!((profile_of(&fixture, "web"), profile_of(&fixture, "db")), (Value::Null, json!("default:ap")));
    assert_eq!(object(&fixture, "appProfile/default:ap")["links"]["Tenant"]["key"], "default");
    assert_eq!(profile(&mut fixture, "ap", &["no"]), Err("EndpointGroup default:no not found".into()));

    // A group in two profiles links to the last one, and after its deletion to the other one.
    profile(&mut fixture, "other", &["db"]).unwrap();
    assert_eq!(profile_of(&fixture, "db"), "default:other");
    fixture.delete("appProfiles", "default:other").unwrap();
    assert_eq!(profile_of(&fixture, "db"), "default:ap");
    assert_eq!(fixture.loaded().content(), fixture.content());
    fixture.delete("appProfiles", "default:ap").unwrap();
    assert_eq!(profile_of(&fixture, "db"), Value::Null);
    assert_eq!(object(&fixture, "tenant/default")["link-sets"]["AppProfiles"], Value::Null);

    let body = json!({"tenantName": "t", "appProfileName": "ap"});
    assert_eq!(fixture.put("appProfiles", "t:ap", &body).unwrap_err().text, "Tenant t not found");
}

#[test]
fn groups_that_leave_a_profile_link_to_the_first_other_one() {
    let mut fixture = fixture();
    for group in ["a", "b", "c", "d"] {
        fixture.group(group, "net", "");
    }
    for (name, groups) in [("x1", &["a"][..]), ("x2", &["a", "b"]), ("x3", &["a", "b", "c", "d"])] {
        profile(&mut fixture, name, groups).unwrap();
    }
    let profiles = |fixture: &Fixture| ["a", "b", "c", "d"].map(|group| profile_of(fixture, group));
    let named = |names: [&str; 4]| names.map(|name| json!(format!("default:{name}")));
    assert_eq!(profiles(&fixture), named(["x3"; 4]));
    profile(&mut fixture, "x3", &["d"]).unwrap();
    let [a, b, _, d] = named(["x1", "x2", "", "x3"]);
    assert_eq!(profiles(&fixture), [a, b, Value::Null, d]);
    fixture.delete("appProfiles", "default:x3").unwrap();
    assert_eq!(profile_of(&fixture, "d"), Value::Null);
    assert_eq!(fixture.loaded().content(), fixture.content());
}

#[test]
fn contracts_in_use_are_not_deleted() {
    let mut fixture = fixture();
    assert_eq!(
        contracts(&mut fixture, "c", "both"),
        Err("Contracts group need to be either 'provided' or 'consumed'".into())
    );
    assert_eq!(contracts(&mut fixture, "c", "provided").unwrap()["link-sets"], json!({}));
    assert_eq!(
        contracts(&mut fixture, "c", "provided"),
        Err("external contracts update not supported".into())
    );
    let group = |fixture: &mut Fixture, contracts: &[&str]| {
        let body = json!({"tenantName": "default", "groupName": "web", "networkName": "net",
            "extContractsGrps": contracts});
        fixture.put("endpointGroups", "default:web", &body).map_err(|problem| problem.text)
    };
    assert_eq!(group(&mut fixture, &["c", "no"]), Err("External contracts group no not found".into()));
    group(&mut fixture, &["c"]).unwrap();
    let link = |fixture: &Fixture| {
        let inspected = fixture.inspect("extContractsGroups", "default:c").unwrap();
        inspected["Config"]["link-sets"].clone()
    };
    let linked = json!({"EndpointGroups": {"default:web": {"type": "endpointGroup", "key": "default:web"}}});
    assert_eq!(link(&fixture), linked);
    assert_eq!(
        object(&fixture, "endpointGroup/default:web")["link-sets"]["ExtContractsGrps"],
        json!({"default:c": {"type": "extContractsGroup", "key": "default:c"}})
    );
    let in_use = "External contracts group is in-use";
    assert_eq!(fixture.delete("extContractsGroups", "default:c").unwrap_err().text, in_use);

    group(&mut fixture, &[]).unwrap();
    assert_eq!(link(&fixture), json!({}));
    group(&mut fixture, &["c"]).unwrap();
    assert_eq!(fixture.loaded().content(), fixture.content());
    fixture.delete("endpointGroups", "default:web").unwrap();
    assert_eq!(link(&fixture), json!({}));
    fixture.delete("extContractsGroups", "default:c").unwrap();
    assert_eq!(fixture.keys("/contiv.io/obj/modeldb/extContractsGroup/"), [""; 0]);
}

#[test]
fn gateway_settings_are_kept_while_profiles_exist() {
    let mut fixture = fixture();
    let set = |fixture: &mut Fixture, enforce: &str| {
        let body = json!({"name": "aciGw", "enforcePolicies": enforce, "includeCommonTenant": "no",
            "physicalDomain": "pd"});
        fixture.put("aciGws", "aciGw", &body).map_err(|problem| problem.text)
    };
    assert_eq!(set(&mut fixture, ""), Err("enforcePolicies string invalid format".into()));
    set(&mut fixture, "yes").unwrap();
    profile(&mut fixture, "ap", &[]).unwrap();
    set(&mut fixture, "no").unwrap();
    assert_eq!(object(&fixture, "aciGw/aciGw")["enforcePolicies"], "no");
    let inspected = fixture.inspect("aciGws", "aciGw").unwrap();
    assert_eq!(inspected["Oper"], json!({"numAppProfiles": 1}));
    let refused = fixture.delete("aciGws", "aciGw").unwrap_err().text;
    assert_eq!(refused, "1 App-Profiles found. Delete them first");
    fixture.delete("appProfiles", "default:ap").unwrap();
    fixture.delete("aciGws", "aciGw").unwrap();
}

#[test]
fn volumes_are_rejected() {
    let mut fixture = fixture();
    let refused = |fixture: &mut Fixture, types: &str, body: Value| {
        fixture.put(types, "default:v", &body).unwrap_err().text
    };
    let volume = json!({"tenantName": "default", "volumeName": "v"});
    let profile = json!({"tenantName": "default", "volumeProfileName": "v"});
    assert_eq!(refused(&mut fixture, "volumes", volume.clone()), "Invalid object type");
    assert_eq!(refused(&mut fixture, "volumeProfiles", profile), "Invalid object type");
    assert_eq!(refused(&mut fixture, "volumeProfiles", volume), "Invalid Key");
    assert_eq!(fixture.delete("volumes", "default:v").unwrap_err().text, "volume not found");
}

fn vlan(fixture: &Fixture, group: &str) -> Value {
    fixture.value(&format!("/contiv.io/state/endpointGroups/{group}:default")).unwrap()["pktTag"].clone()
}

fn in_use(fixture: &Fixture) -> Value {
    fixture.inspect("globals", "global").unwrap()["Oper"]["vlansInUse"].clone()
}

#[test]
fn groups_have_own_vlans_in_aci_mode() {
    let mut fixture = Fixture::at("aci");
    fixture.network("net", "10.1.0.0/24", json!({"encap": "vlan"}));
    fixture.network("tunnel", "10.2.0.0/24", json!({}));
    fixture.group("web", "net", "");
    fixture.group("db", "net", "");
    assert_eq!(
        (vlan(&fixture, "web"), vlan(&fixture, "db"), in_use(&fixture)),
        (json!(2), json!(3), json!("1-3"))
    );
    let body = json!({"tenantName": "default", "groupName": "g", "networkName": "tunnel"});
    let refused = fixture.put("endpointGroups", "default:g", &body).unwrap_err().text;
    assert_eq!(refused, "network type must be VLAN for ACI mode");
    let bgp = json!({"hostname": "h", "routerip": "50.1.1.1/24"});
    assert_eq!(fixture.put("Bgps", "h", &bgp).unwrap_err().text, "not supported in ACI fabric mode");

    fixture.delete("endpointGroups", "default:web").unwrap();
    assert_eq!(in_use(&fixture), "1, 3");
    // New settings keep the VLANs of the groups.
    let global = fixture.value("/contiv.io/obj/modeldb/global/global").unwrap();
    fixture.delete("globals", "global").unwrap();
    fixture.put("globals", "global", &global).unwrap();
    assert_eq!(in_use(&fixture), "1, 3");
    let mut fixture = fixture.loaded();
    fixture.delete("endpointGroups", "default:db").unwrap();
    assert_eq!(in_use(&fixture), "1");
}

#[test]
fn changes_that_affect_the_fabric_are_marked_pending() {
    let mut fixture = Fixture::at("aci");
    fixture.network("net", "10.1.0.0/24", json!({"encap": "vlan"}));
    let group = |fixture: &mut Fixture, name: &str, policies: &[&str]| {
        let body =
            json!({"tenantName": "default", "groupName": name, "networkName": "net", "policies": policies});
        fixture.put("endpointGroups", &format!("default:{name}"), &body).unwrap();
    };
    fixture.put("policys", "default:p", &json!({"tenantName": "default", "policyName": "p"})).unwrap();
    group(&mut fixture, "web", &[]);
    group(&mut fixture, "db", &["p"]);
    profile(&mut fixture, "ap", &["web"]).unwrap();
    // Changes of a profile are sent to the gateway directly.
    let is_pending = |fixture: &mut Fixture| {
        let found = !fixture.keys("/contiv.io/state/aci-pending/default:ap").is_empty();
        fixture
            .run(|staged| {
                if found {
                    staged.delete::<Pending>("default:ap");
                }
                Ok(vec![])
            })
            .unwrap();
        found
    };
    assert!(!is_pending(&mut fixture));
    let mut n = 0;
    let mut rule = |fixture: &mut Fixture, more: Value| {
        n += 1;
        let mut body = json!({"tenantName": "default", "policyName": "p", "ruleId": n.to_string(),
            "direction": "in", "action": "allow", "protocol": "tcp", "port": 80});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fixture.put("rules", &format!("default:p:{n}"), &body).unwrap();
    };
    rule(&mut fixture, json!({}));
    assert!(!is_pending(&mut fixture), "rule of a policy on no group of the profile");
    rule(&mut fixture, json!({"fromEndpointGroup": "web"}));
    assert!(is_pending(&mut fixture), "rule that refers to a group of the profile");
    group(&mut fixture, "web", &["p"]);
    assert!(is_pending(&mut fixture));
    rule(&mut fixture, json!({"port": 443}));
    assert!(is_pending(&mut fixture));
    rule(&mut fixture, json!({"action": "deny", "port": 444}));
    assert!(!is_pending(&mut fixture), "deny rules are not in contracts");
    fixture.delete("rules", "default:p:3").unwrap();
    assert!(is_pending(&mut fixture));
    let settings = json!({"name": "aciGw", "enforcePolicies": "yes", "includeCommonTenant": "no", "physicalDomain": "d"});
    fixture.put("aciGws", "aciGw", &settings).unwrap();
    assert!(is_pending(&mut fixture));
    fixture.network("other", "10.3.0.0/24", json!({"encap": "vlan"}));
    assert!(!is_pending(&mut fixture));
}

/// Names of the pending profiles, which are sent then.
fn take_pending(fixture: &mut Fixture) -> Vec<String> {
    let names = |staged: &StagedTxn<'_>| -> Vec<String> {
        let pending = staged.cache().all::<Pending>();
        pending.map(|pending| pending.id.trim_start_matches("default:").to_owned()).collect()
    };
    let pending = names(&StagedTxn::new(&fixture.cache));
    let sent = |staged: &mut StagedTxn<'_>| {
        for name in names(staged) {
            staged.delete::<Pending>(&format!("default:{name}"));
        }
        Ok(vec![])
    };
    fixture.run(sent).unwrap();
    pending
}

#[test]
fn a_change_marks_the_profiles_whose_groups_differ() {
    let mut fixture = Fixture::at("aci");
    fixture.network("net", "10.1.0.0/24", json!({"encap": "vlan"}));
    let policy = |fixture: &mut Fixture, name: &str| {
        let body = json!({"tenantName": "default", "policyName": name});
        fixture.put("policys", &format!("default:{name}"), &body).unwrap();
    };
    let group = |fixture: &mut Fixture, name: &str, policies: &[&str], contracts: &[&str]| {
        let body = json!({"tenantName": "default", "groupName": name, "networkName": "net",
            "policies": policies, "extContractsGrps": contracts});
        fixture.put("endpointGroups", &format!("default:{name}"), &body).unwrap();
    };
    let rule = |fixture: &mut Fixture, policy: &str, id: &str, priority: i64, port: i64| {
        let body = json!({"tenantName": "default", "policyName": policy, "ruleId": id, "direction": "in",
            "action": "allow", "protocol": "tcp", "port": port, "priority": priority});
        fixture.put("rules", &format!("default:{policy}:{id}"), &body).unwrap();
    };
    for name in ["p", "q"] {
        policy(&mut fixture, name);
    }
    contracts(&mut fixture, "c", "provided").unwrap();
    group(&mut fixture, "web", &["p"], &[]);
    group(&mut fixture, "db", &["p"], &[]);
    group(&mut fixture, "app", &["q"], &[]);
    for (name, groups) in [("one", &["web"][..]), ("two", &["db", "app"]), ("three", &["app"])] {
        profile(&mut fixture, name, groups).unwrap();
    }
    assert_eq!(take_pending(&mut fixture), [""; 0]);

    rule(&mut fixture, "p", "1", 1, 80);
    assert_eq!(take_pending(&mut fixture), ["one", "two"]);
    rule(&mut fixture, "p", "2", 2, 80);
    assert_eq!(take_pending(&mut fixture), [""; 0], "the contract has this filter");
    rule(&mut fixture, "q", "1", 1, 80);
    assert_eq!(take_pending(&mut fixture), ["three", "two"]);
    // The other rule has the filter, too.
    fixture.delete("rules", "default:p:1").unwrap();
    assert_eq!(take_pending(&mut fixture), [""; 0]);
    fixture.delete("rules", "default:p:2").unwrap();
    assert_eq!(take_pending(&mut fixture), ["one", "two"]);

    group(&mut fixture, "web", &["p"], &["c"]);
    assert_eq!(take_pending(&mut fixture), ["one"]);
    // The policy has no rules.
    group(&mut fixture, "db", &[], &[]);
    assert_eq!(take_pending(&mut fixture), [""; 0]);
    group(&mut fixture, "app", &[], &[]);
    assert_eq!(take_pending(&mut fixture), ["three", "two"]);
}

/// The plan was queued before the change of the mode, and is committed after it.
#[test]
fn a_profile_that_is_committed_after_aci_mode_was_switched_on_is_pending() {
    for (infra, pending) in [("default", 0), ("aci", 1)] {
        let mut fixture = Fixture::at(infra);
        fixture.network("net", "10.1.0.0/24", json!({"encap": "vlan"}));
        fixture.group("web", "net", "");
        let operations = Type::by_plural("appProfiles").unwrap().operations;
        let body = json!({"tenantName": "default", "appProfileName": "ap", "endpointGroups": ["web"]});
        let request = (operations.check)("default:ap", body.to_string().as_bytes()).unwrap();
        let put: RepeatablePlan = Arc::new(move |staged: &mut StagedTxn<'_>| {
            (operations.put)(&request, &Scope::All, &Cluster::default(), staged)
        });
        let plan = unsent("default:ap", put);
        fixture.run(plan).unwrap();
        assert_eq!(fixture.keys("/contiv.io/state/aci-pending/").len(), pending, "{infra}");
        // A deletion is a change of the fabric, too.
        let delete: RepeatablePlan = Arc::new(move |staged: &mut StagedTxn<'_>| {
            (operations.delete)("default:ap", &Scope::All, staged)
        });
        let plan = unsent("default:ap", delete);
        fixture.run(plan).unwrap();
        assert_eq!(fixture.keys("/contiv.io/state/aci-pending/").len(), pending, "{infra}");
    }
}
