//! REST API on the wire: routes, responses, errors (INVENTORY section 1).

mod admission;
mod conditional;
mod object_watch;
mod objects;
mod observe;
pub mod openapi;
mod parameters;
mod path;
mod proxy;
mod reclaim;
mod replay;
mod response;
mod route;
mod route_template;
mod token;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use tokio::time::{Instant, sleep};

pub use admission::Admission;
use proxy::ForwardError;
pub use proxy::Proxy;
use route::Routes;
pub use token::Tokens;

use crate::cache::SharedCache;
use crate::go_json;
use crate::leadership::{Identity, Role, Roles, StoreHealth};
use crate::metrics::{Leading, Metrics};
use crate::problem::Problem;

/// State of the request handlers, on leaders and followers.
#[derive(Clone)]
pub struct App {
    pub roles: Roles,
    pub proxy: Proxy,
    pub admission: Admission,
    pub metrics: Metrics,
    /// Cache of this netmaster. On a follower, only `/info` reads it.
    pub cache: SharedCache,
    pub identity: Identity,
    pub store: StoreHealth,
}

impl App {
    pub fn router(self) -> Router {
        let admission = from_fn_with_state(self.admission.clone(), admission::pass);
        let observe = from_fn_with_state(self.metrics.clone(), observe::pass);
        // The outer layer comes last.
        Router::new().fallback(serve).with_state(self).layer(admission).layer(observe)
    }
}

/// The leader answers requests; a follower forwards them to the leader.
async fn serve(State(app): State<App>, request: Request) -> Response<Body> {
    let format = response::ErrorFormat::of(request.headers());
    if let Some(clean) = path::cleaned(request.uri()) {
        return response::moved(&clean);
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => return response::text("ok\n".into()),
        (&Method::GET, openapi::PATH) => return response::document(&openapi::DOCUMENT),
        (&Method::GET, "/readyz") => return readiness(&app, format),
        (&Method::GET, "/version") => return response::text(route::version()),
        (&Method::GET, "/metrics") => return metrics(&app, format),
        _ => {}
    }
    if let (&Method::GET, "/info", Role::Following { leader }) =
        (request.method(), request.uri().path(), app.roles.now())
    {
        let leader = leader.unwrap_or_default();
        return format.json(go_json::encode(&route::info(
            &app.cache.read(),
            "follower",
            &leader,
            &app.identity,
        )));
    }
    app.answer(request, format).await
}

/// Time limit for waiting without a leader: slightly longer than replacing a failed leader takes.
const NO_LEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for retrying a request that no leader carried out. A leader that shuts down may take
/// this long to release its lock.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(6);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

impl App {
    async fn answer(&self, mut request: Request, format: response::ErrorFormat) -> Response<Body> {
        let start = Instant::now();
        let reads = request.method() == Method::GET && request.uri().path().starts_with("/api/");
        // The forwarding follower waits for the next leader itself.
        let forwarded = proxy::is_forwarded(request.headers());
        let no_leader_timeout = if forwarded { Duration::ZERO } else { NO_LEADER_TIMEOUT };
        loop {
            let leader = match self.roles.wait_settled(no_leader_timeout).await {
                Role::Leading(leader) if !reads => return Routes(&leader).answer(request, format).await,
                Role::Leading(leader) => match leader.linearizable_read.confirm().await {
                    Ok(()) => return Routes(&leader).answer(request, format).await,
                    // The loss of leadership is about to be noticed.
                    Err(problem) if problem == Problem::deposed() && start.elapsed() < FORWARD_TIMEOUT => {
                        sleep(RETRY_INTERVAL).await;
                        continue;
                    }
                    Err(problem) => return format.problem(&problem),
                },
                Role::Following { .. } if forwarded => return format.problem(&Problem::deposed()),
                Role::Following { leader: Some(leader) } => leader,
                Role::Following { leader: None } => {
                    return format.problem(&Problem::unavailable("Leader not found"));
                }
            };
            request = match self.proxy.forward(&leader, request, &self.roles).await {
                Ok(response) => return response,
                Err(ForwardError { request: Some(request), .. }) if start.elapsed() < FORWARD_TIMEOUT => {
                    request
                }
                Err(ForwardError { why, .. }) => return format.problem(&Problem::unavailable(why)),
            };
            sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Metrics of this netmaster, on leaders and followers.
fn metrics(app: &App, format: response::ErrorFormat) -> Response<Body> {
    let store_usable = app.store.check().is_ok();
    let text = match app.roles.now() {
        Role::Leading(leader) => {
            let cache = leader.cache.read();
            app.metrics.text(store_usable, Some(Leading::new(&cache, leader.queue.len())))
        }
        Role::Following { .. } => app.metrics.text(store_usable, None),
    };
    match text {
        Ok(text) => response::metrics(text),
        Err(error) => format.problem(&Problem::unavailable(error.to_string())),
    }
}

/// Ready means that requests can be answered, by this netmaster or by the leader, and that this
/// netmaster can take over.
fn readiness(app: &App, format: response::ErrorFormat) -> Response<Body> {
    let ready = match app.roles.now() {
        Role::Leading(_) => "leading\n".to_owned(),
        Role::Following { leader: Some(leader) } => format!("following {leader}\n"),
        Role::Following { leader: None } => return format.not_ready("Leader not found"),
    };
    match app.store.check() {
        Ok(()) => {
            let degraded = app.store.alarms().into_iter().map(|alarm| format!("degraded: {alarm}\n"));
            response::text(degraded.fold(ready, |text, line| text + &line))
        }
        Err(why) => format.not_ready(&why),
    }
}
