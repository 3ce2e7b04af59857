//! Derived links: compared with a model that stores them, as the original does.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::event::Event;
use netmaster::access::Scope;
use netmaster::objects::{Selection, Type};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::Fixture;

#[derive(Clone, Debug)]
enum Put {
    Tenant,
    Network(u8),
    Group { name: u8, network: u8, policies: Vec<u8>, profile: Option<u8>, contracts: Vec<u8> },
    Policy(u8),
    Rule { policy: u8, id: u8, group: Option<u8> },
    Profile(u8),
    Contracts(u8),
    Service { name: u8, network: u8 },
    App { name: u8, groups: Vec<u8> },
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        tenant: u8,
        put: Put,
    },
    /// Deletes an object, chosen among those that exist.
    Delete(usize),
    /// A new leader loads the state from the store.
    TakeOver,
}

/// Link sets of an object: names of the sets, and the keys in them.
type Sets = BTreeMap<&'static str, BTreeSet<String>>;

/// Link sets that are derived, by the types of the paths.
const DERIVED: [(&str, &[&str]); 6] = [
    ("tenants", &["AppProfiles", "EndpointGroups", "NetProfiles", "Networks", "Policies", "Servicelbs"]),
    ("networks", &["EndpointGroups", "Servicelbs"]),
    ("netprofiles", &["EndpointGroups"]),
    ("policys", &["EndpointGroups", "Rules"]),
    ("extContractsGroups", &["EndpointGroups"]),
    ("endpointGroups", &["MatchRules"]),
];

/// An object of the model: a body of a request that was carried out, and links to other objects.
#[derive(Default)]
struct Object {
    body: Value,
    sets: Sets,
}

