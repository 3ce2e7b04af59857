//! `/debug/epcleanup`: endpoints whose pods went without a word.

use std::fmt;

use contiv_model::endpoint::{Oper, State};
use contiv_model::network;

use super::endpoint;
use crate::cache::{Draft, World};
use crate::problem::{Answer, Problem};

/// Which endpoints of a tenant are to go. Names are matched whole: the original took parts of them, of all tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleanup {
    tenant: String,
    of: Of,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Network,
    Group,
    Endpoint,
}

impl Cleanup {
    /// So many endpoints have room in one transaction, each in a group of its own.
    pub const AT_ONCE: usize = 32;

    /// Reads the parts of the path.
    pub fn read(tenant: &str, kind: &str, name: &str) -> Result<Cleanup, Problem> {
        let of = match kind {
            "net" => Of::Network,
            "group" => Of::Group,
            "ep" => Of::Endpoint,
            _ => return Err(Problem::invalid(format!("cannot clean up {kind}; try net, group or ep"))),
        };
        Ok(Cleanup { tenant: tenant.to_owned(), of, name: name.to_owned() })
    }

    /// The keys of the endpoints; it is an error if there are none.
    pub fn find(&self, world: &World) -> Result<Vec<String>, Problem> {
        let found = world.all::<State>().filter(|endpoint| self.is_about(endpoint, world));
        let found: Vec<String> = found.map(|endpoint| endpoint.id.clone()).collect();
        if found.is_empty() {
            let error =
                format!("no endpoint to clean up: {} {} in tenant {}", self.of, self.name, self.tenant);
            return Err(Problem::not_found(error));
        }
        Ok(found)
    }

    fn is_about(&self, endpoint: &State, world: &World) -> bool {
        match self.of {
            // A node's own interface on an infra network is there as long as the node is, and goes only by its key.
            Of::Network | Of::Group if is_nodes_own(endpoint, world) => false,
            Of::Network => endpoint.net_id == format!("{}.{}", self.name, self.tenant),
            Of::Group => endpoint.endpoint_group_key == format!("{}:{}", self.name, self.tenant),
            Of::Endpoint => {
                let names = [&endpoint.endpoint_id, &endpoint.container_id, &endpoint.id];
                names.contains(&&self.name) && self.is_of_tenant(endpoint, world)
            }
        }
    }

    /// Names have dots: only the network itself knows where its tenant begins.
    fn is_of_tenant(&self, endpoint: &State, world: &World) -> bool {
        match world.ledger::<network::State>(&endpoint.net_id) {
            Some(network) => network.body.tenant == self.tenant,
            None => endpoint.net_id.ends_with(&format!(".{}", self.tenant)),
        }
    }

    /// What is answered when it is done.
    pub fn done(&self) -> String {
        format!("Received request to cleanup {} with ID: {}\n", self.of, self.name)
    }
}

/// It has no container, or is called as the node.
fn is_nodes_own(endpoint: &State, world: &World) -> bool {
    let is_infra = || {
        let network = world.ledger::<network::State>(&endpoint.net_id);
        network.is_none_or(|network| network.body.nw_type == "infra")
    };
    endpoint.endpoint_id.is_empty() || endpoint.endpoint_id == endpoint.homing_host && is_infra()
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Of::Network => "Network",
            Of::Group => "EPG",
            Of::Endpoint => "Endpoint",
        })
    }
}

/// Deletes the endpoints that are still there, with their addresses.
pub fn clean_up(endpoints: &[String], draft: &mut Draft<'_>) -> Answer {
    for id in endpoints {
        if let Some(endpoint) = draft.get::<State>(id) {
            endpoint::remove(&endpoint, draft);
        }
        // What a node made of it.
        if draft.get::<Oper>(id).is_some() {
            draft.delete::<Oper>(id);
        }
    }
    Ok(vec![])
}
