//! Services: addresses and providers.

use netmaster::access::Scope;
use netmaster::audit::audit;
use netmaster::cache::StagedTxn;
use netmaster::repair::mark_in_use;
use serde_json::{Value, json};

use crate::fixture::Fixture;

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({"gateway": "10.1.0.254"}));
    fixture
}

fn service(fixture: &mut Fixture, name: &str, selectors: &[&str], more: Value) -> Result<Value, String> {
    let mut body = json!({"tenantName": "default", "serviceName": name, "networkName": "net",
        "selectors": selectors, "ports": ["80:8080:TCP"]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fixture.put("serviceLBs", &format!("default:{name}"), &body).map_err(|problem| problem.text)
}

fn event(fixture: &mut Fixture, event: &str, id: &str, labels: Value) -> Result<Value, String> {
    let body = json!({"Event": event, "Tenant": "default", "Network": "net", "EndpointID": id,
        "ContainerID": format!("{id}-container"), "EPCommonName": id, "Labels": labels, "IPAddress": "1.2.3.4"});
    fixture.call("updateEndpoint", &body).map_err(|problem| problem.text)
}

/// Creates an endpoint and starts its container.
fn pod(fixture: &mut Fixture, id: &str, labels: Value) -> String {
    let (ip, _) = fixture.create("net", id, "", "", "").unwrap();
    assert_eq!(event(fixture, "start", id, labels).unwrap(), json!({"IPAddress": "1.2.3.4"}));
    ip
}

/// The state with the providers, as `/service/` answers it.
fn state(fixture: &Fixture, name: &str) -> Value {
    let id = format!("{name}:default");
    let body = netmaster::reports::service_state(&fixture.cache, &id, &Scope::All)().unwrap();
    let state = serde_json::from_slice::<Value>(&body).unwrap()[0].take();
    let mut stored = state.clone();
    stored["providers"] = json!({});
    assert_eq!(fixture.value(&format!("/contiv.io/state/serviceLB/{id}")).unwrap(), stored);
    let all = netmaster::reports::service_states(&fixture.cache, &Scope::All)().unwrap();
    let all: Vec<Value> = serde_json::from_slice(&all).unwrap();
    assert!(all.contains(&state), "{state}: {all:?}");
    state
}

fn vip(fixture: &Fixture, name: &str) -> Value {
    state(fixture, name)["ipaddress"].clone()
}

/// Provider addresses as agents read them.
fn behind(fixture: &Fixture, name: &str) -> Value {
    fixture.value(&format!("/contiv.io/state/provider/{name}:default")).unwrap()["Providers"].clone()
}

#[test]
fn bodies_have_the_originals_format() {
    let mut fixture = fixture();
    let made = service(&mut fixture, "s", &["app=web"], json!({})).unwrap();
    let links = json!({"Network": {"type": "network", "key": "default:net"},
        "Tenant": {"type": "tenant", "key": "default"}});
    assert_eq!(made["links"], links);
    assert_eq!(
        fixture.value("/contiv.io/state/provider/s:default").unwrap(),
        json!({"id": "s:default", "ServiceName": "s:default", "Providers": null})
    );
    assert_eq!(fixture.value("/contiv.io/obj/modeldb/serviceLB/default:s").unwrap(), made);
    let set = json!({"default:s": {"type": "serviceLB", "key": "default:s"}});
    for (types, key) in [("tenants", "default"), ("networks", "default:net")] {
        assert_eq!(fixture.inspect(types, key).unwrap()["Config"]["link-sets"]["Servicelbs"], set);
    }
    assert_eq!(fixture.inspect("tenants", "default").unwrap()["Oper"]["totalServicelbs"], 1);
    assert_eq!(
        fixture.inspect("serviceLBs", "default:s").unwrap()["Oper"],
        json!({"serviceVip": "10.1.0.1"})
    );

    let ip = pod(&mut fixture, "c1", json!({"app": "web", "tier": "1"}));
    assert_eq!(
        state(&fixture, "s"),
        json!({"id": "s:default", "servicename": "s", "tenantname": "default", "subnet": "net",
            "ports": ["80:8080:TCP"], "selectors": {"app": "web"}, "ipaddress": "10.1.0.1",
            "providers": {format!("{ip}:default"): {"IPAddress": ip, "ContainerID": "c1-container",
                "Labels": {"app": "web", "tier": "1"}, "Tenant": "default", "Network": "net",
                "Services": ["s:default"], "Container": "", "EpIDKey": "net.default-c1"}}})
    );
    assert_eq!(behind(&fixture, "s"), json!([ip]));
    let oper = fixture.inspect("serviceLBs", "default:s").unwrap()["Oper"].clone();
    assert_eq!((&oper["numProviders"], &oper["providers"][0]["serviceName"]), (&json!(1), &json!("s")));
    assert_eq!(oper["providers"][0]["labels"], "map[app:web tier:1]");
    assert_eq!(fixture.loaded().content(), fixture.content());

    let refused = fixture.delete("networks", "default:net").unwrap_err().text;
    assert_eq!(refused, "cannot delete net has 1 services ");
    fixture.delete("serviceLBs", "default:s").unwrap();
    for prefix in ["state/serviceLB", "state/provider", "obj/modeldb/serviceLB"] {
        assert_eq!(fixture.keys(&format!("/contiv.io/{prefix}")), [""; 0]);
    }
    assert_eq!(fixture.create("net", "c2", "", "", "").unwrap().0, "10.1.0.1");
}

#[test]
fn errors_are_checked_in_the_originals_order() {
    let mut fixture = fixture();
    let ports = "Invalid Port maping . Port format is - Port:TargetPort:Protocol";
    let mut refused =
        |selectors: &[&str], more: Value| service(&mut fixture, "s", selectors, more).unwrap_err();
    assert_eq!(refused(&[], json!({"ports": []})), "Invalid selector options");
    for wrong in ["80", "80:8080", "x:8080:TCP", "80::TCP", "80:8080:SCTP"] {
        assert_eq!(refused(&["a=b"], json!({"ports": [wrong], "tenantName": "default"})), ports, "{wrong}");
    }
    // The original accepts these.
    for wrong in [
        json!(["80:8080:TCP", "x"]),
        json!(["0:8080:TCP"]),
        json!(["80:65536:TCP"]),
        json!(["80:-1:TCP"]),
        json!(["80:8080:TCP", "80:8081:tcp"]),
    ] {
        let error = refused(&["a=b"], json!({"ports": wrong}));
        assert!(error.starts_with(&format!("{ports}; ")), "{wrong}: {error}");
    }
    assert_eq!(refused(&["a=b"], json!({"networkName": "no"})), "Network no not found");
    for wrong in ["a", "a=b=c", "=b"] {
        let error = format!("Invalid selector {wrong}. selector format is key1=value1");
        assert_eq!(refused(&["a=b", wrong], json!({})), error);
    }
    let body = json!({"tenantName": "t", "serviceName": "s", "networkName": "net", "selectors": ["a=b"],
        "ports": ["80:80:TCP"]});
    assert_eq!(fixture.put("serviceLBs", "t:s", &body).unwrap_err().text, "Tenant t not found");
    service(&mut fixture, "s", &["a="], json!({"ports": ["80:1:tcp", "80:2:Udp"]})).unwrap();
}

#[test]
fn an_address_has_one_owner() {
    let mut fixture = fixture();
    let at = |fixture: &mut Fixture, name: &str, ip: &str| {
        service(fixture, name, &["a=b"], json!({"ipAddress": ip}))
    };
    let taken = |ip: &str| Err(format!("address {ip} is in use"));
    at(&mut fixture, "a", "10.1.0.9").unwrap();
    assert_eq!(at(&mut fixture, "b", "10.1.0.9"), taken("10.1.0.9"));
    assert_eq!(at(&mut fixture, "b", "10.1.0.254"), taken("10.1.0.254"));
    assert!(at(&mut fixture, "b", "10.9.0.1").unwrap_err().contains("exceeding beyond subnet"));
    assert_eq!(fixture.create("net", "c", "", "10.1.0.9", "").unwrap_err(), "address 10.1.0.9 is in use");
    let released = fixture.release("net.default", "10.1.0.9");
    assert_eq!(released, Err("address 10.1.0.9 is in use by service a:default".into()));
    fixture.create("net", "c", "", "10.1.0.7", "").unwrap();
    assert_eq!(at(&mut fixture, "b", "10.1.0.7"), taken("10.1.0.7"));
    fixture.alloc("net.default", "10.1.0.0/24", "10.1.0.8").unwrap();
    assert_eq!(at(&mut fixture, "b", "10.1.0.8"), taken("10.1.0.8"));
    let mut fixture = fixture.loaded();
    assert_eq!(fixture.create("net", "d", "", "10.1.0.9", "").unwrap_err(), "address 10.1.0.9 is in use");
    fixture.delete("serviceLBs", "default:a").unwrap();
    at(&mut fixture, "b", "10.1.0.9").unwrap();

    // An address of a group's pool returns to the pool.
    fixture.group("g", "net", "10.1.0.20-10.1.0.20");
    at(&mut fixture, "c", "10.1.0.20").unwrap();
    assert!(fixture.create("net", "e", "g", "", "").is_err());
    fixture.delete("serviceLBs", "default:c").unwrap();
    assert_eq!(fixture.create("net", "e", "g", "", "").unwrap().0, "10.1.0.20");
    let used = fixture.state("net").ip_alloc_map.count();
    assert_eq!(used, 3 + 3 + 1, "network, broadcast, gateway; c, an allocated one, b; the pool");
}

#[test]
fn the_order_of_creation_does_not_matter() {
    let mut before = fixture();
    let mut after = fixture();
    let pods = [
        ("c1", json!({"app": "web"})),
        ("c2", json!({"app": "web", "tier": "1"})),
        ("c3", json!({"app": "db", "tier": "1"})),
        ("c4", Value::Null),
    ];
    let services = [("all", vec!["app=web"]), ("one", vec!["app=web", "tier=1"]), ("none", vec!["app=x"])];
    for (n, (name, selectors)) in services.iter().enumerate() {
        let at = json!({"ipAddress": format!("10.1.0.{}", 100 + n)});
        service(&mut before, name, selectors, at).unwrap();
    }
    for (id, labels) in &pods {
        pod(&mut before, id, labels.clone());
        pod(&mut after, id, labels.clone());
    }
    for (n, (name, selectors)) in services.iter().enumerate() {
        let at = json!({"ipAddress": format!("10.1.0.{}", 100 + n)});
        service(&mut after, name, selectors, at).unwrap();
    }
    for fixture in [&before, &after] {
        assert_eq!(behind(fixture, "all"), json!(["10.1.0.1", "10.1.0.2"]));
        assert_eq!(behind(fixture, "one"), json!(["10.1.0.2"]));
        assert_eq!(behind(fixture, "none"), Value::Null);
        assert_eq!(
            state(fixture, "one")["providers"]["10.1.0.2:default"]["Services"],
            json!(["all:default", "one:default"])
        );
    }
    assert_eq!(before.loaded().content(), before.content());

    // A container that exits, one whose endpoint is deleted, and one that gets more labels.
    for fixture in [&mut before, &mut after] {
        assert_eq!(event(fixture, "die", "c1", Value::Null).unwrap(), json!({"IPAddress": "1.2.3.4"}));
        assert_eq!(event(fixture, "die", "c1", Value::Null).unwrap(), Value::Null);
        assert_eq!(behind(fixture, "all"), json!(["10.1.0.2"]));
        fixture.remove("net", "c2").unwrap();
        assert_eq!((behind(fixture, "all"), behind(fixture, "one")), (Value::Null, Value::Null));
        event(fixture, "start", "c3", json!({"app": "x"})).unwrap();
        assert_eq!(behind(fixture, "none"), json!(["10.1.0.3"]));
        let labels = fixture.value("/contiv.io/state/eps/net.default-c3").unwrap()["labels"].clone();
        assert_eq!(labels, json!({"app": "x", "tier": "1"}));
        assert_eq!(fixture.loaded().content(), fixture.content());
    }
}

#[test]
fn a_changed_service_keeps_its_address() {
    let mut fixture = fixture();
    service(&mut fixture, "s", &["app=web"], json!({})).unwrap();
    pod(&mut fixture, "c1", json!({"app": "web"}));
    pod(&mut fixture, "c2", json!({"app": "db"}));
    let untouched = state(&fixture, "s");
    let echo = service(&mut fixture, "s", &["app=web"], json!({"ipAddress": "10.1.0.50"})).unwrap();
    assert_eq!(echo["links"]["Network"]["key"], "default:net");
    assert_eq!(state(&fixture, "s"), untouched);
    let object = fixture.value("/contiv.io/obj/modeldb/serviceLB/default:s").unwrap();
    assert_eq!((&object["ipAddress"], &object["links"]), (&json!("10.1.0.50"), &echo["links"]));

    service(&mut fixture, "s", &["app=db"], json!({"ports": ["81:81:UDP"]})).unwrap();
    assert_eq!((vip(&fixture, "s"), behind(&fixture, "s")), (json!("10.1.0.1"), json!(["10.1.0.3"])));
    assert_eq!(state(&fixture, "s")["ports"], json!(["81:81:UDP"]));
    event(&mut fixture, "die", "c2", Value::Null).unwrap();
    assert_eq!(behind(&fixture, "s"), Value::Null);

    fixture.network("other", "10.2.0.0/24", json!({}));
    let moved = service(&mut fixture, "s", &["app=db"], json!({"networkName": "other"}));
    assert_eq!(moved, Err("Cannot change network association after service is created.".into()));
    assert_eq!(fixture.loaded().content(), fixture.content());
}

#[test]
fn invalid_events_change_nothing() {
    let mut fixture = fixture();
    service(&mut fixture, "s", &["app=web"], json!({})).unwrap();
    fixture.group("g", "net", "");
    fixture.create("net", "c1", "g", "", "").unwrap();
    let call = |fixture: &mut Fixture, more: Value| {
        let mut body = json!({"Event": "start", "Tenant": "default", "Network": "net", "EndpointID": "c1",
            "ContainerID": "x", "Labels": {"app": "web"}, "IPAddress": "10.1.0.2"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        fixture.call("updateEndpoint", &body).map_err(|problem| problem.text)
    };
    for more in [json!({"Network": "no"}), json!({"EndpointID": "no"}), json!({"Tenant": "no"})] {
        assert_eq!(call(&mut fixture, more), Err("key not found".into()));
    }
    let nameless =
        "invalid ProviderID from providerInfo:{&{10.1.0.2  map[app:web] default net []  net.default-c1}}";
    assert_eq!(call(&mut fixture, json!({"ContainerID": ""})), Err(nameless.into()));
    let nameless = "invalid containerID in UpdateEndpointRequest:(nil)";
    assert_eq!(call(&mut fixture, json!({"ContainerID": "", "Event": "die"})), Err(nameless.into()));
    assert_eq!(call(&mut fixture, json!({"Event": "die"})), Ok(Value::Null));
    assert_eq!(call(&mut fixture, json!({"Event": "pause"})), Ok(json!({"IPAddress": "10.1.0.2"})));
    assert_eq!(behind(&fixture, "s"), Value::Null);

    // The network may be given by the name of a group on it.
    call(&mut fixture, json!({"Network": "g"})).unwrap();
    assert_eq!(behind(&fixture, "s"), json!(["10.1.0.2"]));
    // Services of another tenant do not see it.
    fixture.put("tenants", "t", &json!({"tenantName": "t"})).unwrap();
    let network = json!({"tenantName": "t", "networkName": "net", "encap": "vlan", "subnet": "10.1.0.0/24"});
    fixture.put("networks", "t:net", &network).unwrap();
    let body = json!({"tenantName": "t", "serviceName": "s", "networkName": "net", "selectors": ["app=web"],
        "ports": ["80:80:TCP"]});
    fixture.put("serviceLBs", "t:s", &body).unwrap();
    assert_eq!(fixture.value("/contiv.io/state/provider/s:t").unwrap()["Providers"], Value::Null);
}

fn restore(fixture: &mut Fixture) {
    fixture
        .run(|staged| {
            netmaster::restore::restore(staged);
            Ok(vec![])
        })
        .unwrap();
}

#[test]
fn service_states_are_restored() {
    let mut fixture = fixture();
    service(&mut fixture, "s", &["app=web"], json!({})).unwrap();
    pod(&mut fixture, "c1", json!({"app": "web"}));
    service(&mut fixture, "t", &["app=web"], json!({})).unwrap();
    let whole = fixture.content();
    restore(&mut fixture);
    assert_eq!(fixture.content(), whole);
    fixture.break_key("/contiv.io/state/provider/s:default", None);
    fixture.break_key("/contiv.io/state/serviceLB/gone:default", Some(&json!({"id": "gone:default"})));
    for key in ["gone:default", "gone:default/1", "never:default/1"] {
        fixture.break_key(&format!("/contiv.io/state/provider/{key}"), Some(&json!({"id": key})));
    }
    let mut body = fixture.value("/contiv.io/state/serviceLB/t:default").unwrap();
    body["selectors"] = json!({});
    fixture.break_key("/contiv.io/state/serviceLB/t:default", Some(&body));
    let mut tenant = fixture.value("/contiv.io/obj/modeldb/tenant/default").unwrap();
    tenant["link-sets"] = json!({});
    fixture.break_key("/contiv.io/obj/modeldb/tenant/default", Some(&tenant));
    let mut fixture = fixture.loaded();
    assert_ne!(fixture.content(), whole);
    restore(&mut fixture);
    assert_eq!(fixture.content(), whole);
    assert_eq!(fixture.loaded().content(), whole);
}

#[test]
fn addresses_of_services_are_allocated_again_if_a_record_lost_them() {
    const RECORD: &str = "/contiv.io/state/nets/net.default";
    let mut good = fixture();
    let fresh = good.value(RECORD).unwrap();
    service(&mut good, "s", &["app=web"], json!({})).unwrap();
    assert_eq!(vip(&good, "s"), "10.1.0.1");
    // Another program restores the old record.
    let mut fixture = good.loaded();
    let mut body = fixture.value(RECORD).unwrap();
    for name in ["ipAllocMap", "epAddrCount"] {
        body[name] = fresh[name].clone();
    }
    fixture.edit(RECORD, Some(&body));
    let mut fixture = fixture.loaded();
    let audited = |fixture: &Fixture| audit(&StagedTxn::new(&fixture.cache));
    let is = "service s:default: address 10.1.0.1 is not allocated on network net.default";
    assert_eq!(audited(&fixture), [is]);
    let lines = fixture.run(|staged| Ok(mark_in_use(staged).concat().into_bytes())).unwrap();
    let was = "service s:default: address 10.1.0.1 was not allocated on network net.default";
    assert_eq!(String::from_utf8(lines).unwrap(), was);
    assert_eq!(audited(&fixture), [""; 0]);
    assert_eq!(fixture.create("net", "a", "", "", "").unwrap().0, "10.1.0.2");
    assert_eq!(fixture.run(|staged| Ok(mark_in_use(staged).concat().into_bytes())).unwrap(), b"");

    // The original's netmaster allocated the address twice.
    let endpoint = "/contiv.io/state/eps/net.default-a";
    let mut body = fixture.value(endpoint).unwrap();
    body["ipAddress"] = "10.1.0.1".into();
    fixture.edit(endpoint, Some(&body));
    let twice =
        "address 10.1.0.1 on network net.default: used by service s:default and endpoint net.default-a";
    assert_eq!(audited(&fixture.loaded()), [twice]);
}

/// Slices of service `s`: their keys, and the addresses in them.
fn slices(fixture: &Fixture) -> Vec<(String, Vec<String>)> {
    let prefix = "/contiv.io/state/provider/";
    let keys = fixture.keys(prefix).into_iter().filter(|key| key.contains("/s:default"));
    let addresses = |key: &str| {
        let list = fixture.value(key).unwrap()["Providers"].take();
        serde_json::from_value::<Option<Vec<String>>>(list).unwrap().unwrap_or_default()
    };
    keys.map(|key| (key.strip_prefix(prefix).unwrap().to_owned(), addresses(key))).collect()
}

fn sizes(fixture: &Fixture) -> Vec<(String, usize)> {
    slices(fixture).into_iter().map(|(key, addresses)| (key, addresses.len())).collect()
}

fn sized(expected: &[(&str, usize)]) -> Vec<(String, usize)> {
    expected.iter().map(|(key, size)| ((*key).to_owned(), *size)).collect()
}

/// A change of a provider writes one slice, and no other address moves.
#[test]
fn many_providers_are_stored_in_slices() {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/22", json!({}));
    service(&mut fixture, "s", &["app=web"], json!({"ipAddress": "10.1.3.254"})).unwrap();
    for n in 0..600 {
        pod(&mut fixture, &format!("c{n}"), json!({"app": "web"}));
    }
    let full = [("s:default", 256), ("s:default/1", 256), ("s:default/2", 88)];
    assert_eq!(sizes(&fixture), sized(&full));
    let before = slices(&fixture);
    let of = |fixture: &Fixture, key: &str| {
        fixture.stored(&format!("/contiv.io/state/provider/{key}")).mod_revision
    };
    let revisions = full.map(|(key, _)| of(&fixture, key));
    event(&mut fixture, "die", "c300", Value::Null).unwrap();
    let changed: Vec<bool> =
        full.iter().zip(revisions).map(|((key, _), revision)| of(&fixture, key) != revision).collect();
    assert_eq!(changed, [false, true, false]);
    event(&mut fixture, "start", "c300", json!({"app": "web"})).unwrap();
    assert_eq!(slices(&fixture), before, "the slice with room gets it");
    let one = fixture.stored("/contiv.io/state/serviceLB/s:default").value.len();
    assert!(one < 300, "{one} bytes");
    assert_eq!(state(&fixture, "s")["providers"].as_object().unwrap().len(), 600);
    let content = fixture.content();
    restore(&mut fixture);
    assert_eq!(fixture.content(), content, "there is nothing to restore");
    assert_eq!(fixture.loaded().content(), content);

    // A missing slice is filled again.
    fixture.break_key("/contiv.io/state/provider/s:default/1", None);
    let mut lost = fixture.loaded();
    restore(&mut lost);
    assert_eq!(slices(&lost), before);

    // An older release has one list of any size, and the providers in the state.
    let whole: Vec<String> = before.into_iter().flat_map(|(_, addresses)| addresses).collect();
    for number in [1, 2] {
        fixture.break_key(&format!("/contiv.io/state/provider/s:default/{number}"), None);
    }
    let list = json!({"id": "s:default", "ServiceName": "s:default", "Providers": whole});
    fixture.break_key("/contiv.io/state/provider/s:default", Some(&list));
    let old = state(&lost, "s");
    fixture.break_key("/contiv.io/state/serviceLB/s:default", Some(&old));
    let mut fixture = fixture.loaded();
    restore(&mut fixture);
    assert_eq!(sizes(&fixture), sized(&full));
    assert_eq!(state(&fixture, "s"), old);

    // Agents take the deletion of a slice of an existing service for a loss of data.
    service(&mut fixture, "s", &["app=none"], json!({})).unwrap();
    assert_eq!(sizes(&fixture), full.map(|(key, _)| (key.to_owned(), 0)));
    service(&mut fixture, "s", &["app=web"], json!({})).unwrap();
    assert_eq!(sizes(&fixture), sized(&full));
    fixture.delete("serviceLBs", "default:s").unwrap();
    assert_eq!(slices(&fixture), []);
}

/// Each call adds labels to those of earlier calls.
#[test]
fn labels_of_an_endpoint_are_limited() {
    let mut fixture = fixture();
    pod(&mut fixture, "c1", json!({"app": "web"}));
    let labels = |names: std::ops::Range<usize>, value: &str| {
        let labels = names.map(|n| (format!("n{n:06}"), Value::from(value)));
        Value::Object(labels.collect())
    };
    let count = |fixture: &Fixture| fixture.endpoints()[0].labels.as_ref().unwrap().len();
    event(&mut fixture, "start", "c1", labels(0..1000, "")).unwrap();
    assert_eq!(
        event(&mut fixture, "start", "c1", labels(990..1024, "")).unwrap_err(),
        "endpoint net.default-c1 would have 1025 labels with those of earlier calls; the limit is 1024; the event die removes them"
    );
    assert_eq!(count(&fixture), 1001);
    event(&mut fixture, "start", "c1", labels(990..1023, "")).unwrap();
    assert_eq!(count(&fixture), 1024);
    // Labels are replaced by their names, and the container is started again.
    event(&mut fixture, "start", "c1", labels(0..1, "other")).unwrap();
    event(&mut fixture, "die", "c1", Value::Null).unwrap();

    let large = "v".repeat(1017);
    event(&mut fixture, "start", "c1", labels(0..60, &large)).unwrap();
    event(&mut fixture, "start", "c1", labels(60..64, &large)).unwrap();
    assert_eq!(
        event(&mut fixture, "start", "c1", json!({"": "v"})).unwrap_err(),
        "endpoint net.default-c1 would have 65537 bytes of labels with those of earlier calls; the limit is 65536; the event die removes them"
    );
    event(&mut fixture, "start", "c1", labels(0..64, &large)).unwrap();
    // An earlier release has accepted more.
    let key = "/contiv.io/state/eps/net.default-c1";
    let mut record = fixture.value(key).unwrap();
    record["labels"]["old"] = "v".repeat(100_000).into();
    fixture.break_key(key, Some(&record));
    let mut fixture = fixture.loaded();
    event(&mut fixture, "start", "c1", labels(0..64, "")).unwrap();
    let refused = event(&mut fixture, "start", "c1", labels(0..1, "v")).unwrap_err();
    assert!(refused.contains("would have 100452 bytes of labels"), "{refused}");
}
