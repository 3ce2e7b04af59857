//! `/trace`: traces a packet through the datapath of this node.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, post},
};
use bytes::Bytes;
use contiv_model::{
    name::HostName,
    trace::{Query, Trace},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::admission::limited;
use crate::{
    datapath::Kind,
    error::one_line,
    reconcile::{Inspection, TraceError, Traced},
};

/// Time limit of a trace.
const TRACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Body with the fields that are required.
const EXAMPLE: &str =
    r#"{"ingress":{"endpoint":"net.default-a"},"destination":"10.1.1.3","protocol":6,"destinationPort":80}"#;

/// A trace failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The body is not a query.
    #[error("trace: invalid body: {0}; expected JSON such as {EXAMPLE}")]
    Body(serde_json::Error),
    /// The packet cannot be traced.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The datapath has not answered.
    #[error("trace: the datapath did not answer within {TRACE_TIMEOUT:?}, or the agent is stopping; retry")]
    NoAnswer,
}

impl Failure {
    fn status(&self) -> StatusCode {
        match self {
            Failure::Body(_) | Failure::Trace(TraceError::Unresolved(_)) => StatusCode::BAD_REQUEST,
            Failure::Trace(TraceError::Datapath(_)) | Failure::NoAnswer => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// One line for the operator.
    fn line(&self) -> String {
        format!("{}\n", one_line(self))
    }
}

/// Dependencies of the handler.
#[derive(Clone)]
pub(super) struct Tracer {
    /// Sends requests to the datapath's owner.
    pub(super) inspect: mpsc::Sender<Inspection>,
    /// Name of this node.
    pub(super) host: HostName,
    /// Datapath in use.
    pub(super) datapath: Kind,
}

/// Returns the route. It has its own limit, so that traces do not block scrapes.
pub(super) fn route<S>(tracer: Tracer) -> MethodRouter<S> {
    limited(post(answer)).with_state(tracer)
}

/// Traces a packet through the datapath.
async fn answer(State(tracer): State<Tracer>, body: Bytes) -> Response {
    match trace(&tracer.inspect, &tracer.host, tracer.datapath, &body).await {
        Ok(trace) => Json(trace).into_response(),
        Err(failure) => (failure.status(), failure.line()).into_response(),
    }
}

/// Traces the packet that `body` describes.
async fn trace(
    inspect: &mpsc::Sender<Inspection>,
    host: &HostName,
    datapath: Kind,
    body: &Bytes,
) -> Result<Trace, Failure> {
    let query: Query = serde_json::from_slice(body).map_err(Failure::Body)?;
    let (reply, answer) = oneshot::channel();
    let request = async {
        inspect.send(Inspection::Trace(Box::new(query), reply)).await.ok()?;
        answer.await.ok()
    };
    let Traced { probe, findings } =
        timeout(TRACE_TIMEOUT, request).await.ok().flatten().ok_or(Failure::NoAnswer)??;
    Ok(Trace {
        host: host.to_string(),
        datapath: datapath.to_string(),
        method: findings.method.to_owned(),
        ingress: probe.ingress.name(),
        network: probe.network.to_string(),
        packet: probe.header,
        steps: findings.steps,
        outputs: findings.outputs,
        omitted_copies: findings.omitted_copies,
    })
}

#[cfg(test)]
mod tests {
    use axum::{
        Router,
        body::Body,
        http::{Request, header::RETRY_AFTER},
    };
    use futures::future::select_all;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;

    use super::*;
    use crate::datapath::{Error, trace::Unresolved};

    /// Returns status and text of a trace that ends with this error.
    async fn answered(body: &'static str, error: impl FnOnce() -> TraceError) -> (u16, String) {
        let (inspect, mut inspections) = mpsc::channel(1);
        let (body, host) = (Bytes::from_static(body.as_bytes()), "node1".into());
        let answer = async {
            if let Some(Inspection::Trace(_, reply)) = inspections.recv().await {
                reply.send(Err(error())).unwrap();
            }
        };
        let request = async move { trace(&inspect, &host, Kind::Ovs, &body).await };
        let (result, ()) = tokio::join!(request, answer);
        let failure = result.unwrap_err();
        (failure.status().as_u16(), failure.line())
    }

    const BODY: &str = r#"{"ingress":{"endpoint":"a"},"destination":"10.1.1.3","protocol":1}"#;

    #[tokio::test]
    async fn failures_have_a_status_and_one_line() {
        let unknown = || Unresolved::Endpoint("a".into()).into();
        for (body, status, what) in [
            ("{", 400, r#"expected JSON such as {"ingress""#),
            (r#"{"destination":"10.1.1.3","protocol":1}"#, 400, "missing field `ingress`"),
            (BODY, 400, "endpoint a is not on this node"),
        ] {
            let (code, line) = answered(body, unknown).await;
            assert!(code == status && line.contains(what) && line.lines().count() == 1, "{code} {line}");
        }
        let failed = || Error::new(Kind::Ovs, "trace", std::io::Error::other("gone")).into();
        assert_eq!(answered(BODY, failed).await.0, 503);
    }

    #[tokio::test]
    async fn two_traces_are_carried_out_at_a_time() {
        let (inspect, mut inspections) = mpsc::channel(8);
        let tracer = Tracer { inspect, host: "node1".into(), datapath: Kind::Ebpf };
        let app: Router = Router::new().route("/trace", route(tracer));
        let app = TowerToHyperService::new(app);
        let ask = || Box::pin(app.call(Request::post("/trace").body(Body::from(BODY)).unwrap()));
        // The datapath has not answered yet.
        let (refused, ..) = select_all([ask(), ask(), ask()]).await;
        let refused = refused.unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.headers().contains_key(RETRY_AFTER));
        let traced = std::iter::from_fn(|| inspections.try_recv().ok());
        assert_eq!(traced.count(), 2);
    }
}
