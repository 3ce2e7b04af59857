//! What operators and their tools ask the agent (INVENTORY 7.3), and health for orchestrators.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{delete, get},
};
use contiv_model::{name::EndpointId, node};
use futures::stream;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cni::Pods,
    datapath::{
        Kind,
        telemetry::{Stats, Traffic},
    },
    error::one_line,
    link::{self, Links, PodTraffic},
    metrics::{Measured, Metrics},
    monitor::{self, Monitor, Refused},
    ready::Ready,
    reconcile::{Inspection, Status},
    service_stats::service_stats,
    state::{Reader, Rejected},
};

/// The address could not be had.
#[derive(Debug, thiserror::Error)]
#[error("listen on {address} (is another netplugin running? else try --rest-address IP:PORT)")]
pub struct Error {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// What the answers are made of.
#[derive(Clone)]
pub struct Parts {
    /// Which datapath runs.
    pub datapath: Kind,
    /// What is waited for.
    pub ready: Ready,
    /// What is known.
    pub reader: Reader,
    /// How the datapath is doing.
    pub status: watch::Receiver<Status>,
    /// How the connections to the store are doing.
    pub store: Vec<watch::Receiver<contiv_store::Status>>,
    /// Asks the datapath for its inside.
    pub inspect: mpsc::Sender<Inspection>,
    /// What is counted.
    pub metrics: Metrics,
    /// What happens to packets.
    pub monitor: Monitor,
    /// The pods of this node.
    pub pods: Pods,
    /// Their interfaces.
    pub links: Arc<Links>,
}

/// `/readyz`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Readiness {
    ready: bool,
    /// What is waited for.
    pending: Vec<String>,
    revision: i64,
    applied_revision: i64,
    /// What is not in force, or not understood, a line for each sort. It makes nobody less ready: what is in force
    /// forwards on.
    degraded: Vec<String>,
    failed: usize,
    rejected: usize,
    /// What the datapath said last.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Why what is known may be old.
    #[serde(skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

impl Parts {
    /// The datapath's inside; `None` when the agent is about to end.
    async fn inside(&self) -> Option<Value> {
        let (ask, answer) = oneshot::channel();
        self.inspect.send(Inspection::Inside(ask)).await.ok()?;
        answer.await.ok()
    }

    /// What the datapath counts. One that is at work for longer has nothing to tell this time.
    async fn counts(&self) -> Option<Stats> {
        let (ask, answer) = oneshot::channel();
        let asked = async {
            self.inspect.send(Inspection::Stats(ask)).await.ok()?;
            answer.await.ok()
        };
        timeout(PATIENCE, asked).await.ok().flatten()
    }

    /// What packets have left behind, which does not disturb the datapath at its work.
    async fn measured(&self) -> Measured {
        let monitor = self.monitor.clone();
        let tallies = spawn_blocking(move || monitor.counters()).await;
        let tallies = tallies.map_err(|error| error.to_string()).and_then(|t| t.map_err(|e| one_line(&e)));
        let traffic = self.links.traffic().await.map_err(|error| one_line(&error));
        let failed = |what: &str, error: &str| tracing::warn!("metrics: {what}: {error}");
        Measured {
            counts: self.counts().await.unwrap_or_default(),
            tallies: tallies.inspect_err(|error| failed("maps", error)).unwrap_or_default(),
            pods: traffic.inspect_err(|error| failed("interfaces", error)).unwrap_or_default(),
        }
    }

    /// What the agent waits for at this moment, also if it was there before.
    pub fn pending(&self) -> Vec<String> {
        let started = self.ready.pending().into_iter().map(str::to_owned);
        let state = self.reader.awaited().into_iter().map(|source| format!("state {source}"));
        let datapath = (!self.status.borrow().known).then(|| format!("{} datapath", self.datapath));
        started.chain(state).chain(datapath).collect()
    }
}

/// How long a reader of metrics waits for the datapath.
const PATIENCE: Duration = Duration::from_secs(2);

/// The first trouble of any.
fn trouble(connections: &[watch::Receiver<contiv_store::Status>]) -> Option<String> {
    connections.iter().find_map(|connection| match &*connection.borrow() {
        contiv_store::Status::Retrying { error, .. } => Some(error.to_string()),
        _ => None,
    })
}

/// Listens.
pub struct Server(TcpListener);

impl Server {
    /// Takes the address.
    pub async fn bind(address: SocketAddr) -> Result<Server, Error> {
        TcpListener::bind(address).await.map(Server).map_err(|source| Error { address, source })
    }

