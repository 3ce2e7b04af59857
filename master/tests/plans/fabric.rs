//! Objects of ACI mode: application profiles, external contracts and gateway settings.

use serde_json::{Value, json};

use crate::lab::Lab;

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.network("net", "10.1.0.0/24", json!({}));
    lab
}

fn profile(lab: &mut Lab, name: &str, groups: &[&str]) -> Result<Value, String> {
    let body = json!({"tenantName": "default", "appProfileName": name, "endpointGroups": groups});
    lab.put("appProfiles", &format!("default:{name}"), &body).map_err(|problem| problem.text)
}

fn contracts(lab: &mut Lab, name: &str, kind: &str) -> Result<Value, String> {
    let body = json!({"tenantName": "default", "contractsGroupName": name, "contractsType": kind,
        "contracts": ["uni/tn-common/brc-x"]});
    lab.put("extContractsGroups", &format!("default:{name}"), &body).map_err(|problem| problem.text)
}

fn object(lab: &Lab, path: &str) -> Value {
    lab.value(&format!("/contiv.io/obj/modeldb/{path}")).unwrap()
}

fn profile_of(lab: &Lab, group: &str) -> Value {
    object(lab, &format!("endpointGroup/default:{group}"))["links"]["AppProfile"]["key"].clone()
}

#[test]
fn profiles_and_groups_are_linked() {
    let mut lab = lab();
    for group in ["web", "db"] {
        lab.group(group, "net", "");
    }
    let link = |group: &str| json!({"type": "endpointGroup", "key": group});
    assert_eq!(
        profile(&mut lab, "ap", &["web"]).unwrap(),
        json!({"key": "default:ap", "appProfileName": "ap", "endpointGroups": ["web"], "tenantName": "default",
            "link-sets": {"EndpointGroups": {"default:web": link("default:web")}},
            "links": {"Tenant": {"type": "tenant", "key": "default"}}})
    );
    assert_eq!(profile_of(&lab, "web"), "default:ap");
    let in_use = lab.delete("endpointGroups", "default:web").unwrap_err().text;
    assert_eq!(in_use, "Cannot delete web, associated to appProfile default:ap");
    assert_eq!(
        lab.delete("tenants", "default").unwrap_err().text,
        "cannot delete default, has 1 app profiles"
    );

    // The response to an update is the request with links to its groups, without a tenant link.
    assert_eq!(
        profile(&mut lab, "ap", &["db"]).unwrap(),
        json!({"key": "default:ap", "appProfileName": "ap", "endpointGroups": ["db"], "tenantName": "default",
            "link-sets": {"EndpointGroups": {"default:db": link("default:db")}}, "links": {"Tenant": {}}})
    );
    assert_eq!((profile_of(&lab, "web"), profile_of(&lab, "db")), (Value::Null, json!("default:ap")));
    assert_eq!(object(&lab, "appProfile/default:ap")["links"]["Tenant"]["key"], "default");
    assert_eq!(profile(&mut lab, "ap", &["no"]), Err("EndpointGroup default:no not found".into()));

    // A group in two profiles links to the last one, and after its deletion to the other one.
    profile(&mut lab, "other", &["db"]).unwrap();
    assert_eq!(profile_of(&lab, "db"), "default:other");
    lab.delete("appProfiles", "default:other").unwrap();
    assert_eq!(profile_of(&lab, "db"), "default:ap");
    assert_eq!(lab.loaded().content(), lab.content());
    lab.delete("appProfiles", "default:ap").unwrap();
    assert_eq!(profile_of(&lab, "db"), Value::Null);
    assert_eq!(object(&lab, "tenant/default")["link-sets"]["AppProfiles"], Value::Null);

    let body = json!({"tenantName": "t", "appProfileName": "ap"});
    assert_eq!(lab.put("appProfiles", "t:ap", &body).unwrap_err().text, "Tenant t not found");
}

