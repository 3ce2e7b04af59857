//! The netmaster process: store, listeners, election, and the term of a leader.

mod cache_watch;
mod listener;
mod maintenance;
mod node_gc;
mod node_vteps;
mod notify;
mod registration;
mod restoration;
mod tasks;
mod term;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use contiv_daemon::client::Transport;
use contiv_daemon::modes::NetMode;
use contiv_daemon::reload::Reloadable;
use contiv_daemon::tls;
use contiv_model::key;
use contiv_model::registry::{NETMASTER, ServiceInfo};
use contiv_store::election::{ElectionThread, StartError, Timing};
use contiv_store::embedded::Server;
use contiv_store::{Config, Error, Guard, Outcome, Progress, Store, Txn};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::aci::Gateway;
use crate::api::{
    Admission, App, AuditLog, Authenticator, InFlight, Netmasters, Proxy, SubjectRoles, Tokens,
};
use crate::backup;
use crate::cache::SharedCache;
use crate::config::{DEFAULT_STORE, Flags, RestFlags};
use crate::embedded;
use crate::leadership::{Identity, Reads, Role, Roles, StoreHealth};
use crate::metrics::Metrics;
use crate::objects::{Cluster, Defaults};
use crate::problem::one_line;
use cache_watch::Lock;
use listener::{Listener, ListenerConfig};
use maintenance::Maintenance;
use registration::Registrations;
use tasks::Tasks;
use term::{Ended, Term};

/// Time limit for requests in progress at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A leader that shuts down keeps listening until another leader holds the lock, at most for
/// `HANDOVER_TIMEOUT`, and for `LEADER_PROPAGATION` more: followers forward requests to it until they see
/// the new leader.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(1);
const LEADER_PROPAGATION: Duration = Duration::from_millis(100);

/// Interval of connection attempts to the store, and of log lines about it.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Time limit for a newly elected leader whose cache is not current to receive or apply something. A
/// leader whose watch does not deliver resigns; one that loads a large state does not.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before a leader that resigned for this reason campaigns again, so that another netmaster is
/// elected.
const BEHIND_PAUSE: Duration = Duration::from_secs(3);
/// Interval of looking whether an unfinished restoration of the store was repeated.
const RESTORATION_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs until `stop` is cancelled.
pub async fn run(flags: Flags, stop: CancellationToken) -> anyhow::Result<()> {
    let embedded = open_embedded(&flags).await?;
    let internal = flags.internal();
    let identity = Identity { address: internal.to_string(), ip: internal.ip().to_string() };
    let (role, roles) = Roles::new(&identity.address);

    let cache = SharedCache::default();
    let lock = watch::Sender::new(Lock::default());
    let mut servers = JoinSet::new();
    let mut tasks = Tasks::default();
    tasks.spawn("service manager", notify::report(role.subscribe(), identity.address.clone()));
    let (metrics, health) = (Metrics::default(), StoreHealth::default());
    let progress = Progress::default();
    if let Some(server) = &embedded {
        health.embedded(server.failure());
    }
    let audit = flags.rest.audit_log.clone().map(|path| AuditLog::start(path, metrics.audit_lost.clone()));
    let audit = audit.transpose().context("--audit-log")?;
    let netmasters = Netmasters::new(cache.clone(), internal);
    let admission = admission(&flags.rest, audit.clone(), netmasters, &metrics, &mut tasks)?;
    let proxy = proxy(&flags.rest, &mut tasks)?;
    let gateway = gateway(&flags, &mut tasks)?;
    let listener_config = listener_config(&flags.rest, &mut tasks)?;
    let app = App {
        roles: roles.clone(),
        proxy,
        admission,
        metrics: metrics.clone(),
        cache: cache.clone(),
        identity: identity.clone(),
        store: health.clone(),
    }
    .router();
    let (closing, aborting) = (CancellationToken::new(), CancellationToken::new());
    for address in flags.listeners() {
        let listener = Listener::bind(address, listener_config.clone()).await?;
        servers.spawn(listener.serve(app.clone(), closing.clone(), aborting.clone()));
    }

    // Runs until the end of the process: at shutdown it shows who leads next.
    let mut cache_watch = Tasks::default();
    let mut connected = false;
    let work = async {
        // Without a store the process is alive and not ready.
        let connection = connect(&flags, embedded.as_ref(), &metrics.store, &stop).await?;
        let Some((store, election)) = connection else { return Ok(()) };
        health.connected(election.store().clone());
        let watching = cache_watch::run(
            store.clone(),
            health.clone(),
            cache.clone(),
            lock.clone(),
            metrics.clone(),
            progress.clone(),
        );
        cache_watch.spawn("cache watch", watching);
        let maintenance = Maintenance {
            store: store.clone(),
            roles,
            health: health.clone(),
            metrics: metrics.clone(),
            // The embedded store bounds its history itself.
            history: flags.store.etcd_compact.0.filter(|_| embedded.is_none()),
        };
        cache_watch.spawn("maintenance of the store", maintenance.run());
        connected = true;
        let candidate = Candidate {
            flags: &flags,
            store: &store,
            election: &election,
            identity: &identity,
            gateway: &gateway,
            cache: &cache,
            lock: &lock,
            role: &role,
            metrics: &metrics,
            health: &health,
            progress: &progress,
        };
        tokio::select! {
            result = campaign_and_lead(&candidate, &stop) => result,
            ended = cache_watch.ended() => Err(ended.into()),
        }
    };
    let result = tokio::select! {
        result = work => result,
        Some(ended) = servers.join_next() => Err(anyhow::anyhow!("serve: a listener ended: {ended:?}")),
        ended = tasks.ended() => Err(ended.into()),
    };
    // Requests in progress wait for the next leader. Connections that stay open are closed after
    // `DRAIN_TIMEOUT`.
    let drain = async {
        if connected && has_other_netmasters(&cache, &identity) {
            let _other_leader = timeout(HANDOVER_TIMEOUT, wait_for_other_leader(&identity, &lock)).await;
        }
        closing.cancel();
        let drained = async { while servers.join_next().await.is_some() {} };
        timeout(DRAIN_TIMEOUT, drained).await
    };
    let drained = tokio::select! {
        drained = drain => drained.is_ok(),
        () = follow(&identity, &lock, &role) => false,
    };
    if !drained {
        closing.cancel();
        aborting.cancel();
        while servers.join_next().await.is_some() {}
    }
    drop(cache_watch);
    if let Some(audit) = audit {
        tokio::task::spawn_blocking(move || audit.close()).await.context("close the audit log")?;
    }
    if let Some(server) = embedded {
        server.shutdown().await.context("close the embedded store")?;
    }
    result
}

