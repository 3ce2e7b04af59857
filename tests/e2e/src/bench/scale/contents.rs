//! Objects of a large cluster, created by requests to netmaster.

use std::{
    panic,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{http::Client, interrupt, progress::step};

pub(super) const TENANT: &str = "scale";
/// Host of the real agent. It has an endpoint in each of the first [`NETWORKS_OF_NODE`] networks.
pub(super) const NODE: &str = "node";
pub(super) const NETWORKS_OF_NODE: usize = 3;
const CLIENTS: usize = 64;
const PROVIDERS: usize = 4;

#[derive(Debug, Clone, Args, Serialize)]
pub(super) struct Sizes {
    /// Number of endpoints
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    endpoints: u32,
    /// Number of networks, each with an equal share of endpoints, services and groups
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(3..=200))]
    networks: u32,
    /// Number of services with 4 providers each
    #[arg(long, default_value_t = 30_000, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    services: u32,
    /// Number of groups, each with a policy of its own
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(0..=30_000))]
    groups: u32,
    /// Number of rules of each policy
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(0..=2_000))]
    rules: u32,
    /// Number of simulated agents
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=20_000))]
    agents: u32,
}

impl Sizes {
    pub(super) fn agents(&self) -> usize {
        self.agents as usize
    }

    pub(super) fn networks(&self) -> usize {
        self.networks as usize
    }

    pub(super) fn groups(&self) -> usize {
        self.groups as usize
    }

    /// Creates all objects.
    pub(super) fn fill(&self, client: &Client) -> Result<()> {
        create_tenant(client)?;
        for network in 0..self.networks {
            create_network(client, &format!("net{network}"), &format!("10.{network}.0.0/16"))?;
        }
        self.create_policies(client)?;
        step(&format!("{} endpoints", self.endpoints), || {
            in_parallel(self.endpoints, |number| self.create_endpoint(client, number))
        })?;
        for network in 0..NETWORKS_OF_NODE {
            let group = self.group_of(0, network as u32);
            create_endpoint(client, &format!("net{network}"), &group, &format!("{NODE}-{network}"), NODE)?;
        }
        step(&format!("{} services", self.services), || {
            in_parallel(self.endpoints, |number| self.label_endpoint(client, number))?;
            in_parallel(self.services, |number| self.create_service(client, number))
        })
    }

    fn create_policies(&self, client: &Client) -> Result<()> {
        in_parallel(self.groups, |number| {
            let name = format!("policy{number}");
            let body = json!({ "tenantName": TENANT, "policyName": name });
            client.post_json(&format!("/api/v1/policys/{TENANT}:{name}/"), &body).map(drop)
        })?;
        step(&format!("{} rules", self.groups * self.rules), || {
            in_parallel(self.groups * self.rules, |number| {
                create_rule(client, number / self.rules, number % self.rules + 1)
            })
        })?;
        // The rules are expanded when the group gets the policy.
        step(&format!("{} groups", self.groups), || {
            in_parallel(self.groups, |number| {
                let (group, network) = (format!("group{number}"), number % self.networks);
                let body = json!({
                    "tenantName": TENANT, "groupName": group, "networkName": format!("net{network}"),
                    "policies": [format!("policy{number}")],
                });
                client.post_json(&format!("/api/v1/endpointGroups/{TENANT}:{group}/"), &body).map(drop)
            })
        })
    }

    /// Number of an endpoint in its network, and of the network.
    fn place(&self, number: u32) -> (u32, u32) {
        (number / self.networks, number % self.networks)
    }

    fn create_endpoint(&self, client: &Client, number: u32) -> Result<()> {
        let (index, network) = self.place(number);
        let group = self.group_of(index, network);
        let host = format!("host{}", number % self.agents);
        create_endpoint(client, &format!("net{network}"), &group, &format!("e{number}"), &host)
    }

    /// Group of an endpoint by its number in the network: the groups of a network have equal shares of its endpoints. Empty if
    /// the network has no group.
    fn group_of(&self, index: u32, network: u32) -> String {
        match share(self.groups, self.networks, network) {
            0 => String::new(),
            groups => format!("group{}", network + self.networks * (index % groups)),
        }
    }

    /// Adds the labels that make the endpoint a provider.
    fn label_endpoint(&self, client: &Client, number: u32) -> Result<()> {
        let labels = self.labels(number);
        if labels.is_empty() {
            return Ok(());
        }
        let (_, network) = self.place(number);
        let id = format!("e{number}");
        let body = json!({
            "Tenant": TENANT, "Network": format!("net{network}"), "EndpointID": id, "ContainerID": id,
            "Event": "start", "Labels": labels,
        });
        client.post_json("/plugin/updateEndpoint", &body).map(drop).with_context(|| format!("label {id}"))
    }

