//! Random sequences of steps: a service has exactly the providers whose labels match its selectors,
//! and each address has one owner.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::service;
use netmaster::access::Scope;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::Fixture;

#[derive(Clone, Debug)]
enum Step {
    Service {
        name: u8,
        selectors: Labels,
        at: Option<u8>,
    },
    NoService(u8),
    Endpoint {
        id: u8,
        at: Option<u8>,
    },
    NoEndpoint(u8),
    Start {
        id: u8,
        labels: Labels,
    },
    Die(u8),
    /// Another netmaster becomes leader.
    Load,
}

type Labels = BTreeMap<&'static str, &'static str>;

fn labels() -> impl Strategy<Value = Labels> {
    let value = || prop::option::of(prop::sample::select(vec!["1", "2"]));
    (value(), value()).prop_map(|(a, b)| {
        let pairs = [("a", a), ("b", b)];
        pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let address = || prop::option::of(1..8u8);
    prop_oneof![
        3 => (0..3u8, labels(), address()).prop_map(|(name, selectors, at)| Step::Service { name, selectors, at }),
        1 => (0..3u8).prop_map(Step::NoService),
        3 => (0..5u8, address()).prop_map(|(id, at)| Step::Endpoint { id, at }),
        1 => (0..5u8).prop_map(Step::NoEndpoint),
        4 => (0..5u8, labels()).prop_map(|(id, labels)| Step::Start { id, labels }),
        1 => (0..5u8).prop_map(Step::Die),
        1 => Just(Step::Load),
    ]
}

fn take(fixture: &mut Fixture, step: &Step) {
    let ip = |at: &Option<u8>| at.map(|n| format!("10.1.0.{n}")).unwrap_or_default();
    // Rejected steps change nothing; `Fixture::run` checks that.
    let _refused = match step {
        Step::Service { name, selectors, at } => {
            let selectors: Vec<String> =
                selectors.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let body = json!({"tenantName": "default", "serviceName": format!("s{name}"), "networkName": "net",
                "selectors": selectors, "ports": ["80:80:TCP"], "ipAddress": ip(at)});
            fixture.put("serviceLBs", &format!("default:s{name}"), &body).is_err()
        }
        Step::NoService(name) => fixture.delete("serviceLBs", &format!("default:s{name}")).is_err(),
        Step::Endpoint { id, at } => fixture.create("net", &format!("c{id}"), "", &ip(at), "").is_err(),
        Step::NoEndpoint(id) => fixture.remove("net", &format!("c{id}")).is_err(),
        Step::Start { id, labels } => event(fixture, "start", *id, json!(labels)),
        Step::Die(id) => event(fixture, "die", *id, Value::Null),
        Step::Load => {
            *fixture = fixture.loaded();
            false
        }
    };
}

fn event(fixture: &mut Fixture, event: &str, id: u8, labels: Value) -> bool {
    let body = json!({"Event": event, "Tenant": "default", "Network": "net", "EndpointID": format!("c{id}"),
        "ContainerID": format!("container{id}"), "Labels": labels});
    fixture.call("updateEndpoint", &body).is_err()
}

/// Computes the expected providers from all endpoints.
fn check(fixture: &Fixture) {
    let (mut held, mut one_by_one) = (BTreeSet::new(), vec![]);
    for endpoint in fixture.endpoints() {
        assert!(held.insert(endpoint.ip_address.clone()), "{} twice", endpoint.ip_address);
    }
    for service in fixture.cache.all::<service::State>() {
        assert!(held.insert(service.ip_address.clone()), "{} twice", service.ip_address);
        let chosen = |labels: &BTreeMap<String, String>| {
            service.selectors.iter().flatten().all(|(name, value)| labels.get(name) == Some(value))
        };
        let behind: Vec<String> = fixture
            .endpoints()
            .into_iter()
            .filter(|endpoint| endpoint.labels.as_ref().is_some_and(chosen))
            .map(|endpoint| endpoint.ip_address.clone())
            .collect();
        let content = fixture.cache.get::<service::Providers>(&service.id).unwrap();
        let content: BTreeSet<&String> = content.providers.iter().flatten().collect();
        assert_eq!(content, behind.iter().collect(), "{}", service.id);
        let body = netmaster::reports::service_state(&fixture.cache, &service.id, &Scope::All)().unwrap();
        let [state]: [service::State; 1] = serde_json::from_slice(&body).unwrap();
        let entries = state.providers.iter().flatten();
        let entries: BTreeSet<&String> = entries.map(|(_, provider)| &provider.ip_address).collect();
        assert_eq!(entries, content);
        one_by_one.push(state);
    }
    let body = netmaster::reports::service_states(&fixture.cache, &Scope::All)().unwrap();
    assert_eq!(serde_json::from_slice::<Vec<service::State>>(&body).unwrap(), one_by_one);
    // Includes the subnet address, the broadcast address and the gateway.
    assert_eq!(fixture.state("net").ip_alloc_map.count(), held.len() + 3);
    assert_eq!(fixture.state("net").ep_addr_count as usize, held.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn providers_match_the_labels(steps in prop::collection::vec(step(), 1..40)) {
        let mut fixture = Fixture::new();
        fixture.network("net", "10.1.0.0/28", json!({"gateway": "10.1.0.14"}));
        for step in &steps {
            take(&mut fixture, step);
            check(&fixture);
        }
        let content = fixture.content();
        fixture.run(|staged| {
            netmaster::restore::restore(staged);
            Ok(vec![])
        })
        .unwrap();
        assert_eq!(fixture.content(), content, "there is nothing to restore");
        assert_eq!(fixture.loaded().content(), content);
    }
}

/// Creates endpoint `id` of the tenant and starts its container. Returns its address.
fn labelled(fixture: &mut Fixture, tenant: &str, network: &str, id: &str) -> String {
    labelled_at(fixture, tenant, network, id, "")
}

/// As [`labelled`], with this address.
fn labelled_at(fixture: &mut Fixture, tenant: &str, network: &str, id: &str, address: &str) -> String {
    let config = json!({"Container": id, "Host": "h", "ServiceName": "", "IPAddress": address});
    let body = json!({"TenantName": tenant, "NetworkName": network, "ConfigEP": config});
    let answer = fixture.call("createEndpoint", &body).unwrap();
    let body = json!({"Event": "start", "Tenant": tenant, "Network": network, "EndpointID": id,
        "ContainerID": format!("{tenant}-{id}"), "Labels": {"app": "web"}});
    fixture.call("updateEndpoint", &body).unwrap();
    answer["EndpointConfig"]["ipAddress"].as_str().unwrap().to_owned()
}

/// Whether few endpoints have the label or many: a service has those of its own tenant, of all its networks.
#[test]
fn tenants_that_use_the_same_labels_do_not_share_providers() {
    for count in [2, 40] {
        let mut fixture = Fixture::new();
        for tenant in ["blue", "red"] {
            fixture.put("tenants", tenant, &json!({"tenantName": tenant})).unwrap();
            for (network, subnet) in [("a", "10.1.0.0/24"), ("b", "10.2.0.0/24")] {
                let body =
                    json!({"tenantName": tenant, "networkName": network, "encap": "vxlan", "subnet": subnet});
                fixture.put("networks", &format!("{tenant}:{network}"), &body).unwrap();
            }
        }
        let mut own = BTreeSet::new();
        for (n, network) in (0..count).flat_map(|n| [(n, "a"), (n, "b")]) {
            // The endpoints of a network have addresses from its beginning on: the other tenant has more of them.
            own.insert(labelled(&mut fixture, "blue", network, &format!("{network}{n}")));
            labelled(&mut fixture, "red", network, &format!("{network}{n}"));
            labelled(&mut fixture, "red", network, &format!("more-{network}{n}"));
        }
        let body = json!({"tenantName": "blue", "serviceName": "s", "networkName": "a", "selectors": ["app=web"],
            "ports": ["80:8080:TCP"], "ipAddress": "10.1.0.200"});
        fixture.put("serviceLBs", "blue:s", &body).unwrap();
        let stored = fixture.cache.get::<service::Providers>("s:blue").unwrap();
        let stored: BTreeSet<String> = stored.providers.iter().flatten().cloned().collect();
        assert_eq!((stored.len(), &stored), (2 * count, &own), "{count}");
        let body = netmaster::reports::service_state(&fixture.cache, "s:blue", &Scope::All)().unwrap();
        let [state]: [service::State; 1] = serde_json::from_slice(&body).unwrap();
        let tenants: Vec<String> =
            state.providers.iter().flatten().map(|(_, provider)| provider.tenant.clone()).collect();
        assert_eq!(tenants, vec!["blue".to_owned(); 2 * count]);
    }
}

/// The ranges of networks do not overlap, but an address outside the range of a network can be requested.
#[test]
fn an_address_on_two_networks_is_a_provider_while_one_of_its_endpoints_runs() {
    for event in ["deleted", "die"] {
        let mut fixture = Fixture::new();
        fixture.network("a", "10.1.1.10-10.1.1.20/24", json!({}));
        fixture.network("b", "10.1.1.30-10.1.1.40/24", json!({}));
        assert_eq!(labelled(&mut fixture, "default", "b", "e2"), "10.1.1.30");
        assert_eq!(labelled_at(&mut fixture, "default", "a", "e1", "10.1.1.30"), "10.1.1.30");
        let body = json!({"tenantName": "default", "serviceName": "s", "networkName": "b", "selectors": ["app=web"],
            "ports": ["80:8080:TCP"], "ipAddress": "10.1.1.40"});
        fixture.put("serviceLBs", "default:s", &body).unwrap();
        let providers = |fixture: &Fixture| -> Vec<String> {
            let stored = fixture.cache.get::<service::Providers>("s:default").unwrap();
            stored.providers.iter().flatten().cloned().collect()
        };
        let stop = |fixture: &mut Fixture, network: &str, id: &str| match event {
            "deleted" => fixture.remove(network, id).unwrap(),
            _ => {
                let body = json!({"Event": event, "Tenant": "default", "Network": network, "EndpointID": id,
                    "ContainerID": format!("default-{id}")});
                fixture.call("updateEndpoint", &body).unwrap();
            }
        };
        assert_eq!(providers(&fixture), ["10.1.1.30"], "{event}");
        stop(&mut fixture, "a", "e1");
        assert_eq!(providers(&fixture), ["10.1.1.30"], "{event}");
        fixture.restore();
        assert_eq!(providers(&fixture), ["10.1.1.30"], "{event}");
        stop(&mut fixture, "b", "e2");
        assert_eq!(providers(&fixture), [""; 0], "{event}");
    }
}
