//! Slow, large and invalid requests over raw sockets.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use serde_json::json;
use testkit::wait_until;

use crate::authorization::{ADMIN, BLUE, NODE, Site};
use crate::client::{Answer, connect, get, post};
use crate::master::{Master, WAIT_TIMEOUT, loopback};
use crate::nodes;

const PROBLEMS: &str = "Accept: application/problem+json\r\n";

/// Reads until the connection is closed or reset.
fn read_to_end(mut stream: TcpStream) -> String {
    let mut text = Vec::new();
    if let Err(error) = stream.read_to_end(&mut text) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the connection is not closed: {error}");
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Sends `bytes` and reads until the connection is closed.
fn send(master: &Master, bytes: &[u8]) -> String {
    let mut stream = connect(master.address).unwrap();
    // The connection may be closed while it is sending.
    drop(stream.write_all(bytes));
    read_to_end(stream)
}

fn answer(master: &Master, request: &str) -> Answer {
    let text = send(master, request.as_bytes());
    Answer::parse(&text).ok_or(text).unwrap()
}

fn problem(answer: &Answer, status: u16) -> String {
    assert_eq!(
        (answer.status, answer.content_type.as_str()),
        (status, "application/problem+json"),
        "{answer:?}"
    );
    let problem = answer.json();
    assert_eq!(problem["status"], status);
    problem["detail"].as_str().unwrap().to_owned()
}

#[test]
fn slow_clients_are_disconnected_and_do_not_block_others() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::start_unprobed(store.path(), &["--client-timeout", "1", "--max-connections", "4"]);
    // Uses all connections: idle, partial headers, partial body, and a response that is not read.
    let silent = connect(master.address).unwrap();
    let mut headers = connect(master.address).unwrap();
    headers.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: ").unwrap();
    let mut body = connect(master.address).unwrap();
    body.write_all(b"POST /api/v1/tenants/t/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{").unwrap();
    let mut not_reading = connect(master.address).unwrap();
    not_reading.set_write_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
    let requests = b"GET /api/v1/globals/ HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n".repeat(64);
    while not_reading.write_all(&requests).is_ok() {}

    assert_eq!(get(master.address, "/version").unwrap().status, 200);
    assert_eq!(read_to_end(silent), "");
    assert_eq!(read_to_end(headers), "");
    let late = read_to_end(body);
    assert_eq!(Answer::parse(&late).unwrap().bad(), "read the request body: time limit exceeded");
    read_to_end(not_reading);
    let late =
        format!("POST /api/v1/tenants/t/ HTTP/1.1\r\nHost: x\r\n{PROBLEMS}Content-Length: 100\r\n\r\n{{");
    assert_eq!(problem(&answer(&master, &late), 408), "read the request body: time limit exceeded");
}

#[test]
fn clients_do_not_lock_out_other_netmasters() {
    let store = testkit::scratch_dir("store").unwrap();
    let internal = loopback();
    let flags = ["--internal-address", &internal.to_string(), "--max-connections", "2"];
    let more = ["--client-timeout", "3600"];
    let master = Master::start_unprobed(store.path(), &[&flags[..], &more].concat());
    let _idle = [(); 2].map(|()| connect(master.address).unwrap());
    assert_eq!(get(internal, "/version").unwrap().status, 200);
}