/// Whether another netmaster is registered.
fn has_other_netmasters(cache: &SharedCache, identity: &Identity) -> bool {
    let cache = cache.read();
    let mut netmasters = cache.all::<ServiceInfo>().filter(|service| service.service_name == NETMASTER);
    netmasters.any(|service| format!("{}:{}", service.host_addr, service.port) != identity.address)
}

/// Waits until another netmaster leads and followers have had time to see it.
async fn wait_for_other_leader(identity: &Identity, lock: &watch::Sender<Lock>) {
    let other = |lock: &Lock| lock.holder.as_ref().is_some_and(|holder| *holder != identity.address);
    // This process owns the sender, so it cannot be closed.
    let _lock = lock.subscribe().wait_for(other).await.is_ok();
    sleep(LEADER_PROPAGATION).await;
}

async fn open_embedded(flags: &Flags) -> anyhow::Result<Option<Server>> {
    let Some(dir) = &flags.store.store else { return Ok(None) };
    let server = embedded::open(&dir.0, flags.store.store_listen.as_ref()).await?;
    tracing::info!(dir = %dir.0.display(), endpoint = server.endpoint(), "embedded store");
    Ok(Some(server))
}

/// Connects to the store, and retries while it does not respond. None if `stop` is cancelled first.
async fn connect(
    flags: &Flags,
    embedded: Option<&Server>,
    metrics: &contiv_store::RequestMetrics,
    stop: &CancellationToken,
) -> anyhow::Result<Option<(Store, ElectionThread)>> {
    let mut config = match (embedded, &flags.store.etcd) {
        (Some(server), _) => Config::new([server.endpoint()]),
        (None, list) => flags.store.access.access().config(list.as_deref().unwrap_or(DEFAULT_STORE))?,
    };
    config.metrics = metrics.clone();
    let (start, mut logged) = (Instant::now(), None::<Instant>);
    loop {
        let error = tokio::select! {
            connected = connect_once(&config) => match connected {
                Ok(connected) => return Ok(Some(connected)),
                Err(StartError::Store(error)) => error,
                Err(error @ StartError::Thread(_)) => return Err(error.into()),
            },
            () = stop.cancelled() => return Ok(None),
        };
        let late = flags.store.store_wait.0.is_some_and(|limit| start.elapsed() >= limit);
        if late || !error.is_transient() {
            return Err(error.into());
        }
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            tracing::warn!(error = one_line(&error), "waiting for the store; --store-wait limits this");
            logged = Some(Instant::now());
        }
        tokio::select! {
            () = sleep(RETRY_INTERVAL) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

async fn connect_once(config: &Config) -> Result<(Store, ElectionThread), StartError> {
    Ok((Store::connect(config).await?, ElectionThread::start(config).await?))
}

fn admission(
    flags: &RestFlags,
    audit: Option<AuditLog>,
    netmasters: Netmasters,
    metrics: &Metrics,
    tasks: &mut Tasks,
) -> anyhow::Result<Admission> {
    let authenticator = authenticator(flags, tasks)?;
    Ok(Admission {
        authenticator,
        audit,
        in_flight: InFlight::new(flags.in_flight(), metrics.response_bytes.clone()),
        netmasters,
        body_timeout: flags.client_timeout,
        request_timeout: flags.request_timeout,
    })
}

fn authenticator(flags: &RestFlags, tasks: &mut Tasks) -> anyhow::Result<Authenticator> {
    match (&flags.token_file, &flags.role_file, &flags.client_ca) {
        (None, None, None) => {
            tracing::warn!("every client is an administrator: neither --token-file nor --client-ca is set");
        }
        (None, None, Some(_)) => tracing::warn!(
            "every client with a certificate of --client-ca is an administrator; set --role-file"
        ),
        _ => {}
    }
    let mut authenticator = Authenticator::default();
    if let Some(path) = flags.token_file.clone() {
        let read = path.clone();
        let (tokens, follow) =
            Reloadable::load("tokens", vec![path], move || Tokens::read(&read)).context("--token-file")?;
        tasks.spawn("token file", follow);
        authenticator.tokens = Some(tokens);
    }
    if let Some(path) = flags.role_file.clone() {
        let read = path.clone();
        let (roles, follow) = Reloadable::load("roles", vec![path], move || SubjectRoles::read(&read))
            .context("--role-file")?;
        tasks.spawn("role file", follow);
        authenticator.roles = Some(roles);
    }
    Ok(authenticator)
}

fn listener_config(flags: &RestFlags, tasks: &mut Tasks) -> anyhow::Result<ListenerConfig> {
    let tls = match flags.tls() {
        None => None,
        Some(pair) => {
            let ca = flags.client_ca.clone();
            let watched = [&pair.certificate, &pair.key].into_iter().chain(&ca).cloned().collect();
            let load = move || tls::server(&pair, ca.as_deref());
            let (config, follow) =
                Reloadable::load("TLS certificates", watched, load).context("--tls-cert")?;
            tasks.spawn("server certificates", follow);
            Some(config)
        }
    };
    let max_connections = flags.max_connections as usize;
    Ok(ListenerConfig { tls, client_timeout: flags.client_timeout, max_connections })
}

/// The transport to the leader presents the certificate of the API as client certificate.
fn proxy(flags: &RestFlags, tasks: &mut Tasks) -> anyhow::Result<Proxy> {
    let presented = flags.tls().zip(flags.peers().map(Path::to_owned));
    let watched =
        presented.iter().flat_map(|(pair, ca)| [&pair.certificate, &pair.key, ca]).cloned().collect();
    let transport = move || {
        let config = presented.as_ref().map(|(pair, ca)| tls::client(ca, Some(pair)));
        Transport::new(config.transpose()?)
    };
    let (proxy, follow) =
        Proxy::new(watched, transport).context("set up the leader transport (--peer-ca)")?;
    tasks.spawn("leader transport", follow);
    Ok(proxy)
}

fn gateway(flags: &Flags, tasks: &mut Tasks) -> anyhow::Result<Gateway> {
    let gateway = Gateway::new(flags.aci_gateway.to_string(), flags.aci_gateway_ca.clone());
    let (gateway, follow) = gateway.context("--aci-gateway-ca")?;
    tasks.spawn("CA bundle of the ACI gateway", follow);
    Ok(gateway)
}

/// Dependencies of a candidate for leadership.
struct Candidate<'a> {
    flags: &'a Flags,
    store: &'a Store,
    election: &'a ElectionThread,
    identity: &'a Identity,
    gateway: &'a Gateway,
    cache: &'a SharedCache,
    lock: &'a watch::Sender<Lock>,
    role: &'a watch::Sender<Role>,
    metrics: &'a Metrics,
    health: &'a StoreHealth,
    progress: &'a Progress,
}

/// Campaigns and leads, alternately, until `stop` is cancelled.
async fn campaign_and_lead(candidate: &Candidate<'_>, stop: &CancellationToken) -> anyhow::Result<()> {
    let Candidate { flags, store, election, identity, gateway, cache, lock, role, metrics, health, progress } =
        *candidate;
    let timing = Timing { ttl: flags.store.lease_ttl, staleness: flags.store.failover_after };
    let defaults = Defaults { infra: flags.infra_name(), fwd_mode: flags.fwdmode_name() };
    let cluster = Cluster { mode: flags.mode_name(), routes_vlans: flags.netmode == NetMode::Vlan };
    if let Err(error) = release_stale_lock(store, identity).await {
        tracing::warn!(error = one_line(&error), "release the leader lock of an earlier run");
    }
    let registrations = Registrations::register(store, identity);
    // For all terms: reads of an earlier term may still run.
    let reads = Reads::new(cache.clone());
    while !stop.is_cancelled() {
        let elected = tokio::select! {
            elected = election.campaign(store, key::LEADER, &identity.address, timing) => elected?,
            () = follow(identity, lock, role) => continue,
            () = registrations.ended() => anyhow::bail!("the task that keeps the registrations ended"),
            () = stop.cancelled() => break,
            _ = health.failed() => {
                // Until the process is restarted. It neither leads nor follows.
                stop.cancelled().await;
                break;
            }
        };
        let term = Term {
            store,
            identity,
            cluster: &cluster,
            defaults: &defaults,
            node_gone_after: flags.node_gone_after.0,
            repair: flags.repair,
            metrics,
            gateway: gateway.clone(),
            cache,
            reads: &reads,
            lock,
            registrations: &registrations,
            role,
            health,
            progress,
            load_timeout: LOAD_TIMEOUT,
        };
        match term.lead(elected, stop).await {
            Ended::Stopped | Ended::Deposed | Ended::Replaced | Ended::StoreFailed => {}
            Ended::Behind => {
                tokio::select! {
                    () = sleep(BEHIND_PAUSE) => {}
                    () = stop.cancelled() => {}
                }
            }
            Ended::HalfRestored => {
                tokio::select! {
                    () = wait_restored(store) => {}
                    () = stop.cancelled() => {}
                }
            }
            Ended::Task(ended) => return Err(ended.into()),
        }
    }
    registrations.withdraw().await;
    Ok(())
}

/// Resolves when the store holds no part of a backup any more. A netmaster that campaigned meanwhile
/// would be in the way of the restoration.
async fn wait_restored(store: &Store) {
    loop {
        sleep(RESTORATION_POLL_INTERVAL).await;
        match backup::is_unfinished(store).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::debug!(error = one_line(&error), "find out whether the store was restored");
            }
        }
    }
}

