//! How many guarded puts per second a store takes, and how long one takes:
//!
//!     cargo run --release -p contiv-store --example puts -- embedded:/tmp/store
//!     cargo run --release -p contiv-store --example puts -- http://127.0.0.1:2379

use anyhow::{Context, Result, bail};
use contiv_store::{Config, Guard, Outcome, Store, Txn, embedded};
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const LENGTH: Duration = Duration::from_secs(3);
const VALUE: usize = 500;

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    let at = std::env::args().nth(1).context("embedded:DIR or an endpoint")?;
    let server = match at.strip_prefix("embedded:") {
        Some(dir) => Some(embedded::Server::open(dir.as_ref(), (Ipv4Addr::LOCALHOST, 0).into()).await?),
        None => None,
    };
    let endpoint = server.as_ref().map_or(at, |server| server.endpoint());
    let store = Store::connect(&Config::new([endpoint])).await?;
    println!("{:>8} {:>8} {:>10} {:>10}", "clients", "puts/s", "p50 ms", "p99 ms");
    for clients in [1, 16, 64] {
        let mut times = measure(&store, clients).await?;
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1000.0;
        let rate = times.len() as f64 / LENGTH.as_secs_f64();
        println!("{clients:>8} {rate:>8.0} {:>10.2} {:>10.2}", at(0.5), at(0.99));
    }
    if let Some(server) = server {
        server.shutdown().await?;
    }
    Ok(())
}

async fn measure(store: &Store, clients: usize) -> Result<Vec<Duration>> {
    let end = Instant::now() + LENGTH;
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let store = store.clone();
        tasks.spawn(async move {
            let (key, mut revision, mut times) = (format!("/bench/{clients}/{client}"), 0, Vec::new());
            if let Some(kv) = store.get(&key).await? {
                revision = kv.mod_revision;
            }
            while Instant::now() < end {
                let start = Instant::now();
                let guard = Guard::ModRevision { key: key.clone(), revision };
                match store.commit(Txn::new().guard(guard).put(&key, vec![b'v'; VALUE])).await? {
                    Outcome::Committed { revision: new } => revision = new,
                    Outcome::Conflict => bail!("{key} was written by another"),
                }
                times.push(start.elapsed());
            }
            Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(task) = tasks.join_next().await {
        times.extend(task??);
    }
    Ok(times)
}
