//! `/trace`: follows a packet through the datapath of this node.

use std::time::Duration;

use axum::http::StatusCode;
use bytes::Bytes;
use contiv_model::{
    name::HostName,
    trace::{Query, Trace},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

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
pub(super) enum Failure {
    /// The body is not a query.
    #[error("trace: invalid body: {0}; expected JSON such as {EXAMPLE}")]
    Body(serde_json::Error),
    /// The packet cannot be traced.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// No answer.
    #[error("trace: the datapath did not answer within {TRACE_TIMEOUT:?}, or the agent is stopping; retry")]
    NoAnswer,
}

impl Failure {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Failure::Body(_) | Failure::Trace(TraceError::Unresolved(_)) => StatusCode::BAD_REQUEST,
            Failure::Trace(TraceError::Datapath(_)) | Failure::NoAnswer => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// One line for the operator.
    pub(super) fn line(&self) -> String {
        format!("{}\n", one_line(self))
    }
}

/// Traces the packet that `body` describes.
pub(super) async fn trace(
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
    use super::*;
    use crate::datapath::{Error, trace::Unresolved};

    /// Status and text of a trace to which the datapath's owner gives this answer.
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
}
