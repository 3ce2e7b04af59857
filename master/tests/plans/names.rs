//! Names whose keys collide: the store joins names with dots, dashes and colons, which names may
//! contain.

use std::collections::BTreeMap;

use contiv_model::{api, endpoint, network};
use netmaster::audit;
use netmaster::cache::StagedTxn;
use netmaster::problem::Kind;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::Fixture;

fn make_tenant(fixture: &mut Fixture, tenant: &str) {
    fixture.put("tenants", tenant, &json!({"tenantName": tenant})).unwrap();
}

fn make_network(fixture: &mut Fixture, tenant: &str, name: &str, subnet: &str) -> Result<Value, String> {
    let body = json!({"tenantName": tenant, "networkName": name, "encap": "vxlan", "subnet": subnet});
    fixture.put("networks", &format!("{tenant}:{name}"), &body).map_err(|problem| problem.text)
}

fn endpoint(
    fixture: &mut Fixture,
    (tenant, network): (&str, &str),
    container: &str,
    host: &str,
) -> Result<String, String> {
    let config = json!({"Container": container, "Host": host});
    let body = json!({"TenantName": tenant, "NetworkName": network, "ConfigEP": config});
    let answer = fixture.call("createEndpoint", &body).map_err(|problem| problem.text)?;
    Ok(answer["EndpointConfig"]["ipAddress"].as_str().unwrap().to_owned())
}

#[test]
fn networks_of_two_tenants_never_share_a_record() {
    let mut fixture = Fixture::new();
    make_tenant(&mut fixture, "c");
    make_tenant(&mut fixture, "b.c");
    make_network(&mut fixture, "c", "a.b", "10.1.0.0/24").unwrap();
    assert_eq!(endpoint(&mut fixture, ("c", "a.b"), "pod", "h").unwrap(), "10.1.0.1");
    let before = fixture.content();

    assert_eq!(
        make_network(&mut fixture, "b.c", "a", "10.2.0.0/24").unwrap_err(),
        "network a of tenant b.c conflicts with network a.b of tenant c: both have the key /contiv.io/state/nets/a.b.c"
    );
    // No call of the other tenant reaches the record.
    let refused = endpoint(&mut fixture, ("b.c", "a"), "pod", "h").unwrap_err();
    assert!(refused.contains("conflicts with network a.b of tenant c"), "{refused}");
    for (call, body) in [
        ("deleteEndpoint", json!({"TenantName": "b.c", "NetworkName": "a", "EndpointID": "pod"})),
        (
            "updateEndpoint",
            json!({"Tenant": "b.c", "Network": "a", "EndpointID": "pod", "ContainerID": "x", "Event": "start"}),
        ),
    ] {
        assert_eq!(fixture.call(call, &body).unwrap_err().kind, Kind::NotFound, "{call}");
    }
    assert_eq!(fixture.content(), before);
    assert_eq!(fixture.loaded().content(), before);
}

/// A store that an earlier release left: two network objects and one record.
#[test]
fn a_pair_in_the_store_is_reported_and_can_be_taken_apart() {
    let mut fixture = Fixture::new();
    make_tenant(&mut fixture, "c");
    make_tenant(&mut fixture, "b.c");
    make_network(&mut fixture, "c", "a.b", "10.1.0.0/24").unwrap();
    endpoint(&mut fixture, ("c", "a.b"), "pod", "h").unwrap();
    let mut other = fixture.value("/contiv.io/obj/modeldb/network/c:a.b").unwrap();
    other["key"] = "b.c:a".into();
    other["tenantName"] = "b.c".into();
    other["networkName"] = "a".into();
    fixture.break_key("/contiv.io/obj/modeldb/network/b.c:a", Some(&other));
    let mut fixture = fixture.loaded();
    let lines = audit::audit(&StagedTxn::new(&fixture.cache));
    assert_eq!(
        lines,
        [
            "networks a of tenant b.c and a.b of tenant c: all have the key /contiv.io/state/nets/a.b.c, which belongs to \
          network a.b of tenant c; delete the others and create them with other names"
        ]
    );
    assert_eq!(fixture.inspect("networks", "b.c:a").unwrap()["Oper"], json!({}), "another network's state");
    let record = fixture.stored("/contiv.io/state/nets/a.b.c");
    let group = json!({"tenantName": "b.c", "groupName": "g", "networkName": "a"});
    let refused = fixture.put("endpointGroups", "b.c:g", &group).unwrap_err().text;
    assert!(refused.contains("conflicts with network a.b of tenant c"), "{refused}");
    fixture.delete("networks", "b.c:a").unwrap();
    assert_eq!(fixture.stored("/contiv.io/state/nets/a.b.c"), record);
    assert_eq!(endpoint(&mut fixture, ("c", "a.b"), "pod2", "h").unwrap(), "10.1.0.2");
    assert!(audit::audit(&StagedTxn::new(&fixture.cache)).is_empty());
}

