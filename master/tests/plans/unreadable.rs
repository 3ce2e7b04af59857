//! Endpoints and services whose records cannot be decoded: invalid ones, and those of a newer form.

use contiv_model::endpoint::Oper;
use netmaster::access::Scope;
use netmaster::cache::StagedTxn;
use netmaster::plugin::{Call, CallKind, Cleanup, clean_up};
use netmaster::problem::Kind;
use netmaster::repair::{mark_in_use, release_unused};
use netmaster::restore::restore;
use serde_json::{Value, json};

use crate::fixture::Fixture;

const ID: &str = "net.default-a";
const RECORD: &str = "/contiv.io/state/eps/net.default-a";

/// Endpoint `a` is in a group with a pool, and is a provider of a service. Endpoint `b` is another one.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({"ipv6Subnet": "2001:db8:1::/64"}));
    fixture.group("web", "net", "10.1.0.100-10.1.0.110");
    let service = json!({"tenantName": "default", "serviceName": "s", "networkName": "net",
        "selectors": ["app=web"], "ports": ["80:80:TCP"]});
    fixture.put("serviceLBs", "default:s", &service).unwrap();
    for (id, group) in [("a", "web"), ("b", "")] {
        fixture.create("net", id, group, "", "").unwrap();
        let start = json!({"Event": "start", "Tenant": "default", "Network": "net", "EndpointID": id,
            "ContainerID": id, "Labels": {"app": "web"}});
        fixture.call("updateEndpoint", &start).unwrap();
    }
    fixture
}

/// The stored record, whose labels are of a newer form.
fn newer(fixture: &Fixture) -> Value {
    let mut record = fixture.value(RECORD).unwrap();
    record["labels"] = json!(["app=web"]);
    record
}

/// A netmaster that starts after the record was replaced.
fn broken(fixture: &Fixture, record: &Value) -> Fixture {
    let mut fixture = fixture.loaded();
    fixture.break_key(RECORD, Some(record));
    fixture.loaded()
}

/// What the agent of the endpoint's node has recorded.
fn put_oper(fixture: &mut Fixture) {
    let oper = Oper {
        id: ID.into(),
        net_id: "net.default".into(),
        endpoint_id: "a".into(),
        service_name: "web".into(),
        ip_address: "10.1.0.100".into(),
        ipv6_address: "2001:db8:1::1".into(),
        homing_host: "h".into(),
        ..Oper::default()
    };
    fixture
        .run(|staged| {
            staged.put(ID, oper.clone());
            Ok(vec![])
        })
        .unwrap();
}

/// State after the deletion of the endpoint while its record was valid.
fn deleted(fixture: &Fixture) -> Value {
    let mut fixture = fixture.loaded();
    fixture.remove("net", "a").unwrap();
    fixture.content()
}

fn assert_deleted(mut fixture: Fixture, expected: &Value) {
    fixture.remove("net", "a").unwrap();
    assert_eq!(fixture.keys("/contiv.io/state/eps/"), ["/contiv.io/state/eps/net.default-b"]);
    assert_eq!(fixture.content(), *expected);
    assert_eq!(fixture.loaded().content(), *expected);
    assert_eq!(fixture.remove("net", "a"), Err("key not found".into()));
    assert_eq!(fixture.create("net", "a", "web", "", "").unwrap().0, "10.1.0.100");
}

#[test]
fn an_endpoint_is_deleted_with_what_is_known_of_it() {
    let good = fixture();
    let expected = deleted(&good);
    assert_deleted(broken(&good, &newer(&good)), &expected);
    // The record tells nothing, but the agent has recorded the endpoint.
    let mut recorded = good.loaded();
    put_oper(&mut recorded);
    assert_deleted(broken(&recorded, &json!("{")), &expected);
    // A running netmaster knows the last valid record: from its watch, or when a commit fails.
    let mut watching = good.loaded();
    watching.edit(RECORD, Some(&json!("{")));
    let update = watching.changes.last().unwrap().clone();
    watching.cache.apply_update(&update);
    assert_deleted(watching, &expected);
    let mut behind = good.loaded();
    behind.edit(RECORD, Some(&json!("{")));
    behind.reload(RECORD);
    assert_deleted(behind, &expected);
}

