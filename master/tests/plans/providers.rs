//! Whatever happens in whatever order: behind a service are the endpoints whose labels contain its selectors, and each
//! address has one holder.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::service;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::lab::Lab;

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
    /// Another netmaster takes over.
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

fn take(lab: &mut Lab, step: &Step) {
    let ip = |at: &Option<u8>| at.map(|n| format!("10.1.0.{n}")).unwrap_or_default();
    // What is refused is refused, and changes nothing: the lab sees to that.
    let _refused = match step {
        Step::Service { name, selectors, at } => {
            let selectors: Vec<String> =
                selectors.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let body = json!({"tenantName": "default", "serviceName": format!("s{name}"), "networkName": "net",
                "selectors": selectors, "ports": ["80:80:TCP"], "ipAddress": ip(at)});
            lab.put("serviceLBs", &format!("default:s{name}"), &body).is_err()
        }
        Step::NoService(name) => lab.delete("serviceLBs", &format!("default:s{name}")).is_err(),
        Step::Endpoint { id, at } => lab.create("net", &format!("c{id}"), "", &ip(at), "").is_err(),
        Step::NoEndpoint(id) => lab.remove("net", &format!("c{id}")).is_err(),
        Step::Start { id, labels } => event(lab, "start", *id, json!(labels)),
        Step::Die(id) => event(lab, "die", *id, Value::Null),
        Step::Load => {
            *lab = lab.loaded();
            false
        }
    };
}

fn event(lab: &mut Lab, event: &str, id: u8, labels: Value) -> bool {
    let body = json!({"Event": event, "Tenant": "default", "Network": "net", "EndpointID": format!("c{id}"),
        "ContainerID": format!("container{id}"), "Labels": labels});
    lab.call("updateEndpoint", &body).is_err()
}

/// By looking at all of them.
fn check(lab: &Lab) {
    let mut held = BTreeSet::new();
    for endpoint in lab.endpoints() {
        assert!(held.insert(endpoint.ip_address.clone()), "{} twice", endpoint.ip_address);
    }
    for service in lab.world.all::<service::State>() {
        assert!(held.insert(service.ip_address.clone()), "{} twice", service.ip_address);
        let chosen = |labels: &BTreeMap<String, String>| {
            service.selectors.iter().flatten().all(|(name, value)| labels.get(name) == Some(value))
        };
        let behind: Vec<String> = lab
            .endpoints()
            .into_iter()
            .filter(|endpoint| endpoint.labels.as_ref().is_some_and(chosen))
            .map(|endpoint| endpoint.ip_address.clone())
            .collect();
        let told = lab.world.get::<service::Providers>(&service.id).unwrap();
        let told: BTreeSet<&String> = told.providers.iter().flatten().collect();
        assert_eq!(told, behind.iter().collect(), "{}", service.id);
        let entries = service.providers.iter().flatten();
        let entries: BTreeSet<&String> = entries.map(|(_, provider)| &provider.ip_address).collect();
        assert_eq!(entries, told);
    }
    // And the subnet's own address, its broadcast address and the gateway.
    assert_eq!(lab.state("net").ip_alloc_map.count(), held.len() + 3);
    assert_eq!(lab.state("net").ep_addr_count as usize, held.len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn providers_are_whom_the_labels_say(steps in prop::collection::vec(step(), 1..40)) {
        let mut lab = Lab::new();
        lab.network("net", "10.1.0.0/28", json!({"gateway": "10.1.0.14"}));
        for step in &steps {
            take(&mut lab, step);
            check(&lab);
        }
        let told = lab.told();
        lab.run(|draft| {
            netmaster::restore::restore(draft);
            Ok(vec![])
        })
        .unwrap();
        assert_eq!(lab.told(), told, "there is nothing to restore");
        assert_eq!(lab.loaded().told(), told);
    }
}
