//! Proxies that the environment sets.

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

use serde_json::json;

use crate::{
    netctl, read,
    server::{Reply, Server},
};

/// A proxy that connects to one server, whatever the host, but not to hosts whose name begins with `down.`.
struct Proxy {
    address: SocketAddr,
    targets: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn start(server: &Server) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let targets = Arc::new(Mutex::new(vec![]));
        let recorded = Arc::clone(&targets);
        let server: SocketAddr = server.url().strip_prefix("http://").unwrap().parse().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, targets) = (stream.unwrap(), Arc::clone(&recorded));
                thread::spawn(move || connect(&stream, server, &targets));
            }
        });
        Proxy { address, targets }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Hosts and ports to connect to since the last call.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.targets.lock().unwrap())
    }
}

/// Answers a request to connect, and copies bytes in both directions until the server closes the connection.
fn connect(mut client: &TcpStream, server: SocketAddr, targets: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut reader = BufReader::new(client);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    targets.lock().unwrap().push(target.clone());
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
    }
    if target.starts_with("down.") {
        return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n");
    }
    let server = TcpStream::connect(server)?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || io::copy(&mut &from, &mut &to));
    io::copy(&mut &server, &mut client)?;
    client.shutdown(Shutdown::Both)
}

#[test]
fn next_netmaster_is_asked_if_the_proxy_does_not_reach_one() {
    let server = Server::start(|_| Reply::json(&json!([])));
    let proxy = Proxy::start(&server);
    let run = |list: &str, words: &[&str]| {
        let mut command = netctl(list, words);
        read(&command.env("http_proxy", proxy.url()).output().unwrap())
    };
    let list = "http://down.test:9999,http://up.test:9999";
    for (words, line) in [
        (["tenant", "create", "t"], "POST /api/v1/tenants/t/"),
        (["tenant", "rm", "t"], "DELETE /api/v1/tenants/t/"),
        (["get", "tenants", "-oname"], "GET /api/v1/tenants/"),
    ] {
        let (_, stderr, code) = run(list, &words);
        assert_eq!((stderr.as_str(), code), ("", 0), "{words:?}");
        assert_eq!(proxy.take(), ["down.test:9999", "up.test:9999"], "{words:?}");
        let lines: Vec<String> = server.take().into_iter().map(|request| request.line).collect();
        assert_eq!(lines, [line]);
    }

    let (_, stderr, code) = run("http://down.test:9999", &["tenant", "create", "t"]);
    assert!(stderr.contains("NO_PROXY") && stderr.contains("502"), "{stderr}");
    assert!(!stderr.contains("may have been carried out"), "{stderr}");
    assert_eq!((code, proxy.take()), (3, vec!["down.test:9999".to_owned()]));

    // Agents are reached in the same way.
    let (_, stderr, code) = run(list, &["monitor", "--agent", "http://down.test:9090"]);
    assert!(stderr.contains("GET http://down.test:9090/monitor"), "{stderr}");
    assert_eq!((code, proxy.take()), (3, vec!["down.test:9090".to_owned()]));
}

#[test]
fn proxies_are_not_for_this_machine() {
    let server = Server::start(|_| Reply::json(&json!([])));
    let proxy = Proxy::start(&server);
    for variable in ["ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"] {
        let mut command = netctl(&server.url(), &["tenant", "ls"]);
        let (_, stderr, code) = read(&command.env(variable, proxy.url()).output().unwrap());
        assert_eq!((stderr.as_str(), code), ("", 0), "{variable}");
    }
    assert_eq!((proxy.take(), server.take().len()), (vec![], 3));
}
