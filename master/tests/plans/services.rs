//! Services: addresses and providers.

use serde_json::{Value, json};

use crate::lab::Lab;

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.network("net", "10.1.0.0/24", json!({"gateway": "10.1.0.254"}));
    lab
}

fn service(lab: &mut Lab, name: &str, selectors: &[&str], more: Value) -> Result<Value, String> {
    let mut body = json!({"tenantName": "default", "serviceName": name, "networkName": "net",
        "selectors": selectors, "ports": ["80:8080:TCP"]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lab.put("serviceLBs", &format!("default:{name}"), &body).map_err(|problem| problem.text)
}

fn event(lab: &mut Lab, event: &str, id: &str, labels: Value) -> Result<Value, String> {
    let body = json!({"Event": event, "Tenant": "default", "Network": "net", "EndpointID": id,
        "ContainerID": format!("{id}-container"), "EPCommonName": id, "Labels": labels, "IPAddress": "1.2.3.4"});
    lab.call("updateEndpoint", &body).map_err(|problem| problem.text)
}

/// Creates an endpoint and starts its container.
fn pod(lab: &mut Lab, id: &str, labels: Value) -> String {
    let (ip, _) = lab.create("net", id, "", "", "").unwrap();
    assert_eq!(event(lab, "start", id, labels).unwrap(), json!({"IPAddress": "1.2.3.4"}));
    ip
}

fn state(lab: &Lab, name: &str) -> Value {
    lab.value(&format!("/contiv.io/state/serviceLB/{name}:default")).unwrap()
}

fn vip(lab: &Lab, name: &str) -> Value {
    state(lab, name)["ipaddress"].clone()
}

/// Provider addresses as agents read them.
fn behind(lab: &Lab, name: &str) -> Value {
    lab.value(&format!("/contiv.io/state/provider/{name}:default")).unwrap()["Providers"].clone()
}

#[test]
fn bodies_have_the_originals_format() {
    let mut lab = lab();
    let made = service(&mut lab, "s", &["app=web"], json!({})).unwrap();
    let links = json!({"Network": {"type": "network", "key": "default:net"},
        "Tenant": {"type": "tenant", "key": "default"}});
    assert_eq!(made["links"], links);
    assert_eq!(
        lab.value("/contiv.io/state/provider/s:default").unwrap(),
        json!({"id": "s:default", "ServiceName": "s:default", "Providers": null})
    );
    assert_eq!(lab.value("/contiv.io/obj/modeldb/serviceLB/default:s").unwrap(), made);
    let set = json!({"default:s": {"type": "serviceLB", "key": "default:s"}});
    for object in ["tenant/default", "network/default:net"] {
        let object = lab.value(&format!("/contiv.io/obj/modeldb/{object}")).unwrap();
        assert_eq!(object["link-sets"]["Servicelbs"], set);
    }
    assert_eq!(lab.inspect("tenants", "default").unwrap()["Oper"]["totalServicelbs"], 1);
    assert_eq!(lab.inspect("serviceLBs", "default:s").unwrap()["Oper"], json!({"serviceVip": "10.1.0.1"}));

    let ip = pod(&mut lab, "c1", json!({"app": "web", "tier": "1"}));
    assert_eq!(
        state(&lab, "s"),
        json!({"id": "s:default", "servicename": "s", "tenantname": "default", "subnet": "net",
            "ports": ["80:8080:TCP"], "selectors": {"app": "web"}, "ipaddress": "10.1.0.1",
            "providers": {format!("{ip}:default"): {"IPAddress": ip, "ContainerID": "c1-container",
                "Labels": {"app": "web", "tier": "1"}, "Tenant": "default", "Network": "net",
                "Services": ["s:default"], "Container": "", "EpIDKey": "net.default-c1"}}})
    );
    assert_eq!(behind(&lab, "s"), json!([ip]));
    let oper = lab.inspect("serviceLBs", "default:s").unwrap()["Oper"].clone();
    assert_eq!((&oper["numProviders"], &oper["providers"][0]["serviceName"]), (&json!(1), &json!("s")));
    assert_eq!(oper["providers"][0]["labels"], "map[app:web tier:1]");
    assert_eq!(lab.loaded().content(), lab.content());

    let refused = lab.delete("networks", "default:net").unwrap_err().text;
    assert_eq!(refused, "cannot delete net has 1 services ");
    lab.delete("serviceLBs", "default:s").unwrap();
    for prefix in ["state/serviceLB", "state/provider", "obj/modeldb/serviceLB"] {
        assert_eq!(lab.keys(&format!("/contiv.io/{prefix}")), [""; 0]);
    }
    assert_eq!(lab.create("net", "c2", "", "", "").unwrap().0, "10.1.0.1");
}

#[test]
fn errors_are_checked_in_the_originals_order() {
    let mut lab = lab();
    let ports = "Invalid Port maping . Port format is - Port:TargetPort:Protocol";
    let mut refused = |selectors: &[&str], more: Value| service(&mut lab, "s", selectors, more).unwrap_err();
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
    assert_eq!(lab.put("serviceLBs", "t:s", &body).unwrap_err().text, "Tenant t not found");
    service(&mut lab, "s", &["a="], json!({"ports": ["80:1:tcp", "80:2:Udp"]})).unwrap();
}

#[test]
fn an_address_has_one_owner() {
    let mut lab = lab();
    let at = |lab: &mut Lab, name: &str, ip: &str| service(lab, name, &["a=b"], json!({"ipAddress": ip}));
    let taken = |ip: &str| Err(format!("address {ip} is in use"));
    at(&mut lab, "a", "10.1.0.9").unwrap();
    assert_eq!(at(&mut lab, "b", "10.1.0.9"), taken("10.1.0.9"));
    assert_eq!(at(&mut lab, "b", "10.1.0.254"), taken("10.1.0.254"));
    assert!(at(&mut lab, "b", "10.9.0.1").unwrap_err().contains("exceeding beyond subnet"));
    assert_eq!(lab.create("net", "c", "", "10.1.0.9", "").unwrap_err(), "address 10.1.0.9 is in use");
    let released = lab.release("net.default", "10.1.0.9");
    assert_eq!(released, Err("address 10.1.0.9 is in use by service a:default".into()));
    lab.create("net", "c", "", "10.1.0.7", "").unwrap();
    assert_eq!(at(&mut lab, "b", "10.1.0.7"), taken("10.1.0.7"));
    lab.alloc("net.default", "10.1.0.0/24", "10.1.0.8").unwrap();
    assert_eq!(at(&mut lab, "b", "10.1.0.8"), taken("10.1.0.8"));
    let mut lab = lab.loaded();
    assert_eq!(lab.create("net", "d", "", "10.1.0.9", "").unwrap_err(), "address 10.1.0.9 is in use");
    lab.delete("serviceLBs", "default:a").unwrap();
    at(&mut lab, "b", "10.1.0.9").unwrap();

    // An address of a group's pool returns to the pool.
    lab.group("g", "net", "10.1.0.20-10.1.0.20");
    at(&mut lab, "c", "10.1.0.20").unwrap();
    assert!(lab.create("net", "e", "g", "", "").is_err());
    lab.delete("serviceLBs", "default:c").unwrap();
    assert_eq!(lab.create("net", "e", "g", "", "").unwrap().0, "10.1.0.20");
    let used = lab.state("net").ip_alloc_map.count();
    assert_eq!(used, 3 + 3 + 1, "network, broadcast, gateway; c, an allocated one, b; the pool");
}

#[test]
fn the_order_of_creation_does_not_matter() {
    let mut before = lab();
    let mut after = lab();
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
    for lab in [&before, &after] {
        assert_eq!(behind(lab, "all"), json!(["10.1.0.1", "10.1.0.2"]));
        assert_eq!(behind(lab, "one"), json!(["10.1.0.2"]));
        assert_eq!(behind(lab, "none"), Value::Null);
        assert_eq!(
            state(lab, "one")["providers"]["10.1.0.2:default"]["Services"],
            json!(["all:default", "one:default"])
        );
    }
    assert_eq!(before.loaded().content(), before.content());

    // A container that exits, one whose endpoint is deleted, and one that gets more labels.
    for lab in [&mut before, &mut after] {
        assert_eq!(event(lab, "die", "c1", Value::Null).unwrap(), json!({"IPAddress": "1.2.3.4"}));
        assert_eq!(event(lab, "die", "c1", Value::Null).unwrap(), Value::Null);
        assert_eq!(behind(lab, "all"), json!(["10.1.0.2"]));
        lab.remove("net", "c2").unwrap();
        assert_eq!((behind(lab, "all"), behind(lab, "one")), (Value::Null, Value::Null));
        event(lab, "start", "c3", json!({"app": "x"})).unwrap();
        assert_eq!(behind(lab, "none"), json!(["10.1.0.3"]));
        let labels = lab.value("/contiv.io/state/eps/net.default-c3").unwrap()["labels"].clone();
        assert_eq!(labels, json!({"app": "x", "tier": "1"}));
        assert_eq!(lab.loaded().content(), lab.content());
    }
}

#[test]
fn a_changed_service_keeps_its_address() {
    let mut lab = lab();
    service(&mut lab, "s", &["app=web"], json!({})).unwrap();
    pod(&mut lab, "c1", json!({"app": "web"}));
    pod(&mut lab, "c2", json!({"app": "db"}));
    let untouched = state(&lab, "s");
    let echo = service(&mut lab, "s", &["app=web"], json!({"ipAddress": "10.1.0.50"})).unwrap();
    assert_eq!(echo["links"]["Network"]["key"], "default:net");
    assert_eq!(state(&lab, "s"), untouched);
    let object = lab.value("/contiv.io/obj/modeldb/serviceLB/default:s").unwrap();
    assert_eq!((&object["ipAddress"], &object["links"]), (&json!("10.1.0.50"), &echo["links"]));

    service(&mut lab, "s", &["app=db"], json!({"ports": ["81:81:UDP"]})).unwrap();
    assert_eq!((vip(&lab, "s"), behind(&lab, "s")), (json!("10.1.0.1"), json!(["10.1.0.3"])));
    assert_eq!(state(&lab, "s")["ports"], json!(["81:81:UDP"]));
    event(&mut lab, "die", "c2", Value::Null).unwrap();
    assert_eq!(behind(&lab, "s"), Value::Null);

    lab.network("other", "10.2.0.0/24", json!({}));
    let moved = service(&mut lab, "s", &["app=db"], json!({"networkName": "other"}));
    assert_eq!(moved, Err("Cannot change network association after service is created.".into()));
    assert_eq!(lab.loaded().content(), lab.content());
}

#[test]
fn invalid_events_change_nothing() {
    let mut lab = lab();
    service(&mut lab, "s", &["app=web"], json!({})).unwrap();
    lab.group("g", "net", "");
    lab.create("net", "c1", "g", "", "").unwrap();
    let call = |lab: &mut Lab, more: Value| {
        let mut body = json!({"Event": "start", "Tenant": "default", "Network": "net", "EndpointID": "c1",
            "ContainerID": "x", "Labels": {"app": "web"}, "IPAddress": "10.1.0.2"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        lab.call("updateEndpoint", &body).map_err(|problem| problem.text)
    };
    for more in [json!({"Network": "no"}), json!({"EndpointID": "no"}), json!({"Tenant": "no"})] {
        assert_eq!(call(&mut lab, more), Err("key not found".into()));
    }
    let nameless =
        "invalid ProviderID from providerInfo:{&{10.1.0.2  map[app:web] default net []  net.default-c1}}";
    assert_eq!(call(&mut lab, json!({"ContainerID": ""})), Err(nameless.into()));
    let nameless = "invalid containerID in UpdateEndpointRequest:(nil)";
    assert_eq!(call(&mut lab, json!({"ContainerID": "", "Event": "die"})), Err(nameless.into()));
    assert_eq!(call(&mut lab, json!({"Event": "die"})), Ok(Value::Null));
    assert_eq!(call(&mut lab, json!({"Event": "pause"})), Ok(json!({"IPAddress": "10.1.0.2"})));
    assert_eq!(behind(&lab, "s"), Value::Null);

    // The network may be given by the name of a group on it.
    call(&mut lab, json!({"Network": "g"})).unwrap();
    assert_eq!(behind(&lab, "s"), json!(["10.1.0.2"]));
    // Services of another tenant do not see it.
    lab.put("tenants", "t", &json!({"tenantName": "t"})).unwrap();
    let network = json!({"tenantName": "t", "networkName": "net", "encap": "vlan", "subnet": "10.1.0.0/24"});
    lab.put("networks", "t:net", &network).unwrap();
    let body = json!({"tenantName": "t", "serviceName": "s", "networkName": "net", "selectors": ["app=web"],
        "ports": ["80:80:TCP"]});
    lab.put("serviceLBs", "t:s", &body).unwrap();
    assert_eq!(lab.value("/contiv.io/state/provider/s:t").unwrap()["Providers"], Value::Null);
}

fn restore(lab: &mut Lab) {
    lab.run(|staged| {
        netmaster::restore::restore(staged);
        Ok(vec![])
    })
    .unwrap();
}

#[test]
fn service_states_are_restored() {
    let mut lab = lab();
    service(&mut lab, "s", &["app=web"], json!({})).unwrap();
    pod(&mut lab, "c1", json!({"app": "web"}));
    // The list of services in an existing entry is unchanged by a later service and by the
    // restoration.
    service(&mut lab, "t", &["app=web"], json!({})).unwrap();
    let whole = lab.content();
    restore(&mut lab);
    assert_eq!(lab.content(), whole);
    lab.break_key("/contiv.io/state/provider/s:default", None);
    lab.break_key("/contiv.io/state/serviceLB/gone:default", Some(&json!({"id": "gone:default"})));
    let mut body = state(&lab, "t");
    body["providers"] = json!({});
    lab.break_key("/contiv.io/state/serviceLB/t:default", Some(&body));
    let mut tenant = lab.value("/contiv.io/obj/modeldb/tenant/default").unwrap();
    tenant["link-sets"] = json!({});
    lab.break_key("/contiv.io/obj/modeldb/tenant/default", Some(&tenant));
    let mut lab = lab.loaded();
    assert_ne!(lab.content(), whole);
    restore(&mut lab);
    assert_eq!(lab.content(), whole);
    assert_eq!(lab.loaded().content(), whole);
}
