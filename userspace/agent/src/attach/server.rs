use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{ConnectInfo, State, connect_info::Connected},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
    serve::IncomingStream,
};
use contivk8s::{
    spec::Code,
    wire::{self, Reply, Request},
};
use futures::future::{FusedFuture as _, FutureExt as _};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::net::UnixListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    failure::{Failure, Step},
    metrics::{RequestMetrics, Verb},
    pods::Pods,
};
use contiv_daemon::socket::{self, SocketError};

/// Time limit for running requests when the agent stops, or ends its run for another datapath. Requests that exceed it
/// are interrupted.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for clients to read the last responses.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Serves requests of `contivk8s` on a Unix socket.
pub struct Server {
    listener: UnixListener,
    drain_timeout: Duration,
}

#[derive(Clone)]
struct Shared {
    pods: Pods,
    metrics: RequestMetrics,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Interrupts the running requests.
    interrupt: CancellationToken,
}

/// The connection of a client; `None` if the process has no free file descriptors.
#[derive(Clone)]
struct Client(Option<Arc<OwnedFd>>);

impl Connected<IncomingStream<'_, UnixListener>> for Client {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Client {
        Client(stream.io().as_fd().try_clone_to_owned().ok().map(Arc::new))
    }
}

impl Client {
    /// Reports whether the client has closed the connection.
    fn has_given_up(&self) -> bool {
        let Some(connection) = &self.0 else { return false };
        let mut state = [PollFd::new(connection.as_fd(), PollFlags::empty())];
        let closed = |state: &[PollFd<'_>; 1]| {
            state[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
        };
        poll(&mut state, PollTimeout::ZERO).is_ok() && closed(&state)
    }
}

impl Server {
    /// Creates the socket, which only the agent's user may open.
    pub fn bind(path: &Path) -> Result<Server, SocketError> {
        let listener = socket::listen(path, "--cni-socket PATH")?;
        Ok(Server { listener, drain_timeout: DRAIN_TIMEOUT })
    }

    /// Sets the time limit for running requests after `stop`.
    #[must_use]
    pub fn drain_timeout(self, drain_timeout: Duration) -> Server {
        Server { drain_timeout, ..self }
    }

