//! The whole process: store, listeners, election, and what a leader does.

mod cache_watch;
mod listener;
mod node_gc;
mod registration;
mod term;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use contiv_daemon::client::Transport;
use contiv_daemon::reload::Reloadable;
use contiv_daemon::tls;
use contiv_model::key;
use contiv_model::registry::{NETMASTER, ServiceInfo};
use contiv_store::election::{self, Timing};
use contiv_store::{Config, Error, Guard, Outcome, Store, Txn, embedded};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::aci::Gateway;
use crate::api::{App, Gate, Proxy, Tokens};
use crate::cache::Shared;
use crate::config::{Flags, RestFlags};
use crate::leadership::{Identity, Role, Roles};
use crate::metrics::Metrics;
use crate::objects::{Cluster, Defaults};
use crate::problem::one_line;
use cache_watch::Lock;
use listener::{Listener, Terms};
use registration::Presence;
use term::Term;

/// Requests that are under way when the process is told to stop get so long.
const DRAIN: Duration = Duration::from_secs(2);

/// Followers pass requests on to a netmaster that stops until they have heard who leads now. It listens so long for
/// another to take the lock, and so long after that.
const HAND_OVER: Duration = Duration::from_secs(1);
const NEWS: Duration = Duration::from_millis(100);

/// A store that is not there is looked for so often, and it is told so often.
const RETRY: Duration = Duration::from_millis(500);
const TELL: Duration = Duration::from_secs(10);

const DEFAULT_STORE: &str = "http://127.0.0.1:2379";

/// Runs until `stop`.
pub async fn run(flags: Flags, stop: CancellationToken) -> anyhow::Result<()> {
    let embedded = open_embedded(&flags).await?;
    let internal = flags.internal();
    let identity = Identity { address: internal.to_string(), ip: internal.ip().to_string() };
    let (role, roles) = Roles::new(&identity.address);

    let world = Shared::default();
    let lock = watch::Sender::new(Lock::default());
    let mut servers = JoinSet::new();
    let mut files = JoinSet::new();
    let (gate, proxy) = (gate(&flags.rest, &mut files)?, proxy(&flags.rest, &mut files)?);
    let terms = terms(&flags.rest, &mut files)?;
    let metrics = Metrics::default();
    let app = App {
        roles,
        proxy,
        gate,
        metrics: metrics.clone(),
        world: world.clone(),
        identity: identity.clone(),
    }
    .router();
    let closing = CancellationToken::new();
    for address in flags.listeners() {
        let listener = Listener::bind(address, terms.clone()).await?;
        servers.spawn(listener.serve(app.clone(), closing.clone()));
    }

    let mut feed = None;
    let work = async {
        // Until then this netmaster is alive and not ready.
        let Some(store) = connect(&flags, embedded.as_ref(), &stop).await? else { return Ok(()) };
        let taking_in = cache_watch::run(store.clone(), world.clone(), lock.clone());
        feed = Some(AbortOnDropHandle::new(tokio::spawn(taking_in)));
        let candidate = Candidate {
            flags: &flags,
            store: &store,
            identity: &identity,
            world: &world,
            lock: &lock,
            role: &role,
            metrics: &metrics,
        };
        take_turns(&candidate, &stop).await
    };
    let result = tokio::select! {
        result = work => result,
        Some(ended) = servers.join_next() => Err(anyhow::anyhow!("a listener ended: {ended:?}")),
    };
    // Requests that are here wait for the next leader; whoever does not close its connection is cut off.
    let drain = async {
        if feed.is_some() && others(&world, &identity) {
            let _nobody = timeout(HAND_OVER, handed_over(&identity, &lock)).await;
        }
        closing.cancel();
        let drained = async { while servers.join_next().await.is_some() {} };
        timeout(DRAIN, drained).await
    };
    let drained = tokio::select! {
        drained = drain => drained.is_ok(),
        () = follow(&identity, &lock, &role) => false,
    };
    if !drained {
        servers.shutdown().await;
    }
    drop(feed);
    if let Some(server) = embedded {
        server.shutdown().await.context("close the embedded store")?;
    }
    result
}