/// Another program has restored the network's record of before.
#[test]
fn known_addresses_are_marked_as_allocated() {
    const NETWORK: &str = "/contiv.io/state/nets/net.default";
    let mut good = Fixture::new();
    good.network("net", "10.1.0.0/24", json!({"ipv6Subnet": "2001:db8:1::/64"}));
    let before = good.value(NETWORK).unwrap();
    good.create("net", "a", "", "", "").unwrap();
    let mut network = good.value(NETWORK).unwrap();
    for field in ["ipAllocMap", "ipv6AllocMap", "epAddrCount"] {
        network[field] = before[field].clone();
    }
    good.edit(NETWORK, Some(&network));
    let mut fixture = broken(&good, &newer(&good));
    let lines = fixture.run(|staged| Ok(mark_in_use(staged).join("\n").into_bytes())).unwrap();
    let line = |address: &str| {
        format!("endpoint net.default-a: address {address} was not allocated on network net.default")
    };
    assert_eq!(String::from_utf8(lines).unwrap(), format!("{}\n{}", line("10.1.0.1"), line("2001:db8:1::1")));
    assert_eq!(fixture.state("net").ep_addr_count, 2);
    let (ip, ip6) = fixture.create("net", "b", "", "", "").unwrap();
    assert_eq!((ip.as_str(), ip6.as_str()), ("10.1.0.2", "2001:db8:1::2"));
}

#[test]
fn unknown_addresses_are_released_by_the_repair() {
    let good = fixture();
    let mut fixture = broken(&good, &json!("{"));
    let repair = |staged: &mut StagedTxn<'_>| {
        restore(staged);
        Ok(release_unused(staged).join("\n").into_bytes())
    };
    let repaired = |fixture: &mut Fixture| String::from_utf8(fixture.run(repair).unwrap()).unwrap();
    // The endpoint may still use its address.
    let skipped =
        "network net.default: not checked, because the record of endpoint net.default-a cannot be decoded";
    assert_eq!(repaired(&mut fixture.loaded()), skipped);
    fixture.remove("net", "a").unwrap();
    assert_eq!(fixture.keys("/contiv.io/state/eps/"), ["/contiv.io/state/eps/net.default-b"]);
    assert_eq!((fixture.state("net").ep_count, fixture.group_state("web").ep_count), (1, 1));
    assert_eq!(fixture.create("net", "c", "web", "", "").unwrap().0, "10.1.0.101", "the address is kept");
    fixture.remove("net", "c").unwrap();
    let mut fixture = fixture.loaded();
    assert_eq!(
        repaired(&mut fixture),
        "network net.default: 1 IPv4 and 1 IPv6 addresses had no owner\n\
         group web:default: 1 endpoints were counted, 0 exist"
    );
    let (mut content, mut expected) = (fixture.content(), deleted(&good));
    // Another endpoint was created in between.
    for content in [&mut content, &mut expected] {
        content[0][0].as_object_mut().unwrap().remove("ipv6LastHost");
    }
    assert_eq!(content, expected);
    assert_eq!(repaired(&mut fixture), "");
}

#[test]
fn addresses_are_kept_while_the_endpoint_exists() {
    let good = fixture();
    let mut fixture = broken(&good, &newer(&good));
    for (ip, ip6) in [("10.1.0.100", ""), ("", "2001:db8:1::1")] {
        let refused = fixture.create("net", "c", "", ip, ip6).unwrap_err();
        assert_eq!(refused, format!("address {ip}{ip6} is in use"));
    }
    assert_eq!(
        fixture.release("net.default", "10.1.0.100"),
        Err("address 10.1.0.100 is in use by endpoint net.default-a".into())
    );
    assert_eq!(
        fixture.create("net", "a", "web", "", ""),
        Err("endpoint net.default-a has a record that cannot be decoded; delete the endpoint first".into())
    );
}

/// An address is released only if nothing else has it.
#[test]
fn addresses_of_others_are_not_released() {
    let good = fixture();
    let mut record = newer(&good);
    record["ipAddress"] = "10.1.0.1".into();
    let mut fixture = broken(&good, &record);
    fixture.remove("net", "a").unwrap();
    assert_eq!(fixture.create("net", "c", "", "10.1.0.1", ""), Err("address 10.1.0.1 is in use".into()));
    assert!(fixture.state("net").ip_alloc_map.contains(1));
    // The record of another node's agent tells nothing of the endpoint.
    let mut recorded = good.loaded();
    put_oper(&mut recorded);
    let mut fixture = broken(&recorded, &json!({"homingHost": "other", "labels": 1}));
    fixture.remove("net", "a").unwrap();
    assert_eq!(fixture.create("net", "c", "web", "", "").unwrap().0, "10.1.0.101");
}

