//! Pods and services of two eBPF nodes.

use std::{net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use testkit::Netns;

use super::packets::{self, BACKENDS, Bench, runtime};
use crate::{
    bench::{network, pinned::Clocked},
    cluster::{Cluster, Encap, Network, Node, Pod},
    progress::step,
};

pub(super) struct Lab {
    /// On the first node.
    pub(super) client: Pod,
    pub(super) near: Backends,
    pub(super) far: Backends,
    /// From the first write to the store until the node had all services.
    pub(super) load: Duration,
    cluster: Cluster,
}

/// Pods of one node, and the service before them.
pub(super) struct Backends {
    pub(super) pods: Vec<Pod>,
    service: usize,
}

impl Lab {
    /// So many services, the last two of which have the one backends on the client's node, the other on the other.
    pub(super) fn build(services: usize) -> Result<Lab> {
        let network = network();
        let cluster = step("cluster", || Cluster::ebpf(Encap::Vxlan, &network))?;
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
            step(&format!("eBPF: {services} services"), || {
                let near = load(&near, 0..services - 1)?;
                Ok(near.total() + load(&far, services - 1..services)?.total())
            })?
        };
        let near = Backends { pods: near, service: services - 2 };
        let far = Backends { pods: far, service: services - 1 };
        Ok(Lab { client, near, far, load, cluster })
    }

    /// The client's.
    pub(super) fn node(&self) -> Result<&Node> {
        self.cluster.nodes.first().context("a cluster has nodes")
    }

    /// The programs on all ways of pods.
    pub(super) fn programs(&self) -> Result<Clocked> {
        let pins: Vec<&Path> = self.cluster.nodes.iter().map(Node::pins).collect();
        Clocked::open(&pins, &["ctv_from_pod", "ctv_from_vxlan"])
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
    /// To a backend itself.
    pub(super) fn direct(&self) -> Result<SocketAddr> {
        let pod = self.pods.first().context("no backend")?;
        Ok((pod.ip, packets::target_port(self.service)).into())
    }

    pub(super) fn through_service(&self) -> SocketAddr {
        (packets::vip(self.service), 80).into()
    }

    /// Where the service's connections may go.
    pub(super) fn listeners(&self) -> Vec<(Netns, SocketAddr)> {
        let port = packets::target_port(self.service);
        self.pods.iter().map(|pod| (pod.netns().clone(), (pod.ip, port).into())).collect()
    }
}
