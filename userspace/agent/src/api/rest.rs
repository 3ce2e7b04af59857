//! HTTP handlers: inspection for operators (INVENTORY 7.3), and health checks.

use std::{io, net::SocketAddr, path::Path, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{self, ConnectInfo, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{delete, get},
};
use contiv_daemon::socket::{self, SocketError};
use contiv_model::{name::EndpointId, node};
use futures::stream;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    admission::limited,
    listener,
    metrics::{self, Condition, Measurements, Recorded},
    monitor::{self, Monitor, MonitorError},
    pod_access,
    service_stats::service_stats,
    trace::{self, Tracer},
};
use crate::{
    attach::{
        Pods,
        link::{self, PodTraffic, TrafficReader},
    },
    bgp,
    continuity::Continuity,
    datapath::{
        Kind,
        telemetry::{Stats, Traffic},
    },
    error::one_line,
    ready::Ready,
    reconcile::{Inspection, Status},
    state::{Reader, Rejected},
    sysctl,
};

/// The API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The listening address cannot be used.
    #[error("listen on {address} (is another netplugin running? otherwise set --rest-address IP:PORT)")]
    Address {
        /// Listening address.
        address: SocketAddr,
        /// Underlying error.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be used.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Dependencies of the handlers.
#[derive(Clone)]
pub struct Parts {
    /// Datapath in use.
    pub datapath: Kind,
    /// Start-up conditions.
    pub ready: Ready,
    /// State of this node.
    pub reader: Reader,
    /// Status of the reconciler.
    pub status: watch::Receiver<Status>,
    /// Status of the store's watches, and whether the store is regressed.
    pub continuity: Continuity,
    /// BGP session.
    pub bgp: watch::Receiver<bgp::Report>,
    /// Parts of the VLAN routing that are not in effect.
    pub routing: watch::Receiver<Vec<String>>,
    /// Sends requests to the datapath's owner.
    pub inspect: mpsc::Sender<Inspection>,
    /// Metrics that the parts of the agent record.
    pub recorded: Recorded,
    /// Packet events and counters.
    pub monitor: Monitor,
    /// Attached endpoints.
    pub pods: Pods,
    /// Traffic of attached endpoints.
    pub traffic: TrafficReader,
}

/// Body of `/readyz`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Readiness {
    ready: bool,
    /// Conditions that are not met yet.
    pending: Vec<String>,
    revision: i64,
    applied_revision: i64,
    /// Degraded conditions, one line each. They do not affect readiness, because forwarding continues.
    degraded: Vec<String>,
    failed: usize,
    rejected: usize,
    /// Last error of the datapath.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Reason why the state may be stale.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

impl Parts {
    /// Returns the debug dump of the datapath; `None` while the agent stops, or if the datapath is busy for longer than
    /// the timeout.
    async fn dump(&self) -> Option<Value> {
        let (reply, answer) = oneshot::channel();
        let request = async {
            self.inspect.send(Inspection::Dump(reply)).await.ok()?;
            answer.await.ok()
        };
        timeout(DUMP_TIMEOUT, request).await.ok().flatten()
    }

    /// Returns the statistics of the datapath; `None` if it is busy for longer than the timeout.
    async fn stats(&self) -> Option<Stats> {
        let (reply, answer) = oneshot::channel();
        let request = async {
            self.inspect.send(Inspection::Stats(reply)).await.ok()?;
            answer.await.ok()
        };
        timeout(STATS_TIMEOUT, request).await.ok().flatten()
    }

    /// Reads the values for a scrape.
    async fn measure(&self) -> Measurements {
        let (monitor, series) = (self.monitor.clone(), self.recorded.series.clone());
        let counters = spawn_blocking(move || series.read(|| monitor.counters())).await;
        let counters =
            counters.map_err(|error| error.to_string()).and_then(|read| read.map_err(|e| one_line(&e)));
        let traffic = self.traffic.read().await.map_err(|error| one_line(&error));
        let failed = |what: &str, error: &str| tracing::warn!("read {what} for metrics: {error}");
        Measurements {
            stats: self.stats().await.unwrap_or_default(),
            counters: counters.inspect_err(|error| failed("datapath counters", error)).unwrap_or_default(),
            pods: traffic.inspect_err(|error| failed("interface counters", error)).unwrap_or_default(),
            tracking: sysctl::tracking(),
        }
    }

    /// Degraded conditions, one line each.
    fn degraded(&self, status: &Status) -> Vec<String> {
        let regressed = self.continuity.regression.borrow().as_ref().map(ToString::to_string);
        let mut lines: Vec<String> = regressed.into_iter().chain(status.degraded()).collect();
        lines.extend(self.pods.warnings().borrow().lines());
        lines.extend(self.bgp.borrow().degraded());
        lines.extend(self.routing.borrow().iter().cloned());
        lines.extend(Rejected::lines(&self.reader.rejected()));
        lines
    }

    /// Conditions that are not met now, including those that were met before.
    pub fn pending(&self) -> Vec<String> {
        let started = self.ready.pending().into_iter().map(str::to_owned);
        let state = self.reader.awaited().into_iter().map(|source| format!("state {source}"));
        let datapath = (!self.status.borrow().in_sync).then(|| format!("{} datapath", self.datapath));
        started.chain(state).chain(datapath).collect()
    }
}

/// Time limit for the datapath's debug dump.
const DUMP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the datapath's statistics in a scrape.
const STATS_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether all watches of the store are connected.
fn store_connected(connections: &[watch::Receiver<contiv_store::Status>]) -> bool {
    let connected = |connection: &watch::Receiver<_>| *connection.borrow() == contiv_store::Status::Connected;
    !connections.is_empty() && connections.iter().all(connected)
}

/// First error among the store's watches.
fn store_error(connections: &[watch::Receiver<contiv_store::Status>]) -> Option<String> {
    connections.iter().find_map(|connection| match &*connection.borrow() {
        contiv_store::Status::Retrying { error, .. } => Some(error.to_string()),
        _ => None,
    })
}

/// HTTP server on an address and on a socket.
pub struct Server {
    tcp: TcpListener,
    unix: UnixListener,
}

impl Server {
    /// Binds the address, and creates the socket with mode 0600.
    pub async fn bind(address: SocketAddr, socket: &Path) -> Result<Server, Error> {
        let tcp = TcpListener::bind(address).await.map_err(|source| Error::Address { address, source })?;
        if !address.ip().is_loopback() {
            tracing::warn!(
                %address,
                "the agent's API is served without authentication on a non-loopback address; restrict access to it"
            );
        }
        Ok(Server { tcp, unix: socket::listen(socket, "--rest-socket PATH")? })
    }

    /// Serves requests until `stop` is cancelled.
    pub async fn run(self, parts: Parts, stop: CancellationToken) -> io::Result<()> {
        // Each has its own limits, so that clients of the address do not lock out those of the socket.
        let (local, remote) = (router(parts.clone()), router(parts.clone()));
        // Pods cannot open the socket.
        let remote = remote.layer(middleware::from_fn_with_state(parts, refuse_pods));
        tokio::select! {
            result = listener::serve(self.tcp, remote) => result,
            result = async { axum::serve(self.unix, local).await } => result,
            // Open connections do not delay the shutdown.
            () = stop.cancelled() => Ok(()),
        }
    }
}

fn router(parts: Parts) -> Router {
    let tracer = Tracer {
        inspect: parts.inspect.clone(),
        host: parts.monitor.host().clone(),
        datapath: parts.datapath,
    };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", limited(get(scrape)))
        .route("/inspect/driver", limited(get(inspect)))
        .route("/inspect/bgp", get(inspect_bgp))
        .route("/monitor", get(watch_packets))
        .route("/trace", trace::route(tracer))
        .route("/svcstats", limited(get(services)))
        .route("/debug/reclaimEndpoint/{id}", delete(reclaim))
        .with_state(parts)
}

/// Refuses requests of pods, which reach the node through infra networks and host access, except for health checks and
/// metrics. Until the addresses of pods are known, refuses all clients except the node itself.
async fn refuse_pods(
    State(parts): State<Parts>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    if let Some(why) = pod_access::refusal(path, peer.ip(), &parts.reader) {
        return (StatusCode::FORBIDDEN, format!("{path}: {why}\n")).into_response();
    }
    next.run(request).await
}

async fn readyz(State(parts): State<Parts>) -> Response {
    let pending = parts.pending();
    let status = parts.status.borrow().clone();
    let body = Readiness {
        ready: pending.is_empty(),
        pending,
        revision: parts.reader.revision(),
        applied_revision: status.revision,
        degraded: parts.degraded(&status),
        failed: status.failures.count(),
        rejected: parts.reader.rejected_count(),
        error: status.error,
        store: store_error(&parts.continuity.connections.borrow()),
    };
    let code = if body.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(body)).into_response()
}

