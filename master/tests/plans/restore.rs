//! State that a new leader restores.

use netmaster::audit::audit;
use netmaster::repair::{mark_in_use, release_unused};
use netmaster::restore::restore;
use serde_json::{Value, json};

use crate::lab::Lab;

/// Policies and profiles on groups, rules that refer to groups and networks.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.network("net", "10.1.0.0/24", json!({}));
    lab.network("other", "10.2.0.0/24", json!({}));
    let body = json!({"tenantName": "default", "profileName": "gold", "DSCP": 46, "bandwidth": "10 mbps", "burst": 100});
    lab.put("netprofiles", "default:gold", &body).unwrap();
    for policy in ["p", "q"] {
        let body = json!({"tenantName": "default", "policyName": policy});
        lab.put("policys", &format!("default:{policy}"), &body).unwrap();
    }
    group(&mut lab, "web", json!({"policies": ["p", "q"], "netProfile": "gold"}));
    group(&mut lab, "db", json!({}));
    rule(&mut lab, "p", "1", json!({"protocol": "tcp", "port": 80, "fromEndpointGroup": "db"}));
    rule(&mut lab, "p", "2", json!({"fromNetwork": "other", "action": "deny"}));
    rule(&mut lab, "q", "1", json!({"direction": "out", "toIpAddress": "10.9.0.0/16"}));
    group(&mut lab, "db", json!({"policies": ["q"]}));
    lab
}

