//! Several netmasters on one etcd.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use contiv_model::key;
use nix::sys::signal::Signal;
use serde_json::json;
use testkit::etcd::Etcd;

use crate::client::{Answer, address, create_endpoint, get, make_network, post};
use crate::master::{Master, WAIT_TIMEOUT};

/// Repeats the request until a leader answers it.
fn retry_until_leader(what: &str, mut ask: impl FnMut() -> std::io::Result<Answer>) -> Answer {
    testkit::wait_until(WAIT_TIMEOUT, what, || Ok(ask().ok().filter(|answer| answer.status == 200))).unwrap()
}

#[test]
fn followers_forward_to_the_leader_and_take_over() {
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

    // Through the follower, with the leader's responses.
    make_network(second.address, "net", "10.0.0.0/24");
    assert_eq!(
        get(first.address, "/api/v1/networks/").unwrap().good(),
        get(second.address, "/api/v1/networks/").unwrap().good()
    );
    let mut seen = BTreeSet::new();
    let mut create = |id: String, to| {
        let answer = retry_until_leader("an endpoint", || create_endpoint(to, "net", &id, ""));
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

    // The restarted netmaster follows, and leads after the leader resigns.
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

/// The store is unreachable for longer than the lease TTL.
#[test]
fn a_master_survives_an_outage_of_the_store() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let mut etcd = Etcd::start().unwrap();
    let mut master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "net", "10.0.0.0/24");
    assert_eq!(address(create_endpoint(master.address, "net", "a", "").unwrap()), "10.0.0.1");
    etcd.kill().unwrap();
    // It reports an error instead of hanging or answering from the cache.
    let away = create_endpoint(master.address, "net", "b", "").unwrap();
    assert!(away.status == 503 && away.body.lines().count() == 1, "{away:?}");
    assert_eq!(get(master.address, "/api/v1/networks/").unwrap().status, 503);
    testkit::wait_until(WAIT_TIMEOUT, "loss of leadership", || {
        let info = get(master.address, "/info")?.good();
        Ok((info["current-state"] == "follower" && info["leader-ip"] == "").then_some(()))
    })
    .unwrap();
    etcd.restart().unwrap();
    let answer = retry_until_leader("an endpoint", || create_endpoint(master.address, "net", "c", ""));
    assert_eq!(address(answer), "10.0.0.2", "{}", master.process.log());
    assert!(master.process.ended().unwrap().is_none());
}

#[test]
fn a_follower_without_a_store_is_not_ready() {
    testkit::needs!(binary("etcd"));
    let mut etcd = Etcd::start().unwrap();
    let mut leader = Master::on_etcd(&etcd.endpoint());
    let follower = Master::on_etcd(&etcd.endpoint());
    let ready = |status: u16, what: &str| {
        let asked = || Ok(Some(get(follower.address, "/readyz")?).filter(|answer| answer.status == status));
        testkit::wait_until(WAIT_TIMEOUT, what, asked).unwrap().body
    };
    assert_eq!(ready(200, "readiness"), format!("following {}\n", leader.address));
    etcd.process().freeze().unwrap();
    let why = ready(503, "the end of readiness");
    assert!(why.starts_with("store: "), "{why}");
    // It knows its version without the leader.
    leader.kill();
    let version = get(follower.address, "/version").unwrap();
    assert!(version.status == 200 && version.body.contains(env!("CARGO_PKG_VERSION")), "{version:?}");
    assert_eq!(get(follower.address, "/healthz").unwrap().status, 200);
    etcd.process().signal(Signal::SIGCONT).unwrap();
    ready(200, "readiness again");
}

/// Another client takes the leader lock: the former leader must neither write nor answer.
#[test]
fn a_leader_without_lock_follows() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let master = Master::on_etcd(&etcd.endpoint());
    make_network(master.address, "net", "10.0.0.0/24");
    let unreachable = crate::master::loopback().to_string();
    // Stopped, so that it does not take the lock immediately.
    master.process.freeze().unwrap();
    etcd.ctl(&["del", key::LEADER]).unwrap();
    etcd.ctl(&["put", key::LEADER, &unreachable]).unwrap();
    master.process.signal(Signal::SIGCONT).unwrap();
    let stolen = testkit::wait_until(WAIT_TIMEOUT, "requests to the new lock holder", || {
        let answer = get(master.address, "/api/v1/networks/").ok();
        Ok(answer.filter(|answer| answer.status == 503 && answer.body.contains(&unreachable)))
    });
    stolen.unwrap();
    etcd.ctl(&["del", key::LEADER]).unwrap();
    let answer = retry_until_leader("an endpoint", || create_endpoint(master.address, "net", "a", ""));
    assert_eq!(address(answer), "10.0.0.1");
}