    /// A service of the network has consecutive endpoints of the network as providers.
    fn labels(&self, number: u32) -> Map<String, Value> {
        let (index, network) = self.place(number);
        let endpoints = share(self.endpoints, self.networks, network) as usize;
        let services = share(self.services, self.networks, network) as usize;
        // The slots of all services in a row, wound round the endpoints.
        let slots = (index as usize..services * PROVIDERS).step_by(endpoints);
        let service = |slot: usize| network as usize + self.networks as usize * (slot / PROVIDERS);
        slots.map(|slot| (format!("svc{}", service(slot)), json!("yes"))).collect()
    }

    fn create_service(&self, client: &Client, number: u32) -> Result<()> {
        let (name, network) = (format!("svc{number}"), number % self.networks);
        let body = json!({
            "tenantName": TENANT, "serviceName": name, "networkName": format!("net{network}"),
            "selectors": [format!("{name}=yes")], "ports": ["80:8080:TCP"],
        });
        client.post_json(&format!("/api/v1/serviceLBs/{TENANT}:{name}/"), &body).map(drop)
    }
}

/// How many of `total` objects, dealt to the networks in turn, network number `network` has.
fn share(total: u32, networks: u32, network: u32) -> u32 {
    total / networks + u32::from(network < total % networks)
}

pub(super) fn create_tenant(client: &Client) -> Result<()> {
    let body = json!({ "tenantName": TENANT });
    client.post_json(&format!("/api/v1/tenants/{TENANT}/"), &body).map(drop)
}

pub(super) fn create_network(client: &Client, name: &str, subnet: &str) -> Result<()> {
    let body = json!({ "tenantName": TENANT, "networkName": name, "encap": "vxlan", "subnet": subnet });
    client.post_json(&format!("/api/v1/networks/{TENANT}:{name}/"), &body).map(drop)
}

pub(super) fn create_endpoint(
    client: &Client,
    network: &str,
    group: &str,
    id: &str,
    host: &str,
) -> Result<()> {
    let body = json!({
        "TenantName": TENANT, "NetworkName": network, "EndpointID": id,
        "ConfigEP": { "Container": id, "Host": host, "ServiceName": group },
    });
    client
        .post_json("/plugin/createEndpoint", &body)
        .map(drop)
        .with_context(|| format!("create endpoint {id}"))
}

fn create_rule(client: &Client, policy: u32, number: u32) -> Result<()> {
    let policy = format!("policy{policy}");
    let body = json!({
        "tenantName": TENANT, "policyName": policy, "ruleId": number.to_string(), "priority": 1 + number % 100,
        "direction": "in", "protocol": "tcp", "port": 1000 + number, "action": "allow",
        "fromIpAddress": format!("10.{}.{}.0/24", number % 200, number / 200),
    });
    client.post_json(&format!("/api/v1/rules/{TENANT}:{policy}:{number}/"), &body).map(drop)
}

/// Calls `create` with each number below `count`, from concurrent clients.
fn in_parallel(count: u32, create: impl Fn(u32) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let work = || {
            loop {
                match u32::try_from(next.fetch_add(1, Ordering::Relaxed))? {
                    number if number < count => {
                        interrupt::check()?;
                        create(number)?;
                    }
                    _ => return anyhow::Ok(()),
                }
            }
        };
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|e| panic::resume_unwind(e)))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_service_has_its_providers_in_its_network() {
        for (endpoints, services) in [(100, 30), (90, 301), (13, 5)] {
            let sizes = Sizes { endpoints, networks: 3, services, groups: 0, rules: 0, agents: 1 };
            let mut providers: BTreeMap<String, Vec<u32>> = BTreeMap::new();
            for number in 0..endpoints {
                for service in sizes.labels(number).keys() {
                    providers.entry(service.clone()).or_default().push(number);
                }
            }
            assert_eq!(providers.len(), services as usize);
            for (service, providers) in providers {
                let network = service.trim_start_matches("svc").parse::<u32>().unwrap() % 3;
                assert_eq!(providers.len(), PROVIDERS, "{service}: {providers:?}");
                assert!(providers.iter().all(|number| number % 3 == network), "{service}: {providers:?}");
            }
        }
    }
}
