//! Calls below `/plugin` that agents make when a pod is created or deleted (INVENTORY 1.6).

mod address;
mod cleanup;
mod container;
mod endpoint;
mod node_deletion;
mod node_gc;
mod node_vteps;
mod request;
mod unreadable;

pub use cleanup::{Cleanup, clean_up};
pub use node_deletion::{begin_node_deletion, continue_node_deletion};
pub use node_gc::{
    GoneClock, NodeGcPlan, endpoints_of_node, most_nodes_are_gone, release_batches, release_endpoints,
};
pub use node_vteps::{nodes_with_outdated_vtep, write_vteps};

use request::Request as _;
use schemars::SchemaGenerator;

use crate::access::Scope;
use crate::cache::{ClusterCache, StagedTxn};
use crate::problem::{Answer, Problem};
use crate::schema::Schema;

/// A decoded call.
#[derive(Clone, Debug)]
pub enum Call {
    AllocAddress(request::AllocAddress),
    ReleaseAddress(request::ReleaseAddress),
    CreateEndpoint(request::CreateEndpoint),
    DeleteEndpoint(request::DeleteEndpoint),
    UpdateEndpoint(request::UpdateEndpoint),
}

/// Name of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    AllocAddress,
    ReleaseAddress,
    CreateEndpoint,
    DeleteEndpoint,
    UpdateEndpoint,
}

/// Description of a call for the OpenAPI document.
pub struct CallSpec {
    pub kind: CallKind,
    pub name: &'static str,
    pub summary: &'static str,
    pub schema: &'static Schema,
    pub reply: fn(&mut SchemaGenerator) -> schemars::Schema,
}

/// All calls that [`Call::decode`] accepts.
pub static CALLS: &[CallSpec] = &[
    CallSpec {
        kind: CallKind::AllocAddress,
        name: "allocAddress",
        summary: "Allocate an address",
        schema: request::AllocAddress::SCHEMA,
        reply: SchemaGenerator::subschema_for::<address::Allocated<'_>>,
    },
    CallSpec {
        kind: CallKind::ReleaseAddress,
        name: "releaseAddress",
        summary: "Release an address",
        schema: request::ReleaseAddress::SCHEMA,
        reply: SchemaGenerator::subschema_for::<String>,
    },
    CallSpec {
        kind: CallKind::CreateEndpoint,
        name: "createEndpoint",
        summary: "Create an endpoint, or return the existing one",
        schema: request::CreateEndpoint::SCHEMA,
        reply: SchemaGenerator::subschema_for::<endpoint::Reply<'_>>,
    },
    CallSpec {
        kind: CallKind::DeleteEndpoint,
        name: "deleteEndpoint",
        summary: "Delete an endpoint and free its addresses",
        schema: request::DeleteEndpoint::SCHEMA,
        reply: SchemaGenerator::subschema_for::<endpoint::Reply<'_>>,
    },
    CallSpec {
        kind: CallKind::UpdateEndpoint,
        name: "updateEndpoint",
        summary: "Report that a container started (with labels for service selectors) or exited",
        schema: request::UpdateEndpoint::SCHEMA,
        reply: SchemaGenerator::subschema_for::<Option<container::Reply<'_>>>,
    },
];

impl CallKind {
    /// The call of a POST to `/plugin/<name>`.
    pub fn by_name(name: &str) -> Option<CallKind> {
        CALLS.iter().find(|call| call.name == name).map(|call| call.kind)
    }
}

impl Call {
    /// Decodes the body of a call.
    pub fn decode(kind: CallKind, body: &[u8]) -> Result<Call, Problem> {
        match kind {
            CallKind::AllocAddress => request::decode(body).map(Call::AllocAddress),
            CallKind::ReleaseAddress => request::decode(body).map(Call::ReleaseAddress),
            CallKind::CreateEndpoint => request::decode(body).map(Call::CreateEndpoint),
            CallKind::DeleteEndpoint => request::decode(body).map(Call::DeleteEndpoint),
            CallKind::UpdateEndpoint => request::decode(body).map(Call::UpdateEndpoint),
        }
    }

    /// Fails if the call names an endpoint on another node than the agent's.
    pub fn check_scope(&self, scope: &Scope, staged: &StagedTxn<'_>) -> Result<(), Problem> {
        let Scope::Node(own) = scope else { return scope.require_tenant(None) };
        let nodes: Vec<String> = match self {
            Call::CreateEndpoint(request) => endpoint::nodes_of_create(request, staged),
            Call::DeleteEndpoint(request) => endpoint::nodes_of_delete(request, staged)?,
            Call::UpdateEndpoint(request) => container::node(request, staged).into_iter().collect(),
            // Addresses without endpoints belong to no node.
            Call::AllocAddress(_) | Call::ReleaseAddress(_) => vec![String::new()],
        };
        match nodes.iter().find(|node| *node != own) {
            None => Ok(()),
            Some(other) => Err(Problem::forbidden(format!(
                "not allowed for endpoints on node {other:?}: the agent's node is {own}"
            ))),
        }
    }

    /// Endpoint or address that the call is about, for the audit log.
    pub fn object(&self, cache: &ClusterCache) -> String {
        match self {
            Call::AllocAddress(request) => format!("{} {}", request.network_id, request.preferred),
            Call::ReleaseAddress(request) => format!("{} {}", request.network_id, request.address),
            Call::CreateEndpoint(request) => format!(
                "{}.{}-{} on {}",
                request.network_name, request.tenant_name, request.config.container, request.config.host
            ),
            Call::DeleteEndpoint(request) => {
                let id = request.id();
                match cache.unreadable_endpoint(&id) {
                    Some(_) => format!("{id} (invalid record)"),
                    None => id,
                }
            }
            Call::UpdateEndpoint(request) => {
                format!("{} {}.{}-{}", request.event, request.network, request.tenant, request.endpoint_id)
            }
        }
    }

    /// Stages the changes and returns the body of the response. [`Call::check_scope`] must have accepted `scope`.
    pub fn plan(&self, scope: &Scope, staged: &mut StagedTxn<'_>) -> Answer {
        match self {
            Call::AllocAddress(request) => address::alloc(request, staged),
            Call::ReleaseAddress(request) => address::release(request, staged),
            Call::CreateEndpoint(request) => endpoint::create(request, staged),
            Call::DeleteEndpoint(request) => endpoint::delete(request, staged),
            Call::UpdateEndpoint(request) => container::update(request, scope, staged),
        }
    }
}
