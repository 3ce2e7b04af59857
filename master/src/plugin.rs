//! Calls below `/plugin` that agents make when a pod is created or deleted (INVENTORY 1.6).

mod address;
mod cleanup;
mod container;
mod endpoint;
mod node_gc;
mod request;

pub use cleanup::{Cleanup, clean_up};
pub use node_gc::{GoneClock, NodeGcPlan, most_nodes_are_gone, release_endpoints};

use request::Request as _;
use schemars::SchemaGenerator;

use crate::cache::StagedTxn;
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

/// Description of a call for the OpenAPI document.
pub struct CallSpec {
    pub name: &'static str,
    pub summary: &'static str,
    pub schema: &'static Schema,
    pub reply: fn(&mut SchemaGenerator) -> schemars::Schema,
}

/// All calls that [`Call::decode`] accepts.
pub static CALLS: &[CallSpec] = &[
    CallSpec {
        name: "allocAddress",
        summary: "Allocate an address",
        schema: request::AllocAddress::SCHEMA,
        reply: SchemaGenerator::subschema_for::<address::Allocated<'_>>,
    },
    CallSpec {
        name: "releaseAddress",
        summary: "Release an address",
        schema: request::ReleaseAddress::SCHEMA,
        reply: SchemaGenerator::subschema_for::<String>,
    },
    CallSpec {
        name: "createEndpoint",
        summary: "Create an endpoint, or return the existing one",
        schema: request::CreateEndpoint::SCHEMA,
        reply: SchemaGenerator::subschema_for::<endpoint::Reply<'_>>,
    },
    CallSpec {
        name: "deleteEndpoint",
        summary: "Delete an endpoint and free its addresses",
        schema: request::DeleteEndpoint::SCHEMA,
        reply: SchemaGenerator::subschema_for::<endpoint::Reply<'_>>,
    },
    CallSpec {
        name: "updateEndpoint",
        summary: "Report that a container started (with labels for service selectors) or exited",
        schema: request::UpdateEndpoint::SCHEMA,
        reply: SchemaGenerator::subschema_for::<Option<container::Reply<'_>>>,
    },
];

impl Call {
    /// Decodes the body of a POST to `/plugin/<name>`; none for an unknown name.
    pub fn decode(name: &str, body: &[u8]) -> Option<Result<Call, Problem>> {
        Some(match name {
            "allocAddress" => request::decode(body).map(Call::AllocAddress),
            "releaseAddress" => request::decode(body).map(Call::ReleaseAddress),
            "createEndpoint" => request::decode(body).map(Call::CreateEndpoint),
            "deleteEndpoint" => request::decode(body).map(Call::DeleteEndpoint),
            "updateEndpoint" => request::decode(body).map(Call::UpdateEndpoint),
            _ => return None,
        })
    }

    /// Stages the changes and returns the body of the response.
    pub fn plan(&self, staged: &mut StagedTxn<'_>) -> Answer {
        match self {
            Call::AllocAddress(request) => address::alloc(request, staged),
            Call::ReleaseAddress(request) => address::release(request, staged),
            Call::CreateEndpoint(request) => endpoint::create(request, staged),
            Call::DeleteEndpoint(request) => endpoint::delete(request, staged),
            Call::UpdateEndpoint(request) => container::update(request, staged),
        }
    }
}
