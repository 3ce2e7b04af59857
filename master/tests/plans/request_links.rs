//! Links in requests: which of them are stored.

use netmaster::access::Scope;
use netmaster::objects::Cluster;
use netmaster::problem::Problem;
use serde_json::{Map, Value, json};

use crate::fixture::Fixture;

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    fixture
}

/// A request of a client whose role is for the tenant.
fn put_as_operator(fixture: &mut Fixture, types: &str, key: &str, body: &Value) -> Result<Value, Problem> {
    let scope = Scope::Tenants(["default".to_owned()].into());
    fixture.put_as(&scope, &Cluster::default(), types, key, body)
}

/// A set of links to so many groups.
fn to_groups(count: usize) -> Value {
    let link = |n: usize| (format!("default:g{n}"), json!({"type": "x", "key": format!("default:g{n}")}));
    Value::Object((0..count).map(link).collect::<Map<_, _>>())
}

/// Types, keys and bodies of objects whose deletion depends on links to groups.
fn linked(links: &Value) -> [(&'static str, &'static str, Value); 4] {
    let sets = json!({"EndpointGroups": links});
    [
        (
            "networks",
            "default:n",
            json!({"tenantName": "default", "networkName": "n", "encap": "vxlan", "subnet": "10.2.0.0/24",
                "link-sets": sets}),
        ),
        ("netprofiles", "default:f", json!({"tenantName": "default", "profileName": "f", "link-sets": sets})),
        ("policys", "default:p", json!({"tenantName": "default", "policyName": "p", "link-sets": sets})),
        (
            "extContractsGroups",
            "default:c",
            json!({"tenantName": "default", "contractsGroupName": "c", "contractsType": "provided",
                "contracts": ["uni/tn-common/brc-x"], "link-sets": sets}),
        ),
    ]
}

/// A set of any size would be written again by each update of the object.
#[test]
fn those_of_tenant_operators_are_not_stored() {
    let mut fixture = fixture();
    fixture.group("g0", "net", "");
    for (types, key, body) in linked(&to_groups(2000)) {
        let created = put_as_operator(&mut fixture, types, key, &body).unwrap();
        assert_eq!(created["link-sets"], json!({}), "{types}");
        fixture.delete(types, key).unwrap();
        // Links that are derived are in the answers.
        put_as_operator(&mut fixture, types, key, &body).unwrap();
    }
    let group = json!({"tenantName": "default", "groupName": "g1", "networkName": "n", "policies": ["p"],
        "netProfile": "f", "extContractsGrps": ["c"]});
    let created = put_as_operator(&mut fixture, "endpointGroups", "default:g1", &group).unwrap();
    assert_eq!(created["link-sets"]["Policies"]["default:p"]["key"], "default:p");
    assert_eq!(created["links"]["NetProfile"]["key"], "default:f");
    for (types, key, _) in linked(&json!({})) {
        let object = fixture.inspect(types, key).unwrap()["Config"].clone();
        let sets = json!({"EndpointGroups": {"default:g1": {"type": "endpointGroup", "key": "default:g1"}}});
        assert_eq!(object["link-sets"], sets, "{types}");
        fixture.delete(types, key).unwrap_err();
    }
    assert_eq!(fixture.loaded().restore(), (0, 0));
}

#[test]
fn a_set_of_links_has_a_limited_number_of_entries() {
    let mut fixture = fixture();
    for (types, key, body) in linked(&to_groups(1025)) {
        let refused = fixture.put(types, key, &body).unwrap_err().text;
        assert_eq!(refused, "EndpointGroups has 1025 entries; the limit is 1024", "{types}");
    }
    for (types, key, body) in linked(&to_groups(1024)) {
        fixture.put(types, key, &body).unwrap();
    }
    // A client sends back the links that it has read. An update does not store them.
    let [_, (types, key, mut profile), ..] = linked(&to_groups(1025));
    profile["DSCP"] = json!(10);
    fixture.put(types, key, &profile).unwrap();
    let stored = fixture.value("/contiv.io/obj/modeldb/netprofile/default:f").unwrap();
    let sets = stored["link-sets"]["EndpointGroups"].as_object().unwrap();
    assert_eq!((&stored["DSCP"], sets.len()), (&json!(10), 1024));
}

/// A group with such a link cannot be deleted.
#[test]
fn a_new_group_is_in_no_application_profile() {
    let mut fixture = fixture();
    let group = |name: &str| {
        json!({"tenantName": "default", "groupName": name, "networkName": "net",
            "links": {"AppProfile": {"type": "appProfile", "key": "default:none"}}})
    };
    for name in ["a", "b"] {
        let created = fixture.put("endpointGroups", &format!("default:{name}"), &group(name)).unwrap();
        assert_eq!(created["links"]["AppProfile"], json!({}));
    }
    fixture.delete("endpointGroups", "default:a").unwrap();
    let profile = json!({"tenantName": "default", "appProfileName": "shop", "endpointGroups": ["b"]});
    fixture.put("appProfiles", "default:shop", &profile).unwrap();
    let refused = fixture.delete("endpointGroups", "default:b").unwrap_err().text;
    assert_eq!(refused, "Cannot delete b, associated to appProfile default:shop");
}