/// Whether another netmaster is there, which may be asked.
fn others(world: &Shared, identity: &Identity) -> bool {
    let world = world.read();
    let mut netmasters = world.all::<ServiceInfo>().filter(|service| service.service_name == NETMASTER);
    netmasters.any(|service| format!("{}:{}", service.host_addr, service.port) != identity.address)
}

/// Another leads, and who asks here has had time to hear of it.
async fn handed_over(identity: &Identity, lock: &watch::Sender<Lock>) {
    let other = |lock: &Lock| lock.holder.as_ref().is_some_and(|holder| *holder != identity.address);
    // The sender is ours.
    let _lock = lock.subscribe().wait_for(other).await.is_ok();
    sleep(NEWS).await;
}

async fn open_embedded(flags: &Flags) -> anyhow::Result<Option<embedded::Server>> {
    let Some(dir) = &flags.store.store else { return Ok(None) };
    let server = embedded::Server::open(&dir.0, flags.store.store_listen).await.with_context(|| {
        format!("open the embedded store in {} on {}", dir.0.display(), flags.store.store_listen)
    })?;
    tracing::info!(dir = %dir.0.display(), address = %server.local_addr(), "embedded store");
    Ok(Some(server))
}

/// Waits for a store that does not answer; none if told to stop meanwhile.
async fn connect(
    flags: &Flags,
    embedded: Option<&embedded::Server>,
    stop: &CancellationToken,
) -> anyhow::Result<Option<Store>> {
    let config = match (embedded, &flags.store.etcd) {
        (Some(server), _) => Config::new([format!("http://{}", server.local_addr())]),
        (None, list) => flags.store.access.access().config(list.as_deref().unwrap_or(DEFAULT_STORE))?,
    };
    let (start, mut told) = (Instant::now(), None::<Instant>);
    loop {
        let error = tokio::select! {
            store = Store::connect(&config) => match store {
                Ok(store) => return Ok(Some(store)),
                Err(error) => error,
            },
            () = stop.cancelled() => return Ok(None),
        };
        let late = flags.store.store_wait.0.is_some_and(|limit| start.elapsed() >= limit);
        if late || !error.is_transient() {
            return Err(error.into());
        }
        if told.is_none_or(|told| told.elapsed() >= TELL) {
            tracing::warn!(error = one_line(&error), "waiting for the store; --store-wait limits this");
            told = Some(Instant::now());
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

fn gate(flags: &RestFlags, files: &mut JoinSet<()>) -> anyhow::Result<Gate> {
    let tokens = match flags.token_file.clone() {
        None => None,
        Some(path) => {
            let read = path.clone();
            let (tokens, follow) = Reloadable::load("tokens", vec![path], move || Tokens::read(&read))
                .context("--token-file")?;
            files.spawn(follow);
            Some(tokens)
        }
    };
    Ok(Gate { tokens, body_timeout: flags.client_timeout, request_timeout: flags.request_timeout })
}

fn terms(flags: &RestFlags, files: &mut JoinSet<()>) -> anyhow::Result<Terms> {
    let tls = match flags.tls() {
        None => None,
        Some(pair) => {
            let ca = flags.client_ca.clone();
            let watched = [&pair.certificate, &pair.key].into_iter().chain(&ca).cloned().collect();
            let load = move || tls::server(&pair, ca.as_deref());
            let (config, follow) =
                Reloadable::load("TLS certificates", watched, load).context("--tls-cert")?;
            files.spawn(follow);
            Some(config)
        }
    };
    let room = Semaphore::new(flags.max_connections as usize).into();
    Ok(Terms { tls, client_timeout: flags.client_timeout, room })
}

/// Followers show the leader the certificate that they serve with.
fn proxy(flags: &RestFlags, files: &mut JoinSet<()>) -> anyhow::Result<Proxy> {
    let shown = flags.tls().zip(flags.peers().map(Path::to_owned));
    let watched = shown.iter().flat_map(|(pair, ca)| [&pair.certificate, &pair.key, ca]).cloned().collect();
    let way = move || {
        let config = shown.as_ref().map(|(pair, ca)| tls::client(ca, Some(pair)));
        Transport::new(config.transpose()?)
    };
    let (proxy, follow) = Proxy::new(watched, way).context("set up the way to the leader (--peer-ca)")?;
    files.spawn(follow);
    Ok(proxy)
}

/// What one needs to stand for election, and to lead.
struct Candidate<'a> {
    flags: &'a Flags,
    store: &'a Store,
    identity: &'a Identity,
    world: &'a Shared,
    lock: &'a watch::Sender<Lock>,
    role: &'a watch::Sender<Role>,
    metrics: &'a Metrics,
}

/// Follows until elected, leads until deposed, and again.
async fn take_turns(candidate: &Candidate<'_>, stop: &CancellationToken) -> anyhow::Result<()> {
    let Candidate { flags, store, identity, world, lock, role, metrics } = *candidate;
    let timing = Timing { ttl: flags.store.lease_ttl, staleness: flags.store.failover_after };
    let defaults = Defaults { infra: flags.infra_name(), fwd_mode: flags.fwdmode_name() };
    let cluster = Cluster { mode: flags.mode_name() };
    if let Err(error) = take_back_lock(store, identity).await {
        tracing::warn!(error = one_line(&error), "could not look for the lock of an earlier run");
    }
    let presence = Presence::register(store, identity);
    while !stop.is_cancelled() {
        let elected = tokio::select! {
            elected = election::campaign(store, key::LEADER, &identity.address, timing) => elected?,
            () = follow(identity, lock, role) => continue,
            () = stop.cancelled() => break,
        };
        let term = Term {
            store,
            identity,
            cluster: &cluster,
            defaults: &defaults,
            node_gone_after: flags.node_gone_after.0,
            repair: flags.repair,
            metrics,
            gateway: Gateway::new(flags.aci_gateway.to_string()),
            world,
            lock,
            presence: &presence,
            role,
        };
        term.lead(elected, stop).await;
    }
    presence.withdraw().await;
    Ok(())
}

/// A netmaster that was killed leaves its lock until the lease runs out. The address in the lock is the one that we
/// listen on now, so its holder is dead; and what it may still have on the way fails at the store, because the guard
/// of its writes is the lock's creation.
async fn take_back_lock(store: &Store, identity: &Identity) -> Result<(), Error> {
    let Some(lock) = store.get(key::LEADER).await? else { return Ok(()) };
    if *lock.value != *identity.address.as_bytes() {
        return Ok(());
    }
    let held = Guard::CreateRevision { key: lock.key.clone(), revision: lock.create_revision };
    if let Outcome::Committed { .. } = store.commit(Txn::new().guard(held).delete(lock.key)).await? {
        tracing::info!("took back the lock of an earlier run");
    }
    Ok(())
}

/// Tells the followers' proxy who leads. Never ends.
async fn follow(identity: &Identity, lock: &watch::Sender<Lock>, role: &watch::Sender<Role>) {
    let mut lock = lock.subscribe();
    loop {
        // Our own lock, of a term that is over.
        let other = |holder: &String| *holder != identity.address;
        let leader = lock.borrow_and_update().holder.clone().filter(other);
        let news = role.send_if_modified(|role| {
            let known = matches!(role, Role::Following { leader: known } if *known == leader);
            if !known {
                *role = Role::Following { leader: leader.clone() };
            }
            !known
        });
        if news {
            tracing::info!(leader = leader.as_deref().unwrap_or("nobody"), "following");
        }
        if lock.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