/// A leader that was stopped while another one was elected continues.
#[test]
fn a_stopped_leader_allocates_no_address_twice() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let first = Master::on_etcd(&etcd.endpoint());
    let second = Master::on_etcd(&etcd.endpoint());
    make_network(first.address, "net", "10.0.0.0/24");
    for round in 0..3 {
        let (stopped, running) = if round % 2 == 0 { (&first, &second) } else { (&second, &first) };
        stopped.process.freeze().unwrap();
        let answer = retry_until_leader("an endpoint", || {
            create_endpoint(running.address, "net", &format!("a{round}"), "")
        });
        assert_eq!(address(answer), format!("10.0.0.{}", 2 * round + 1));
        stopped.process.signal(Signal::SIGCONT).unwrap();
        let answer = retry_until_leader("an endpoint", || {
            create_endpoint(stopped.address, "net", &format!("b{round}"), "")
        });
        assert_eq!(address(answer), format!("10.0.0.{}", 2 * round + 2));
    }
}

/// A request is sent while the leader is stopped. When the leader continues, it must neither write
/// nor answer from its cache.
#[test]
fn a_stopped_leader_does_not_answer_from_its_cache() {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start().unwrap();
    let masters = [Master::on_etcd(&etcd.endpoint()), Master::on_etcd(&etcd.endpoint())];
    make_network(masters[0].address, "net", "10.0.0.0/24");
    let mut given = BTreeSet::new();
    for round in 0..3 {
        let (stopped, running) = (&masters[round % 2], &masters[(round + 1) % 2]);
        let (to, id) = (stopped.address, |what: &str| format!("{what}{round}"));
        stopped.process.freeze().unwrap();
        std::thread::scope(|scope| {
            let write = scope.spawn(|| create_endpoint(to, "net", &id("stopped"), "").unwrap());
            let read = |path: String| scope.spawn(move || get(to, &path).unwrap());
            let network = read("/api/v1/inspect/networks/default:net/".into());
            let service = id("service");
            let services = ["/services".into(), format!("/service/{service}:default")].map(read);
            let answer = retry_until_leader("an endpoint", || {
                create_endpoint(running.address, "net", &id("running"), "")
            });
            assert!(given.insert(address(answer)));
            let body = json!({"tenantName": "default", "serviceName": service, "networkName": "net",
                "selectors": ["app=web"], "ports": ["80:8080:TCP"]});
            let path = format!("/api/v1/serviceLBs/default:{service}/");
            retry_until_leader("a service", || post(running.address, &path, &body));
            stopped.process.signal(Signal::SIGCONT).unwrap();
            match write.join().unwrap() {
                done if done.status == 200 => assert!(given.insert(address(done)), "allocated twice"),
                refused => assert_eq!(refused.status, 503, "{refused:?}"),
            }
            for (read, expected) in
                std::iter::once((network, id("running"))).chain(services.map(|read| (read, service.clone())))
            {
                let answer = read.join().unwrap();
                if answer.status != 503 {
                    let body = answer.good().to_string();
                    assert!(body.contains(&expected), "it answered from its cache: {body}");
                }
            }
        });
        // The process continues, whatever the result of the request is.
        let answer = retry_until_leader("an endpoint", || create_endpoint(to, "net", &id("stopped"), ""));
        given.insert(address(answer));
        let leads = || Ok((get(running.address, "/info")?.good()["current-state"] == "leader").then_some(()));
        testkit::wait_until(WAIT_TIMEOUT, "the other netmaster to lead", leads).unwrap();
    }
    assert_eq!(given.len(), 6, "{given:?}");
}

/// A leader that shuts down hands over leadership without failing requests.
#[test]
fn a_handover_does_not_fail_requests_to_followers() {
    testkit::needs!(binary("etcd"));
    let etcd = Etcd::start().unwrap();
    let mut masters = [0; 3].map(|_| Master::on_etcd(&etcd.endpoint()));
    make_network(masters[0].address, "net", "10.0.0.0/16");
    let [first, second, third] = &mut masters;
    for round in 0..2 {
        let stopped = if round == 0 { &mut *first } else { &mut *second };
        let (to, stop) = (third.address, std::sync::atomic::AtomicBool::new(false));
        let worst = std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                let mut worst = Duration::ZERO;
                for n in 0.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    let begin = Instant::now();
                    create_endpoint(to, "net", &format!("e{round}-{n}"), "").unwrap().good();
                    worst = worst.max(begin.elapsed());
                }
                worst
            });
            std::thread::sleep(Duration::from_millis(300));
            stopped.stop();
            std::thread::sleep(Duration::from_millis(500));
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            client.join().unwrap()
        });
        println!("the slowest request during the hand-over took {worst:?}");
        if round == 0 {
            stopped.restart();
        }
    }
}
