//! Members that are far away: every packet, and every new connection, takes its time.

use crate::access::enable_authentication;
use crate::peer::Peer;
use anyhow::{Result, ensure};
use contiv_store::election::{ElectionThread, Timing, campaign};
use contiv_store::{Config, Store};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use testkit::etcd::Etcd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

const KEY: &str = "/contiv.io/lock/netmaster/leader";
const TIMING: Timing = Timing { ttl: Duration::from_secs(60), staleness: Duration::from_secs(1) };
/// Guards against hanging; shorter than the TTL.
const SOON: Duration = Duration::from_secs(40);
const MEMBERS: usize = 3;
/// A round trip takes 500 ms, a request on a new connection a second.
const SLOW: Duration = Duration::from_millis(250);

/// A delay of the network, for each direction.
#[derive(Clone, Default)]
struct Delay(Arc<AtomicU64>);

impl Delay {
    fn set(&self, delay: Duration) {
        self.0.store(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}

/// Serves `peer` at an address of its own, with a delay.
async fn relay(peer: SocketAddr, delay: Delay) -> Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let delay = delay.clone();
            tokio::spawn(async move {
                // Of the connection's own packets.
                sleep(delay.now() * 2).await;
                let Ok(far) = TcpStream::connect(peer).await else { return };
                let (near_in, near_out) = near.into_split();
                let (far_in, far_out) = far.into_split();
                tokio::join!(copy(near_in, far_out, &delay), copy(far_in, near_out, &delay));
            });
        }
    });
    Ok(url)
}

async fn copy(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, delay: &Delay) {
    let (sender, mut receiver) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let arrival = Instant::now() + delay.now();
            if sender.send((arrival, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    };
    let write = async move {
        while let Some((arrival, bytes)) = receiver.recv().await {
            sleep_until(arrival).await;
            if to.write_all(&bytes).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(read, write);
}

/// All members are relays to one peer: they always agree.
async fn members(peer: &Peer) -> Result<(Config, Delay)> {
    let (delay, mut urls) = (Delay::default(), vec![]);
    let address = peer.endpoint().trim_start_matches("http://").parse()?;
    for _ in 0..MEMBERS {
        urls.push(relay(address, delay.clone()).await?);
    }
    Ok((Config::new(urls), delay))
}

/// The round trip of the leader becomes longer than the time limit of an answer at first. The candidate is near.
pub(crate) async fn a_slow_network_deposes_no_leader(peer: &mut Peer) -> Result<()> {
    let (config, delay) = members(peer).await?;
    let (far, near) = (Store::connect(&config).await?, peer.store().await?);
    let election = ElectionThread::start(&config).await?;
    let leadership = election.campaign(&far, KEY, "10.0.0.1:9999", TIMING).await?;
    let mut other = Box::pin(campaign(&near, KEY, "10.0.0.2:9999", TIMING));
    for one_way in [0, 250, 500] {
        delay.set(Duration::from_millis(one_way));
        let slow = timeout(Duration::from_secs(6), &mut other).await;
        ensure!(slow.is_err() && !leadership.is_lost(), "another leader with a delay of {one_way} ms");
    }
    delay.set(Duration::ZERO);
    leadership.resign().await?;
    timeout(SOON, other).await??.resign().await?;
    Ok(())
}

/// Connections break while the network is slow: new ones take longer than the first time limit.
pub(crate) async fn new_connections_on_a_slow_network(peer: &mut Peer) -> Result<()> {
    let (config, delay) = members(peer).await?;
    delay.set(SLOW);
    let store = timeout(SOON, Store::connect(&config)).await??;
    ensure!(timeout(SOON, store.get("/state")).await??.is_none());
    let election = timeout(SOON, ElectionThread::start(&config)).await??;
    let leadership = timeout(SOON, election.campaign(&store, KEY, "10.0.0.1:9999", TIMING)).await??;
    ensure!(timeout(SOON, leadership.read_index().confirm()).await??);
    let second = timeout(SOON, ElectionThread::start(&config)).await??;
    let mut other = Box::pin(second.campaign(&store, KEY, "10.0.0.2:9999", TIMING));
    let slow = timeout(Duration::from_secs(4), &mut other).await;
    ensure!(slow.is_err() && !leadership.is_lost(), "another leader");
    // As a process that is killed.
    drop(election);
    timeout(SOON, other).await??.resign().await?;
    Ok(())
}

/// A login takes more than a second: the connection and the answer take 500 ms each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_member_is_left_for_one_whose_login_is_slow() -> Result<()> {
    testkit::needs!(binary("etcd"), binary("etcdctl"));
    let etcd = Etcd::start()?;
    let config = enable_authentication(&etcd)?;
    let address: SocketAddr = etcd.endpoint().trim_start_matches("http://").parse()?;
    let (silent, slow) = (Delay::default(), Delay::default());
    let endpoints = vec![relay(address, silent.clone()).await?, relay(address, slow.clone()).await?];
    let store = Store::connect(&Config { endpoints, ..config }).await?;
    ensure!(store.get("/state").await?.is_none());
    silent.set(Duration::from_secs(3600));
    slow.set(SLOW);
    let start = Instant::now();
    while let Err(error) = timeout(SOON, store.get("/state")).await? {
        ensure!(start.elapsed() < SOON, "the client stays with the silent member: {error}");
    }
    Ok(())
}
