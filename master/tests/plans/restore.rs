//! State that a new leader restores.

use contiv_model::event::Event;
use contiv_model::policy::PolicyState;
use contiv_store::{KeyValue, Listing, Update};
use netmaster::audit::audit;
use netmaster::cache::{Content, DerivedKeys, DerivedValues};
use netmaster::repair::{mark_in_use, release_unused};
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// Policies and profiles on groups, rules that refer to groups and networks.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/24", json!({}));
    fixture.network("other", "10.2.0.0/24", json!({}));
    let body = json!({"tenantName": "default", "profileName": "gold", "DSCP": 46, "bandwidth": "10 mbps", "burst": 100});
    fixture.put("netprofiles", "default:gold", &body).unwrap();
    for policy in ["p", "q"] {
        let body = json!({"tenantName": "default", "policyName": policy});
        fixture.put("policys", &format!("default:{policy}"), &body).unwrap();
    }
    group(&mut fixture, "web", json!({"policies": ["p", "q"], "netProfile": "gold"}));
    group(&mut fixture, "db", json!({}));
    rule(&mut fixture, "p", "1", json!({"protocol": "tcp", "port": 80, "fromEndpointGroup": "db"}));
    rule(&mut fixture, "p", "2", json!({"fromNetwork": "other", "action": "deny"}));
    rule(&mut fixture, "q", "1", json!({"direction": "out", "toIpAddress": "10.9.0.0/16"}));
    group(&mut fixture, "db", json!({"policies": ["q"]}));
    fixture
}

