//! The REST API on the wire: routes, answers, errors (INVENTORY section 1).

mod answer;
mod gate;
mod nodes;
mod path;
mod proxy;
mod route;
mod token;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::from_fn_with_state;
use axum::response::Response;

pub use gate::Gate;
pub use proxy::Proxy;
pub use route::{Identity, Leader};
pub use token::Tokens;

use crate::metrics::Metrics;
use crate::openapi;
use crate::problem::Problem;
use crate::role::{Role, Roles};

/// What serves requests, whoever leads.
#[derive(Clone)]
pub struct App {
    pub roles: Roles,
    pub proxy: Proxy,
    pub gate: Gate,
    pub metrics: Metrics,
}

impl App {
    pub fn router(self) -> Router {
        let gate = from_fn_with_state(self.gate.clone(), gate::pass);
        Router::new().fallback(serve).with_state(self).layer(gate)
    }
}

/// The leader answers; a follower asks the leader.
async fn serve(State(app): State<App>, request: Request) -> Response<Body> {
    let wants = answer::Wants::of(request.headers());
    if let Some(clean) = path::cleaned(request.uri()) {
        return answer::moved(&clean);
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => return answer::text("ok\n".into()),
        (&Method::GET, openapi::PATH) => return answer::document(&openapi::DOCUMENT),
        (&Method::GET, "/readyz") => return readiness(&app.roles.now(), wants),
        (&Method::GET, "/metrics") => return metrics(&app, wants),
        _ => {}
    }
    match app.roles.settled().await {
        Role::Leading(leader) => leader.answer(request, wants).await,
        Role::Following { leader: Some(address) } => tokio::select! {
            answer = app.proxy.forward(&address, request, wants) => answer,
            // A leader that hangs does not answer; its lock ends all the same.
            () = app.roles.deposed(&address) => answer::bad_gateway(&format!("leader {address} leads no more; try again")),
        },
        Role::Following { leader: None } => wants.problem(&Problem::unavailable("Leader not found")),
    }
}

/// Of this netmaster, whoever leads.
fn metrics(app: &App, wants: answer::Wants) -> Response<Body> {
    let text = match app.roles.now() {
        Role::Leading(leader) => app.metrics.text(Some(&leader.world.read())),
        Role::Following { .. } => app.metrics.text(None),
    };
    match text {
        Ok(text) => answer::metrics(text),
        Err(error) => wants.problem(&Problem::unavailable(error.to_string())),
    }
}

/// Whether this netmaster can have requests answered, by itself or by the leader.
fn readiness(role: &Role, wants: answer::Wants) -> Response<Body> {
    match role {
        Role::Leading(_) => answer::text("leading\n".into()),
        Role::Following { leader: Some(leader) } => answer::text(format!("following {leader}\n")),
        Role::Following { leader: None } => wants.not_ready(),
    }
}
