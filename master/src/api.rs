//! The REST API on the wire: routes, answers, errors (INVENTORY section 1).

mod answer;
mod path;
mod proxy;
mod route;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;

pub use proxy::Proxy;
pub use route::{Identity, Leader};

use crate::problem::Problem;
use crate::role::{Role, Roles};

/// What serves requests, whoever leads.
#[derive(Clone)]
pub struct App {
    pub roles: Roles,
    pub proxy: Proxy,
}

impl App {
    pub fn router(self) -> Router {
        Router::new().fallback(serve).with_state(self)
    }
}

/// The leader answers; a follower asks the leader.
async fn serve(State(app): State<App>, request: Request) -> Response<Body> {
    let wants = answer::Wants::of(request.headers());
    if let Some(clean) = path::cleaned(request.uri()) {
        return answer::moved(&clean);
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
