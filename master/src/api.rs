//! The REST API on the wire: routes, answers, errors (INVENTORY section 1).

mod admission;
pub mod openapi;
mod path;
mod proxy;
mod reclaim;
mod response;
mod route;
mod token;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use tokio::time::{Instant, sleep};

pub use admission::Gate;
pub use proxy::Proxy;
use proxy::Unanswered;
use route::Routes;
pub use token::Tokens;

use crate::cache::Shared;
use crate::go_json;
use crate::leadership::{Identity, Role, Roles};
use crate::metrics::Metrics;
use crate::problem::Problem;

/// What serves requests, whoever leads.
#[derive(Clone)]
pub struct App {
    pub roles: Roles,
    pub proxy: Proxy,
    pub gate: Gate,
    pub metrics: Metrics,
    /// Also a follower's view, which is only to be told as such.
    pub world: Shared,
    pub identity: Identity,
}

impl App {
    pub fn router(self) -> Router {
        let gate = from_fn_with_state(self.gate.clone(), admission::pass);
        Router::new().fallback(serve).with_state(self).layer(gate)
    }
}

/// The leader answers; a follower asks the leader.
async fn serve(State(app): State<App>, request: Request) -> Response<Body> {
    let wants = response::Wants::of(request.headers());
    if let Some(clean) = path::cleaned(request.uri()) {
        return response::moved(&clean);
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => return response::text("ok\n".into()),
        (&Method::GET, openapi::PATH) => return response::document(&openapi::DOCUMENT),
        (&Method::GET, "/readyz") => return readiness(&app.roles.now(), wants),
        (&Method::GET, "/metrics") => return metrics(&app, wants),
        _ => {}
    }
    if let (&Method::GET, "/info", Role::Following { leader }) =
        (request.method(), request.uri().path(), app.roles.now())
    {
        let leader = leader.unwrap_or_default();
        return wants.json(go_json::encode(&route::info(
            &app.world.read(),
            "follower",
            &leader,
            &app.identity,
        )));
    }
    app.answer(request, wants).await
}

/// So long a request waits for somebody to lead: a little longer than it takes to replace a leader that died.
const VACANCY: Duration = Duration::from_secs(3);
/// So long a request that no leader carried out is tried again: one that stops may take so long to give up its lock.
const PATIENCE: Duration = Duration::from_secs(6);
const PAUSE: Duration = Duration::from_millis(50);

impl App {
    async fn answer(&self, mut request: Request, wants: response::Wants) -> Response<Body> {
        let start = Instant::now();
        let reads = request.method() == Method::GET && request.uri().path().starts_with("/api/");
        // A follower waits for the next leader itself.
        let passed_on = proxy::is_passed_on(request.headers());
        let vacancy = if passed_on { Duration::ZERO } else { VACANCY };
        loop {
            let leader = match self.roles.settled(vacancy).await {
                Role::Leading(leader) if !reads => return Routes(&leader).answer(request, wants).await,
                Role::Leading(leader) => match leader.assurance.leads().await {
                    Ok(()) => return Routes(&leader).answer(request, wants).await,
                    // It hears of it any moment.
                    Err(problem) if problem == Problem::deposed() && start.elapsed() < PATIENCE => {
                        sleep(PAUSE).await;
                        continue;
                    }
                    Err(problem) => return wants.problem(&problem),
                },
                Role::Following { .. } if passed_on => return wants.problem(&Problem::deposed()),
                Role::Following { leader: Some(leader) } => leader,
                Role::Following { leader: None } => {
                    return wants.problem(&Problem::unavailable("Leader not found"));
                }
            };
            request = match self.proxy.forward(&leader, request, &self.roles).await {
                Ok(response) => return response,
                Err(Unanswered { request: Some(request), .. }) if start.elapsed() < PATIENCE => request,
                Err(Unanswered { why, .. }) => return wants.problem(&Problem::unavailable(why)),
            };
            sleep(PAUSE).await;
        }
    }
}

/// Of this netmaster, whoever leads.
fn metrics(app: &App, wants: response::Wants) -> Response<Body> {
    let text = match app.roles.now() {
        Role::Leading(leader) => app.metrics.text(Some(&leader.world.read())),
        Role::Following { .. } => app.metrics.text(None),
    };
    match text {
        Ok(text) => response::metrics(text),
        Err(error) => wants.problem(&Problem::unavailable(error.to_string())),
    }
}

/// Whether this netmaster can have requests answered, by itself or by the leader.
fn readiness(role: &Role, wants: response::Wants) -> Response<Body> {
    match role {
        Role::Leading(_) => response::text("leading\n".into()),
        Role::Following { leader: Some(leader) } => response::text(format!("following {leader}\n")),
        Role::Following { leader: None } => wants.not_ready(),
    }
}
