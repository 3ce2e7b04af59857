//! Upgrades of two nodes under load: connections to services on the same node, on the other one, and to the client itself,
//! datagrams, and denied datagrams.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use contiv_abi::ABI_VERSION;
use contiv_model::{
    policy::{Action, Direction, Rule},
    service::Readiness,
};
use netplugin::datapath::{Datapath as _, Object, Remote, Service};
use nix::libc;
use testkit::{Netns, needs, patience, wait_until};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use super::{FAR, HERE, OTHER, SELF, VIP};
use crate::{
    node::{Endpoint, Node, Pod, network, runtime, vtep, vxlan},
    policy::{group, number, pod, rule},
    services::service,
};

/// A pod that reaches itself through a service.
const ALONE: Endpoint = Endpoint(4);
/// Connections of the client for each address family, and of the pod that reaches itself.
const CONNECTIONS: u64 = 400;
const HAIRPINS: u64 = 100;
/// Ports of UDP that are denied always, and from the first upgrade on.
const DENIED: u16 = 9;
const DENIED_LATER: u16 = 10;
/// After this time without an answer, a connection counts as broken.
const BROKEN: Duration = Duration::from_secs(120);
/// After this time without any progress, the test has failed.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Datagrams of one sender that may be without an answer.
const UNANSWERED: u64 = 200;
/// After this time without any answer, datagrams count as lost.
const LOST: Duration = Duration::from_millis(100);
const LOST_AT_MOST: Duration = Duration::from_secs(5);

/// A number of connections or events, fewer of them where each takes longer.
fn scaled(number: u64) -> u64 {
    number / u64::from(patience())
}

/// What all threads share.
#[derive(Default)]
struct Counters {
    /// The clients end, and then the servers.
    done: AtomicBool,
    closed: AtomicBool,
    exchanges: AtomicU64,
    opened: AtomicU64,
    slowest_ms: AtomicU64,
    sent: AtomicU64,
    answered: AtomicU64,
    untranslated: AtomicU64,
    denied: [AtomicU64; 2],
}

struct Cluster {
    a: Node,
    b: Node,
    pods: Vec<Pod>,
}

fn rules(denied: &[u16]) -> Object {
    let deny = |port: &u16| Rule {
        protocol: Some(17),
        ports: Some((*port).into()),
        ..rule(&format!("deny-{port}"), Direction::In, Action::Deny, 10)
    };
    Object::Group(group(2, denied.iter().map(deny).collect()))
}

impl Cluster {
    fn new() -> Result<Cluster> {
        let (mut a, mut b) = Node::pair("load")?;
        let n1 = network("n1.t", vxlan(10_001));
        let pods = vec![
            pod(&mut a, &n1, HERE, 1)?,
            pod(&mut a, &n1, OTHER, 2)?,
            pod(&mut a, &n1, ALONE, 1)?,
            pod(&mut b, &n1, FAR, 2)?,
        ];
        a.want_network(&n1).want_peer(2);
        b.want_network(&n1).want_peer(1);
        let far = |endpoint: Endpoint, n, identity| {
            Object::Remote(Remote { identity: Some(number(identity)), ..endpoint.remote(&n1, Some(vtep(n))) })
        };
        a.want(far(FAR, 2, 2));
        b.want(far(HERE, 1, 1)).want(far(OTHER, 1, 2)).want(far(ALONE, 1, 1));
        let ready = |ips: &[IpAddr]| ips.iter().map(|ip| (*ip, Readiness::Ready)).collect::<Vec<_>>();
        let [v4, v6]: [fn(Endpoint) -> IpAddr; 2] = [|e| e.ip().into(), |e| e.ip6().into()];
        for (id, ip) in [("four", v4), ("six", v6)] {
            let web = service(ip(VIP), &ready(&[ip(OTHER), ip(FAR)]));
            let own = service(ip(SELF), &ready(&[ip(ALONE)]));
            for (id, service) in [(format!("web-{id}:t"), web), (format!("own-{id}:t"), own)] {
                let object = Object::Service(Service { id: id.as_str().into(), ..service });
                a.want(object.clone());
                b.want(object);
            }
        }
        for node in [&mut a, &mut b] {
            node.want(rules(&[DENIED]));
            node.converge()?;
        }
        Ok(Cluster { a, b, pods })
    }