/// Objects by types of the path and key.
#[derive(Default)]
struct Model(BTreeMap<(&'static str, String), Object>);

fn key_of(tenant: &str, name: &Value) -> String {
    format!("{tenant}:{}", name.as_str().unwrap_or_default())
}

impl Model {
    /// Links that the objects named by `body` have to an object of this type.
    fn targets(types: &str, body: &Value) -> Vec<(&'static str, String, &'static str)> {
        let tenant = body["tenantName"].as_str().unwrap();
        let named = |field: &str| body[field].as_str().filter(|name| !name.is_empty());
        let all = |field: &str| {
            let names = body[field].as_array().cloned().unwrap_or_default();
            names.into_iter().map(|name| key_of(tenant, &name)).collect::<Vec<_>>()
        };
        let of_tenant = |set| vec![("tenants", tenant.to_owned(), set)];
        match types {
            "networks" => of_tenant("Networks"),
            "policys" => of_tenant("Policies"),
            "netprofiles" => of_tenant("NetProfiles"),
            "appProfiles" => of_tenant("AppProfiles"),
            "serviceLBs" => {
                let network = key_of(tenant, &body["networkName"]);
                [of_tenant("Servicelbs"), vec![("networks", network, "Servicelbs")]].concat()
            }
            "endpointGroups" => {
                let set = "EndpointGroups";
                let mut targets = of_tenant(set);
                targets.push(("networks", key_of(tenant, &body["networkName"]), set));
                targets.extend(all("policies").into_iter().map(|key| ("policys", key, set)));
                targets
                    .extend(all("extContractsGrps").into_iter().map(|key| ("extContractsGroups", key, set)));
                targets
                    .extend(named("netProfile").map(|name| ("netprofiles", format!("{tenant}:{name}"), set)));
                targets
            }
            "rules" => {
                let mut targets = vec![("policys", key_of(tenant, &body["policyName"]), "Rules")];
                let group = named("fromEndpointGroup");
                targets
                    .extend(group.map(|name| ("endpointGroups", format!("{tenant}:{name}"), "MatchRules")));
                targets
            }
            _ => vec![],
        }
    }

    fn link(&mut self, types: &str, key: &str, body: &Value) {
        for (of, target, set) in Model::targets(types, body) {
            if let Some(object) = self.0.get_mut(&(of, target)) {
                object.sets.entry(set).or_default().insert(key.to_owned());
            }
        }
    }

    fn unlink(&mut self, types: &str, key: &str, body: &Value) {
        for (of, target, set) in Model::targets(types, body) {
            if let Some(object) = self.0.get_mut(&(of, target)) {
                object.sets.entry(set).or_default().remove(key);
            }
        }
    }

    fn put(&mut self, types: &'static str, key: &str, body: &Value) {
        let known = self.0.remove(&(types, key.to_owned()));
        let is_new = known.is_none();
        let mut object = known.unwrap_or_default();
        if !is_new {
            self.unlink(types, key, &object.body);
        }
        object.body = body.clone();
        self.0.insert((types, key.to_owned()), object);
        self.link(types, key, body);
        if is_new && types == "endpointGroups" {
            // Rules may refer to a deleted group of the same name.
            let rules = self.0.iter().filter(|((types, _), _)| *types == "rules");
            let rules: Vec<_> = rules.map(|((_, key), rule)| (key.clone(), rule.body.clone())).collect();
            rules.iter().for_each(|(rule, body)| self.link("rules", rule, body));
        }
    }

    fn delete(&mut self, types: &'static str, key: &str) {
        let object = self.0.remove(&(types, key.to_owned())).unwrap();
        self.unlink(types, key, &object.body);
        if types == "policys" {
            for rule in object.sets.get("Rules").into_iter().flatten() {
                self.delete("rules", rule);
            }
        }
    }
}

fn put() -> impl Strategy<Value = Put> {
    let some = || prop::collection::vec(0u8..3, 0..3);
    prop_oneof![
        1 => Just(Put::Tenant),
        3 => (0u8..3).prop_map(Put::Network),
        6 => (0u8..3, 0u8..3, some(), prop::option::of(0u8..2), some()).prop_map(
            |(name, network, policies, profile, contracts)| Put::Group { name, network, policies, profile, contracts }
        ),
        2 => (0u8..3).prop_map(Put::Policy),
        5 => (0u8..3, 0u8..3, prop::option::of(0u8..3)).prop_map(|(policy, id, group)| Put::Rule { policy, id, group }),
        1 => (0u8..2).prop_map(Put::Profile),
        1 => (0u8..3).prop_map(Put::Contracts),
        2 => (0u8..3, 0u8..3).prop_map(|(name, network)| Put::Service { name, network }),
        2 => (0u8..2, some()).prop_map(|(name, groups)| Put::App { name, groups }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0u8..2, put()).prop_map(|(tenant, put)| Step::Put { tenant, put }),
        4 => any::<usize>().prop_map(Step::Delete),
        1 => Just(Step::TakeOver),
    ]
}

fn names(prefix: &str, numbers: &[u8]) -> Vec<String> {
    numbers.iter().map(|n| format!("{prefix}{n}")).collect()
}

/// Types of the path, names that form the key, and body.
fn request(tenant: &str, put: &Put) -> (&'static str, Vec<String>, Value) {
    let (types, name, mut body) = match put {
        Put::Tenant => ("tenants", vec![], json!({})),
        Put::Network(n) => {
            let body =
                json!({"networkName": format!("n{n}"), "encap": "vxlan", "subnet": format!("10.{n}.0.0/24")});
            ("networks", names("n", &[*n]), body)
        }
        Put::Group { name, network, policies, profile, contracts } => {
            let body = json!({"groupName": format!("g{name}"), "networkName": format!("n{network}"),
                "policies": names("p", policies), "extContractsGrps": names("c", contracts),
                "netProfile": profile.map(|n| format!("f{n}")).unwrap_or_default()});
            ("endpointGroups", names("g", &[*name]), body)
        }
        Put::Policy(n) => ("policys", names("p", &[*n]), json!({"policyName": format!("p{n}")})),
        Put::Rule { policy, id, group } => {
            let body = json!({"policyName": format!("p{policy}"), "ruleId": id.to_string(), "direction": "in",
                "action": "allow", "fromEndpointGroup": group.map(|n| format!("g{n}")).unwrap_or_default()});
            ("rules", vec![format!("p{policy}"), id.to_string()], body)
        }
        Put::Profile(n) => ("netprofiles", names("f", &[*n]), json!({"profileName": format!("f{n}")})),
        Put::Contracts(n) => {
            let body = json!({"contractsGroupName": format!("c{n}"), "contractsType": "provided", "contracts": ["x"]});
            ("extContractsGroups", names("c", &[*n]), body)
        }
        Put::Service { name, network } => {
            let body = json!({"serviceName": format!("s{name}"), "networkName": format!("n{network}"),
                "ports": ["80:8080:TCP"], "selectors": ["app=web"]});
            ("serviceLBs", names("s", &[*name]), body)
        }
        Put::App { name, groups } => {
            let body = json!({"appProfileName": format!("a{name}"), "endpointGroups": names("g", groups)});
            ("appProfiles", names("a", &[*name]), body)
        }
    };
    body["tenantName"] = tenant.into();
    (types, [vec![tenant.to_owned()], name].concat(), body)
}

fn list(fixture: &Fixture, types: &str) -> Vec<Value> {
    let list = Type::by_plural(types).unwrap().operations.list;
    let page = list(&fixture.cache, &Scope::All, Selection::default())().unwrap();
    serde_json::from_slice(&page.body).unwrap()
}

/// Derived link sets of an object, in a response or a record. Empty sets are left out.
fn derived(types: &str, object: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let sets = DERIVED.iter().find(|(of, _)| *of == types).map_or(&[][..], |(_, sets)| *sets);
    let mut found = BTreeMap::new();
    for set in sets {
        let Some(links) = object["link-sets"][set].as_object() else { continue };
        assert!(links.iter().all(|(key, link)| link["key"] == **key && link["type"].is_string()), "{object}");
        found.insert((*set).to_owned(), links.keys().cloned().collect());
    }
    found
}

/// The links in responses are those of the model, and no record has any of them.
fn holds(fixture: &Fixture, model: &Model) {
    for (types, _) in DERIVED {
        for object in list(fixture, types) {
            let key = object["key"].as_str().unwrap().to_owned();
            let Some(expected) = model.0.get(&(types, key.clone())) else {
                assert_eq!(key, "default");
                continue;
            };
            let sets = expected.sets.iter().filter(|(_, keys)| !keys.is_empty());
            let sets: BTreeMap<String, _> =
                sets.map(|(set, keys)| ((*set).to_owned(), keys.clone())).collect();
            assert_eq!(derived(types, &object), sets, "{types} {key}");
            let kind = Type::by_plural(types).unwrap().kind.as_str();
            let record = fixture.value(&format!("/contiv.io/obj/modeldb/{kind}/{key}")).unwrap();
            assert_eq!(derived(types, &record), BTreeMap::new(), "{types} {key}");
        }
    }
}

fn carry_out(fixture: &mut Fixture, model: &mut Model, step: &Step) {
    match step {
        Step::Put { tenant, put } => {
            let (types, key, body) = request(&format!("t{tenant}"), put);
            let key = key.join(":");
            if fixture.put(types, &key, &body).is_ok() {
                model.put(types, &key, &body);
            }
        }
        Step::Delete(n) => {
            let Some((types, key)) = model.0.keys().nth(n % model.0.len().max(1)).cloned() else { return };
            if fixture.delete(types, &key).is_ok() {
                model.delete(types, &key);
            }
        }
        Step::TakeOver => {
            assert_eq!(take_over(fixture), "(0, 0)", "nothing is restored after regular requests");
        }
    }
}

/// A new leader loads the state and restores it. Returns the number of keys that it wrote and deleted.
fn take_over(fixture: &mut Fixture) -> String {
    *fixture = fixture.starting();
    format!("{:?}", fixture.restore())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn derived_links_are_those_that_the_original_stores(steps in prop::collection::vec(step(), 0..100)) {
        let (mut fixture, mut model) = (Fixture::new(), Model::default());
        for tenant in 0..2 {
            carry_out(&mut fixture, &mut model, &Step::Put { tenant, put: Put::Tenant });
        }
        for step in &steps {
            carry_out(&mut fixture, &mut model, step);
            holds(&fixture, &model);
        }
        prop_assert_eq!(fixture.loaded().content(), fixture.content());
        prop_assert_eq!(fixture.follower().content(), fixture.content());
    }
}

fn small() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    fixture.put("policys", "default:p", &json!({"tenantName": "default", "policyName": "p"})).unwrap();
    fixture.group("web", "net", "");
    fixture
}

/// Keys that a request writes.
fn written(fixture: &mut Fixture, request: impl FnOnce(&mut Fixture)) -> Vec<String> {
    let before = fixture.changes.len();
    request(fixture);
    let paths = fixture.changes[before..].iter().filter_map(|update| match &update.event {
        Event::Apply(path, _) | Event::Delete(path) => Some(path.clone()),
        Event::Init | Event::InitApply(..) | Event::InitDone => None,
    });
    paths.collect()
}

#[test]
fn objects_are_created_without_writing_those_that_they_refer_to() {
    let mut fixture = small();
    let objects = |keys: Vec<String>| -> Vec<String> {
        keys.into_iter()
            .filter_map(|key| Some(key.strip_prefix("/contiv.io/obj/modeldb/")?.to_owned()))
            .collect()
    };
    let keys = written(&mut fixture, |f| f.network("other", "10.2.0.0/24", json!({})));
    assert_eq!(objects(keys), ["network/default:other"]);
    let keys = written(&mut fixture, |f| f.group("db", "net", ""));
    assert_eq!(objects(keys), ["endpointGroup/default:db"]);
    let rule = json!({"tenantName": "default", "policyName": "p", "ruleId": "1", "direction": "in",
        "action": "allow", "fromEndpointGroup": "web"});
    let keys = written(&mut fixture, |f| drop(f.put("rules", "default:p:1", &rule).unwrap()));
    assert_eq!(keys, ["/contiv.io/obj/modeldb/rule/default:p:1"]);
    let keys = written(&mut fixture, |f| drop(f.delete("rules", "default:p:1").unwrap()));
    assert_eq!(keys, ["/contiv.io/obj/modeldb/rule/default:p:1"]);
    let keys = written(&mut fixture, |f| drop(f.delete("networks", "default:other").unwrap()));
    assert_eq!(objects(keys), ["network/default:other"]);
}

/// The response to a create contains the links to objects that existed before.
#[test]
fn a_group_is_linked_to_the_rules_that_named_it_before() {
    let mut fixture = small();
    let rule = json!({"tenantName": "default", "policyName": "p", "ruleId": "1", "direction": "in",
        "action": "allow", "fromEndpointGroup": "web"});
    fixture.put("rules", "default:p:1", &rule).unwrap();
    fixture.delete("endpointGroups", "default:web").unwrap();
    let body = json!({"tenantName": "default", "groupName": "web", "networkName": "net"});
    let created = fixture.put("endpointGroups", "default:web", &body).unwrap();
    assert_eq!(created["link-sets"]["MatchRules"]["default:p:1"]["type"], "rule");
    assert_eq!(created, list(&fixture, "endpointGroups")[0]);
}

/// Like in the original, links of the request that creates an object are returned. They end with the
/// next leader.
#[test]
fn links_of_requests_are_returned_with_the_derived_ones() {
    let mut fixture = Fixture::new();
    let link = json!({"w:x": {"type": "network", "key": "w:x"}});
    let body = json!({"tenantName": "w", "link-sets": {"Networks": link}});
    let created = fixture.put("tenants", "w", &body).unwrap();
    assert_eq!(created["link-sets"], json!({"Networks": link}));
    let refused = fixture.delete("tenants", "w").unwrap_err().text;
    assert_eq!(refused, "cannot delete w has 1 networks");
    let network = json!({"tenantName": "w", "networkName": "n", "encap": "vxlan", "subnet": "10.1.0.0/24"});
    fixture.put("networks", "w:n", &network).unwrap();
    let names = |fixture: &Fixture| -> Vec<String> {
        derived("tenants", &list(fixture, "tenants")[1])["Networks"].iter().cloned().collect()
    };
    assert_eq!(names(&fixture), ["w:n", "w:x"]);
    assert_eq!(take_over(&mut fixture), "(1, 0)");
    assert_eq!(names(&fixture), ["w:n"]);
}

/// Records of older releases contain the links. A new leader removes them, and keeps what it does not
/// know.
#[test]
fn stored_links_of_older_releases_are_removed() {
    let mut fixture = small();
    let expected = list(&fixture, "tenants");
    let key = "/contiv.io/obj/modeldb/tenant/default";
    let mut tenant = fixture.value(key).unwrap();
    let link = |kind: &str, key: &str| json!({key: {"type": kind, "key": key}});
    tenant["link-sets"] = json!({"Networks": link("network", "default:net"), "newer": 1,
        "EndpointGroups": link("endpointGroup", "default:gone")});
    fixture.edit(key, Some(&tenant));
    assert_eq!(take_over(&mut fixture), "(1, 0)");
    assert_eq!(fixture.value(key).unwrap()["link-sets"], json!({"newer": 1}));
    assert_eq!(list(&fixture, "tenants"), expected);
    assert_eq!(take_over(&mut fixture), "(0, 0)");
}