#[test]
fn contracts_in_use_are_not_deleted() {
    let mut lab = lab();
    assert_eq!(
        contracts(&mut lab, "c", "both"),
        Err("Contracts group need to be either 'provided' or 'consumed'".into())
    );
    assert_eq!(contracts(&mut lab, "c", "provided").unwrap()["link-sets"], json!({}));
    assert_eq!(contracts(&mut lab, "c", "provided"), Err("external contracts update not supported".into()));
    let group = |lab: &mut Lab, contracts: &[&str]| {
        let body = json!({"tenantName": "default", "groupName": "web", "networkName": "net",
            "extContractsGrps": contracts});
        lab.put("endpointGroups", "default:web", &body).map_err(|problem| problem.text)
    };
    assert_eq!(group(&mut lab, &["c", "no"]), Err("External contracts group no not found".into()));
    group(&mut lab, &["c"]).unwrap();
    let link = |lab: &Lab| object(lab, "extContractsGroup/default:c")["link-sets"].clone();
    let linked = json!({"EndpointGroups": {"default:web": {"type": "endpointGroup", "key": "default:web"}}});
    assert_eq!(link(&lab), linked);
    assert_eq!(
        object(&lab, "endpointGroup/default:web")["link-sets"]["ExtContractsGrps"],
        json!({"default:c": {"type": "extContractsGroup", "key": "default:c"}})
    );
    let in_use = "External contracts group is in-use";
    assert_eq!(lab.delete("extContractsGroups", "default:c").unwrap_err().text, in_use);

    group(&mut lab, &[]).unwrap();
    assert_eq!(link(&lab), json!({}));
    group(&mut lab, &["c"]).unwrap();
    assert_eq!(lab.loaded().content(), lab.content());
    lab.delete("endpointGroups", "default:web").unwrap();
    assert_eq!(link(&lab), json!({}));
    lab.delete("extContractsGroups", "default:c").unwrap();
    assert_eq!(lab.keys("/contiv.io/obj/modeldb/extContractsGroup/"), [""; 0]);
}

#[test]
fn gateway_settings_are_kept_while_profiles_exist() {
    let mut lab = lab();
    let set = |lab: &mut Lab, enforce: &str| {
        let body = json!({"name": "aciGw", "enforcePolicies": enforce, "includeCommonTenant": "no",
            "physicalDomain": "pd"});
        lab.put("aciGws", "aciGw", &body).map_err(|problem| problem.text)
    };
    assert_eq!(set(&mut lab, ""), Err("enforcePolicies string invalid format".into()));
    set(&mut lab, "yes").unwrap();
    profile(&mut lab, "ap", &[]).unwrap();
    set(&mut lab, "no").unwrap();
    assert_eq!(object(&lab, "aciGw/aciGw")["enforcePolicies"], "no");
    let inspected = lab.inspect("aciGws", "aciGw").unwrap();
    assert_eq!(inspected["Oper"], json!({"numAppProfiles": 1}));
    let refused = lab.delete("aciGws", "aciGw").unwrap_err().text;
    assert_eq!(refused, "1 App-Profiles found. Delete them first");
    lab.delete("appProfiles", "default:ap").unwrap();
    lab.delete("aciGws", "aciGw").unwrap();
}

#[test]
fn volumes_are_rejected() {
    let mut lab = lab();
    let refused =
        |lab: &mut Lab, types: &str, body: Value| lab.put(types, "default:v", &body).unwrap_err().text;
    let volume = json!({"tenantName": "default", "volumeName": "v"});
    let profile = json!({"tenantName": "default", "volumeProfileName": "v"});
    assert_eq!(refused(&mut lab, "volumes", volume.clone()), "Invalid object type");
    assert_eq!(refused(&mut lab, "volumeProfiles", profile), "Invalid object type");
    assert_eq!(refused(&mut lab, "volumeProfiles", volume), "Invalid Key");
    assert_eq!(lab.delete("volumes", "default:v").unwrap_err().text, "volume not found");
}

fn vlan(lab: &Lab, group: &str) -> Value {
    lab.value(&format!("/contiv.io/state/endpointGroups/{group}:default")).unwrap()["pktTag"].clone()
}

fn in_use(lab: &Lab) -> Value {
    lab.inspect("globals", "global").unwrap()["Oper"]["vlansInUse"].clone()
}

#[test]
fn groups_have_own_vlans_in_aci_mode() {
    let mut lab = Lab::at("aci");
    lab.network("net", "10.1.0.0/24", json!({"encap": "vlan"}));
    lab.network("tunnel", "10.2.0.0/24", json!({}));
    lab.group("web", "net", "");
    lab.group("db", "net", "");
    assert_eq!((vlan(&lab, "web"), vlan(&lab, "db"), in_use(&lab)), (json!(2), json!(3), json!("1-3")));
    let body = json!({"tenantName": "default", "groupName": "g", "networkName": "tunnel"});
    let refused = lab.put("endpointGroups", "default:g", &body).unwrap_err().text;
    assert_eq!(refused, "network type must be VLAN for ACI mode");
    let bgp = json!({"hostname": "h", "routerip": "50.1.1.1/24"});
    assert_eq!(lab.put("Bgps", "h", &bgp).unwrap_err().text, "not supported in ACI fabric mode");

    lab.delete("endpointGroups", "default:web").unwrap();
    assert_eq!(in_use(&lab), "1, 3");
    // New settings keep the VLANs of the groups.
    let global = lab.value("/contiv.io/obj/modeldb/global/global").unwrap();
    lab.delete("globals", "global").unwrap();
    lab.put("globals", "global", &global).unwrap();
    assert_eq!(in_use(&lab), "1, 3");
    let mut lab = lab.loaded();
    lab.delete("endpointGroups", "default:db").unwrap();
    assert_eq!(in_use(&lab), "1");
}

