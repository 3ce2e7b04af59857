//! Random sequences of calls.

use std::collections::BTreeSet;

use contiv_model::group::{self, Group};
use contiv_model::policy::{Policy, PolicyState};
use netmaster::cache::AllocationChange;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::Fixture;

#[derive(Clone, Debug)]
enum Step {
    Create {
        big: bool,
        id: u8,
        group: bool,
        ip: Option<u8>,
    },
    Remove {
        big: bool,
        id: u8,
    },
    Alloc {
        big: bool,
        group: bool,
        ip: Option<u8>,
    },
    Release {
        big: bool,
        ip: u8,
    },
    /// Deletes the group, or creates it again.
    Group {
        big: bool,
    },
    Checkpoint,
    /// A new leader loads the state from the store.
    TakeOver,
}

fn step() -> impl Strategy<Value = Step> {
    let ip = || prop::option::weighted(0.3, 0u8..40);
    prop_oneof![
        8 => (any::<bool>(), 0u8..30, any::<bool>(), ip())
            .prop_map(|(big, id, group, ip)| Step::Create { big, id, group, ip }),
        5 => (any::<bool>(), 0u8..30).prop_map(|(big, id)| Step::Remove { big, id }),
        2 => (any::<bool>(), any::<bool>(), ip()).prop_map(|(big, group, ip)| Step::Alloc { big, group, ip }),
        2 => (any::<bool>(), 0u8..40).prop_map(|(big, ip)| Step::Release { big, ip }),
        2 => any::<bool>().prop_map(|big| Step::Group { big }),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::TakeOver),
    ]
}

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.1.0.0/27", json!({"gateway": "10.1.0.30", "ipv6Subnet": "fd00::/123"}));
    fixture.group("small", "net", "10.1.0.4-10.1.0.7");
    // Large enough for journals, and for a window in the record of its group.
    fixture.network("big", "10.16.0.0/15", json!({"gateway": "10.16.0.9"}));
    fixture.group("large", "big", "10.16.0.4-10.16.0.7");
    fixture
}

fn name(big: bool) -> (&'static str, &'static str, &'static str) {
    if big { ("big", "large", "10.16.0.") } else { ("net", "small", "10.1.0.") }
}

/// Executes the step and records addresses reserved without an endpoint.
fn carry_out(fixture: &mut Fixture, step: &Step, reserved: &mut BTreeSet<String>) {
    let text = |prefix: &str, ip: &Option<u8>| ip.map(|n| format!("{prefix}{n}")).unwrap_or_default();
    match step {
        Step::Create { big, id, group, ip } => {
            let (network, with, prefix) = name(*big);
            let known = fixture.endpoints().len();
            let group = if *group { with } else { "" };
            if let Ok((given, _)) = fixture.create(network, &format!("e{id}"), group, &text(prefix, ip), "")
                && fixture.endpoints().len() > known
            {
                // The endpoint takes over an address that allocAddress reserved.
                reserved.remove(&given);
            }
        }
        Step::Remove { big, id } => {
            let _unknown = fixture.remove(name(*big).0, &format!("e{id}"));
        }
        Step::Alloc { big, group, ip } => {
            let (network, with, prefix) = name(*big);
            let id = if *group { format!("{network}:{with}.default") } else { format!("{network}.default") };
            if let Ok(given) = fixture.alloc(&id, "", &text(prefix, ip)) {
                let address = given.split('/').next().unwrap().to_owned();
                assert!(reserved.insert(address), "{given} was reserved already");
            }
        }
        Step::Release { big, ip } => {
            let (network, _, prefix) = name(*big);
            let address = format!("{prefix}{ip}");
            if fixture.release(&format!("{network}.default"), &address).is_ok() {
                reserved.remove(&address);
            }
        }
        Step::Group { big } => {
            let (network, group, prefix) = name(*big);
            let key = format!("default:{group}");
            let body = json!({"tenantName": "default", "groupName": group, "networkName": network, "ipPool": format!("{prefix}4-{prefix}7")});
            // Refused while the group has endpoints, and while another has an address of the pool.
            let _refused = match fixture.find_group(group) {
                Some(_) => fixture.delete("endpointGroups", &key).err(),
                None => fixture.put("endpointGroups", &key, &body).err(),
            };
        }
        Step::Checkpoint => fixture.checkpoint(),
        Step::TakeOver => *fixture = fixture.loaded(),
    }
}