/// One client does not take what the others need. Agents may share a token.
#[test]
fn requests_of_one_client_are_limited() {
    let site = Site::start(&["--max-requests-per-client", "2", "--client-timeout", "3600"]);
    let address = site.master.address;
    let begin = |token: &str, path: &str| {
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n");
        let body = "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
        let mut stream = connect(address).unwrap();
        stream.write_all(format!("{head}{body}").as_bytes()).unwrap();
        stream
    };
    let begin_slow = || [(); 2].map(|()| begin(BLUE, "/api/v1/networks/blue:slow/"));
    let mut slow = begin_slow();
    let status =
        |status: u16| Some(site.get(BLUE, "/api/v1/networks/")).filter(|answer| answer.status == status);
    let refused = wait_until(WAIT_TIMEOUT, "a refusal", || {
        let refused = status(429);
        if refused.is_none() {
            // A netmaster that does not lead at the moment has answered them.
            slow = begin_slow();
        }
        Ok(refused)
    })
    .unwrap();
    assert_eq!(refused.header("retry-after"), Some("1"));
    assert!(refused.body.starts_with("blue-ci has 2 requests in flight"), "{refused:?}");
    let ask = format!(
        "GET /api/v1/networks/ HTTP/1.1\r\nHost: x\r\n{PROBLEMS}Authorization: Bearer {BLUE}\r\n\r\n"
    );
    let refused = answer(&site.master, &ask);
    assert!(problem(&refused, 429).starts_with("blue-ci has 2 requests in flight"));
    assert_eq!(refused.header("retry-after"), Some("1"));

    site.get(ADMIN, "/api/v1/networks/").good();
    assert_eq!(get(address, "/version").unwrap().status, 200);
    let _slow_agents = [(); 3].map(|()| begin(NODE, "/plugin/createEndpoint"));
    let body = json!({"TenantName": "blue", "NetworkName": "net", "EndpointID": "a"});
    assert_eq!(site.ask(NODE, "POST", "/plugin/deleteEndpoint", &body).status, 500);
    drop(slow);
    wait_until(WAIT_TIMEOUT, "an answer", || Ok(status(200))).unwrap();
}

/// A request that says it was forwarded is counted, unless another netmaster is registered with the
/// address of the client.
#[test]
fn requests_of_one_client_are_limited_also_with_the_header_of_a_netmaster() {
    let store = testkit::scratch_dir("store").unwrap();
    let flags = ["--max-requests-per-client", "2", "--client-timeout", "3600"];
    let master = Master::start_unprobed(store.path(), &flags);
    let to = master.address;
    let via = "Via: 1.1 netmaster\r\n";
    let begin = || {
        let mut stream = connect(to).unwrap();
        let head = format!("POST /api/v1/networks/default:slow/ HTTP/1.1\r\nHost: x\r\n{via}");
        stream.write_all(format!("{head}Content-Length: 100\r\n\r\n{{").as_bytes()).unwrap();
        stream
    };
    let mut slow = [(); 2].map(|()| begin());
    let list = format!("GET /api/v1/networks/ HTTP/1.1\r\nHost: x\r\n{via}\r\n");
    let status = |status: u16| Some(answer(&master, &list)).filter(|answer| answer.status == status);
    let refused = wait_until(WAIT_TIMEOUT, "a refusal", || {
        let refused = status(429);
        if refused.is_none() {
            // They have not arrived yet, or were answered.
            slow = [(); 2].map(|()| begin());
        }
        Ok(refused)
    })
    .unwrap();
    assert!(refused.body.starts_with("127.0.0.1 has 2 requests in flight"), "{refused:?}");

    let body = json!({"ServiceName": "netmaster", "HostAddr": "127.0.0.1", "Port": 1});
    nodes::write(&master, &[("service/netmaster/127.0.0.1:1".into(), body.to_string())]);
    wait_until(WAIT_TIMEOUT, "an answer", || Ok(status(200))).unwrap();
    drop(slow);
}