    fn pod(&self, endpoint: Endpoint) -> &Netns {
        &self.pods.iter().find(|pod| pod.endpoint == endpoint).unwrap().ns
    }
}

/// Runs a task in a pod until it ends.
fn spawn<F>(ns: &Netns, work: impl FnOnce() -> F + Send + 'static) -> JoinHandle<Result<()>>
where
    F: Future<Output = Result<()>>,
{
    let ns = ns.clone();
    thread::spawn(move || ns.run(|| runtime()?.block_on(work())))
}

/// Echoes what comes by TCP and UDP.
async fn serve(counters: Arc<Counters>) -> Result<()> {
    let listener = TcpListener::bind("[::]:8080").await?;
    let datagrams = tokio::net::UdpSocket::bind("[::]:8080").await?;
    let echo = tokio::spawn(async move {
        let mut buffer = [0; 64];
        while let Ok((len, from)) = datagrams.recv_from(&mut buffer).await {
            let _sent = datagrams.send_to(&buffer[..len], from).await;
        }
    });
    while !counters.closed.load(Relaxed) {
        let Ok(accepted) = timeout(Duration::from_millis(100), listener.accept()).await else { continue };
        let (mut stream, _) = accepted?;
        tokio::spawn(async move {
            let mut buffer = [0; 8];
            while stream.read_exact(&mut buffer).await.is_ok() && stream.write_all(&buffer).await.is_ok() {}
        });
    }
    echo.abort();
    Ok(())
}

async fn exchange(stream: &mut TcpStream, number: u64) -> Result<()> {
    let mut answer = [0; 8];
    timeout(BROKEN, async {
        stream.write_all(&number.to_ne_bytes()).await?;
        stream.read_exact(&mut answer).await
    })
    .await
    .context("no answer")??;
    ensure!(answer == number.to_ne_bytes(), "another answer");
    Ok(())
}

/// Opens connections, and exchanges data by each until the end.
async fn converse(to: SocketAddr, connections: u64, counters: Arc<Counters>) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..connections {
        let mut stream = timeout(BROKEN, TcpStream::connect(to)).await.context("connect")??;
        counters.opened.fetch_add(1, Relaxed);
        let counters = Arc::clone(&counters);
        tasks.spawn(async move {
            let mut round = 0;
            loop {
                // Once more after the end.
                let last = counters.done.load(Relaxed);
                let asked = Instant::now();
                exchange(&mut stream, round).await.with_context(|| {
                    let waited = asked.elapsed().as_millis();
                    format!("connection {number} to {to}, exchange {round}, after {waited} ms")
                })?;
                counters.exchanges.fetch_add(1, Relaxed);
                if last {
                    return anyhow::Ok(());
                }
                round += 1;
                sleep(Duration::from_millis(150 + number % 100)).await;
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    Ok(())
}

/// Opens one connection after the other.
async fn open_and_close(to: SocketAddr, counters: Arc<Counters>) -> Result<()> {
    while !counters.done.load(Relaxed) {
        let start = Instant::now();
        let mut stream = timeout(BROKEN, TcpStream::connect(to)).await.context("connect anew")??;
        exchange(&mut stream, 1).await.context("new connection")?;
        counters.slowest_ms.fetch_max(start.elapsed().as_millis() as u64, Relaxed);
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// How many datagrams of a sender may be without an answer. As in TCP, fewer after a loss, and after a longer time, so that
/// a slow machine gets no more than it can forward: the connections need the rest.
struct Window {
    size: u64,
    unanswered: u64,
    last: Instant,
    lost: Duration,
}

impl Window {
    fn new(now: Instant) -> Window {
        Window { size: UNANSWERED, unanswered: 0, last: now, lost: LOST }
    }

    fn is_open(&self) -> bool {
        self.unanswered < self.size
    }

    fn answered(&mut self) {
        self.last = Instant::now();
        self.unanswered = self.unanswered.saturating_sub(1);
        self.size = UNANSWERED.min(self.size + 1);
    }

    /// Gives up what has had no answer for too long.
    fn lose(&mut self) {
        if self.unanswered > 0 && self.last.elapsed() > self.lost {
            (self.unanswered, self.size, self.last) = (0, 1.max(self.size / 4), Instant::now());
            self.lost = LOST_AT_MOST.min(self.lost * 2);
        }
    }
}

/// Sends 5,000 datagrams a second to a service from some ports, or as many as are answered, and checks where the answers come
/// from.
fn question(ns: &Netns, to: SocketAddr, counters: &Arc<Counters>) -> JoinHandle<Result<()>> {
    const SOCKETS: usize = 20;
    let (ns, counters) = (ns.clone(), Arc::clone(counters));
    thread::spawn(move || {
        ns.run(|| {
            let bind = || -> Result<UdpSocket> {
                let socket = UdpSocket::bind(if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            };
            let sockets: Vec<UdpSocket> = (0..SOCKETS).map(|_| bind()).collect::<Result<_>>()?;
            let (start, mut sent) = (Instant::now(), 0_u64);
            let mut window = Window::new(start);
            let mut buffer = [0; 64];
            while !counters.done.load(Relaxed) {
                let due = start.elapsed().as_millis() as u64 * 5;
                while sent < due && window.is_open() {
                    let socket = &sockets[sent as usize % SOCKETS];
                    // An ICMP error is reported here.
                    if socket.send_to(&[0; 18], to).is_ok() {
                        counters.sent.fetch_add(1, Relaxed);
                    }
                    sent += 1;
                    window.unanswered += 1;
                }
                // What could not be sent in time is not made up for.
                sent = due;
                for socket in &sockets {
                    while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                        let counter = if from == to { &counters.answered } else { &counters.untranslated };
                        counter.fetch_add(1, Relaxed);
                        window.answered();
                    }
                }
                window.lose();
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        })
    })
}

/// Counts datagrams to the ports that are denied.
fn listen(ns: &Netns, counters: &Arc<Counters>) -> JoinHandle<Result<()>> {
    let (ns, counters) = (ns.clone(), Arc::clone(counters));
    thread::spawn(move || {
        ns.run(|| {
            let bind = |port: u16| -> Result<UdpSocket> {
                let socket = UdpSocket::bind(("0.0.0.0", port))?;
                socket.set_read_timeout(Some(Duration::from_millis(5)))?;
                Ok(socket)
            };
            let sockets = [bind(DENIED)?, bind(DENIED_LATER)?];
            while !counters.done.load(Relaxed) {
                for (socket, counter) in sockets.iter().zip(&counters.denied) {
                    while socket.recv(&mut [0; 64]).is_ok() {
                        counter.fetch_add(1, Relaxed);
                    }
                }
            }
            Ok(())
        })
    })
}

/// Sends to the ports that are denied, by the same flows all the time.
fn trespass(ns: &Netns, counters: &Arc<Counters>) -> JoinHandle<Result<()>> {
    let (ns, counters) = (ns.clone(), Arc::clone(counters));
    thread::spawn(move || {
        ns.run(|| {
            let socket = UdpSocket::bind("0.0.0.0:7777")?;
            while !counters.done.load(Relaxed) {
                for (to, port) in
                    [OTHER, FAR].into_iter().flat_map(|to| [DENIED, DENIED_LATER].map(|port| (to, port)))
                {
                    let _refused = socket.send_to(&[0; 18], (to.ip(), port));
                }
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        })
    })
}

/// Two descriptors for each connection.
fn raise_limit() -> Result<()> {
    let limit = libc::rlimit { rlim_cur: 16_384, rlim_max: 16_384 };
    // SAFETY: the limit outlives the call.
    let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    Ok(nix::errno::Errno::result(result).map(drop)?)
}

#[test]
fn connections_outlive_upgrades_under_load() -> Result<()> {
    needs!(root());
    raise_limit()?;
    let mut cluster = Cluster::new()?;
    let counters = Arc::new(Counters::default());
    let (mut threads, mut servers) = (vec![], vec![]);
    for endpoint in [OTHER, FAR, ALONE] {
        let counters = Arc::clone(&counters);
        servers.push(spawn(cluster.pod(endpoint), move || serve(counters)));
    }
    for (endpoint, family) in [(OTHER, true), (FAR, true), (ALONE, false)] {
        for ip in [IpAddr::from(endpoint.ip()), endpoint.ip6().into()] {
            let ns = if family { cluster.pod(HERE) } else { cluster.pod(ALONE) };
            let reachable = || Ok(ns.run(|| Ok(std::net::TcpStream::connect((ip, 8080_u16))?)).ok());
            wait_until(TIMEOUT, "a server", reachable)?;
        }
    }
    let at = |ip: IpAddr| SocketAddr::new(ip, 80);
    for (endpoint, vip, count) in [(HERE, VIP, scaled(CONNECTIONS)), (ALONE, SELF, scaled(HAIRPINS))] {
        for to in [at(vip.ip().into()), at(vip.ip6().into())] {
            let counters = Arc::clone(&counters);
            threads.push(spawn(cluster.pod(endpoint), move || converse(to, count, counters)));
        }
    }
    let all = 2 * (scaled(CONNECTIONS) + scaled(HAIRPINS));
    let opened = reach(&counters.opened, "connections", all)
        .and_then(|()| reach(&counters.exchanges, "exchanges", 2 * all));
    if opened.is_ok() {
        for to in [at(VIP.ip().into()), at(VIP.ip6().into())] {
            let more = Arc::clone(&counters);
            threads.push(spawn(cluster.pod(HERE), move || open_and_close(to, more)));
            threads.push(question(cluster.pod(HERE), to, &counters));
        }
        for endpoint in [OTHER, FAR] {
            threads.push(listen(cluster.pod(endpoint), &counters));
        }
        threads.push(trespass(cluster.pod(HERE), &counters));
    }
    let upgraded = opened.and_then(|()| upgrade(&mut cluster, &counters));
    counters.done.store(true, Relaxed);
    let mut results = join(threads);
    counters.closed.store(true, Relaxed);
    results.extend(join(servers));
    upgraded?;
    let [sent, answered, exchanges] =
        [&counters.sent, &counters.answered, &counters.exchanges].map(|counter| counter.load(Relaxed));
    println!(
        "LOAD {all} connections, {exchanges} exchanges; {sent} datagrams, {} unanswered; slowest new connection {} ms",
        sent.saturating_sub(answered),
        counters.slowest_ms.load(Relaxed)
    );
    let broken: Vec<String> =
        results.into_iter().filter_map(|result| result.err()).map(|e| format!("{e:#}")).collect();
    if !broken.is_empty() {
        for node in [&cluster.a, &cluster.b] {
            println!("LOAD {}", node.datapath.inspect());
        }
    }
    assert_eq!(broken, Vec::<String>::new());
    assert_eq!(counters.untranslated.load(Relaxed), 0);
    assert_eq!(counters.denied[0].load(Relaxed), 0);
    Ok(())
}

fn join(threads: Vec<JoinHandle<Result<()>>>) -> Vec<Result<()>> {
    let join = |thread: JoinHandle<_>| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")));
    threads.into_iter().map(join).collect()
}

/// Waits until a counter has reached a number, as long as it grows.
fn reach(counter: &AtomicU64, what: &str, number: u64) -> Result<()> {
    let mut count = counter.load(Relaxed);
    while count < number {
        let grown = || Ok(Some(counter.load(Relaxed)).filter(|now| *now > count));
        count = wait_until(TIMEOUT, &format!("more than {count} of {number} {what}"), grown)?;
    }
    Ok(())
}

/// Upgrades both nodes, and back again. From the first upgrade on, a further port is denied.
fn upgrade(cluster: &mut Cluster, counters: &Counters) -> Result<()> {
    let progress =
        |counter: &AtomicU64, more: u64| reach(counter, "events", counter.load(Relaxed) + scaled(more));
    progress(&counters.answered, 5000)?;
    progress(&counters.denied[1], 100)?;
    for version in [ABI_VERSION + 1, ABI_VERSION] {
        for node in [&mut cluster.a, &mut cluster.b] {
            node.want(rules(&[DENIED, DENIED_LATER]));
            node.options.abi_version = version;
            drop(node.restart());
            node.converge()?;
            ensure!(node.datapath.warnings().is_empty(), "{:?}", node.datapath.warnings());
            let events = node.datapath.inspect()["flows"].clone();
            println!("LOAD version {version}: {events}");
            progress(&counters.answered, 5000)?;
            progress(&counters.exchanges, 2000)?;
        }
        // Flows that were allowed by the rules before are denied now.
        let before = counters.denied[1].load(Relaxed);
        progress(&counters.answered, 5000)?;
        ensure!(counters.denied[1].load(Relaxed) == before, "datagrams pass by a flow that is denied");
    }
    Ok(())
}