    /// Until told to stop.
    pub async fn run(self, parts: Parts, stop: CancellationToken) -> io::Result<()> {
        let router = Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .route("/inspect/driver", get(inspect))
            .route("/monitor", get(watch_packets))
            .route("/svcstats", get(services))
            .route("/debug/reclaimEndpoint/{id}", delete(reclaim))
            .with_state(parts);
        tokio::select! {
            result = async { axum::serve(self.0, router).await } => result,
            // A reader of metrics that keeps its connection is not waited for.
            () = stop.cancelled() => Ok(()),
        }
    }
}

async fn readyz(State(parts): State<Parts>) -> Response {
    let pending = parts.pending();
    let status = parts.status.borrow().clone();
    let rejected = parts.reader.rejected();
    let troubles = parts.pods.troubles().borrow().clone();
    let degraded = status.degraded().into_iter().chain(troubles.lines());
    let body = Readiness {
        ready: pending.is_empty(),
        pending,
        revision: parts.reader.revision(),
        applied_revision: status.revision,
        degraded: degraded.chain(Rejected::lines(&rejected)).collect(),
        failed: status.failures.count(),
        rejected: rejected.len(),
        error: status.error,
        store: trouble(&parts.store),
    };
    let code = if body.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(body)).into_response()
}

async fn metrics(State(parts): State<Parts>) -> Response {
    const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let status = parts.status.borrow().clone();
    let measured = parts.measured().await;
    match parts.metrics.text(&status, &measured, &parts.reader) {
        Ok(text) => ([(header::CONTENT_TYPE, TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn inspect(State(parts): State<Parts>) -> Response {
    let Some(mut inside) = parts.inside().await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping\n").into_response();
    };
    if let Value::Object(members) = &mut inside {
        let status = parts.status.borrow().clone();
        let failures = parts.reader.rejected();
        members.insert("datapath".into(), json!(parts.datapath.to_string()));
        members.insert("rejected".into(), json!(failures));
        members.insert("endpoints".into(), endpoints(parts.links.traffic().await));
        members.insert(
            "status".into(),
            json!({ "known": status.known, "appliedRevision": status.revision, "objects": status.objects,
                    "failed": status.failures.count(), "degraded": status.degraded(),
                    "writes": status.writes, "error": status.error }),
        );
    }
    Json(inside).into_response()
}

/// What each pod here has been sent and has sent.
fn endpoints(traffic: Result<Vec<PodTraffic>, link::Error>) -> Value {
    let count = |traffic: Traffic| json!({ "packets": traffic.packets, "bytes": traffic.bytes });
    match traffic {
        Ok(pods) => Value::Object(
            pods.into_iter()
                .map(|PodTraffic { attachment, sent, received }| {
                    let counts =
                        json!({ "interface": attachment.port, "in": count(received), "out": count(sent) });
                    (attachment.endpoint.to_string(), counts)
                })
                .collect(),
        ),
        Err(error) => json!({ "error": one_line(&error) }),
    }
}

/// A line of JSON for each packet that is dropped and each flow that begins, until the listener goes.
async fn watch_packets(State(parts): State<Parts>) -> Response {
    let listener = match parts.monitor.listen() {
        Ok(listener) => listener,
        Err(refused) => {
            let code = match refused {
                Refused::Unsupported => StatusCode::NOT_IMPLEMENTED,
                Refused::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            return (code, format!("{}\n", one_line(&refused))).into_response();
        }
    };
    let lines = stream::unfold((parts.monitor, listener), |(monitor, mut listener)| async {
        let sight = monitor.line(&mut listener).await?;
        Some((monitor::encode(&sight), (monitor, listener)))
    });
    ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

/// What clients and services have sent each other. A datapath without services has none.
async fn services(State(parts): State<Parts>) -> Response {
    let refuse =
        |why: String| (StatusCode::INTERNAL_SERVER_ERROR, format!("svcstats: {why}\n")).into_response();
    // A table of flows may be long.
    match spawn_blocking(move || parts.monitor.connections()).await {
        Ok(Ok(connections)) => Json(service_stats(&connections)).into_response(),
        Ok(Err(error)) => refuse(one_line(&error)),
        Err(error) => refuse(error.to_string()),
    }
}

/// As the original: `null`, or 500 for an endpoint that is not here.
async fn reclaim(State(parts): State<Parts>, Path(id): Path<String>) -> Response {
    let refuse = |why: String| (StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")).into_response();
    match parts.pods.reclaim(&EndpointId::from(id.as_str())).await {
        Ok(true) => Json(Value::Null).into_response(),
        Ok(false) => refuse(format!("endpoint {id} {}", node::NOTHING_TO_RECLAIM)),
        Err(failure) => refuse(failure.to_string()),
    }
}
