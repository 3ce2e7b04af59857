//! Admission of requests that read whole tables of the datapath or of the kernel, or that run its programs. The API has no
//! authentication, and such a request takes memory and processor time.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::MethodRouter,
};
use tokio::{sync::Semaphore, time::timeout};

/// Maximum number of requests of one route that run at a time.
const MAX_REQUESTS: usize = 2;
/// Time limit for another request to be admitted.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum length of a body, in bytes.
const MAX_BODY: usize = 64 << 10;

/// Limits the number of requests of a route that run at a time.
pub(super) fn limited<S: Clone + 'static>(route: MethodRouter<S>) -> MethodRouter<S> {
    let free = Arc::new(Semaphore::new(MAX_REQUESTS));
    route.layer(middleware::from_fn_with_state(free, admit))
}

async fn admit(State(free): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    // A client that sends its body slowly holds no permit meanwhile.
    match to_bytes(body, MAX_BODY).await {
        Ok(body) => carry_out(free, next.run(Request::from_parts(head, Body::from(body)))).await,
        Err(error) => {
            let why = format!("read the body, which may have {MAX_BODY} bytes: {error}\n");
            (StatusCode::BAD_REQUEST, why).into_response()
        }
    }
}

/// Runs a request when a permit is free. It runs to its end even if the client disconnects: a table is always read
/// completely, and the permit is held meanwhile.
async fn carry_out(
    free: Arc<Semaphore>,
    request: impl Future<Output = Response> + Send + 'static,
) -> Response {
    let Ok(Ok(permit)) = timeout(ADMISSION_TIMEOUT, free.acquire_owned()).await else {
        let why = "busy: other requests of this kind are carried out at the moment; retry\n";
        return (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], why).into_response();
    };
    let running = tokio::spawn(async move {
        let _held = permit;
        request.await
    });
    running.await.unwrap_or_else(|error| {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("request handler failed: {error}\n")).into_response()
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use axum::{Router, http, routing::post};
    use bytes::Bytes;
    use futures::stream;
    use hyper::service::Service as _;
    use hyper_util::service::TowerToHyperService;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_request_is_counted_until_its_end_without_its_client_too() {
        let free = Arc::new(Semaphore::new(1));
        let (finish, finished) = oneshot::channel::<()>();
        {
            let table = async move {
                finished.await.unwrap();
                StatusCode::OK.into_response()
            };
            let mut first = std::pin::pin!(carry_out(free.clone(), table));
            assert!(futures::poll!(&mut first).is_pending());
            // The client disconnects.
        }
        let another = || carry_out(free.clone(), async { StatusCode::OK.into_response() });
        assert_eq!(another().await.status(), StatusCode::SERVICE_UNAVAILABLE);
        finish.send(()).unwrap();
        assert_eq!(another().await.status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_body_that_does_not_end_takes_no_permit() {
        let echo: Router = Router::new().route("/", limited(post(|body: Bytes| async move { body })));
        let echo = TowerToHyperService::new(echo);
        let ask = |body: Body| echo.call(http::Request::post("/").body(body).unwrap());
        let endless = || Body::from_stream(stream::pending::<io::Result<Bytes>>());
        let mut slow: Vec<_> = (0..MAX_REQUESTS).map(|_| Box::pin(ask(endless()))).collect();
        for request in &mut slow {
            assert!(futures::poll!(request).is_pending());
        }
        assert_eq!(ask(Body::from("whole")).await.unwrap().status(), StatusCode::OK);
        let long = vec![0_u8; MAX_BODY + 1];
        assert_eq!(ask(Body::from(long)).await.unwrap().status(), StatusCode::BAD_REQUEST);
    }
}
