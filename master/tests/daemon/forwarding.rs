//! Requests that a follower forwards. The leader is a socket of the test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use contiv_model::key;
use testkit::etcd::{Etcd, etcdctl};

use crate::client::{call, delete, get, make_network, post};
use crate::master::{Master, WAIT_TIMEOUT};
use crate::nodes;

/// A follower of the test's socket.
struct TestLeader {
    follower: Master,
    leader: TcpListener,
    etcd: Etcd,
}

impl TestLeader {
    fn start() -> TestLeader {
        let etcd = Etcd::start().unwrap();
        let leader = TcpListener::bind("127.0.0.1:0").unwrap();
        etcd.ctl(&["put", key::LEADER, &leader.local_addr().unwrap().to_string()]).unwrap();
        TestLeader { follower: Master::on_etcd(&etcd.endpoint()), leader, etcd }
    }

    fn accept(&self) -> BufReader<TcpStream> {
        let stream = self.leader.accept().unwrap().0;
        stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        BufReader::new(stream)
    }
}

/// Request line, and headers in lower case.
fn head(stream: &mut BufReader<TcpStream>) -> (String, Vec<String>) {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let first = lines.remove(0);
    (first, lines.iter().map(|line| line.to_lowercase()).collect())
}

#[test]
fn end_to_end_headers_are_forwarded_and_hop_by_hop_headers_are_not() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let test_leader = TestLeader::start();
    let to = test_leader.follower.address;
    let request = thread::spawn(move || {
        let headers = [("X-Auth-Token", "t"), ("X-Hop", "h"), ("TE", "trailers"), ("Connection", "X-Hop")];
        call(to, "PATCH", "/api/v1/some/thing/?a=b%20c&d", &headers, "body").unwrap()
    });
    let mut stream = test_leader.accept();
    let (first, headers) = head(&mut stream);
    assert_eq!(first, "PATCH /api/v1/some/thing/?a=b%20c&d HTTP/1.1");
    for header in ["x-auth-token: t", "content-length: 4", &format!("host: {to}"), "via: 1.1 netmaster"] {
        assert!(headers.iter().any(|h| h == header), "{header} in {headers:?}");
    }
    for name in ["x-hop:", "te:"] {
        assert!(!headers.iter().any(|h| h.starts_with(name)), "{name} in {headers:?}");
    }
    let mut body = [0; 4];
    stream.read_exact(&mut body).unwrap();
    assert_eq!(&body, b"body");
    let answer =
        b"HTTP/1.1 418 Teapot\r\nContent-Type: x/y\r\nKeep-Alive: timeout=9\r\nContent-Length: 2\r\n\r\nhi";
    stream.get_mut().write_all(answer).unwrap();
    let answer = request.join().unwrap();
    assert_eq!((answer.status, answer.content_type.as_str(), answer.body.as_str()), (418, "x/y", "hi"));
}

/// The first half of a body arrives before the second half is sent, in both directions.
#[test]
fn bodies_are_streamed() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let test_leader = TestLeader::start();
    let mut client = TcpStream::connect(test_leader.follower.address).unwrap();
    client.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    client
        .write_all(b"POST /up HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        .unwrap();
    let mut leader = test_leader.accept();
    assert_eq!(head(&mut leader).0, "POST /up HTTP/1.1");
    let mut read = |expected: &str| {
        let mut bytes = vec![0; expected.len()];
        leader.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    };
    read("5\r\nfirst\r\n");
    client.write_all(b"4\r\nlast\r\n0\r\n\r\n").unwrap();
    read("4\r\nlast\r\n0\r\n\r\n");

    let out = leader.get_mut();
    out.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n").unwrap();
    let mut answer = BufReader::new(client);
    let mut seen = String::new();
    while !seen.contains("one") {
        assert!(answer.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
    out.write_all(b"3\r\ntwo\r\n0\r\n\r\n").unwrap();
    while !seen.contains("two") {
        assert!(answer.read_line(&mut seen).unwrap() > 0, "{seen}");
    }
}

#[test]
fn a_request_that_may_have_been_carried_out_is_not_repeated() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let test_leader = TestLeader::start();
    let to = test_leader.follower.address;
    // The leader reads the request and closes the connection.
    let request = thread::spawn(move || post(to, "/plugin/createEndpoint", &serde_json::json!({})).unwrap());
    assert!(head(&mut test_leader.accept()).0.starts_with("POST"));
    let answer = request.join().unwrap();
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(answer.body.ends_with("may have been carried out\n"), "{answer:?}");
    test_leader.leader.set_nonblocking(true).unwrap();
    thread::sleep(Duration::from_millis(300));
    assert!(test_leader.leader.accept().is_err(), "the request was sent again");

    // A read request is sent again.
    test_leader.leader.set_nonblocking(false).unwrap();
    let request = thread::spawn(move || get(to, "/services").unwrap());
    assert!(head(&mut test_leader.accept()).0.starts_with("GET"));
    let mut again = test_leader.accept();
    assert!(head(&mut again).0.starts_with("GET"));
    again.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nagain").unwrap();
    assert_eq!(request.join().unwrap().body, "again");
}

/// A leader that was deposed says that it did not carry out the request; the follower sends it
/// again.
#[test]
fn a_request_that_was_not_carried_out_is_repeated() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let test_leader = TestLeader::start();
    let to = test_leader.follower.address;
    let request = thread::spawn(move || call(to, "POST", "/some/thing", &[], "body").unwrap());
    let not_done = "HTTP/1.1 503 Service Unavailable\r\nNetmaster-Not-Done: 1\r\nContent-Length: 0\r\n\r\n";
    let done = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone";
    let mut stream = test_leader.accept();
    for answer in [not_done, not_done, done] {
        assert_eq!(head(&mut stream).0, "POST /some/thing HTTP/1.1");
        let mut body = [0; 4];
        stream.read_exact(&mut body).unwrap();
        assert_eq!(&body, b"body");
        stream.get_mut().write_all(answer.as_bytes()).unwrap();
    }
    assert_eq!(request.join().unwrap().body, "done");
}

