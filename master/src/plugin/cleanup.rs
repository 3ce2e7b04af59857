//! `/debug/epcleanup`: deletes endpoints whose pods no longer exist.

use std::collections::BTreeSet;
use std::fmt;

use contiv_model::endpoint::{Oper, State};
use contiv_model::network;

use super::endpoint;
use super::request::check_text;
use super::unreadable;
use crate::cache::{ClusterCache, StagedTxn};
use crate::domain::network_record::network_id;
use crate::problem::{Answer, Problem};

/// Selects endpoints of a tenant by exact names. (The original matched substrings, in all tenants.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleanup {
    tenant: String,
    selector: Selector,
    name: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Selector {
    Network,
    Group,
    Endpoint,
}

impl Cleanup {
    /// Endpoints per transaction, even if each one is in a group of its own.
    pub const BATCH: usize = 32;

    /// Parses the path segments. They have the limit of the texts in bodies.
    pub fn read(tenant: &str, kind: &str, name: &str) -> Result<Cleanup, Problem> {
        for (part, text) in [("tenant", tenant), ("kind", kind), ("name", name)] {
            check_text(part, text)?;
        }
        let selector = match kind {
            "net" => Selector::Network,
            "group" => Selector::Group,
            "ep" => Selector::Endpoint,
            _ => return Err(Problem::invalid(format!("cannot clean up {kind}; try net, group or ep"))),
        };
        Ok(Cleanup { tenant: tenant.to_owned(), selector, name: name.to_owned() })
    }

    /// Ids of the selected endpoints. Fails if there are none.
    pub fn find(&self, cache: &ClusterCache) -> Result<Vec<String>, Problem> {
        let found = cache.all::<State>().filter(|endpoint| self.matches(endpoint, cache));
        let mut found: BTreeSet<String> = found.map(|endpoint| endpoint.id.clone()).collect();
        let unreadable = unreadable::all(cache).filter(|endpoint| self.matches(endpoint, cache));
        found.extend(unreadable.map(|endpoint| endpoint.id));
        if found.is_empty() {
            let error =
                format!("no endpoint to clean up: {} {} in tenant {}", self.selector, self.name, self.tenant);
            return Err(Problem::not_found(error));
        }
        Ok(found.into_iter().collect())
    }

    fn matches(&self, endpoint: &State, cache: &ClusterCache) -> bool {
        match self.selector {
            // A node's own interface on an infra network exists as long as the node. It is deleted
            // only by its id.
            Selector::Network | Selector::Group if is_node_interface(endpoint, cache) => false,
            Selector::Network => {
                endpoint.net_id == network_id(&self.tenant, &self.name) && self.is_of_tenant(endpoint, cache)
            }
            Selector::Group => endpoint.endpoint_group_key == format!("{}:{}", self.name, self.tenant),
            Selector::Endpoint => {
                let names = [&endpoint.endpoint_id, &endpoint.container_id, &endpoint.id];
                names.contains(&&self.name) && self.is_of_tenant(endpoint, cache)
            }
        }
    }

    /// Network names may contain dots, so the tenant is taken from the network if it exists.
    fn is_of_tenant(&self, endpoint: &State, cache: &ClusterCache) -> bool {
        match cache.allocation::<network::State>(&endpoint.net_id) {
            Some(network) => network.body.tenant == self.tenant,
            // The endpoint's record cannot be decoded.
            None if endpoint.net_id.is_empty() => endpoint.id.contains(&format!(".{}-", self.tenant)),
            None => endpoint.net_id.ends_with(&format!(".{}", self.tenant)),
        }
    }

    /// Body of the response.
    pub fn done(&self) -> String {
        format!("Received request to cleanup {} with ID: {}\n", self.selector, self.name)
    }
}

/// Whether the endpoint has no container, or has the name of its node.
fn is_node_interface(endpoint: &State, cache: &ClusterCache) -> bool {
    let is_infra = || {
        let network = cache.allocation::<network::State>(&endpoint.net_id);
        network.is_none_or(|network| network.body.nw_type == "infra")
    };
    endpoint.endpoint_id.is_empty() || endpoint.endpoint_id == endpoint.homing_host && is_infra()
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Selector::Network => "Network",
            Selector::Group => "EPG",
            Selector::Endpoint => "Endpoint",
        })
    }
}

/// Deletes the endpoints that exist, with their addresses.
pub fn clean_up(endpoints: &[String], staged: &mut StagedTxn<'_>) -> Answer {
    for id in endpoints {
        if let Some(endpoint) = unreadable::find(id, staged) {
            endpoint::remove(&endpoint, staged);
        }
        // State written by the node's agent.
        if staged.get::<Oper>(id).is_some() {
            staged.delete::<Oper>(id);
        }
    }
    Ok(vec![])
}