/// A response is in memory until the client has taken it.
#[test]
fn large_responses_of_one_client_are_limited() {
    const LIST: &str = "/api/v1/extContractsGroups/";
    const METRIC: &str = "contiv_netmaster_response_bytes_in_flight ";
    let store = testkit::scratch_dir("store").unwrap();
    let flags = ["--max-response-memory-per-client", "1", "--client-timeout", "3600"];
    let master = Master::start_unprobed(store.path(), &flags);
    let to = master.address;
    let create = |n: usize| {
        let body = json!({"tenantName": "default", "contractsGroupName": format!("c{n}"), "contractsType": "provided",
            "contracts": vec!["x".repeat(1000); 1000]});
        post(to, &format!("{LIST}default:c{n}/"), &body).unwrap().good();
    };
    // More than the buffers of the connection hold.
    (0..20).for_each(create);
    let mut slow = connect(to).unwrap();
    slow.write_all(format!("GET {LIST} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
    slow.read_exact(&mut [0; 1]).unwrap();
    let refused = get(to, LIST).unwrap();
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    assert!(refused.body.contains("(--max-response-memory-per-client)"), "{refused:?}");
    let metrics = get(to, "/metrics").unwrap().body;
    let held = metrics.lines().find_map(|line| line.strip_prefix(METRIC)?.parse::<u64>().ok());
    assert!(held.unwrap() > 20_000_000, "{metrics}");
    // Small responses and changes are answered.
    get(to, "/api/v1/globals/").unwrap().good();
    create(20);
    drop(slow);
    let listed = || Ok(get(to, LIST).ok().filter(|answer| answer.status == 200).map(drop));
    wait_until(WAIT_TIMEOUT, "an answer", listed).unwrap();
}

#[test]
fn too_large_requests_are_rejected_with_a_text() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::start_unprobed(store.path(), &[]);
    let too_large = "request body too large: the limit is 1048576 bytes";
    let head = "POST /api/v1/tenants/t/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n";
    let body = " ".repeat((1 << 20) + 1);
    for path in ["/api/v1/tenants/t/", "/plugin/createEndpoint", "/nowhere"] {
        let head = head.replace("/api/v1/tenants/t/", path);
        let plain = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        assert_eq!(answer(&master, &plain).bad(), too_large, "{path}");
    }
    let polite = format!("{head}{PROBLEMS}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n", 1_u64 << 40);
    assert_eq!(problem(&answer(&master, &polite), 413), too_large);
    let chunked =
        format!("{head}{PROBLEMS}Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    assert_eq!(problem(&answer(&master, &chunked), 413), too_large);
    let largest = format!("{head}Content-Length: {}\r\n\r\n{}", 1 << 20, &body[1..]);
    assert_eq!(answer(&master, &largest).bad(), "EOF");

    for headers in [format!("X: {}\r\n", "x".repeat(100_000)), "X: y\r\n".repeat(200)] {
        let refused = send(&master, format!("GET /version HTTP/1.1\r\nHost: x\r\n{headers}\r\n").as_bytes());
        assert!(refused.starts_with("HTTP/1.1 431 "), "{refused}");
    }
    let long = send(&master, format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(100_000)).as_bytes());
    assert!(long.starts_with("HTTP/1.1 414 ") || long.starts_with("HTTP/1.1 431 "), "{long}");
    assert_eq!(get(master.address, "/version").unwrap().status, 200);
}

#[test]
fn invalid_http_is_rejected() {
    let store = testkit::scratch_dir("store").unwrap();
    let mut master = Master::start_unprobed(store.path(), &["--client-timeout", "2"]);
    let random: Vec<u8> = (0..4096_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for bytes in [
        &random[..],
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /plugin/allocAddress HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    ] {
        let answer = send(&master, bytes);
        let fine = ["", "HTTP/1.1 400 ", "HTTP/1.1 404 ", "HTTP/1.1 500 "];
        assert!(
            answer.is_empty() || fine[1..].iter().any(|start| answer.starts_with(start)),
            "{bytes:?}: {answer}"
        );
    }
    assert!(master.process.ended().unwrap().is_none());
    assert_eq!(get(master.address, "/version").unwrap().status, 200);
    assert!(!master.process.log().contains("panicked"), "{}", master.process.tail());
}

#[test]
fn half_closed_and_persistent_connections_are_supported() {
    let store = testkit::scratch_dir("store").unwrap();
    let master = Master::start_unprobed(store.path(), &[]);
    let mut half = connect(master.address).unwrap();
    half.write_all(b"GET /api/v1/globals/ HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    let text = read_to_end(half);
    assert_eq!(Answer::parse(&text).unwrap().status, 200);
    assert!(text.to_ascii_lowercase().contains("\r\nconnection: close\r\n"), "{text}");

    let ask = "GET /version HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n";
    let last = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n";
    let text = send(&master, format!("{ask}{ask}{last}{ask}").as_bytes());
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{text}");
}