    /// Serves requests until `stop` is cancelled, then finishes the running requests and refuses others. The datapath and
    /// the watches of the store must run until this returns.
    ///
    /// No request runs afterwards, so that it cannot interfere with the next run of the agent, which may have another
    /// datapath. A request that exceeds the time limit is interrupted: the journal and the records contain what it has
    /// begun, as after a kill.
    pub async fn run(self, pods: Pods, metrics: RequestMetrics, stop: CancellationToken) -> io::Result<()> {
        let (tasks, interrupt) = (TaskTracker::new(), CancellationToken::new());
        // Also cancelled if this future is dropped.
        let _guard = interrupt.clone().drop_guard();
        let shared =
            Shared { pods, metrics, tasks: tasks.clone(), stop: stop.clone(), interrupt: interrupt.clone() };
        let verbs = [
            (wire::ADD, Verb::Add),
            (wire::DEL, Verb::Del),
            (wire::CHECK, Verb::Check),
            (wire::STATUS, Verb::Status),
            (wire::GC, Verb::Gc),
        ];
        let router = verbs.into_iter().fold(Router::new(), |router, (path, verb)| {
            let handler = move |client, shared, headers, body| answer(verb, client, shared, headers, body);
            router.route(path, post(handler))
        });
        let router = router.with_state(shared).into_make_service_with_connect_info::<Client>();
        let served =
            axum::serve(self.listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
        let ending = stop.child_token();
        let drained = drain((&tasks, self.drain_timeout), &ending, &interrupt).fuse();
        let mut drained = std::pin::pin!(drained);
        let result = tokio::select! {
            result = async { served.await } => result,
            () = async {
                drained.as_mut().await;
                // Idle connections do not delay the shutdown.
                tokio::time::sleep(RESPONSE_TIMEOUT).await;
            } => Ok(()),
        };
        // A request whose client has disconnected continues.
        ending.cancel();
        if !drained.is_terminated() {
            drained.await;
        }
        // A request may have been accepted before `stop` was cancelled.
        interrupt.cancel();
        tasks.wait().await;
        // The socket is not removed: another agent may have replaced it with its own.
        result
    }
}

/// Waits for `ending`, then until no request is running. Interrupts requests that exceed the time limit.
async fn drain(
    (tasks, limit): (&TaskTracker, Duration),
    ending: &CancellationToken,
    interrupt: &CancellationToken,
) {
    ending.cancelled().await;
    tasks.close();
    if !tasks.is_empty() {
        tracing::info!(requests = tasks.len(), "finishing CNI requests before the agent stops");
    }
    if tokio::time::timeout(limit, tasks.wait()).await.is_err() {
        tracing::warn!(
            requests = tasks.len(),
            "interrupting CNI requests; the next run of the agent finishes them"
        );
        interrupt.cancel();
        tasks.wait().await;
    }
}

async fn answer(
    verb: Verb,
    ConnectInfo(client): ConnectInfo<Client>,
    State(shared): State<Shared>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let content_type = headers.get(header::CONTENT_TYPE).map(header::HeaderValue::as_bytes);
    if content_type != Some(wire::CONTENT_TYPE.as_bytes()) {
        return StatusCode::NOT_FOUND.into_response();
    }
    let request: Request = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(e) => {
            let failure = Failure::new(Step::Labels, format!("request is not valid JSON: {e}"));
            return respond(Err(failure.code(Code::Decode)));
        }
    };
    // Requests wait in the socket's queue while the agent starts. If the client has given up, a DEL may already have
    // followed, and the ADD must not be executed after it.
    if client.has_given_up() {
        return respond(Err(Failure::new(Step::Labels, "the client has closed the connection").temporary()));
    }
    if shared.stop.is_cancelled() {
        return respond(Err(stopping()));
    }
    let start = Instant::now();
    let endpoint = request.endpoint();
    // Runs in a separate task, because this future is dropped when the client disconnects.
    let (pods, interrupt) = (shared.pods.clone(), shared.interrupt.clone());
    let work = shared.tasks.spawn(async move {
        let result = interrupt.run_until_cancelled(carry_out(verb, &pods, &request)).await;
        result.unwrap_or_else(|| Err(stopping()))
    });
    let result =
        work.await.unwrap_or_else(|e| Err(Failure::new(Step::Plug, format!("request handler failed: {e}"))));
    let took = start.elapsed();
    shared.metrics.record(verb, took, &result);
    match &result {
        // Runtimes send this request every few seconds.
        Ok(_) if verb == Verb::Status => {}
        Ok(reply) => tracing::info!(%verb, endpoint, ip = ?reply.ip, ?took, "CNI request done"),
        Err(failure) if verb == Verb::Status => tracing::debug!(%verb, "{failure}"),
        Err(failure) => tracing::error!(%verb, endpoint, ?took, "{failure}"),
    }
    respond(result)
}

async fn carry_out(verb: Verb, pods: &Pods, request: &Request) -> Result<Reply, Failure> {
    match verb {
        Verb::Add => pods.add(request).await,
        Verb::Del => pods.del(request).await,
        Verb::Check => pods.check(request).await,
        Verb::Status => pods.status(),
        Verb::Gc => pods.collect_garbage(request).await,
    }
}

fn stopping() -> Failure {
    Failure::new(Step::Status, "the agent is stopping; retry").temporary()
}

fn respond(result: Result<Reply, Failure>) -> Response {
    match result {
        Ok(reply) => Json(reply).into_response(),
        Err(failure) => (StatusCode::INTERNAL_SERVER_ERROR, Json(failure.reply())).into_response(),
    }
}