#[test]
fn records_of_other_endpoints_stay() {
    let mut fixture = Fixture::new();
    fixture.put("tenants", "default-b", &json!({"tenantName": "default-b"})).unwrap();
    fixture.network("a", "10.1.0.0/24", json!({}));
    let network =
        json!({"tenantName": "default-b", "networkName": "a", "encap": "vxlan", "subnet": "10.2.0.0/24"});
    fixture.put("networks", "default-b:a", &network).unwrap();
    fixture.create("a", "b-c", "", "", "").unwrap();
    let config = json!({"Container": "", "Host": "h.x"});
    let native = json!({"TenantName": "default", "NetworkName": "a", "ConfigEP": config});
    fixture.call("createEndpoint", &native).unwrap();
    let mut remove = |record: &str, value: &Value, (tenant, network, endpoint): (&str, &str, &str)| {
        let key = format!("/contiv.io/state/eps/{record}");
        fixture.break_key(&key, Some(value));
        let mut fixture = fixture.loaded();
        let body = json!({"TenantName": tenant, "NetworkName": network, "EndpointID": endpoint});
        let answer = fixture.call("deleteEndpoint", &body);
        assert!(answer.as_ref().err().is_none_or(|problem| problem.kind == Kind::NotFound), "{answer:?}");
        assert_eq!(fixture.keys(&key).is_empty(), answer.is_ok(), "{record}");
        answer.is_ok()
    };
    let (one, other) = (("default", "a", "b-c"), ("default-b", "a", "c"));
    for (value, is_one, is_other) in [
        // Either endpoint has this id.
        (json!("{"), false, false),
        (json!({"labels": 1, "netID": "a.default"}), true, false),
        (json!({"labels": 1, "endpointID": "c"}), false, true),
        (json!({"labels": 1, "netID": "x.default", "endpointID": "b-c"}), false, false),
    ] {
        assert_eq!(remove("a.default-b-c", &value, one), is_one, "{value}");
        assert_eq!(remove("a.default-b-c", &value, other), is_other, "{value}");
    }
    assert!(!remove("h.x-native-intf", &json!("{"), ("x", "h", "native-intf")));
}

#[test]
fn agents_delete_endpoints_of_their_nodes() {
    let good = fixture();
    let body = json!({"TenantName": "default", "NetworkName": "net", "EndpointID": "a"}).to_string();
    let call = Call::decode(CallKind::by_name("deleteEndpoint").unwrap(), body.as_bytes()).unwrap();
    let check = |record: &Value, scope: Scope| {
        let fixture = broken(&good, record);
        call.check_scope(&scope, &StagedTxn::new(&fixture.cache)).map_err(|problem| problem.kind)
    };
    let node = |host: &str| Scope::Node(host.into());
    let known = newer(&good);
    assert_eq!(check(&known, node("h")), Ok(()));
    assert_eq!(check(&known, node("other")), Err(Kind::Forbidden));
    // Its node is unknown: for an agent of one node it does not exist.
    assert_eq!(check(&json!("{"), node("h")), Err(Kind::NotFound));
    assert_eq!(check(&json!("{"), Scope::All), Ok(()));
    // The audit log tells that the record was invalid.
    assert_eq!(call.object(&good.cache), ID);
    assert_eq!(call.object(&broken(&good, &known).cache), "net.default-a (invalid record)");
}

#[test]
fn a_cleanup_finds_endpoints_by_what_is_known_of_them() {
    let good = fixture();
    for (record, kind, name) in
        [(newer(&good), "ep", "a"), (newer(&good), "group", "web"), (json!("{"), "ep", ID)]
    {
        let mut fixture = broken(&good, &record);
        let found = Cleanup::read("default", kind, name).unwrap().find(&fixture.cache).unwrap();
        assert_eq!(found, [ID], "{record}");
        fixture.run(|staged| clean_up(&found, staged)).unwrap();
        assert_eq!(fixture.keys("/contiv.io/state/eps/"), ["/contiv.io/state/eps/net.default-b"]);
    }
    let fixture = broken(&good, &json!("{"));
    assert!(Cleanup::read("other", "ep", ID).unwrap().find(&fixture.cache).is_err());
}