fn group(fixture: &mut Fixture, name: &str, more: Value) {
    let mut body = json!({"tenantName": "default", "groupName": name, "networkName": "net"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fixture.put("endpointGroups", &format!("default:{name}"), &body).unwrap();
}

fn rule(fixture: &mut Fixture, policy: &str, id: &str, more: Value) {
    let mut body = json!({"tenantName": "default", "policyName": policy, "ruleId": id, "direction": "in",
        "action": "allow"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    fixture.put("rules", &format!("default:{policy}:{id}"), &body).unwrap();
}

/// Number of keys written and deleted.
pub(crate) fn restored(fixture: &mut Fixture) -> String {
    format!("{:?}", fixture.restore())
}

#[test]
fn nothing_is_restored_after_regular_requests() {
    let mut fixture = fixture();
    assert_eq!(restored(&mut fixture), "(0, 0)");
    fixture.delete("rules", "default:p:1").unwrap();
    fixture.delete("endpointGroups", "default:db").unwrap();
    rule(&mut fixture, "p", "3", json!({"protocol": "udp", "port": 53}));
    group(&mut fixture, "web", json!({"policies": ["p"]}));
    assert_eq!(restored(&mut fixture), "(0, 0)");
    fixture.delete("policys", "default:q").unwrap();
    group(&mut fixture, "web", json!({}));
    assert_eq!(restored(&mut fixture), "(0, 0)");
}

#[test]
fn derived_state_is_restored() {
    let good = fixture();
    let expected = good.content();
    let link = |fixture: &mut Fixture, key: &str, part: &str| {
        let path = format!("/contiv.io/obj/modeldb/{key}");
        let mut object = fixture.value(&path).unwrap();
        object[part] = json!({});
        fixture.edit(&path, Some(&object));
    };
    let mut fixture = good.loaded();
    for key in ["tenant/default", "network/default:net", "policy/default:p", "rule/default:p:1"] {
        link(&mut fixture, key, "link-sets");
    }
    for key in
        ["endpointGroup/default:web", "rule/default:p:1", "policy/default:q", "netprofile/default:gold"]
    {
        link(&mut fixture, key, "links");
    }
    fixture.edit("/contiv.io/state/policy/default:web:default:p", None);
    let rules: Vec<String> =
        fixture.keys("/contiv.io/state/policyRule/").into_iter().map(str::to_owned).collect();
    fixture.edit(&rules[0], None);
    let mut changed = fixture.value(&rules[1]).unwrap();
    changed["Action"] = "deny".into();
    changed["Priority"] = 7.into();
    fixture.edit(&rules[1], Some(&changed));
    fixture.edit("/contiv.io/state/policyRule/default:web:default:p:default:p:9:inRx", Some(&changed));
    fixture.edit("/contiv.io/state/policyRule/default:gone:default:q:default:q:1:outTx", Some(&changed));
    // Values that cannot be decoded are replaced, too.
    fixture.edit(&rules[2], Some(&json!(7)));
    fixture.edit("/contiv.io/state/policy/default:web:default:q", Some(&json!([])));
    let stray = fixture.value("/contiv.io/state/policy/default:db:default:q").unwrap();
    fixture.edit("/contiv.io/state/policy/default:gone:default:q", Some(&stray));
    let mut state = fixture.value("/contiv.io/state/endpointGroups/web:default").unwrap();
    state["DSCP"] = 0.into();
    fixture.edit("/contiv.io/state/endpointGroups/web:default", Some(&state));

    for mut fixture in [fixture.loaded(), fixture.starting()] {
        assert_ne!(fixture.content(), expected);
        restored(&mut fixture);
        assert_eq!(fixture.content(), expected);
        assert_eq!(fixture.loaded().content(), expected);
        assert_eq!(restored(&mut fixture), "(0, 0)");
    }
}

/// A request to a netmaster that has just started writes what it would write later.
#[test]
fn a_change_before_the_values_are_read_writes_only_what_differs() {
    const POLICY: &str = "/contiv.io/state/policy/default:web:default:p";
    let mut fixture = fixture();
    let mut newer = fixture.value(POLICY).unwrap();
    newer["more"] = json!(1);
    fixture.edit(POLICY, Some(&newer));
    let (mut starting, mut loaded) = (fixture.starting(), fixture.loaded());
    let before = fixture.changes.len();
    for fixture in [&mut starting, &mut loaded] {
        rule(fixture, "p", "3", json!({"protocol": "udp", "port": 53}));
        assert_eq!(fixture.value(POLICY).unwrap()["more"], 1, "fields of a newer release are kept");
    }
    assert_eq!(starting.changes.len() - before, 4, "the rule, the policy on a group, two directional rules");
    assert_eq!(starting.changes, loaded.changes);
    assert_eq!(starting.content(), loaded.content());
    // Of this policy alone.
    let unread = |fixture: &Fixture| {
        let of = fixture.cache.derived::<PolicyState>();
        of.filter(|(_, content)| *content == Content::Unread).map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(unread(&starting), ["default:db:default:q", "default:web:default:q"]);
}

/// Between the listing of keys and that of values, another program deletes and replaces records.
#[test]
fn values_that_are_read_later_are_of_a_later_store() {
    let mut fixture = fixture().starting();
    const POLICY: &str = "/contiv.io/state/policy/default:web:default:p";
    let mut newer = fixture.value(POLICY).unwrap();
    newer["priority"] = json!(1);
    fixture.edit(POLICY, Some(&newer));
    fixture.edit("/contiv.io/state/policy/default:web:default:q", None);
    fixture.edit("/contiv.io/state/policy/default:db:default:q", Some(&json!("")));
    let watched = fixture.changes.clone();
    fixture.read_derived(DerivedKeys::Below("/contiv.io/state/policy/".to_owned()));
    let ids: Vec<_> = fixture.cache.derived::<PolicyState>().collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert_eq!(ids[0], ("default:db:default:q".to_owned(), Content::Invalid));
    assert!(matches!(ids[1].1, Content::Known(_)), "{ids:?}");
    // The watch reports it afterwards.
    for update in &watched {
        let _complete = fixture.cache.apply_update(update);
    }
    assert_eq!(fixture.content(), fixture.loaded().content());
}

/// Agents take an expansion for lost that is deleted without a change of its group or policy.
#[test]
fn expansions_are_deleted_together_with_the_change_that_explains_it() {
    let mut fixture = fixture();
    const GROUP: &str = "/contiv.io/obj/modeldb/endpointGroup/default:web";
    let mut web = fixture.value(GROUP).unwrap();
    web["policies"] = json!(["p"]);
    fixture.edit(GROUP, Some(&web));
    let mut fixture = fixture.starting();
    let before = fixture.changes.len();
    restored(&mut fixture);
    let of = |key: &str| {
        let changes = fixture.changes[before..].iter();
        let is_of = |event: &Event<String, KeyValue>| match event {
            Event::Apply(changed, _) | Event::Delete(changed) => changed == key,
            _ => false,
        };
        changes.filter(|update| is_of(&update.event)).map(|update| update.revision).collect::<Vec<_>>()
    };
    let deleted = of("/contiv.io/state/policy/default:web:default:q");
    assert_eq!((deleted.len(), &deleted), (1, &of(GROUP)));
    assert_eq!(
        fixture.keys("/contiv.io/state/policy/default:web"),
        ["/contiv.io/state/policy/default:web:default:p"]
    );
}

/// The id of the policy `p` is the beginning of that of `p2`.
#[test]
fn a_policy_is_read_without_those_whose_names_it_begins() {
    let mut fixture = fixture();
    fixture.put("policys", "default:p2", &json!({"tenantName": "default", "policyName": "p2"})).unwrap();
    group(&mut fixture, "web", json!({"policies": ["p", "p2", "q"], "netProfile": "gold"}));
    let mut fixture = fixture.starting();
    rule(&mut fixture, "p", "3", json!({"protocol": "udp", "port": 53}));
    assert_eq!(fixture.cache.derived::<PolicyState>().count(), 4);
    assert_eq!(fixture.content(), fixture.loaded().content());
}

/// A record that the watch has reported as deleted does not come back with an older listing.
#[test]
fn a_listing_does_not_bring_back_what_was_deleted() {
    const POLICY: &str = "/contiv.io/state/policy/default:web:default:q";
    let mut fixture = fixture().starting();
    let stale = fixture.loaded();
    fixture.edit(POLICY, None);
    let deleted = fixture.changes.last().unwrap().clone();
    fixture.cache.apply_update(&deleted);
    let items = vec![stale.stored(POLICY)];
    let listing = Listing { cluster: 1, revision: deleted.revision - 1, items };
    fixture.cache.complete_derived(DerivedValues::decode(DerivedKeys::One(POLICY.to_owned()), &listing));
    assert_eq!(fixture.content(), fixture.loaded().content());
}

/// Another program has put it. The cache has read the rules of the policy before, or not yet.
#[test]
fn a_rule_without_a_value_is_derived_again() {
    let mut fixture = fixture();
    let expected = fixture.content();
    let rule = fixture.keys("/contiv.io/state/policyRule/")[0].to_owned();
    fixture.break_key(&rule, Some(&json!(7)));
    let mut empty = fixture.stored(&rule);
    empty.value = vec![].into();
    let update = Update { revision: empty.mod_revision, event: Event::Apply(rule, empty) };
    let mut starting = fixture.starting();
    for fixture in [&mut fixture, &mut starting] {
        fixture.cache.apply_update(&update);
        assert_eq!(restored(fixture), "(1, 0)");
        assert_eq!(fixture.content(), expected);
    }
}

/// A request reads the rules that it concerns, also while most are unread.
#[test]
fn a_new_rule_needs_no_others() {
    let mut fixture = fixture().starting();
    rule(&mut fixture, "p", "3", json!({"protocol": "udp", "port": 53}));
    let keys =
        |rule: &str| DerivedKeys::Below(format!("/contiv.io/state/policyRule/default:web:default:p:{rule}"));
    assert!(!fixture.cache.has_unread(&keys("default:p:3:")) && fixture.cache.has_unread(&keys("")));
    fixture.read_derived(keys(""));
    assert!(!fixture.cache.has_unread(&keys("")));
    assert_eq!(fixture.content(), fixture.loaded().content());
}

/// The watch has reported a change of a rule, which the cache did not follow, after the listing.
#[test]
fn rules_are_read_again_if_they_may_have_changed_since() {
    const POLICY: &str = "/contiv.io/state/policyRule/default:web:default:p:";
    let mut fixture = fixture().starting();
    let stale = fixture.loaded();
    let rule = fixture.keys(POLICY)[0].to_owned();
    fixture.edit(&rule, None);
    let deleted = fixture.changes.last().unwrap().clone();
    fixture.cache.apply_update(&deleted);
    let keys = DerivedKeys::Below(POLICY.to_owned());
    let items = stale.keys(POLICY).into_iter().map(|key| stale.stored(key)).collect();
    let listing = Listing { cluster: 1, revision: deleted.revision - 1, items };
    fixture.cache.complete_derived(DerivedValues::decode(keys.clone(), &listing));
    assert!(fixture.cache.has_unread(&keys));
    fixture.read_derived(keys.clone());
    assert!(!fixture.cache.has_unread(&keys));
    assert_eq!(fixture.content(), fixture.loaded().content());
    // From then on the cache follows the changes.
    let rule = fixture.keys(POLICY)[0].to_owned();
    fixture.edit(&rule, None);
    fixture.cache.apply_update(&fixture.changes.last().unwrap().clone());
    assert_eq!(fixture.content(), fixture.loaded().content());
    // A listing has replaced changes that were lost.
    let listed = deleted.revision + 1;
    fixture.cache.forget_unlisted(listed);
    let listing = Listing { cluster: 1, revision: listed - 1, items: vec![] };
    fixture.cache.complete_derived(DerivedValues::decode(keys.clone(), &listing));
    assert!(fixture.cache.has_unread(&keys));
    assert_eq!(restored(&mut fixture), "(2, 0)");
    assert_eq!(fixture.content(), fixture.loaded().content());
}

#[test]
fn links_to_missing_objects_are_cleared() {
    let mut fixture = fixture();
    fixture.edit("/contiv.io/obj/modeldb/policy/default:q", None);
    fixture.edit("/contiv.io/obj/modeldb/endpointGroup/default:db", None);
    let mut fixture = fixture.loaded();
    restored(&mut fixture);
    let object =
        |fixture: &Fixture, key: &str| fixture.value(&format!("/contiv.io/obj/modeldb/{key}")).unwrap();
    assert_eq!(object(&fixture, "rule/default:p:1")["links"], json!({"MatchEndpointGroup": {}}));
    assert_eq!(
        object(&fixture, "endpointGroup/default:web")["link-sets"]["Policies"].as_object().unwrap().len(),
        1
    );
    // A rule that refers to a missing group has no effect, and a missing policy is on no group.
    let left = ["/contiv.io/state/policy/default:web:default:p"];
    assert_eq!(fixture.keys("/contiv.io/state/policy/"), left);
    let left = ["/contiv.io/state/policyRule/default:web:default:p:default:p:2:inRx"];
    assert_eq!(fixture.keys("/contiv.io/state/policyRule/"), left);
    assert_eq!(restored(&mut fixture), "(0, 0)");
}

#[test]
fn inconsistent_allocation_records_are_reported() {
    let audited = |fixture: &Fixture| audit(&netmaster::cache::StagedTxn::new(&fixture.cache));
    let mut fixture = fixture();
    fixture.network("six", "10.3.0.0/24", json!({"ipv6Subnet": "2001:db8::/64"}));
    fixture.group("pooled", "net", "10.1.0.100-10.1.0.110");
    let number = |fixture: &Fixture, group: &str| {
        fixture.value(&format!("/contiv.io/state/endpointGroups/{group}:default")).unwrap()["endpointGroupId"]
            .clone()
    };
    for (network, id, group) in [("net", "a", ""), ("net", "b", "pooled"), ("six", "c", "")] {
        fixture.create(network, id, group, "", "").unwrap();
    }
    assert_eq!(audited(&fixture), [""; 0]);

    let mut network = fixture.value("/contiv.io/state/nets/six.default").unwrap();
    let other = fixture.value("/contiv.io/state/nets/net.default").unwrap();
    for map in ["ipAllocMap", "ipv6AllocMap"] {
        network.as_object_mut().unwrap().remove(map);
    }
    network["ipAllocMap"] = other["ipAllocMap"].clone();
    network["extPktTag"] = other["extPktTag"].clone();
    fixture.edit("/contiv.io/state/nets/six.default", Some(&network));
    let mut endpoint = fixture.value("/contiv.io/state/eps/net.default-b").unwrap();
    endpoint["ipAddress"] = "10.1.0.1".into();
    fixture.edit("/contiv.io/state/eps/net.default-b", Some(&endpoint));
    fixture.edit(
        "/contiv.io/state/eps/gone.default-d",
        Some(&json!({"id": "gone.default-d", "netID": "gone.default"})),
    );
    let mut pooled = fixture.value("/contiv.io/state/endpointGroups/pooled:default").unwrap();
    pooled["endpointGroupId"] = number(&fixture, "web");
    fixture.edit("/contiv.io/state/endpointGroups/pooled:default", Some(&pooled));
    let content = audited(&fixture.loaded());
    let shared = "groups pooled:default and web:default: all have the number 1, and nodes evaluate the policies of all for each";
    assert!(content.iter().any(|line| line.starts_with(shared)), "{content:#?}");
    for words in [
        "address 10.1.0.1 on network net.default: used by endpoints net.default-a and net.default-b",
        "endpoint six.default-c: address 2001:db8::1 is not allocated on network six.default",
        "endpoint gone.default-d: network gone.default does not exist",
        "VNI 1: used by networks net.default and six.default",
    ] {
        assert!(content.iter().any(|line| line == words), "{words}: {content:#?}");
    }
    assert_eq!(content.len(), 5, "{content:#?}");
}

/// Addresses of endpoints are not allocated again. Addresses without an owner are released on
/// request.
#[test]
fn allocation_records_are_repaired() {
    let mut good = fixture();
    good.network("six", "10.3.0.0/24", json!({"gateway": "10.3.0.254", "ipv6Subnet": "2001:db8::/64"}));
    good.group("pooled", "net", "10.1.0.100-10.1.0.110");
    let fresh = good.value("/contiv.io/state/nets/six.default").unwrap();
    let empty = good.value("/contiv.io/state/endpointGroups/pooled:default").unwrap();
    for (network, id, group) in [("six", "a", ""), ("six", "b", ""), ("net", "c", "pooled")] {
        good.create(network, id, group, "", "").unwrap();
    }
    let expected = good.content();
    let edit = |fixture: &mut Fixture, key: &str, maps: &Value, names: &[&str]| {
        let mut body = fixture.value(key).unwrap();
        for name in names {
            body[*name] = maps[*name].clone();
        }
        fixture.edit(key, Some(&body));
    };
    let run = |fixture: &mut Fixture,
               repair: fn(&mut netmaster::cache::StagedTxn<'_>) -> Vec<String>|
     -> Vec<String> {
        let lines = fixture.run(|staged| Ok(serde_json::to_vec(&repair(staged)).unwrap())).unwrap();
        serde_json::from_slice(&lines).unwrap()
    };
    assert_eq!(run(&mut good, mark_in_use), [""; 0]);
    assert_eq!(run(&mut good, release_unused), [""; 0]);

    // Another program restores the old records.
    let mut fixture = good.loaded();
    let six = "/contiv.io/state/nets/six.default";
    edit(&mut fixture, six, &fresh, &["ipAllocMap", "ipv6AllocMap", "epAddrCount"]);
    edit(&mut fixture, "/contiv.io/state/endpointGroups/pooled:default", &empty, &["epgIpAllocMap"]);
    let net = "/contiv.io/state/nets/net.default";
    edit(&mut fixture, net, &json!({"epAddrCount": 0}), &["epAddrCount"]);
    let mut fixture = fixture.loaded();
    let lines = run(&mut fixture, mark_in_use);
    assert_eq!(
        lines[0],
        "endpoint net.default-c: address 10.1.0.100 was not allocated on network net.default"
    );
    assert_eq!(lines.len(), 5, "{lines:#?}");
    assert_eq!(fixture.content(), expected);
    assert_eq!(fixture.loaded().content(), expected);

    // Endpoints that were deleted without their addresses.
    let mut fixture = good.loaded();
    fixture.edit("/contiv.io/state/eps/six.default-b", None);
    fixture.edit("/contiv.io/state/eps/net.default-c", None);
    let mut fixture = fixture.loaded();
    assert_eq!(run(&mut fixture, mark_in_use), [""; 0]);
    assert_eq!(
        run(&mut fixture, release_unused),
        [
            "network net.default: 1 IPv4 and 0 IPv6 addresses had no owner",
            "network six.default: 1 IPv4 and 1 IPv6 addresses had no owner",
            "network net.default: 1 endpoints were counted, 0 exist",
            "network six.default: 2 endpoints were counted, 1 exist",
            "group pooled:default: 1 endpoints were counted, 0 exist"
        ]
    );
    assert_eq!(fixture.create("six", "d", "", "", "").unwrap().0, "10.3.0.2");
    assert_eq!(fixture.create("net", "e", "pooled", "", "").unwrap().0, "10.1.0.100");
    assert_eq!(fixture.create("six", "f", "", "10.3.0.254", ""), Err("address 10.3.0.254 is in use".into()));
}