async fn scrape(State(parts): State<Parts>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let status = parts.status.borrow().clone();
    let measurements = parts.measure().await;
    let session = parts.bgp.borrow().clone();
    let condition = Condition {
        datapath: parts.datapath,
        status: &status,
        degraded: parts.degraded(&status).len(),
        unfinished: parts.pods.unfinished(),
        regressed: parts.continuity.regression.borrow().is_some(),
        bgp: &session,
        store_connected: store_connected(&parts.continuity.connections.borrow()),
    };
    match metrics::encode(&parts.recorded, &condition, &measurements, &parts.reader) {
        Ok(text) => ([(header::CONTENT_TYPE, TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn inspect(State(parts): State<Parts>) -> Response {
    let Some(mut dump) = parts.dump().await else {
        let why = format!("the datapath did not answer within {DUMP_TIMEOUT:?}, or the agent is stopping\n");
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    if let Value::Object(members) = &mut dump {
        let status = parts.status.borrow().clone();
        let failures = parts.reader.rejected();
        members.insert("datapath".into(), json!(parts.datapath.to_string()));
        members.insert("rejected".into(), json!(failures));
        members.insert("endpoints".into(), endpoints(parts.traffic.read().await));
        members.insert(
            "status".into(),
            json!({ "known": status.in_sync, "appliedRevision": status.revision, "objects": status.objects,
                    "failed": status.failures.count(), "degraded": status.degraded(),
                    "writes": status.writes, "error": status.error }),
        );
    }
    Json(dump).into_response()
}

/// Answers like the original Contiv: status 500 if no speaker runs.
async fn inspect_bgp(State(parts): State<Parts>) -> Response {
    match bgp::inspect(&parts.bgp.borrow()) {
        Some(answer) => Json(answer).into_response(),
        None => (StatusCode::INTERNAL_SERVER_ERROR, "Error fetching bgp\n").into_response(),
    }
}

/// Traffic of each endpoint on this node.
fn endpoints(traffic: Result<Vec<PodTraffic>, link::Error>) -> Value {
    let count = |traffic: Traffic| json!({ "packets": traffic.packets, "bytes": traffic.bytes });
    match traffic {
        Ok(pods) => Value::Object(
            pods.into_iter()
                .map(|PodTraffic { port, sent, received }| {
                    let counts = json!({ "interface": port.port, "in": count(received), "out": count(sent) });
                    (port.endpoint.to_string(), counts)
                })
                .collect(),
        ),
        Err(error) => json!({ "error": one_line(&error) }),
    }
}

/// Streams one line of JSON per dropped packet and per new flow, until the client disconnects.
async fn watch_packets(State(parts): State<Parts>) -> Response {
    let events = match parts.monitor.subscribe() {
        Ok(events) => events,
        Err(error) => {
            let code = match error {
                MonitorError::Unsupported => StatusCode::NOT_IMPLEMENTED,
                MonitorError::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            return (code, format!("{}\n", one_line(&error))).into_response();
        }
    };
    let lines = stream::unfold((parts.monitor, events), |(monitor, mut events)| async {
        let event = monitor.next(&mut events).await?;
        Some((monitor::encode(&event), (monitor, events)))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// Service statistics; empty for a datapath without services.
async fn services(State(parts): State<Parts>) -> Response {
    let refuse =
        |why: String| (StatusCode::INTERNAL_SERVER_ERROR, format!("svcstats: {why}\n")).into_response();
    // Reading the flow tables may take long.
    match spawn_blocking(move || parts.monitor.connections()).await {
        Ok(Ok(connections)) => Json(service_stats(&connections)).into_response(),
        Ok(Err(error)) => refuse(one_line(&error)),
        Err(error) => refuse(error.to_string()),
    }
}

/// Answers like the original Contiv: `null`, or status 500 if the endpoint is not on this node.
async fn reclaim(State(parts): State<Parts>, extract::Path(id): extract::Path<String>) -> Response {
    let refuse = |why: String| (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response();
    match parts.pods.reclaim(&EndpointId::from(id.as_str())).await {
        Ok(true) => Json(Value::Null).into_response(),
        Ok(false) => refuse(format!("endpoint {id} {}", node::NOTHING_TO_RECLAIM)),
        Err(failure) => refuse(failure.to_string()),
    }
}