fn group(lab: &mut Lab, name: &str, more: Value) {
    let mut body = json!({"tenantName": "default", "groupName": name, "networkName": "net"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lab.put("endpointGroups", &format!("default:{name}"), &body).unwrap();
}

fn rule(lab: &mut Lab, policy: &str, id: &str, more: Value) {
    let mut body = json!({"tenantName": "default", "policyName": policy, "ruleId": id, "direction": "in",
        "action": "allow"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    lab.put("rules", &format!("default:{policy}:{id}"), &body).unwrap();
}

/// Number of keys written and deleted.
fn restored(lab: &mut Lab) -> String {
    let plan = |staged: &mut netmaster::cache::StagedTxn<'_>| {
        restore(staged);
        Ok(format!("{:?}", staged.counts()).into_bytes())
    };
    String::from_utf8(lab.run(plan).unwrap()).unwrap()
}

#[test]
fn nothing_is_restored_after_regular_requests() {
    let mut lab = lab();
    assert_eq!(restored(&mut lab), "(0, 0)");
    lab.delete("rules", "default:p:1").unwrap();
    lab.delete("endpointGroups", "default:db").unwrap();
    rule(&mut lab, "p", "3", json!({"protocol": "udp", "port": 53}));
    group(&mut lab, "web", json!({"policies": ["p"]}));
    assert_eq!(restored(&mut lab), "(0, 0)");
    lab.delete("policys", "default:q").unwrap();
    group(&mut lab, "web", json!({}));
    assert_eq!(restored(&mut lab), "(0, 0)");
}

#[test]
fn derived_state_is_restored() {
    let good = lab();
    let expected = good.content();
    let link = |lab: &mut Lab, key: &str, part: &str| {
        let path = format!("/contiv.io/obj/modeldb/{key}");
        let mut object = lab.value(&path).unwrap();
        object[part] = json!({});
        lab.edit(&path, Some(&object));
    };
    let mut lab = good.loaded();
    for key in ["tenant/default", "network/default:net", "policy/default:p", "rule/default:p:1"] {
        link(&mut lab, key, "link-sets");
    }
    for key in
        ["endpointGroup/default:web", "rule/default:p:1", "policy/default:q", "netprofile/default:gold"]
    {
        link(&mut lab, key, "links");
    }
    lab.edit("/contiv.io/state/policy/default:web:default:p", None);
    let rules: Vec<String> =
        lab.keys("/contiv.io/state/policyRule/").into_iter().map(str::to_owned).collect();
    lab.edit(&rules[0], None);
    let mut changed = lab.value(&rules[1]).unwrap();
    changed["Action"] = "deny".into();
    changed["Priority"] = 7.into();
    lab.edit(&rules[1], Some(&changed));
    lab.edit("/contiv.io/state/policyRule/default:web:default:p:default:p:9:inRx", Some(&changed));
    let stray = lab.value("/contiv.io/state/policy/default:db:default:q").unwrap();
    lab.edit("/contiv.io/state/policy/default:gone:default:q", Some(&stray));
    let mut state = lab.value("/contiv.io/state/endpointGroups/web:default").unwrap();
    state["DSCP"] = 0.into();
    lab.edit("/contiv.io/state/endpointGroups/web:default", Some(&state));

    let mut lab = lab.loaded();
    assert_ne!(lab.content(), expected);
    restored(&mut lab);
    assert_eq!(lab.content(), expected);
    assert_eq!(lab.loaded().content(), expected);
    assert_eq!(restored(&mut lab), "(0, 0)");
}

#[test]
fn links_to_missing_objects_are_cleared() {
    let mut lab = lab();
    lab.edit("/contiv.io/obj/modeldb/policy/default:q", None);
    lab.edit("/contiv.io/obj/modeldb/endpointGroup/default:db", None);
    let mut lab = lab.loaded();
    restored(&mut lab);
    let object = |lab: &Lab, key: &str| lab.value(&format!("/contiv.io/obj/modeldb/{key}")).unwrap();
    assert_eq!(object(&lab, "rule/default:p:1")["links"], json!({"MatchEndpointGroup": {}}));
    assert_eq!(
        object(&lab, "endpointGroup/default:web")["link-sets"]["Policies"].as_object().unwrap().len(),
        1
    );
    // A rule that refers to a missing group has no effect, and a missing policy is on no group.
    let left = ["/contiv.io/state/policy/default:web:default:p"];
    assert_eq!(lab.keys("/contiv.io/state/policy/"), left);
    let left = ["/contiv.io/state/policyRule/default:web:default:p:default:p:2:inRx"];
    assert_eq!(lab.keys("/contiv.io/state/policyRule/"), left);
    assert_eq!(restored(&mut lab), "(0, 0)");
}

#[test]
fn inconsistent_allocation_records_are_reported() {
    let audited = |lab: &Lab| audit(&netmaster::cache::StagedTxn::new(&lab.cache));
    let mut lab = lab();
    lab.network("six", "10.3.0.0/24", json!({"ipv6Subnet": "2001:db8::/64"}));
    lab.group("pooled", "net", "10.1.0.100-10.1.0.110");
    for (network, id, group) in [("net", "a", ""), ("net", "b", "pooled"), ("six", "c", "")] {
        lab.create(network, id, group, "", "").unwrap();
    }
    assert_eq!(audited(&lab), [""; 0]);

    let mut network = lab.value("/contiv.io/state/nets/six.default").unwrap();
    let other = lab.value("/contiv.io/state/nets/net.default").unwrap();
    for map in ["ipAllocMap", "ipv6AllocMap"] {
        network.as_object_mut().unwrap().remove(map);
    }
    network["ipAllocMap"] = other["ipAllocMap"].clone();
    network["extPktTag"] = other["extPktTag"].clone();
    lab.edit("/contiv.io/state/nets/six.default", Some(&network));
    let mut endpoint = lab.value("/contiv.io/state/eps/net.default-b").unwrap();
    endpoint["ipAddress"] = "10.1.0.1".into();
    lab.edit("/contiv.io/state/eps/net.default-b", Some(&endpoint));
    lab.edit(
        "/contiv.io/state/eps/gone.default-d",
        Some(&json!({"id": "gone.default-d", "netID": "gone.default"})),
    );
    let content = audited(&lab.loaded());
    for words in [
        "address 10.1.0.1 on network net.default: used by endpoints net.default-a and net.default-b",
        "endpoint six.default-c: address 2001:db8::1 is not allocated on network six.default",
        "endpoint gone.default-d: network gone.default does not exist",
        "VNI 1: used by networks net.default and six.default",
    ] {
        assert!(content.iter().any(|line| line == words), "{words}: {content:#?}");
    }
    assert_eq!(content.len(), 4, "{content:#?}");
}

/// Addresses of endpoints are not allocated again. Addresses without an owner are released on
/// request.
#[test]
fn allocation_records_are_repaired() {
    let mut good = lab();
    good.network("six", "10.3.0.0/24", json!({"gateway": "10.3.0.254", "ipv6Subnet": "2001:db8::/64"}));
    good.group("pooled", "net", "10.1.0.100-10.1.0.110");
    let fresh = good.value("/contiv.io/state/nets/six.default").unwrap();
    let empty = good.value("/contiv.io/state/endpointGroups/pooled:default").unwrap();
    for (network, id, group) in [("six", "a", ""), ("six", "b", ""), ("net", "c", "pooled")] {
        good.create(network, id, group, "", "").unwrap();
    }
    let expected = good.content();
    let edit = |lab: &mut Lab, key: &str, maps: &Value, names: &[&str]| {
        let mut body = lab.value(key).unwrap();
        for name in names {
            body[*name] = maps[*name].clone();
        }
        lab.edit(key, Some(&body));
    };
    let run =
        |lab: &mut Lab, repair: fn(&mut netmaster::cache::StagedTxn<'_>) -> Vec<String>| -> Vec<String> {
            let lines = lab.run(|staged| Ok(serde_json::to_vec(&repair(staged)).unwrap())).unwrap();
            serde_json::from_slice(&lines).unwrap()
        };
    assert_eq!(run(&mut good, mark_in_use), [""; 0]);
    assert_eq!(run(&mut good, release_unused), [""; 0]);

    // Another program restores the old records.
    let mut lab = good.loaded();
    let six = "/contiv.io/state/nets/six.default";
    edit(&mut lab, six, &fresh, &["ipAllocMap", "ipv6AllocMap", "epAddrCount"]);
    edit(&mut lab, "/contiv.io/state/endpointGroups/pooled:default", &empty, &["epgIpAllocMap"]);
    let net = "/contiv.io/state/nets/net.default";
    edit(&mut lab, net, &json!({"epAddrCount": 0}), &["epAddrCount"]);
    let mut lab = lab.loaded();
    let lines = run(&mut lab, mark_in_use);
    assert_eq!(
        lines[0],
        "endpoint net.default-c: address 10.1.0.100 was not allocated on network net.default"
    );
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert_eq!(lab.content(), expected);
    assert_eq!(lab.loaded().content(), expected);

    // Endpoints that were deleted without their addresses.
    let mut lab = good.loaded();
    lab.edit("/contiv.io/state/eps/six.default-b", None);
    lab.edit("/contiv.io/state/eps/net.default-c", None);
    let mut lab = lab.loaded();
    assert_eq!(run(&mut lab, mark_in_use), [""; 0]);
    assert_eq!(
        run(&mut lab, release_unused),
        [
            "network net.default: 1 IPv4 and 0 IPv6 addresses had no owner",
            "network six.default: 1 IPv4 and 1 IPv6 addresses had no owner"
        ]
    );
    assert_eq!(lab.create("six", "d", "", "", "").unwrap().0, "10.3.0.2");
    assert_eq!(lab.create("net", "e", "pooled", "", "").unwrap().0, "10.1.0.100");
    assert_eq!(lab.create("six", "f", "", "10.3.0.254", ""), Err("address 10.3.0.254 is in use".into()));
}
