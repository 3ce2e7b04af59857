//! Two nodes and a master in namespaces, connected like a small site:
//!
//! ```text
//!                fabric: store and netmaster at 10.77.0.1, a bridge for management
//!               /                                        \
//!   mgmt0 10.77.0.11                               10.77.0.12 mgmt0
//!        node1  -- underlay0 192.168.77.1 === 192.168.77.2 underlay0 --  node2
//!               -- uplink0   ======= VLAN trunk =======     uplink0 --
//! ```

mod fabric;
mod node;
mod pod;
mod shape;

use std::{collections::BTreeSet, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::json;

pub use fabric::Fabric;
pub use node::Node;
pub use pod::{Call, Network, Pod};
pub use shape::{Datapath, Encap, Shape, StoreKind};

use crate::{http::Client, master::Master};

/// Fields are dropped in this order: agents stop before their master.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub master: Master,
    pub fabric: Fabric,
    pub shape: Shape,
}

impl Cluster {
    /// Namespaces, links, switches and the master; agents are started by [`Cluster::start_agents`].
    pub fn build(shape: Shape) -> Result<Cluster> {
        let fabric = Fabric::new(shape.store)?;
        let mut nodes = vec![];
        for (number, datapath) in (1..).zip(shape.datapaths) {
            nodes.push(Node::new(number, datapath, &fabric)?);
        }
        if let [first, second] = &nodes[..] {
            Node::wire(first, second)?;
        }
        for node in &mut nodes {
            node.prepare_underlay()?;
        }
        let master = fabric.start_master(shape.encap)?;
        Ok(Cluster { nodes, master, fabric, shape })
    }

    /// Two eBPF nodes whose agents are ready, and a network.
    pub fn ebpf(encap: Encap, network: &Network) -> Result<Cluster> {
        Cluster::of([Datapath::Ebpf; 2], encap, network)
    }

    /// Two nodes whose agents are ready, and a network.
    pub fn of(datapaths: [Datapath; 2], encap: Encap, network: &Network) -> Result<Cluster> {
        let shape = Shape { datapaths, encap, store: StoreKind::Embedded };
        let mut cluster = Cluster::build(shape)?;
        cluster.start_agents()?;
        cluster.create_network(network)?;
        Ok(cluster)
    }

    pub fn start_agents(&mut self) -> Result<()> {
        let store = self.fabric.store_endpoint();
        for node in &mut self.nodes {
            node.start_agent(&store, self.shape.encap)?;
        }
        // Start both before waiting: a node does not need the other to become ready.
        for node in &mut self.nodes {
            node.wait_ready()?;
        }
        Ok(())
    }

    pub fn client(&self) -> &Client {
        self.master.client()
    }

    /// Changes the forward mode to `routing`; agents follow. netmaster refuses it while there are networks.
    pub fn route(&self) -> Result<()> {
        const PATH: &str = "/api/v1/globals/global/";
        let mut body = self.client().get_json(PATH)?;
        body["fwdMode"] = "routing".into();
        self.client().post_json(PATH, &body).map(drop).context("change the forward mode")?;
        // For host access.
        self.nodes.iter().try_for_each(|node| node.netns().sysctl("net/ipv4/ip_forward", "1"))
    }

    /// Creates a tenant with one network.
    pub fn create_network(&self, network: &Network) -> Result<()> {
        let tenant = &network.tenant;
        self.client()
            .post_json(&format!("/api/v1/tenants/{tenant}/"), &json!({ "tenantName": tenant }))
            .with_context(|| format!("create tenant {tenant}"))?;
        self.add_network(network)
    }

    /// Creates another network of a tenant.
    pub fn add_network(&self, network: &Network) -> Result<()> {
        let (tenant, name) = (&network.tenant, &network.name);
        let body = json!({
            "tenantName": tenant,
            "networkName": name,
            "encap": self.shape.encap.name(),
            "subnet": network.subnet,
            "gateway": network.gateway,
            "ipv6Subnet": network.ipv6_subnet,
            "ipv6Gateway": network.ipv6_gateway,
        });
        self.client()
            .post_json(&format!("/api/v1/networks/{tenant}:{name}/"), &body)
            .with_context(|| format!("create network {tenant}:{name}"))?;
        Ok(())
    }

    /// Deletes a network and its tenant, which has no other.
    pub fn delete_network(&self, network: &Network) -> Result<()> {
        self.delete_networks(std::slice::from_ref(network))
    }

    /// Deletes networks and their tenants, which have no others.
    pub fn delete_networks(&self, networks: &[Network]) -> Result<()> {
        for Network { tenant, name, .. } in networks {
            self.client().delete(&format!("/api/v1/networks/{tenant}:{name}/"))?;
        }
        let tenants: BTreeSet<_> = networks.iter().map(|network| &network.tenant).collect();
        tenants.iter().try_for_each(|tenant| self.client().delete(&format!("/api/v1/tenants/{tenant}/")))
    }

    /// Last lines of the output of each daemon.
    pub fn tails(&self) -> Vec<(String, String)> {
        let agents = self.nodes.iter().filter_map(|node| Some((node.name.clone(), node.tail()?)));
        agents.chain([("netmaster".to_owned(), self.master.tail())]).collect()
    }

    /// Stops agents, switches, master and store in order, and checks that their resources are removed.
    pub fn shut_down(mut self) -> Result<()> {
        for node in &mut self.nodes {
            node.stop()?;
        }
        self.master.stop()?;
        let paths = self.paths();
        drop(self);
        let left: Vec<_> =
            paths.iter().filter(|path| path.exists()).map(|path| path.display().to_string()).collect();
        if !left.is_empty() {
            bail!("not removed: {}", left.join(", "));
        }
        Ok(())
    }

    /// Namespaces, folders and pins of the cluster.
    fn paths(&self) -> Vec<PathBuf> {
        self.nodes.iter().flat_map(Node::paths).chain(self.fabric.paths()).collect()
    }
}
