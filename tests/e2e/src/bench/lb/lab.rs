//! Two nodes with pods and services.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use testkit::Netns;

use super::services::{self, BACKENDS, Bench, runtime};
use crate::{
    bench::pinned::RunTime,
    cluster::{Cluster, Datapath, Encap, Network, Node, Pod},
    progress::step,
};

/// Four times what a client opens by four ways: Linux connects from every second of 28,232 ports while they are free.
const CONNECTIONS: &str = "262144";

pub(super) struct Lab {
    /// Client pod, on the first node.
    pub(super) client: Pod,
    pub(super) near: Backends,
    pub(super) far: Backends,
    /// Time from the first write to the store until the node has applied all services.
    pub(super) load: Duration,
    cluster: Cluster,
}

/// Pods of one node and their service.
pub(super) struct Backends {
    pub(super) pods: Vec<Pod>,
    service: usize,
}

impl Lab {
    /// Builds the cluster with `services` services. The backends of the last two are on the client's node and on the other node.
    pub(super) fn build(datapath: Datapath, services: usize) -> Result<Lab> {
        let network = Network::bench();
        let mut cluster = step("start the cluster", || Cluster::of([datapath; 2], Encap::Vxlan, &network))?;
        if datapath == Datapath::Ebpf {
            // A client may hold a quarter of the table: here its ended connections by four ways, which would replace each other.
            for node in &mut cluster.nodes {
                node.restart_agent_with(&["--conntrack-max", CONNECTIONS])?;
            }
        }
        let [first, second] = &cluster.nodes[..] else { anyhow::bail!("a cluster has two nodes") };
        let client = Pod::add(first, &network, "client")?;
        let near = pods(first, &network)?;
        let far = pods(second, &network)?;
        let load = {
            let load = |pods: &[Pod], services| {
                let pods: Vec<&Pod> = std::iter::once(&client).chain(pods).collect();
                let store = cluster.fabric.store_endpoint();
                Bench { node: first, pods: &pods, runtime: runtime()?, store }.load(services)
            };
            step(&format!("{}: {services} services", datapath.name()), || {
                let near = load(&near, 0..services - 1)?;
                Ok(near.total() + load(&far, services - 1..services)?.total())
            })?
        };
        let near = Backends { pods: near, service: services - 2 };
        let far = Backends { pods: far, service: services - 1 };
        Ok(Lab { client, near, far, load, cluster })
    }

    /// Node of the client.
    pub(super) fn node(&self) -> Result<&Node> {
        self.cluster.nodes.first().context("a cluster has nodes")
    }

    /// Programs that process packets of pods; none on OVS nodes.
    pub(super) fn programs(&self) -> Result<Option<RunTime>> {
        if self.cluster.shape.datapaths.contains(&Datapath::Ovs) {
            return Ok(None);
        }
        let pins: Vec<&Path> = self.cluster.nodes.iter().map(Node::pins).collect();
        RunTime::open(&pins, &["ctv_from_pod", "ctv_from_vxlan"]).map(Some)
    }

    pub(super) fn shut_down(self) -> Result<()> {
        let [first, second] = &self.cluster.nodes[..] else { anyhow::bail!("a cluster has two nodes") };
        let near = self.near.pods.into_iter().chain([self.client]).map(|pod| (pod, first));
        let far = self.far.pods.into_iter().map(|pod| (pod, second));
        near.chain(far).try_for_each(|(pod, node)| pod.remove(node))?;
        self.cluster.shut_down()
    }
}

fn pods(node: &Node, network: &Network) -> Result<Vec<Pod>> {
    (0..BACKENDS).map(|number| Pod::add(node, network, &format!("{}-{number}", node.name))).collect()
}

impl Backends {
    /// Address of a backend.
    pub(super) fn direct(&self) -> Result<SocketAddr> {
        let pod = self.pods.first().context("no backend")?;
        Ok((pod.ip, services::target_port(self.service)).into())
    }

    pub(super) fn through_service(&self) -> SocketAddr {
        (services::vip(self.service), 80).into()
    }

    /// Namespaces and addresses of the backends.
    pub(super) fn listeners(&self) -> Vec<(Netns, SocketAddr)> {
        let port = services::target_port(self.service);
        self.pods.iter().map(|pod| (pod.netns().clone(), (pod.ip, port).into())).collect()
    }
}
