//! The calls of `/plugin`: what agents ask for when a pod comes or goes (INVENTORY 1.6).

mod address;
mod cleanup;
mod container;
mod endpoint;
mod node_gc;
mod request;

pub use cleanup::{Cleanup, clean_up};
pub use node_gc::{Round, release};

use request::Request as _;
use schemars::{Schema, SchemaGenerator};

use crate::cache::Draft;
use crate::problem::{Answer, Problem};
use crate::schema::Shape;

/// A call that was decoded.
#[derive(Clone, Debug)]
pub enum Call {
    AllocAddress(request::AllocAddress),
    ReleaseAddress(request::ReleaseAddress),
    CreateEndpoint(request::CreateEndpoint),
    DeleteEndpoint(request::DeleteEndpoint),
    UpdateEndpoint(request::UpdateEndpoint),
}

/// A call, as it is described to others.
pub struct CallForm {
    pub name: &'static str,
    pub summary: &'static str,
    pub shape: &'static Shape,
    pub reply: fn(&mut SchemaGenerator) -> Schema,
}

/// Every call that [`Call::decode`] knows.
pub static FORMS: &[CallForm] = &[
    CallForm {
        name: "allocAddress",
        summary: "Gives out an address",
        shape: request::AllocAddress::SHAPE,
        reply: SchemaGenerator::subschema_for::<address::Allocated<'_>>,
    },
    CallForm {
        name: "releaseAddress",
        summary: "Takes an address back",
        shape: request::ReleaseAddress::SHAPE,
        reply: SchemaGenerator::subschema_for::<String>,
    },
    CallForm {
        name: "createEndpoint",
        summary: "Makes an endpoint, or gives the one that is there",
        shape: request::CreateEndpoint::SHAPE,
        reply: SchemaGenerator::subschema_for::<endpoint::Reply<'_>>,
    },
    CallForm {
        name: "deleteEndpoint",
        summary: "Removes an endpoint and its addresses",
        shape: request::DeleteEndpoint::SHAPE,
        reply: SchemaGenerator::subschema_for::<endpoint::Reply<'_>>,
    },
    CallForm {
        name: "updateEndpoint",
        summary: "A container started, with labels by which services find it, or died",
        shape: request::UpdateEndpoint::SHAPE,
        reply: SchemaGenerator::subschema_for::<Option<container::Reply<'_>>>,
    },
];

impl Call {
    /// Decodes the body of a POST to `/plugin/<name>`; none if there is no such call.
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

    /// Plans it; gives the body of the answer.
    pub fn plan(&self, draft: &mut Draft<'_>) -> Answer {
        match self {
            Call::AllocAddress(request) => address::alloc(request, draft),
            Call::ReleaseAddress(request) => address::release(request, draft),
            Call::CreateEndpoint(request) => endpoint::create(request, draft),
            Call::DeleteEndpoint(request) => endpoint::delete(request, draft),
            Call::UpdateEndpoint(request) => container::update(request, draft),
        }
    }
}