/// A follower does not forward a request that another follower forwarded to it.
#[test]
fn a_follower_does_not_forward_for_a_follower() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let test_leader = TestLeader::start();
    let answer =
        call(test_leader.follower.address, "POST", "/some/thing", &[("Via", "1.1 netmaster")], "").unwrap();
    assert_eq!(answer.unavailable(), "this netmaster is no longer the leader; retry");
    test_leader.leader.set_nonblocking(true).unwrap();
    assert!(test_leader.leader.accept().is_err(), "the request was forwarded");
}

/// The leader in the lock is unreachable: the request was not sent, so the next leader receives it.
#[test]
fn an_unsent_request_waits_for_the_next_leader() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let test_leader = TestLeader::start();
    let to = test_leader.follower.address;
    let TestLeader { follower: _follower, leader, etcd } = test_leader;
    drop(leader);
    let request = thread::spawn(move || make_network(to, "net", "10.0.0.0/24"));
    thread::sleep(Duration::from_millis(300));
    etcd.ctl(&["del", key::LEADER]).unwrap();
    assert_eq!(request.join().unwrap()["networkName"], "net");
}

/// Endpoints that a leader deletes in one transaction.
const BATCH: usize = 32;

/// Whether a request names an endpoint of the second batch, or of a later one.
fn is_second_batch(bytes: &[u8]) -> bool {
    const KEY: &[u8] = b"/state/eps/net.default-c";
    let digits = format!("{BATCH:03}");
    let mut ids = bytes.windows(KEY.len() + digits.len()).filter_map(|window| window.strip_prefix(KEY));
    ids.any(|id| id.iter().all(u8::is_ascii_digit) && id >= digits.as_bytes())
}

/// Starts a proxy to etcd, and returns its URL. When it is armed, it deletes the leader lock before it
/// forwards the deletion of the second batch.
fn deposing_proxy(etcd: &Etcd, armed: &Arc<AtomicBool>) -> String {
    let (to, endpoint, armed) = (etcd.address(), etcd.endpoint(), armed.clone());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for near in listener.incoming() {
            let (Ok(mut near), Ok(mut far)) = (near, TcpStream::connect(to)) else { continue };
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            let (mut answers, mut client) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            // Either end may close the connection.
            thread::spawn(move || drop(std::io::copy(&mut answers, &mut client)));
            let (endpoint, armed) = (endpoint.clone(), armed.clone());
            thread::spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = near.read(&mut buffer) {
                    if is_second_batch(&buffer[..read]) && armed.swap(false, Ordering::SeqCst) {
                        etcdctl(&endpoint, &["del", key::LEADER]).unwrap();
                    }
                    if far.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    url
}

/// The leader is deposed after its first transaction. The next one does not know the endpoints that are
/// deleted, so their interfaces would stay.
#[test]
fn a_cleanup_that_was_carried_out_in_part_is_not_repeated() {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start().unwrap();
    let armed = Arc::new(AtomicBool::new(false));
    let leader = Master::on_etcd(&deposing_proxy(&etcd, &armed));
    let follower = Master::on_etcd(&etcd.endpoint());
    make_network(leader.address, "net", "10.0.0.0/16");
    let agent = nodes::agent_address(10);
    let asked = nodes::agent(agent, "net%2Edefault");
    nodes::write(&follower, &[nodes::registration("there", &agent.to_string())]);
    for n in 0..100 {
        nodes::create(leader.address, &format!("c{n:03}"), "there");
    }
    armed.store(true, Ordering::SeqCst);
    let clean_up = || delete(follower.address, "/debug/epcleanup/tenant/default/net/net");
    let line = clean_up().unwrap().unavailable();
    assert!(line.starts_with(&format!("{BATCH} of 100 endpoints are deleted: ")), "{line}");
    let request = |n: usize| format!("DELETE /debug/reclaimEndpoint/net%2Edefault%2Dc{n:03} HTTP/1.1");
    let sorted = || {
        let mut asked = asked.lock().unwrap().clone();
        asked.sort();
        asked
    };
    assert_eq!(sorted(), (0..BATCH).map(request).collect::<Vec<_>>());
    // On request, the next leader deletes the others.
    let done = || Ok(clean_up().ok().filter(|answer| answer.status == 200).map(drop));
    testkit::wait_until(WAIT_TIMEOUT, "the other endpoints to be deleted", done).unwrap();
    assert_eq!(sorted(), (0..100).map(request).collect::<Vec<_>>());
}