#[test]
fn policies_are_not_expanded_in_aci_mode() {
    let mut lab = Lab::at("aci");
    lab.network("net", "10.1.0.0/24", json!({"encap": "vlan"}));
    lab.put("policys", "default:p", &json!({"tenantName": "default", "policyName": "p"})).unwrap();
    let body = json!({"tenantName": "default", "groupName": "web", "networkName": "net", "policies": ["p"]});
    lab.put("endpointGroups", "default:web", &body).unwrap();
    let rule = json!({"tenantName": "default", "policyName": "p", "ruleId": "1", "direction": "in",
        "action": "allow", "protocol": "tcp", "port": 80});
    lab.put("rules", "default:p:1", &rule).unwrap();
    let rules = |lab: &Lab| lab.keys("/contiv.io/state/policy").len();
    assert_eq!(rules(&lab), 0);
    assert_eq!(lab.loaded().content(), lab.content());
    let mut set = |infra: &str| {
        let body = json!({"name": "global", "networkInfraType": infra, "vlans": "1-4094", "vxlans": "1-10000",
            "fwdMode": "bridge", "arpMode": "proxy", "pvtSubnet": "172.19.0.0/16"});
        lab.put("globals", "global", &body).unwrap();
        rules(&lab)
    };
    assert_eq!((set("default"), set("aci")), (3, 0));
}

#[test]
fn changes_that_affect_the_fabric_are_marked_pending() {
    let mut lab = Lab::at("aci");
    lab.network("net", "10.1.0.0/24", json!({"encap": "vlan"}));
    let group = |lab: &mut Lab, name: &str, policies: &[&str]| {
        let body =
            json!({"tenantName": "default", "groupName": name, "networkName": "net", "policies": policies});
        lab.put("endpointGroups", &format!("default:{name}"), &body).unwrap();
    };
    lab.put("policys", "default:p", &json!({"tenantName": "default", "policyName": "p"})).unwrap();
    group(&mut lab, "web", &[]);
    group(&mut lab, "db", &["p"]);
    profile(&mut lab, "ap", &["web"]).unwrap();
    // Changes of a profile are sent to the gateway directly.
    let noted = |lab: &mut Lab| {
        let noted = !lab.keys("/contiv.io/state/aci-pending/default:ap").is_empty();
        lab.run(|staged| {
            if noted {
                staged.delete::<netmaster::cache::Pending>("default:ap");
            }
            Ok(vec![])
        })
        .unwrap();
        noted
    };
    assert!(!noted(&mut lab));
    let mut n = 0;
    let mut rule = |lab: &mut Lab, more: Value| {
        n += 1;
        let mut body = json!({"tenantName": "default", "policyName": "p", "ruleId": n.to_string(),
            "direction": "in", "action": "allow", "protocol": "tcp", "port": 80});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        lab.put("rules", &format!("default:p:{n}"), &body).unwrap();
    };
    rule(&mut lab, json!({}));
    assert!(!noted(&mut lab), "of a policy that is on no group of the profile");
    rule(&mut lab, json!({"fromEndpointGroup": "web"}));
    assert!(noted(&mut lab), "about a group of the profile");
    group(&mut lab, "web", &["p"]);
    assert!(noted(&mut lab));
    rule(&mut lab, json!({"port": 443}));
    assert!(noted(&mut lab));
    rule(&mut lab, json!({"action": "deny", "port": 444}));
    assert!(!noted(&mut lab), "no contract says that something is denied");
    lab.delete("rules", "default:p:3").unwrap();
    assert!(noted(&mut lab));
    let settings = json!({"name": "aciGw", "enforcePolicies": "yes", "includeCommonTenant": "no", "physicalDomain": "d"});
    lab.put("aciGws", "aciGw", &settings).unwrap();
    assert!(noted(&mut lab));
    lab.network("other", "10.3.0.0/24", json!({"encap": "vlan"}));
    assert!(!noted(&mut lab));
}
