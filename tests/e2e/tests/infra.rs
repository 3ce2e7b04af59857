//! Networks of the type `infra`: the nodes themselves are on them, and talk to pods and services as pods do.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use e2e::cluster::{Cluster, Datapath, Encap, Network, Node, Pod, Shape, StoreKind};
use serde_json::{Value, json};
use testkit::{Netns, needs, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(5);
const VIP: [u8; 4] = [10, 1, 200, 1];

/// Its interfaces are called as it is.
fn network() -> Network {
    Network { name: "contivh9".to_owned(), ..Network::pods() }
}

fn create(cluster: &Cluster, shape: Shape) -> Result<()> {
    let (client, network) = (cluster.client(), network());
    let put = |path: &str, body: Value| client.post_json(path, &body).map(drop).context(path.to_owned());
    put("/api/v1/tenants/blue/", json!({ "tenantName": "blue" }))?;
    let body = json!({
        "tenantName": "blue", "networkName": network.name, "nwType": "infra", "encap": shape.encap.name(),
        "subnet": network.subnet, "gateway": network.gateway,
    });
    put("/api/v1/networks/blue:contivh9/", body)?;
    let body = json!({
        "tenantName": "blue", "serviceName": "web", "networkName": network.name,
        "ipAddress": IpAddr::from(VIP).to_string(), "selectors": ["app=web"], "ports": ["80:8080:TCP"],
    });
    put("/api/v1/serviceLBs/blue:web/", body)
}

/// The node's own address on the network, when its interface is up.
fn address_of(node: &Node) -> Result<Option<IpAddr>> {
    if !node.netns().links()?.contains(&network().name) {
        return Ok(None);
    }
    let line = node.netns().ip("-4 -o addr show dev contivh9 up")?;
    let address = line.split_whitespace().skip_while(|word| *word != "inet").nth(1);
    Ok(address.map(|text| text.split('/').next().unwrap_or(text).parse()).transpose()?)
}

fn wait_for_address(node: &Node) -> Result<IpAddr> {
    wait_until(DEADLINE, "the node is on the network", || address_of(node))
}

/// Says one byte to whoever connects.
fn serve(pod: &Pod) -> Result<()> {
    let listener = pod.netns().run(|| Ok(TcpListener::bind("0.0.0.0:8080")?))?;
    thread::spawn(move || {
        // Whoever has gone meanwhile does not want to know.
        listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(b"!")));
    });
    Ok(())
}

fn asks_the_service(from: &Netns) -> Result<()> {
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from((VIP, 80)), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut answer = [0];
        stream.read_exact(&mut answer)?;
        ensure!(answer == *b"!", "{answer:?}");
        Ok(())
    })
}

fn nodes_are_on_the_network(shape: Shape) -> Result<()> {
    let mut cluster = Cluster::build(shape)?;
    cluster.start_agents()?;
    create(&cluster, shape)?;
    let addresses: Vec<IpAddr> = cluster.nodes.iter().map(wait_for_address).collect::<Result<_>>()?;
    let pod = Pod::add(&cluster.nodes[1], &network(), "web")?;
    for node in &cluster.nodes {
        for to in addresses.iter().copied().chain([pod.ip.into()]) {
            wait_until(DEADLINE, &format!("{} reaches {to}", node.name), || {
                Ok((node.netns().ping(to, 1, Duration::from_millis(10))?.received == 1).then_some(()))
            })?;
        }
    }

    serve(&pod)?;
    let started = json!({"Event": "start", "Tenant": "blue", "Network": network().name,
        "EndpointID": pod.call().container_id, "ContainerID": pod.call().container_id,
        "EPCommonName": "web", "Labels": {"app": "web"}});
    cluster.client().post_json("/plugin/updateEndpoint", &started)?;
    for node in &cluster.nodes {
        let asked = || Ok(asks_the_service(node.netns()).ok());
        wait_until(DEADLINE, &format!("{} reaches the service", node.name), asked)?;
    }

    // The agents come and go; the interfaces, and what passes by them, stay.
    let shown = |cluster: &Cluster| -> Result<Vec<String>> {
        let line = |node: &Node| node.netns().ip("-o link show dev contivh9");
        cluster.nodes.iter().map(line).collect()
    };
    let before = shown(&cluster)?;
    for node in &mut cluster.nodes {
        node.kill_agent()?;
        asks_the_service(node.netns())?;
        node.restart_agent()?;
        asks_the_service(node.netns())?;
    }
    ensure!(shown(&cluster)? == before);

    // Somebody takes an interface away: it comes again, with the same address.
    cluster.nodes[0].netns().ip("link del contivh9")?;
    cluster.nodes[0].restart_agent()?;
    ensure!(wait_for_address(&cluster.nodes[0])? == addresses[0]);

    pod.remove(&cluster.nodes[1])?;
    cluster.client().delete("/api/v1/serviceLBs/blue:web/")?;
    cluster.client().delete("/api/v1/networks/blue:contivh9/")?;
    for node in &cluster.nodes {
        wait_until(DEADLINE, "the interface goes with the network", || {
            Ok(node
                .netns()
                .links()?
                .iter()
                .all(|link| link != "contivh9" && !link.starts_with("vvport"))
                .then_some(()))
        })?;
        let path = format!("/api/v1/inspect/endpoints/{}/", node.name);
        let gone = || Ok((cluster.client().get(&path)?.status != 200).then_some(()));
        wait_until(DEADLINE, "the master has let the endpoint go", gone)?;
    }
    cluster.shut_down()
}

#[test]
fn nodes_talk_to_pods_and_services_by_vxlan() {
    needs!(root(), binary("ping"), binary("ethtool"));
    let shape = Shape { datapaths: [Datapath::Ebpf; 2], encap: Encap::Vxlan, store: StoreKind::Embedded };
    nodes_are_on_the_network(shape).unwrap();
}

/// The OVS node knows no services: to the other it is a host on the wire.
#[test]
fn a_node_without_services_reaches_them_on_a_vlan() {
    needs!(root(), binary("ping"), binary("ethtool"), binary("ovs-vswitchd"));
    let datapaths = [Datapath::Ovs, Datapath::Ebpf];
    nodes_are_on_the_network(Shape { datapaths, encap: Encap::Vlan, store: StoreKind::Embedded }).unwrap();
}
