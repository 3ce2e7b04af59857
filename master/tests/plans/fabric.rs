//! The objects that are for an ACI fabric: application profiles, external contracts, the gateway's settings.

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
fn profiles_and_their_groups_know_each_other() {
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

    // The answer to an update is the request with its groups linked, and no tenant.
    assert_eq!(
        profile(&mut lab, "ap", &["db"]).unwrap(),
        json!({"key": "default:ap", "appProfileName": "ap", "endpointGroups": ["db"], "tenantName": "default",
            "link-sets": {"EndpointGroups": {"default:db": link("default:db")}}, "links": {"Tenant": {}}})
    );
    assert_eq!((profile_of(&lab, "web"), profile_of(&lab, "db")), (Value::Null, json!("default:ap")));
    assert_eq!(object(&lab, "appProfile/default:ap")["links"]["Tenant"]["key"], "default");
    assert_eq!(profile(&mut lab, "ap", &["no"]), Err("EndpointGroup default:no not found".into()));

    // A group that is in two knows the last, and then the one that is left.
    profile(&mut lab, "other", &["db"]).unwrap();
    assert_eq!(profile_of(&lab, "db"), "default:other");
    lab.delete("appProfiles", "default:other").unwrap();
    assert_eq!(profile_of(&lab, "db"), "default:ap");
    assert_eq!(lab.loaded().told(), lab.told());
    lab.delete("appProfiles", "default:ap").unwrap();
    assert_eq!(profile_of(&lab, "db"), Value::Null);
    assert_eq!(object(&lab, "tenant/default")["link-sets"]["AppProfiles"], Value::Null);

    let body = json!({"tenantName": "t", "appProfileName": "ap"});
    assert_eq!(lab.put("appProfiles", "t:ap", &body).unwrap_err().text, "Tenant t not found");
}

#[test]
fn contracts_are_kept_as_long_as_a_group_has_them() {
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
    assert_eq!(lab.loaded().told(), lab.told());
    lab.delete("endpointGroups", "default:web").unwrap();
    assert_eq!(link(&lab), json!({}));
    lab.delete("extContractsGroups", "default:c").unwrap();
    assert_eq!(lab.keys("/contiv.io/obj/modeldb/extContractsGroup/"), [""; 0]);
}

#[test]
fn the_gateway_stays_as_long_as_there_are_profiles() {
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
fn nobody_handles_volumes() {
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