#[test]
fn a_record_without_an_object_is_not_taken_over() {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    fixture.group("web", "net", "10.1.0.100-10.1.0.101");
    fixture.create("net", "c1", "web", "", "").unwrap();
    let group = json!({"tenantName": "default", "groupName": "web", "networkName": "net"});
    fixture.break_key("/contiv.io/obj/modeldb/endpointGroup/default:web", None);
    let mut fixture = fixture.loaded();
    let before = fixture.content();
    let refused = fixture.put("endpointGroups", "default:web", &group).unwrap_err().text;
    assert_eq!(
        refused,
        "group web conflicts with a record without an object in the store; delete the key /contiv.io/state/endpointGroups/web:default"
    );
    assert_eq!(fixture.content(), before);
    fixture.break_key("/contiv.io/obj/modeldb/network/default:net", None);
    let mut fixture = fixture.loaded();
    let refused = make_network(&mut fixture, "default", "net", "10.9.0.0/24").unwrap_err();
    assert_eq!(
        refused,
        "network net conflicts with a record without an object in the store; delete the key /contiv.io/state/nets/net.default"
    );
}

#[test]
fn an_update_reaches_no_object_of_other_names() {
    let mut fixture = Fixture::new();
    fixture
        .put("netprofiles", "default:a:b", &json!({"tenantName": "default", "profileName": "a:b"}))
        .unwrap();
    let other = json!({"tenantName": "default:a", "profileName": "b", "DSCP": 9});
    assert_eq!(
        fixture.put("netprofiles", "default:a:b", &other).unwrap_err().text,
        "netprofile default:a:b conflicts with the one with tenantName \"default\" and profileName \"a:b\""
    );
}

#[derive(Clone, Debug)]
enum Step {
    CreateNetwork(String, String),
    DeleteNetwork(String, String),
    CreateEndpoint(String, String, String, String),
    DeleteEndpoint(String, String, String),
    /// A new leader loads the state from the store.
    TakeOver,
}

const TENANTS: [&str; 5] = ["b", "a.b", "a-b", "b.a.b", "b-a"];

fn step() -> impl Strategy<Value = Step> {
    let name = || prop::collection::vec(prop::sample::select(vec!["a", "b"]), 1..4);
    let separators = || prop::collection::vec(prop::sample::select(vec![".", "-"]), 3);
    let name = move || {
        (name(), separators()).prop_map(|(parts, separators)| {
            let pairs = parts.iter().zip(separators).map(|(part, separator)| format!("{part}{separator}"));
            pairs.collect::<String>().trim_end_matches(['.', '-']).to_owned()
        })
    };
    let tenant = || prop::sample::select(TENANTS.to_vec()).prop_map(str::to_owned);
    let free = || {
        let parts = vec!["a", "b", ".", "-", "/", ":", "é", "名", " ", "native-intf"];
        prop::collection::vec(prop::sample::select(parts), 0..4).prop_map(|parts| parts.concat())
    };
    prop_oneof![
        4 => (tenant(), name()).prop_map(|(t, n)| Step::CreateNetwork(t, n)),
        2 => (tenant(), name()).prop_map(|(t, n)| Step::DeleteNetwork(t, n)),
        6 => (tenant(), name(), free(), free()).prop_map(|(t, n, c, h)| Step::CreateEndpoint(t, n, c, h)),
        3 => (tenant(), name(), free()).prop_map(|(t, n, c)| Step::DeleteEndpoint(t, n, c)),
        1 => Just(Step::TakeOver),
    ]
}

/// Names of a tenant and of a network of its.
type TenantNetwork = (String, String);

/// What must exist: subnets of networks, and addresses of endpoints.
#[derive(Default)]
struct Expected {
    networks: BTreeMap<TenantNetwork, String>,
    /// By network and container; by host where there is no container. With network and address.
    endpoints: BTreeMap<(Option<TenantNetwork>, String), (TenantNetwork, String)>,
    subnets: u32,
}

