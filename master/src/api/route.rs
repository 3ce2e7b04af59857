//! Routes: what a request asks for, by method and path.

use axum::http::{Method, Uri};

use super::{openapi, path};
use crate::objects::Type;
use crate::plugin::CallKind;

/// What a request asks for. Keys and names are percent-decoded.
pub(super) enum Route {
    Health,
    Readiness,
    Version,
    OpenApi,
    Metrics,
    Info,
    List(&'static Type),
    Get(&'static Type, String),
    Inspect(&'static Type, String),
    Put(&'static Type, String),
    Delete(&'static Type, String),
    InspectEndpoint(String),
    ListNodes,
    InspectNode(String),
    AcceptStore(String),
    DeleteNode(String),
    SetDatapath {
        host: String,
        datapath: String,
    },
    Call(CallKind),
    CleanUp {
        tenant: String,
        kind: String,
        name: String,
    },
    ListServiceStates,
    GetServiceState(String),
    Ofnet,
    /// There is no such route.
    Unknown,
}

impl Route {
    pub(super) fn of(method: &Method, uri: &Uri) -> Route {
        let parts = path::parts(uri);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match *method {
            Method::GET => Route::get(&parts, uri.path()),
            Method::POST | Method::PUT => match parts.as_slice() {
                ["api", "v1", types, key, ""] => Route::object(types, key, Route::Put),
                ["api", "v1", "nodes", host, "acceptedStore", ""]
                    if *method == Method::POST && !host.is_empty() =>
                {
                    Route::AcceptStore((*host).to_owned())
                }
                ["api", "v1", "nodes", host, "datapath", datapath, ""]
                    if *method == Method::POST && !host.is_empty() =>
                {
                    Route::SetDatapath { host: (*host).to_owned(), datapath: (*datapath).to_owned() }
                }
                ["plugin", call] if *method == Method::POST => {
                    CallKind::by_name(call).map_or(Route::Unknown, Route::Call)
                }
                _ => Route::Unknown,
            },
            Method::DELETE => match parts.as_slice() {
                ["api", "v1", "nodes", host, ""] if !host.is_empty() => Route::DeleteNode((*host).to_owned()),
                ["api", "v1", types, key, ""] => Route::object(types, key, Route::Delete),
                ["debug", "epcleanup", "tenant", tenant, kind, name] => Route::CleanUp {
                    tenant: (*tenant).to_owned(),
                    kind: (*kind).to_owned(),
                    name: (*name).to_owned(),
                },
                _ => Route::Unknown,
            },
            _ => Route::Unknown,
        }
    }

    fn get(parts: &[&str], path: &str) -> Route {
        match path {
            "/healthz" => return Route::Health,
            "/readyz" => return Route::Readiness,
            "/version" => return Route::Version,
            "/metrics" => return Route::Metrics,
            openapi::PATH => return Route::OpenApi,
            _ => {}
        }
        match parts {
            ["info"] => Route::Info,
            ["services"] => Route::ListServiceStates,
            ["service", id] if !id.is_empty() => Route::GetServiceState((*id).to_owned()),
            ["debug", "ofnet"] => Route::Ofnet,
            ["api", "v1", types, ""] => Type::by_plural(types).map_or(Route::Unknown, Route::List),
            ["api", "v1", "inspect", "endpoints", name, ""] if !name.is_empty() => {
                Route::InspectEndpoint((*name).to_owned())
            }
            ["api", "v1", "inspect", "nodes", ""] => Route::ListNodes,
            ["api", "v1", "inspect", "nodes", host, ""] if !host.is_empty() => {
                Route::InspectNode((*host).to_owned())
            }
            ["api", "v1", "inspect", types, key, ""] => Route::object(types, key, Route::Inspect),
            ["api", "v1", types, key, ""] => Route::object(types, key, Route::Get),
            _ => Route::Unknown,
        }
    }

    fn object(types: &str, key: &str, route: fn(&'static Type, String) -> Route) -> Route {
        match Type::by_plural(types) {
            Some(t) if !key.is_empty() => route(t, key.to_owned()),
            _ => Route::Unknown,
        }
    }

    /// Changes of something else than an object of the model.
    pub(super) fn changes_without_object(&self) -> bool {
        matches!(
            self,
            Route::AcceptStore(_)
                | Route::DeleteNode(_)
                | Route::SetDatapath { .. }
                | Route::Call(_)
                | Route::CleanUp { .. }
        )
    }

    /// Reads of objects, which the leader answers after it has confirmed that it leads.
    pub(super) fn reads_objects(&self) -> bool {
        match self {
            Route::List(_)
            | Route::Get(..)
            | Route::Inspect(..)
            | Route::InspectEndpoint(_)
            | Route::ListNodes
            | Route::InspectNode(_)
            | Route::ListServiceStates
            | Route::GetServiceState(_) => true,
            Route::Health
            | Route::Readiness
            | Route::Version
            | Route::OpenApi
            | Route::Metrics
            | Route::Info
            | Route::Put(..)
            | Route::Delete(..)
            | Route::AcceptStore(_)
            | Route::DeleteNode(_)
            | Route::SetDatapath { .. }
            | Route::Call(_)
            | Route::CleanUp { .. }
            | Route::Ofnet
            | Route::Unknown => false,
        }
    }
}