/// Deletes the leader lock of an earlier run. A killed netmaster leaves its lock until the lease
/// expires. The lock contains the address that this process listens on now, so the earlier process
/// is dead. Its writes in flight fail, because they are guarded by the lock's creation revision.
async fn release_stale_lock(store: &Store, identity: &Identity) -> Result<(), Error> {
    let Some(lock) = store.get(key::LEADER).await? else { return Ok(()) };
    if *lock.value != *identity.address.as_bytes() {
        return Ok(());
    }
    let held = Guard::CreateRevision { key: lock.key.clone(), revision: lock.create_revision };
    if let Outcome::Committed { .. } = store.commit(Txn::new().guard(held).delete(lock.key)).await? {
        tracing::info!("released the leader lock of an earlier run");
    }
    Ok(())
}

/// Publishes the current leader as role of this follower. Never returns.
async fn follow(identity: &Identity, lock: &watch::Sender<Lock>, role: &watch::Sender<Role>) {
    let mut lock = lock.subscribe();
    loop {
        // A lock with our own address belongs to a term that is over.
        let other = |holder: &String| *holder != identity.address;
        let leader = lock.borrow_and_update().holder.clone().filter(other);
        let changed = role.send_if_modified(|role| {
            let known = matches!(role, Role::Following { leader: known } if *known == leader);
            if !known {
                *role = Role::Following { leader: leader.clone() };
            }
            !known
        });
        if changed {
            tracing::info!(leader = leader.as_deref().unwrap_or("none"), "following");
        }
        if lock.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
