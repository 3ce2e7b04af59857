//! Simulated agents: in one process, the watches and the registration that an agent has in the store.

use std::{
    collections::BTreeSet,
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use contiv_model::{
    event::Event,
    key::{AGENT_PREFIXES, Key, endpoints_of, policies_of},
    registry::{NETPLUGIN, ServiceInfo},
};
use contiv_store::{Batch, Config, Registration, Status, Store};
use futures::{StreamExt as _, stream};
use tokio::{
    runtime::Runtime,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::contents::{Sizes, TENANT};
use crate::interrupt;

/// Number of agents that connect at the same time.
const CONNECTING: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(300);
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const PORT: u16 = 9002;
/// TTL of an agent's registration.
const TTL: Duration = Duration::from_secs(10);

/// An agent has received the put of the key.
struct Seen {
    agent: usize,
    key: String,
    at: Instant,
}

/// Running agents; they end when this is dropped.
pub(super) struct Agents {
    count: usize,
    seen: mpsc::Receiver<Seen>,
    _registrations: Vec<Registration>,
    _runtime: Runtime,
}

impl Agents {
    /// Starts agents that follow the store from its current revision, as agents do that have listed it, each by one of the
    /// endpoints. They report puts of keys that begin with `reported`, which each of them watches, as well as the endpoints of two
    /// networks, and the policies of two groups.
    /// Returns when all watches are open.
    pub(super) fn start(
        count: usize,
        sizes: &Sizes,
        endpoints: &[String],
        reported: &'static str,
    ) -> Result<Agents> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (sender, seen) = mpsc::channel();
        let registrations = runtime.block_on(async {
            let slots = std::sync::Arc::new(Semaphore::new(CONNECTING));
            let mut starting = JoinSet::new();
            for (agent, endpoint) in endpoints.iter().cycle().take(count).enumerate() {
                let (endpoint, sender, slots) = (endpoint.clone(), sender.clone(), slots.clone());
                let needed = needed(agent, sizes);
                starting.spawn(async move {
                    let _slot = slots.acquire().await?;
                    start(agent, needed, &endpoint, reported, sender).await
                });
            }
            let mut registrations = vec![];
            let all = async {
                while let Some(started) = starting.join_next().await {
                    interrupt::check()?;
                    registrations.push(started??);
                }
                anyhow::Ok(())
            };
            match timeout(CONNECT_TIMEOUT, all).await {
                Ok(ended) => ended.map(|()| registrations),
                Err(_) => {
                    bail!("{} of {count} agents are connected after {CONNECT_TIMEOUT:?}", registrations.len())
                }
            }
        })?;
        Ok(Agents { count, seen, _registrations: registrations, _runtime: runtime })
    }

    /// Time from `since` until each agent has received the put of `key`.
    pub(super) fn delays(&self, key: &str, since: Instant, limit: Duration) -> Result<Vec<Duration>> {
        let (mut agents, mut delays) = (BTreeSet::new(), vec![]);
        while agents.len() < self.count {
            interrupt::check()?;
            let left = limit.saturating_sub(since.elapsed());
            let Ok(seen) = self.seen.recv_timeout(left.min(Duration::from_secs(1))) else {
                if left.is_zero() {
                    bail!("{} of {} agents have received {key} after {limit:?}", agents.len(), self.count);
                }
                continue;
            };
            if seen.key == key && agents.insert(seen.agent) {
                delays.push(seen.at.saturating_duration_since(since));
            }
        }
        Ok(delays)
    }
}

/// Prefixes of what a node needs with endpoints of two networks and two groups.
fn needed(agent: usize, sizes: &Sizes) -> Vec<String> {
    let own = [agent, agent + 1];
    let networks =
        own.map(|number| endpoints_of(&format!("net{}.{TENANT}", number % sizes.networks()).as_str().into()));
    let groups = own.into_iter().filter_map(|number| {
        let number = number.checked_rem(sizes.groups())?;
        Some(policies_of(&format!("group{number}:{TENANT}").as_str().into()))
    });
    networks.into_iter().chain(groups).collect()
}

async fn start(
    agent: usize,
    needed: Vec<String>,
    endpoint: &str,
    reported: &'static str,
    sender: mpsc::Sender<Seen>,
) -> Result<Registration> {
    let config = Config::new([endpoint]);
    let store = retried(|| Store::connect(&config)).await?;
    let revision = retried(|| store.position()).await?.revision;
    let prefixes = AGENT_PREFIXES.into_iter().chain([reported]).map(str::to_owned).chain(needed);
    let watches: Vec<_> = prefixes.map(|prefix| store.watch_after(&prefix, revision)).collect();
    let statuses: Vec<_> = watches.iter().map(contiv_store::Watch::status).collect();
    let mut batches = stream::select_all(watches.into_iter().map(|watch| watch.batches().boxed()));
    tokio::spawn(async move {
        while let Some(batch) = batches.next().await {
            report(agent, &batch, reported, &sender);
        }
    });
    for mut status in statuses {
        status.wait_for(|status| *status == Status::Connected).await?;
    }
    let (key, value) = registration(agent)?;
    retried(|| store.register(&key, value.clone(), TTL)).await
}

/// Repeats a request to a busy store, as agents do.
async fn retried<T, F>(mut request: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T, contiv_store::Error>>,
{
    loop {
        match request().await {
            Err(error) if error.is_transient() => sleep(RETRY_INTERVAL).await,
            result => return Ok(result?),
        }
    }
}

fn report(agent: usize, batch: &Batch, reported: &str, sender: &mpsc::Sender<Seen>) {
    let at = Instant::now();
    for update in &batch.updates {
        if let Event::Apply(key, _) = &update.event
            && key.starts_with(reported)
        {
            // The receiver is gone when the benchmark ends.
            drop(sender.send(Seen { agent, key: key.clone(), at }));
        }
    }
}

fn registration(agent: usize) -> Result<(String, Vec<u8>)> {
    let address = format!("172.16.{}.{}", agent / 250, agent % 250 + 1);
    let service = ServiceInfo {
        service_name: NETPLUGIN.to_owned(),
        ttl: TTL.as_secs().cast_signed(),
        host_addr: address.clone(),
        port: PORT,
        hostname: format!("host{agent}"),
        ..ServiceInfo::default()
    };
    let key = Key::Service { name: NETPLUGIN.to_owned(), address: format!("{address}:{PORT}") };
    Ok((key.to_string(), serde_json::to_vec(&service)?))
}