/// Every address has one owner, and the bitmaps match the owners.
fn holds(fixture: &Fixture, reserved: &BTreeSet<String>) {
    for (network, group, prefix, gateway) in
        [("net", "small", "10.1.0.", 30), ("big", "large", "10.16.0.", 9)]
    {
        let endpoints: Vec<_> =
            fixture.endpoints().into_iter().filter(|e| e.net_id == format!("{network}.default")).collect();
        let owned: Vec<&str> = endpoints.iter().map(|e| e.ip_address.as_str()).collect();
        let taken: BTreeSet<&str> = owned
            .iter()
            .copied()
            .chain(reserved.iter().map(String::as_str).filter(|ip| ip.starts_with(prefix)))
            .collect();
        assert_eq!(owned.iter().collect::<BTreeSet<_>>().len(), owned.len(), "an address has two endpoints");
        let (state, group) = (fixture.state(network), fixture.find_group(group));
        let is_pooled = |n: &usize| group.is_some() && (4..=7).contains(n);
        let host = |ip: &&str| ip.rsplit('.').next().unwrap().parse::<usize>().unwrap();
        let (pool, rest): (BTreeSet<usize>, BTreeSet<usize>) = taken.iter().map(host).partition(is_pooled);
        let last = state.ip_alloc_map.len() - 1;
        let in_network: BTreeSet<usize> =
            rest.iter().copied().chain([0, last, gateway]).chain((4..=7).filter(is_pooled)).collect();
        assert_eq!(state.ip_alloc_map.iter().collect::<BTreeSet<_>>(), in_network, "{network}");
        let marked = |n: &usize| group.as_ref().is_some_and(|group| group.pool_map().contains(*n));
        let in_pool: BTreeSet<usize> = (4..=7).filter(marked).collect();
        assert_eq!(in_pool, pool, "the pool of {network}");
        let with_v6 = endpoints.iter().filter(|e| !e.ipv6_address.is_empty()).count();
        assert_eq!(state.ipv6_alloc_map.unwrap_or_default().len(), with_v6, "{network}");
        assert_eq!(state.ep_count as usize, endpoints.len());
        assert_eq!(state.ep_addr_count as usize, taken.len() + with_v6);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_address_has_one_owner(steps in prop::collection::vec(step(), 0..120)) {
        let (mut fixture, mut reserved) = (fixture(), BTreeSet::new());
        for step in &steps {
            carry_out(&mut fixture, step, &mut reserved);
            holds(&fixture, &reserved);
        }
        // A new leader loads the same state.
        prop_assert_eq!(fixture.loaded().content(), fixture.content());
        fixture.checkpoint();
        prop_assert_eq!(fixture.keys("/contiv.io/state/ipam/nets/").len(), 0);
        prop_assert_eq!(fixture.loaded().content(), fixture.content());
    }

    /// Of a record that agents cannot read, they keep what they have, and attach no endpoints of its group.
    #[test]
    fn agents_read_every_group_and_policy(
        profiles in prop::collection::vec((dscp(), bandwidth(), burst()), 1..4),
        rules in prop::collection::vec(rule(), 0..6),
    ) {
        let mut fixture = Fixture::new();
        fixture.network("net", "10.1.0.0/24", json!({}));
        fixture.network("six", "10.2.0.10-10.2.0.20/24", json!({"ipv6Subnet": "2001:db8::/64"}));
        fixture.put("policys", "default:p", &json!({"tenantName": "default", "policyName": "p"})).unwrap();
        fixture.put("endpointGroups", "default:peer", &of_group("peer", json!({}))).unwrap();
        for (dscp, bandwidth, burst) in profiles {
            let profile = json!({"tenantName": "default", "profileName": "q", "DSCP": dscp,
                "bandwidth": bandwidth, "burst": burst});
            let _refused = fixture.put("netprofiles", "default:q", &profile);
            let more = json!({"policies": ["p"], "netProfile": "q"});
            // Refused if the profile was.
            let _refused = fixture.put("endpointGroups", "default:web", &of_group("web", more));
            are_readable(&fixture)?;
        }
        for (n, more) in rules.into_iter().enumerate() {
            let mut body = json!({"tenantName": "default", "policyName": "p", "ruleId": n.to_string()});
            body.as_object_mut().unwrap().extend(more);
            let _refused = fixture.put("rules", &format!("default:p:{n}"), &body);
            are_readable(&fixture)?;
        }
    }
}

fn dscp() -> impl Strategy<Value = i64> {
    prop_oneof![-2i64..70, Just(i64::MIN)]
}

fn bandwidth() -> impl Strategy<Value = String> {
    let number = prop::sample::select(vec!["", "0", "1", "10", "4096", "99999999999999999999"]);
    let unit = prop::sample::select(vec!["", "k", "kbps", "Mb", "gbps", "G", "{bps", "}", "1", "1bps", "x"]);
    (number, any::<bool>(), unit)
        .prop_map(|(number, spaced, unit)| format!("{number}{}{unit}", if spaced { " " } else { "" }))
}

fn burst() -> impl Strategy<Value = i64> {
    prop_oneof![-6i64..11_000, Just(i64::MIN)]
}

/// Fields of a rule, most of which netmaster accepts.
fn rule() -> impl Strategy<Value = serde_json::Map<String, Value>> {
    let address = prop::sample::select(vec!["", "10.1.0.9", "10.1.0.0", "2001:db8::1"]);
    let rest = vec!["", "-0", "-4", "-9", "-12", "-256", "-4/24", "-12/32", "/1", "/24", "/64"];
    let rest = prop::sample::select(rest);
    let protocol = prop::sample::select(vec!["", "tcp", "udp", "icmp", "0", "89", "255", "256", "999"]);
    let peer = prop::sample::select(vec!["", "Network", "EndpointGroup"]);
    let side = any::<(bool, bool)>();
    (side, address, rest, protocol, -2i64..70_000, 1i64..=100, peer).prop_map(
        |((is_in, is_allow), address, rest, protocol, port, priority, peer)| {
            let (direction, side) = if is_in { ("in", "from") } else { ("out", "to") };
            let mut body = json!({"direction": direction, "action": if is_allow { "allow" } else { "deny" },
                "protocol": protocol, "port": port, "priority": priority});
            let fields = body.as_object_mut().unwrap();
            match peer {
                "Network" => drop(fields.insert(format!("{side}Network"), json!("six"))),
                "EndpointGroup" => drop(fields.insert(format!("{side}EndpointGroup"), json!("peer"))),
                _ => {}
            }
            if peer != "Network" {
                fields.insert(format!("{side}IpAddress"), json!(format!("{address}{rest}")));
            }
            fields.clone()
        },
    )
}

fn of_group(name: &str, more: Value) -> Value {
    let mut body = json!({"tenantName": "default", "groupName": name, "networkName": "net"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Every record of a group or policy has what agents need.
fn are_readable(fixture: &Fixture) -> Result<(), TestCaseError> {
    for record in fixture.cache.allocations::<group::State>() {
        let state = record.full_record(&AllocationChange::default());
        prop_assert!(Group::try_from(&state).is_ok(), "{state:?}");
    }
    for key in fixture.keys("/contiv.io/state/policy/") {
        let state: PolicyState = serde_json::from_value(fixture.value(key).unwrap()).unwrap();
        let policy = Policy::try_from(&state);
        prop_assert!(policy.is_ok(), "{policy:?}");
    }
    Ok(())
}
