//! Clients of services outside of the cluster, on a VLAN behind learning switches.
//!
//! ```text
//!   client0 .. client3 -- edge (adds the tag) -- learning bridge -- uplink0 of node1
//!                                                         \--------- uplink0 of node2
//! ```

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use e2e::{
    cluster::{Cluster, Datapath, Encap, Network, Node, Pod, Shape, StoreKind},
    load::{NewStreams, Server, Streams},
};
use serde_json::json;
use testkit::{Netns, needs, ovs::Switch, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
const VIP: [u8; 4] = [10, 1, 200, 1];
const WEB: u16 = 8080;
/// VLAN id of the first network.
const TAG: u16 = 1;
const CLIENTS: usize = 4;
/// Connections per client.
const CONNECTIONS: usize = 5;
const KILLS: usize = 5;

/// A service with a backend on each node, and clients.
struct Site {
    cluster: Cluster,
    pods: Vec<Pod>,
    servers: Vec<Server>,
    clients: Vec<Netns>,
    _edge: Edge,
    _bridge: Netns,
}

/// Switch that adds and removes VLAN tags: the kernel may not support VLAN devices.
struct Edge {
    switch: Switch,
    netns: Netns,
}

impl Site {
    fn build() -> Result<Site> {
        let shape = Shape { datapaths: [Datapath::Ebpf; 2], encap: Encap::Vlan, store: StoreKind::Embedded };
        let mut cluster = Cluster::build(shape)?;
        let bridge = insert_bridge(&cluster.nodes)?;
        let edge = Edge::new(&bridge)?;
        cluster.start_agents()?;
        let network = Network::pods();
        cluster.create_network(&network)?;
        let pods: Vec<Pod> = cluster
            .nodes
            .iter()
            .map(|node| Pod::add(node, &network, &format!("web-{}", node.name)))
            .collect::<Result<_>>()?;
        let servers = pods
            .iter()
            .map(|pod| Server::start(pod.netns(), pod.ip.into(), WEB))
            .collect::<Result<Vec<_>>>()?;
        let put = |path: &str, body| cluster.client().post_json(path, &body).map(drop);
        let service = json!({"tenantName": "blue", "serviceName": "web", "networkName": "pods",
            "ipAddress": "10.1.200.1", "selectors": ["app=web"], "ports": [format!("80:{WEB}:TCP")]});
        put("/api/v1/serviceLBs/blue:web/", service)?;
        for pod in &pods {
            let body = json!({"Event": "start", "Tenant": "blue", "Network": "pods",
                "EndpointID": pod.call().container_id, "ContainerID": pod.call().container_id,
                "EPCommonName": pod.name, "Labels": {"app": "web"}});
            put("/plugin/updateEndpoint", body)?;
        }
        let clients = (0..CLIENTS).map(|number| edge.client(number)).collect::<Result<_>>()?;
        Ok(Site { cluster, pods, servers, clients, _edge: edge, _bridge: bridge })
    }

    fn announcements(&self, node: usize) -> Result<f64> {
        self.cluster.nodes[node].metric(r#"contiv_datapath_announcements_total{outcome="sent"}"#)
    }
}

/// Replaces the link between the nodes by a kernel bridge.
fn insert_bridge(nodes: &[Node]) -> Result<Netns> {
    let bridge = Netns::new("bridge")?;
    bridge.ip("link add br0 type bridge")?;
    bridge.up("br0")?;
    let Some(first) = nodes.first() else { bail!("a cluster has nodes") };
    first.netns().ip("link del uplink0")?;
    for node in nodes {
        plug(&bridge, &node.name, node.netns(), "uplink0")?;
    }
    Ok(bridge)
}

/// Connects a namespace to a port of the bridge.
fn plug(bridge: &Netns, port: &str, other: &Netns, link: &str) -> Result<()> {
    bridge.veth(port, other, link)?;
    bridge.ip(&format!("link set {port} master br0 up"))?;
    other.up(link)?;
    bridge.tx_checksum_off(port)?;
    other.tx_checksum_off(link)
}

impl Edge {
    fn new(bridge: &Netns) -> Result<Edge> {
        let netns = Netns::new("edge")?;
        plug(bridge, "edge", &netns, "trunk0")?;
        let switch = Switch::start(&netns)?;
        switch.vsctl(&["add-br", "edge0", "--", "set", "bridge", "edge0", "datapath_type=netdev"])?;
        switch.vsctl(&["add-port", "edge0", "trunk0"])?;
        Ok(Edge { switch, netns })
    }

    fn client(&self, number: usize) -> Result<Netns> {
        let (client, port) = (Netns::new(&format!("client{number}"))?, format!("client{number}"));
        client.veth("eth0", &self.netns, &port)?;
        client.tx_checksum_off("eth0")?;
        self.netns.up(&port)?;
        client.address("eth0", &format!("10.1.77.{}/16", number + 1))?;
        client.up("eth0")?;
        self.switch.vsctl(&["add-port", "edge0", &port, &format!("tag={TAG}")])?;
        Ok(client)
    }
}

fn service() -> SocketAddr {
    SocketAddr::from((VIP, 80))
}

fn answers(client: &Netns) -> Result<()> {
    wait_until(DEADLINE, &format!("the service answers {}", client.name()), || {
        let count = Streams::open(client, service(), 1).and_then(Streams::stop);
        Ok(count.is_ok_and(|count| count.broken == 0).then_some(()))
    })
}

#[test]
fn external_clients_keep_connections_and_follow_a_moved_service() {
    needs!(root(), binary("ip"), binary("ethtool"), binary("ovs-vswitchd"));
    let _machine = testkit::shared();
    let mut site = Site::build().unwrap();
    for client in &site.clients {
        answers(client).unwrap();
        // Permanent neighbour entries: the client sends no more ARP requests.
        let known = client.ip("neigh show 10.1.200.1 dev eth0").unwrap();
        let mac = known.split_whitespace().skip_while(|word| *word != "lladdr").nth(1);
        let mac = mac.context(known.clone()).unwrap();
        client.ip(&format!("neigh replace 10.1.200.1 lladdr {mac} nud permanent dev eth0")).unwrap();
    }
    let before: Vec<u64> = site.servers.iter().map(Server::seen).collect();
    let streams: Vec<Streams> =
        site.clients.iter().map(|client| Streams::open(client, service(), CONNECTIONS).unwrap()).collect();
    let held = wait_until(DEADLINE, "the servers to accept all connections", || {
        let held: Vec<u64> =
            site.servers.iter().zip(&before).map(|(server, before)| server.seen() - before).collect();
        Ok((held.iter().sum::<u64>() == (CLIENTS * CONNECTIONS) as u64).then_some(held))
    })
    .unwrap();
    let new = NewStreams::start(&site.clients[0], service(), 25).unwrap();

    // Agent restarts interrupt nothing, and do not repeat announcements.
    let announcements = [site.announcements(0).unwrap(), site.announcements(1).unwrap()];
    assert!(announcements[0] >= 1.0 && announcements[1] == 0.0, "{announcements:?}");
    for round in 0..KILLS {
        let node = &mut site.cluster.nodes[round % 2];
        node.kill_agent().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        node.restart_agent().unwrap();
    }
    let new = new.stop().unwrap();
    assert!(new.opened > 0 && new.failed == 0, "{new:?}");
    assert_eq!([site.announcements(0).unwrap(), site.announcements(1).unwrap()], [0.0; 2]);

    // Without its local backend the first node stops announcing the service, and the second node announces it.
    let (pod, server) = (site.pods.remove(0), site.servers.remove(0));
    pod.remove(&site.cluster.nodes[0]).unwrap();
    server.stop().unwrap();
    wait_until(DEADLINE, "two announcements", || Ok((site.announcements(1)? == 2.0).then_some(()))).unwrap();
    for client in &site.clients {
        answers(client).unwrap();
    }
    // Connections to the remaining backend survive on another path.
    let broken: usize = streams.into_iter().map(|streams| streams.stop().unwrap().broken).sum();
    assert_eq!(broken as u64, held[0], "of connections to the backends {held:?}");

    site.servers.into_iter().try_for_each(Server::stop).unwrap();
    for pod in site.pods {
        pod.remove(&site.cluster.nodes[1]).unwrap();
    }
    drop(site.clients);
    site.cluster.shut_down().unwrap();
}
