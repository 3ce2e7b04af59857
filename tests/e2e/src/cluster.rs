//! Two nodes and a master in namespaces, wired as a small site would be:
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

use std::{net::Ipv4Addr, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde_json::json;

pub use fabric::Fabric;
pub use node::Node;
pub use pod::{Call, Network, Pod};

use crate::{http::Client, master::Master};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Datapath {
    Ovs,
    Ebpf,
}

impl Datapath {
    pub fn name(self) -> &'static str {
        match self {
            Datapath::Ovs => "ovs",
            Datapath::Ebpf => "ebpf",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Encap {
    Vxlan,
    Vlan,
}

impl Encap {
    pub fn name(self) -> &'static str {
        match self {
            Encap::Vxlan => "vxlan",
            Encap::Vlan => "vlan",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreKind {
    Embedded,
    Etcd,
}

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Of node1, node2.
    pub datapaths: [Datapath; 2],
    pub encap: Encap,
    pub store: StoreKind,
}

/// Fields are dropped in this order, so the master outlives the agents that talk to it.
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
        let shape = Shape { datapaths: [Datapath::Ebpf; 2], encap, store: StoreKind::Embedded };
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
        // Both first, then both ready: a node waits for nobody.
        for node in &mut self.nodes {
            node.wait_ready()?;
        }
        Ok(())
    }

    pub fn client(&self) -> &Client {
        self.master.client()
    }

    /// A tenant with one network in it.
    pub fn create_network(&self, network: &Network) -> Result<()> {
        let (tenant, name) = (&network.tenant, &network.name);
        self.client()
            .post_json(&format!("/api/v1/tenants/{tenant}/"), &json!({ "tenantName": tenant }))
            .with_context(|| format!("create tenant {tenant}"))?;
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

    pub fn delete_network(&self, network: &Network) -> Result<()> {
        let (tenant, name) = (&network.tenant, &network.name);
        self.client().delete(&format!("/api/v1/networks/{tenant}:{name}/"))?;
        self.client().delete(&format!("/api/v1/tenants/{tenant}/"))
    }

    /// The last lines of each daemon.
    pub fn tails(&self) -> Vec<(String, String)> {
        let agents = self.nodes.iter().filter_map(|node| Some((node.name.clone(), node.tail()?)));
        agents.chain([("netmaster".to_owned(), self.master.tail())]).collect()
    }

    /// Stops agents, switches, master and store in order; what they made is checked to be gone.
    pub fn shut_down(mut self) -> Result<()> {
        for node in &mut self.nodes {
            node.stop()?;
        }
        self.master.stop()?;
        let places = self.places();
        drop(self);
        let left: Vec<_> =
            places.iter().filter(|place| place.exists()).map(|place| place.display().to_string()).collect();
        if !left.is_empty() {
            bail!("left behind: {}", left.join(", "));
        }
        Ok(())
    }

    /// Namespaces, folders and pins that go with it.
    fn places(&self) -> Vec<PathBuf> {
        self.nodes.iter().flat_map(Node::places).chain(self.fabric.places()).collect()
    }
}

/// On the management network.
fn management_address(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, 0, host)
}
