//! Replayable request bodies.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use futures::{StreamExt as _, stream};
use hyper::body::{Frame, SizeHint};

/// A request body that records what is read from it, so that the request can be sent again.
pub(super) struct ReplayableBody(Arc<Mutex<ReplayState>>);

/// Takes back the body, including what was read from it.
pub(super) struct ReplayHandle(Arc<Mutex<ReplayState>>);

struct ReplayState {
    body: Option<Body>,
    /// Data read so far. Its size is limited by the admission checks.
    read: Vec<Bytes>,
}

impl ReplayableBody {
    pub(super) fn new(body: Body) -> (ReplayableBody, ReplayHandle) {
        let state = Arc::new(Mutex::new(ReplayState { body: Some(body), read: Vec::new() }));
        (ReplayableBody(state.clone()), ReplayHandle(state))
    }
}

impl ReplayHandle {
    pub(super) fn take_back(&self) -> Option<Body> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = state.body.take()?;
        let read = std::mem::take(&mut state.read);
        if read.is_empty() {
            return Some(rest);
        }
        let read = stream::iter(read.into_iter().map(Ok::<_, axum::Error>));
        Some(Body::from_stream(read.chain(rest.into_data_stream())))
    }
}

impl HttpBody for ReplayableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(body) = &mut state.body else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            state.read.extend(frame.data_ref().cloned());
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_is_replayed_completely() {
        let pieces = || Body::from_stream(stream::iter(["one", "two"].map(Ok::<_, axum::Error>)));
        for read in 0..=2 {
            let (replayable, handle) = ReplayableBody::new(pieces());
            let mut data = Body::new(replayable).into_data_stream();
            for _ in 0..read {
                data.next().await.unwrap().unwrap();
            }
            let back = axum::body::to_bytes(handle.take_back().unwrap(), 9).await.unwrap();
            assert_eq!(back, "onetwo", "after {read} pieces");
            assert!(data.next().await.is_none() && handle.take_back().is_none());
        }
    }
}