/// Besides, another program has deleted the providers of a service.
#[test]
fn services_that_cannot_be_decoded_stay_and_others_are_restored() {
    const STATE: &str = "/contiv.io/state/serviceLB/s:default";
    const SLICE: &str = "/contiv.io/state/provider/t:default";
    const DELETED: &str = "/contiv.io/state/provider/u:default";
    let mut good = fixture();
    for name in ["t", "u"] {
        let service = json!({"tenantName": "default", "serviceName": name, "networkName": "net",
            "selectors": ["app=web"], "ports": ["80:80:TCP"]});
        good.put("serviceLBs", &format!("default:{name}"), &service).unwrap();
    }
    let newer = json!("{");
    let changes = [(STATE, Some(&newer)), (SLICE, Some(&newer)), (DELETED, None)];
    let mut watching = good.loaded();
    for (key, value) in changes {
        watching.edit(key, value);
        let update = watching.changes.last().unwrap().clone();
        watching.cache.apply_update(&update);
    }
    for mut fixture in [watching.loaded(), watching] {
        fixture.restore();
        for key in [STATE, SLICE] {
            assert_eq!(fixture.value(key).unwrap(), newer, "{key}");
        }
        let slices = [DELETED, "/contiv.io/state/provider/s:default"];
        assert_eq!(slices.map(|key| fixture.value(key)), slices.map(|key| good.value(key)));
        // No address was allocated, and that of the service is not released.
        assert_eq!(fixture.state("net"), good.state("net"));
        let repaired = fixture.run(|staged| Ok(release_unused(staged).join("\n").into_bytes())).unwrap();
        let skipped =
            "network net.default: not checked, because the record of service s:default cannot be decoded";
        assert_eq!(String::from_utf8(repaired).unwrap(), skipped);
        assert_eq!(fixture.cache.unreadable_keys().collect::<Vec<_>>(), [SLICE, STATE]);
        assert_eq!(fixture.loaded().restore(), (0, 0));
        // One that is valid again is not reported.
        fixture.edit(STATE, Some(&good.value(STATE).unwrap()));
        assert_eq!(fixture.loaded().cache.unreadable_keys().collect::<Vec<_>>(), [SLICE]);
    }
}

/// A change of the service would conflict, and fail the change of the endpoint.
#[test]
fn endpoints_change_while_providers_of_a_service_cannot_be_decoded() {
    let mut good = fixture();
    let other = json!({"tenantName": "default", "serviceName": "t", "networkName": "net",
        "selectors": ["app=web"], "ports": ["80:80:TCP"]});
    good.put("serviceLBs", "default:t", &other).unwrap();
    let first = "/contiv.io/state/provider/s:default".to_owned();
    let newer = json!("{");
    for slice in [first.clone(), format!("{first}/1")] {
        let mut watching = good.loaded();
        watching.edit(&slice, Some(&newer));
        let update = watching.changes.last().unwrap().clone();
        watching.cache.apply_update(&update);
        let mut behind = good.loaded();
        behind.edit(&slice, Some(&newer));
        behind.reload(&slice);
        for mut fixture in [watching.loaded(), watching, behind] {
            let before = fixture.value(&first);
            let b = fixture.value("/contiv.io/state/eps/net.default-b").unwrap()["ipAddress"].clone();
            let (c, _) = fixture.create("net", "c", "", "", "").unwrap();
            let start = json!({"Event": "start", "Tenant": "default", "Network": "net", "EndpointID": "c",
                "ContainerID": "c", "Labels": {"app": "web"}});
            fixture.call("updateEndpoint", &start).unwrap();
            fixture.remove("net", "b").unwrap();
            assert_eq!((fixture.value(&first), fixture.value(&slice)), (before, Some(newer.clone())));
            let record = fixture.value("/contiv.io/state/provider/t:default").unwrap();
            let providers = record["Providers"].as_array().unwrap();
            assert!(providers.contains(&json!(c)) && !providers.contains(&b), "{record}");
        }
    }
}
