//! Several netmasters on one etcd.

use std::collections::BTreeSet;

use contiv_model::key;
use nix::sys::signal::Signal;
use testkit::etcd::Etcd;

use crate::client::{Answer, address, create_endpoint, get, make_network};
use crate::master::{Master, PATIENCE};

/// Answers that only a leader gives; until one is found, followers say what they know.
fn patiently(what: &str, mut ask: impl FnMut() -> std::io::Result<Answer>) -> Answer {
    testkit::wait_until(PATIENCE, what, || Ok(ask().ok().filter(|answer| answer.status == 200))).unwrap()
}

#[test]
fn followers_pass_on_to_the_leader_and_take_over() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let mut first = Master::on_etcd(&etcd.endpoint());
    let mut second = Master::on_etcd(&etcd.endpoint());
    let leader = |master: &Master| get(master.address, "/info").unwrap().good()["leader-ip"].clone();
    assert_eq!(leader(&first), first.address.to_string());
    assert_eq!(leader(&second), first.address.to_string());
    let lock = etcd.ctl(&["get", "--print-value-only", key::LEADER]).unwrap();
    assert_eq!(lock.trim(), first.address.to_string());
    let services = etcd.ctl(&["get", "--prefix", "/contiv.io/service/netmaster/"]).unwrap();
    assert!(
        services.contains(r#""Role":"leader""#) && services.contains(r#""Role":"follower""#),
        "{services}"
    );

    // Through the follower, as if it were the leader.
    make_network(second.address, "net", "10.0.0.0/24");
    assert_eq!(
        get(first.address, "/api/v1/networks/").unwrap().good(),
        get(second.address, "/api/v1/networks/").unwrap().good()
    );
    let mut seen = BTreeSet::new();
    let mut create = |id: String, to| {
        let answer = patiently("an endpoint", || create_endpoint(to, "net", &id, ""));
        assert!(seen.insert(address(answer)), "{id} has an address of another");
    };
    for n in 0..10 {
        create(format!("a{n}"), if n % 2 == 0 { first.address } else { second.address });
    }
    let taken = create_endpoint(second.address, "net", "x", "10.0.0.3").unwrap();
    assert_eq!(taken.bad(), "address 10.0.0.3 is in use");

    first.kill();
    for n in 0..10 {
        create(format!("b{n}"), second.address);
    }
    assert_eq!(leader(&second), second.address.to_string());

    // The killed one comes back as a follower, and leads when the leader resigns.
    first.restart();
    assert_eq!(leader(&first), second.address.to_string());
    second.stop();
    for n in 0..10 {
        create(format!("c{n}"), first.address);
    }
    assert_eq!(leader(&first), first.address.to_string());
    let oper = get(first.address, "/api/v1/inspect/networks/default:net/").unwrap().good()["Oper"].clone();
    assert_eq!(
        (&oper["numEndpoints"], &oper["allocatedIPAddresses"]),
        (&30.into(), &"10.0.0.1-10.0.0.30".into())
    );
}

/// The store is away for longer than the lease lasts.
#[test]
fn a_master_outlives_its_store() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let mut etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "net", "10.0.0.0/24");
    assert_eq!(address(create_endpoint(master.address, "net", "a", "").unwrap()), "10.0.0.1");
    etcd.kill().unwrap();
    // It says so instead of answering from memory, or hanging.
    let away = create_endpoint(master.address, "net", "b", "").unwrap();
    assert!(away.status == 500 && !away.body.is_empty(), "{away:?}");
    testkit::wait_until(PATIENCE, "leadership to be given up", || {
        Ok(get(master.address, "/info").ok().filter(|answer| answer.status != 200))
    })
    .unwrap();
    etcd.restart().unwrap();
    let answer = patiently("an endpoint", || create_endpoint(master.address, "net", "c", ""));
    assert_eq!(address(answer), "10.0.0.2", "{}", master.process.log());
    assert!(master.process.ended().unwrap().is_none());
}

/// Somebody else holds the lock: whoever led before must not write any more, nor answer.
#[test]
fn who_loses_the_lock_follows() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "net", "10.0.0.0/24");
    let nobody = crate::master::loopback().to_string();
    // Asleep, so that it does not take the lock itself at once.
    master.process.signal(Signal::SIGSTOP).unwrap();
    etcd.ctl(&["del", key::LEADER]).unwrap();
    etcd.ctl(&["put", key::LEADER, &nobody]).unwrap();
    master.process.signal(Signal::SIGCONT).unwrap();
    let stolen = testkit::wait_until(PATIENCE, "the new holder to be asked", || {
        Ok(get(master.address, "/api/v1/networks/").ok().filter(|answer| answer.status == 502))
    });
    assert!(stolen.unwrap().body.contains(&nobody));
    etcd.ctl(&["del", key::LEADER]).unwrap();
    let answer = patiently("an endpoint", || create_endpoint(master.address, "net", "a", ""));
    assert_eq!(address(answer), "10.0.0.1");
}

/// A leader that slept while another was elected wakes up and believes that it leads.
#[test]
fn a_leader_that_slept_gives_no_address_twice() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let first = Master::on_etcd(&etcd.endpoint());
    let second = Master::on_etcd(&etcd.endpoint());
    make_network(first.address, "net", "10.0.0.0/24");
    for round in 0..3 {
        let (asleep, awake) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        asleep.process.signal(Signal::SIGSTOP).unwrap();
        let answer =
            patiently("an endpoint", || create_endpoint(awake.address, "net", &format!("a{round}"), ""));
        assert_eq!(address(answer), format!("10.0.0.{}", 2 * round + 1));
        asleep.process.signal(Signal::SIGCONT).unwrap();
        let answer =
            patiently("an endpoint", || create_endpoint(asleep.address, "net", &format!("b{round}"), ""));
        assert_eq!(address(answer), format!("10.0.0.{}", 2 * round + 2));
    }
}