impl Expected {
    fn apply(&mut self, fixture: &mut Fixture, step: &Step) {
        match step {
            Step::CreateNetwork(tenant, name) => {
                self.subnets += 1;
                let base = format!("10.{}.{}.0", self.subnets / 256, self.subnets % 256);
                let known = self.networks.contains_key(&(tenant.clone(), name.clone()));
                let taken =
                    self.networks.keys().any(|(t, n)| format!("{n}.{t}") == format!("{name}.{tenant}"));
                let made = make_network(fixture, tenant, name, &format!("{base}/24"));
                assert_eq!(made.is_ok(), !known && !taken, "{tenant} {name}: {made:?}");
                let Err(why) = made else {
                    self.networks.insert((tenant.clone(), name.clone()), base);
                    return;
                };
                if !known {
                    let (t, n) = self
                        .networks
                        .keys()
                        .find(|(t, n)| format!("{n}.{t}") == format!("{name}.{tenant}"))
                        .unwrap();
                    assert!(why.contains(&format!("conflicts with network {n} of tenant {t}")), "{why}");
                }
            }
            Step::DeleteNetwork(tenant, name) => {
                let key = (tenant.clone(), name.clone());
                let used = self.endpoints.values().any(|(network, _)| *network == key);
                let deleted = fixture.delete("networks", &format!("{tenant}:{name}"));
                assert_eq!(deleted.is_ok(), self.networks.contains_key(&key) && !used, "{deleted:?}");
                if deleted.is_ok() {
                    self.networks.remove(&key);
                }
            }
            Step::CreateEndpoint(tenant, network, container, host) => {
                let of = (tenant.clone(), network.clone());
                let key = match container.as_str() {
                    "" => (None, host.clone()),
                    container => (Some(of.clone()), container.to_owned()),
                };
                let made = endpoint(fixture, (tenant, network), container, host);
                match (made, self.endpoints.get(&key)) {
                    (Ok(ip), Some((_, known))) => assert_eq!(ip, *known, "it exists"),
                    (Ok(ip), None) => {
                        assert!(self.networks.contains_key(&of));
                        self.endpoints.insert(key, (of, ip));
                    }
                    (Err(why), known) => {
                        let collides = why.contains("conflicts with endpoint");
                        assert!(collides && known.is_none() || !self.networks.contains_key(&of), "{why}");
                    }
                }
            }
            Step::DeleteEndpoint(tenant, network, container) => {
                let body = json!({"TenantName": tenant, "NetworkName": network, "EndpointID": container});
                let deleted = fixture.call("deleteEndpoint", &body);
                let known =
                    self.endpoints.remove(&(Some((tenant.clone(), network.clone())), container.clone()));
                assert_eq!(deleted.is_ok(), known.is_some(), "{deleted:?}");
            }
            Step::TakeOver => *fixture = fixture.loaded(),
        }
    }

    /// Every object that was created has its own record, and no other exists.
    fn check(&self, fixture: &Fixture) {
        let cache = &fixture.cache;
        assert_eq!(cache.all::<api::Network>().count(), self.networks.len());
        assert_eq!(cache.allocations::<network::State>().count(), self.networks.len());
        for ((tenant, name), base) in &self.networks {
            let record = cache.allocation::<network::State>(&format!("{name}.{tenant}")).unwrap();
            let body = &record.body;
            assert_eq!((&body.tenant, &body.network_name, &body.subnet_ip), (tenant, name, base));
            let here = self.endpoints.values().filter(|(of, _)| (&of.0, &of.1) == (tenant, name));
            assert_eq!(here.count() as i64, body.ep_count);
        }
        assert_eq!(cache.all::<endpoint::State>().count(), self.endpoints.len());
        for ((_, name), ((tenant, network), ip)) in &self.endpoints {
            let owner = cache.address_owners(&format!("{network}.{tenant}"), ip.parse().unwrap());
            assert_eq!(owner.len(), 1, "{ip} of {name} has owners {owner:?}");
            let record = cache.get::<endpoint::State>(&owner[0]).unwrap();
            assert!(record.endpoint_id == *name || record.homing_host == *name, "{record:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn no_create_takes_over_the_record_of_another_object(steps in prop::collection::vec(step(), 0..60)) {
        let (mut fixture, mut expected) = (Fixture::new(), Expected::default());
        for tenant in TENANTS {
            make_tenant(&mut fixture, tenant);
        }
        for step in &steps {
            expected.apply(&mut fixture, step);
            expected.check(&fixture);
        }
        prop_assert_eq!(fixture.loaded().content(), fixture.content());
    }
}
