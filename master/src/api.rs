//! REST API on the wire: routes, responses, errors (INVENTORY section 1).

mod admission;
mod audit_log;
mod authentication;
mod authorization;
mod clean_up;
mod conditional;
mod in_flight;
mod leader;
mod netmasters;
mod object_watch;
mod objects;
mod observe;
pub mod openapi;
mod paced_body;
mod parameters;
mod path;
mod peer;
mod proxy;
mod reclaim;
mod replay;
mod request_id;
mod response;
mod route;
mod route_template;
mod subject_roles;
mod token;

use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use tokio::time::{Instant, sleep};

pub use admission::Admission;
pub use audit_log::{AuditLog, AuditLogError};
pub use authentication::Authenticator;
use authorization::Decision;
pub use in_flight::{InFlight, Limits};
use leader::Routes;
pub use netmasters::Netmasters;
pub use peer::Peer;
use proxy::ForwardError;
pub use proxy::Proxy;
use route::Route;
pub use subject_roles::SubjectRoles;
pub use token::Tokens;

use crate::access::{Principal, Scope};
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
    let route = Route::of(request.method(), request.uri());
    match route {
        Route::Health => return response::text("ok\n".into()),
        Route::Readiness => return readiness(&app, format),
        Route::Version => return response::text(leader::version()),
        _ => {}
    }
    let scope = match authorize(&request, &route) {
        Ok(scope) => scope,
        Err(problem) => return format.problem(&problem),
    };
    match (&route, app.roles.now()) {
        (Route::OpenApi, _) => response::document(&openapi::DOCUMENT),
        (Route::Metrics, _) => metrics(&app, format),
        (Route::Info, Role::Following { leader }) => {
            let leader = leader.unwrap_or_default();
            let info = leader::info(&app.cache.read(), "follower", &leader, &app.identity);
            format.json(go_json::encode(&info))
        }
        _ => app.answer(route, &scope, request, format).await,
    }
}

/// Every netmaster that a request passes decides on it, the leader on its objects as well.
fn authorize(request: &Request, route: &Route) -> Result<Scope, Problem> {
    let (method, path) = (request.method(), request.uri().path());
    let Some(principal) = request.extensions().get::<Principal>() else {
        return Err(Problem::forbidden(format!("{method} {path}: not authenticated")));
    };
    match authorization::decide(&principal.role, route) {
        Decision::Allow(scope) => Ok(scope),
        Decision::Deny(accepted) => {
            let Principal { name, role } = principal;
            Err(Problem::forbidden(format!(
                "{method} {path}: not allowed for {name} with the role {role}; requires {accepted}"
            )))
        }
    }
}

/// Time limit for waiting without a leader: slightly longer than replacing a failed leader takes.
const NO_LEADER_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for retrying a request that no leader carried out. A leader that shuts down may take
/// this long to release its lock.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(6);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

impl App {
    async fn answer(
        &self,
        route: Route,
        scope: &Scope,
        mut request: Request,
        format: response::ErrorFormat,
    ) -> Response<Body> {
        let start = Instant::now();
        let reads = route.reads_objects();
        // The forwarding follower waits for the next leader itself.
        let forwarded = proxy::is_forwarded(request.headers());
        let no_leader_timeout = if forwarded { Duration::ZERO } else { NO_LEADER_TIMEOUT };
        loop {
            let leader = match self.roles.wait_settled(no_leader_timeout).await {
                Role::Leading(leader) if !reads => {
                    return Routes(&leader).answer(route, scope, request, format).await;
                }
                Role::Leading(leader) => match leader.linearizable_read.confirm().await {
                    Ok(()) => return Routes(&leader).answer(route, scope, request, format).await,
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
            let (queued, waiting) = (leader.queue.len(), leader.watch_backlogs.bytes());
            let leading = Leading::new(&leader.cache.read(), queued, waiting);
            app.metrics.text(store_usable, Some(leading))
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
    if let Some(failure) = app.store.failure() {
        return format.not_ready(&failure);
    }
    let ready = match app.roles.now() {
        Role::Leading(_) => "leading\n".to_owned(),
        Role::Following { leader: Some(leader) } if leader == app.identity.address => {
            return format.not_ready("elected; its state is not loaded or written yet");
        }
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
