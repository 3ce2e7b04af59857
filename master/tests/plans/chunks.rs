//! Allocations of large pools: a record, a journal and chunks.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use contiv_model::event::Event;
use contiv_model::network;
use netmaster::cache::Stageable;
use netmaster::repair::replace_unreadable_journals;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::Fixture;

const NETWORK: &str = "net.default";
const RECORD: &str = "/contiv.io/state/nets/net.default";
const JOURNAL: &str = "/contiv.io/state/ipam/nets/net.default";
const CHUNKS: &str = "/contiv.io/state/ipam/chunks/nets/net.default/";
/// Addresses of the network.
const SIZE: usize = 1 << 20;

fn fixture() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.network("net", "10.16.0.0/12", json!({"ipv6Subnet": "fd00::/96"}));
    fixture
}

/// Numbers from `first`, `step` apart.
#[derive(Clone, Copy, Debug)]
struct Series {
    first: usize,
    step: usize,
    count: usize,
}

impl Series {
    /// Without the network's own addresses.
    fn numbers(self) -> BTreeSet<usize> {
        let numbers = (0..self.count).map(|n| (self.first + n * self.step) % SIZE);
        numbers.filter(|n| *n != 0 && *n != SIZE - 1).collect()
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Take(Series),
    Free(Series),
    Take6(Series),
    Free6(Series),
    Checkpoint,
    /// A new leader loads the state from the store.
    TakeOver,
}

fn step() -> impl Strategy<Value = Step> {
    let series =
        || {
            (0..SIZE, prop_oneof![1..3usize, 1..5000usize], 0..900usize)
                .prop_map(|(first, step, count)| Series { first, step, count })
        };
    prop_oneof![
        5 => series().prop_map(Step::Take),
        5 => series().prop_map(Step::Free),
        2 => series().prop_map(Step::Take6),
        2 => series().prop_map(Step::Free6),
        1 => Just(Step::Checkpoint),
        2 => Just(Step::TakeOver),
    ]
}

/// What is allocated.
#[derive(Debug, Default, PartialEq)]
struct Allocated {
    addresses: BTreeSet<usize>,
    hosts: BTreeSet<u128>,
}

impl Allocated {
    fn of(state: &network::State) -> Allocated {
        let own = [0, SIZE - 1];
        let addresses = state.ip_alloc_map.iter().filter(|n| !own.contains(n)).collect();
        let hosts = state.ipv6_alloc_map.iter().flatten();
        let hosts = hosts.map(|(key, _)| u128::from(key.parse::<Ipv6Addr>().unwrap())).collect();
        Allocated { addresses, hosts }
    }
}

/// Allocates or frees IPv4 addresses.
fn change(fixture: &mut Fixture, numbers: &BTreeSet<usize>, take: bool) {
    change_in::<network::State>(fixture, NETWORK, numbers, take);
}

fn change_in<B: Stageable>(fixture: &mut Fixture, id: &str, numbers: &BTreeSet<usize>, take: bool) {
    fixture
        .run(|staged| {
            let (record, change) = staged.allocation::<B>(id).unwrap();
            for n in numbers {
                match take {
                    true => change.pool.take(&record.pool, *n),
                    false => change.pool.free(&record.pool, *n),
                };
            }
            Ok(vec![])
        })
        .unwrap();
}

fn change6(fixture: &mut Fixture, numbers: &BTreeSet<usize>, take: bool) {
    fixture
        .run(|staged| {
            let (record, change) = staged.allocation::<network::State>(NETWORK).unwrap();
            for n in numbers {
                let host = *n as u128;
                match take {
                    true => change.hosts.take(&record.hosts, host),
                    false => change.hosts.free(&record.hosts, host),
                };
            }
            Ok(vec![])
        })
        .unwrap();
}

fn carry_out(fixture: &mut Fixture, step: Step, model: &mut Allocated) {
    let hosts = |numbers: &BTreeSet<usize>| numbers.iter().map(|n| *n as u128).collect::<BTreeSet<_>>();
    let numbers = match step {
        Step::Take(series) | Step::Free(series) | Step::Take6(series) | Step::Free6(series) => {
            series.numbers()
        }
        Step::Checkpoint | Step::TakeOver => BTreeSet::new(),
    };
    match step {
        Step::Take(_) => {
            change(fixture, &numbers, true);
            model.addresses.extend(numbers);
        }
        Step::Free(_) => {
            change(fixture, &numbers, false);
            model.addresses.retain(|n| !numbers.contains(n));
        }
        Step::Take6(_) => {
            change6(fixture, &numbers, true);
            model.hosts.extend(hosts(&numbers));
        }
        Step::Free6(_) => {
            change6(fixture, &numbers, false);
            let freed = hosts(&numbers);
            model.hosts.retain(|host| !freed.contains(host));
        }
        Step::Checkpoint => fixture.checkpoint(),
        Step::TakeOver => *fixture = fixture.loaded(),
    }
}

/// Bytes of the largest value that was written since `from`.
fn largest(fixture: &Fixture, from: usize) -> usize {
    let values = fixture.changes[from..].iter().map(|update| match &update.event {
        Event::Apply(_, kv) => kv.value.len(),
        _ => 0,
    });
    values.max().unwrap_or_default()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// A leader may die after every transaction. Its successor, whether it starts then or has followed
    /// it, has all allocations, and the form of a record without journal and chunks says the same.
    #[test]
    fn no_allocation_is_lost(steps in prop::collection::vec(step(), 0..12)) {
        let (mut fixture, mut model) = (fixture(), Allocated::default());
        for step in steps {
            let from = fixture.changes.len();
            carry_out(&mut fixture, step, &mut model);
            prop_assert_eq!(&Allocated::of(&fixture.state("net")), &model);
            prop_assert_eq!(&Allocated::of(&fixture.loaded().state("net")), &model);
            prop_assert_eq!(&Allocated::of(&fixture.follower().state("net")), &model);
            // Whole records are written by checkpoints only.
            if !matches!(step, Step::Checkpoint) {
                prop_assert!(largest(&fixture, from) <= 12 << 10);
            }
        }
        fixture.checkpoint();
        prop_assert_eq!(fixture.keys("/contiv.io/state/ipam/"), [""; 0]);
        let stored: network::State = serde_json::from_slice(&fixture.stored(RECORD).value).unwrap();
        prop_assert_eq!(Allocated::of(&stored), model);
    }
}

/// Every second address of `chunks` chunks.
fn scattered(chunks: usize) -> BTreeSet<usize> {
    Series { first: 1, step: 2, count: chunks * 16 * 1024 / 2 }.numbers()
}

#[test]
fn a_fold_writes_the_changed_chunks_only() {
    let mut fixture = fixture();
    change(&mut fixture, &scattered(3), true);
    let names = |fixture: &Fixture| {
        fixture
            .keys(CHUNKS)
            .iter()
            .map(|key| key.strip_prefix(CHUNKS).unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&fixture), ["0", "1", "2"]);
    assert_eq!(fixture.value(JOURNAL).unwrap()["chunked"]["chunks"], "0-2");
    // Later changes of the chunk are in the journal again, until it gets long.
    let from = fixture.changes.len();
    change(&mut fixture, &[1, 3, 5].into(), false);
    assert_eq!(fixture.value(JOURNAL).unwrap()["freed"], "1, 3, 5");
    assert_eq!((fixture.changes.len() - from, names(&fixture).len()), (1, 3));
    assert_eq!(Allocated::of(&fixture.loaded().state("net")).addresses.len(), scattered(3).len() - 3);
    // The chunks are deleted with their network.
    fixture.delete("networks", "default:net").unwrap();
    assert_eq!(fixture.keys("/contiv.io/state/ipam/"), [""; 0]);
}

/// Pools of groups may be large, too.
#[test]
fn pools_of_groups_have_chunks_of_their_own() {
    let mut fixture = fixture();
    fixture.group("web", "net", "10.17.0.0-10.18.255.255");
    let numbers: BTreeSet<usize> = scattered(1).iter().map(|n| n + (1 << 16)).collect();
    change_in::<contiv_model::group::State>(&mut fixture, "web:default", &numbers, true);
    assert_eq!(
        fixture.keys("/contiv.io/state/ipam/chunks/"),
        ["/contiv.io/state/ipam/chunks/endpointGroups/web:default/4"]
    );
    for netmaster in [fixture.loaded(), fixture.follower()] {
        let map = netmaster.group_state("web").pool_map();
        assert!((1 << 16..2 << 16).all(|n| map.contains(n) == numbers.contains(&n)));
    }
}

/// A release without chunks has led meanwhile: it has merged what it knew, and left the chunks.
#[test]
fn chunks_without_a_journal_that_names_them_are_ignored() {
    let mut fixture = fixture();
    change(&mut fixture, &scattered(1), true);
    assert_eq!(fixture.keys(CHUNKS).len(), 1);
    let mut state = fixture.state("net");
    state.ip_alloc_map.insert_range(1..100);
    let journal = json!({"id": NETWORK, "epAddrCount": 0, "epCount": 0, "taken": "200", "freed": "",
        "taken6": "", "freed6": "", "ipv6LastHost": null});
    fixture.break_key(RECORD, Some(&serde_json::to_value(&state).unwrap()));
    fixture.break_key(JOURNAL, Some(&journal));
    let mut fixture = fixture.loaded();
    let allocated = |fixture: &Fixture| Allocated::of(&fixture.state("net")).addresses;
    let mut expected = scattered(1);
    expected.extend((1..100).chain([200]));
    assert_eq!(allocated(&fixture), expected);
    // The next fold replaces the chunk.
    let more: BTreeSet<usize> = (0..800).map(|n| 4000 + 4 * n).collect();
    change(&mut fixture, &more, true);
    expected.extend(more);
    assert_eq!(allocated(&fixture.loaded()), expected);
    fixture.checkpoint();
    assert_eq!(fixture.keys("/contiv.io/state/ipam/"), [""; 0]);
    assert_eq!(allocated(&fixture.loaded()), expected);
}

/// The addresses of endpoints and services are restored.
#[test]
fn a_chunk_that_is_lost_or_damaged_frees_no_address_in_use() {
    for damage in [None, Some(json!({"bits": "AAAAAAAAAAQAAAAAAAAACQ=="})), Some(json!("x"))] {
        let mut fixture = fixture();
        let (address, _) = fixture.create("net", "a", "", "10.16.0.77", "").unwrap();
        change(&mut fixture, &scattered(1), true);
        fixture.break_key(&format!("{CHUNKS}0"), damage.as_ref());
        let mut fixture = fixture.loaded();
        assert!(!fixture.cache.unreadable_journals().is_empty(), "{damage:?}");
        fixture
            .run(|staged| {
                replace_unreadable_journals(staged);
                Ok(vec![])
            })
            .unwrap();
        assert_eq!(fixture.keys("/contiv.io/state/ipam/"), [""; 0]);
        assert_eq!(address, "10.16.0.77");
        assert!(fixture.state("net").ip_alloc_map.contains(77));
        assert_eq!(fixture.loaded().content(), fixture.content());
    }
}

/// `netmaster restore` writes the keys in their order: the record last.
#[test]
fn a_journal_may_be_older_than_its_record() {
    let mut fixture = fixture();
    fixture.create("net", "a", "", "", "").unwrap();
    change(&mut fixture, &scattered(1), true);
    let record: Value = fixture.value(RECORD).unwrap();
    fixture.break_key(RECORD, Some(&record));
    let expected = Allocated::of(&fixture.state("net"));
    let mut loaded = fixture.loaded();
    assert_eq!(Allocated::of(&loaded.state("net")), expected);
    // After a conflict the keys are read again.
    for key in [RECORD, JOURNAL] {
        loaded.reload(key);
    }
    assert_eq!(Allocated::of(&loaded.state("net")), expected);
}
