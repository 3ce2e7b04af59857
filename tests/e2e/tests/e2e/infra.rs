//! Networks of the type `infra`: the nodes themselves are on them, and talk to pods and services as pods do.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    cluster::{Cluster, Datapath, Encap, Network, Node, Pod, Shape, StoreKind},
    load::{Server, Streams},
};
use serde_json::{Value, json};
use testkit::{Netns, Pinger, needs, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(20);
const VIP: [u8; 4] = [10, 1, 200, 1];
const WEB: u16 = 8080;

/// Its interfaces are called as it is.
fn network() -> Network {
    Network { name: "contivh9".to_owned(), ..Network::pods() }
}

fn put(cluster: &Cluster, path: &str, body: &Value) -> Result<()> {
    cluster.client().post_json(path, body).map(drop).context(path.to_owned())
}

fn infra(cluster: &Cluster, name: &str, subnet: &str) -> Value {
    json!({ "tenantName": "blue", "networkName": name, "nwType": "infra", "encap": cluster.shape.encap.name(),
            "subnet": subnet })
}

/// The network, and a service on it.
fn create(cluster: &Cluster) -> Result<()> {
    let network = network();
    put(cluster, "/api/v1/tenants/blue/", &json!({ "tenantName": "blue" }))?;
    let mut body = infra(cluster, &network.name, &network.subnet);
    body["gateway"] = network.gateway.into();
    body["ipv6Subnet"] = network.ipv6_subnet.into();
    body["ipv6Gateway"] = network.ipv6_gateway.into();
    put(cluster, "/api/v1/networks/blue:contivh9/", &body)?;
    let body = json!({
        "tenantName": "blue", "serviceName": "web", "networkName": network.name,
        "ipAddress": IpAddr::from(VIP).to_string(), "selectors": ["app=web"], "ports": [format!("80:{WEB}:TCP")],
    });
    put(cluster, "/api/v1/serviceLBs/blue:web/", &body)
}

/// A pod behind the service.
fn serve(cluster: &Cluster, node: &Node) -> Result<(Pod, Server)> {
    let pod = Pod::add(node, &network(), &format!("web-{}", node.name))?;
    let server = Server::start(pod.netns(), pod.ip.into(), WEB)?;
    let started = json!({"Event": "start", "Tenant": "blue", "Network": network().name,
        "EndpointID": pod.call().container_id, "ContainerID": pod.call().container_id,
        "EPCommonName": pod.name, "Labels": {"app": "web"}});
    put(cluster, "/plugin/updateEndpoint", &started)?;
    Ok((pod, server))
}

/// The node's own addresses on the network, of IPv4 and IPv6, when its interface is up.
fn addresses_of(node: &Node) -> Result<Option<[IpAddr; 2]>> {
    if !node.netns().links()?.contains(&network().name) {
        return Ok(None);
    }
    let address = |family: u8, word: &str| -> Result<Option<IpAddr>> {
        let line = node.netns().ip(&format!("-{family} -o addr show dev contivh9 up scope global"))?;
        let address = line.split_whitespace().skip_while(|found| *found != word).nth(1);
        Ok(address.map(|text| text.split('/').next().unwrap_or(text).parse()).transpose()?)
    };
    Ok(address(4, "inet")?.zip(address(6, "inet6")?).map(|(ip, ip6)| [ip, ip6]))
}

fn wait_for_addresses(node: &Node) -> Result<[IpAddr; 2]> {
    wait_until(DEADLINE, "the node is on the network", || addresses_of(node))
}

fn reaches(from: &Netns, to: IpAddr) -> Result<()> {
    wait_until(DEADLINE, &format!("{to} answers {}", from.name()), || {
        Ok((from.ping(to, 1, TICK)?.received == 1).then_some(()))
    })
}

fn asks_the_service(from: &Netns) -> Result<()> {
    let kept = Streams::open(from, SocketAddr::from((VIP, 80)), 1)?.stop()?;
    ensure!(kept.broken == 0, "{kept:?}");
    Ok(())
}

fn is_gone(node: &Node, name: &str) -> Result<()> {
    wait_until(DEADLINE, &format!("{name} goes"), || {
        Ok(node.netns().links()?.iter().all(|link| link != name && !link.starts_with("vvport")).then_some(()))
    })
}

/// What is in the way is said by the master, or else by the node.
fn names_that_cannot_be(cluster: &Cluster) -> Result<()> {
    let name = "name-of-17-letter";
    let path = format!("/api/v1/networks/blue:{name}/");
    let refused = put(cluster, &path, &infra(cluster, name, "10.2.0.0/16")).map_err(|e| format!("{e:#}"));
    ensure!(refused.as_ref().is_err_and(|why| why.contains("has 15 characters at most")), "{refused:?}");

    put(cluster, "/api/v1/networks/blue:mgmt0/", &infra(cluster, "mgmt0", "10.3.0.0/16"))?;
    for node in &cluster.nodes {
        wait_until(DEADLINE, "the node says that it has such an interface", || {
            let body = node.client().get("/readyz")?.body;
            Ok(body.contains("network mgmt0.blue").then_some(()).filter(|()| {
                body.contains(
                    "the node has an interface mgmt0 already (rename it, or give the network another name)",
                )
            }))
        })?;
    }
    cluster.client().delete("/api/v1/networks/blue:mgmt0/")?;
    for node in &cluster.nodes {
        let forgotten = || Ok((!node.client().get("/readyz")?.body.contains("mgmt0")).then_some(()));
        wait_until(DEADLINE, "what is no trouble any more is not told", forgotten)?;
    }
    Ok(())
}

/// Agents are killed, one after the other, while nodes talk to pods, to each other and to the service.
fn agents_come_and_go(cluster: &mut Cluster, pods: &[Pod], addresses: &[[IpAddr; 2]]) -> Result<()> {
    let shown = |cluster: &Cluster| -> Result<Vec<String>> {
        cluster.nodes.iter().map(|node| node.netns().ip("-o link show dev contivh9")).collect()
    };
    let before = shown(cluster)?;
    let mut pingers = vec![];
    let mut streams = vec![];
    for (node, other) in cluster.nodes.iter().zip(addresses.iter().rev()) {
        let targets = pods.iter().map(|pod| pod.ip.into()).chain(*other);
        for target in targets {
            pingers.push(Pinger::start(node.netns(), target, TICK)?);
        }
        streams.push(Streams::open(node.netns(), SocketAddr::from((VIP, 80)), 4)?);
    }
    for node in &mut cluster.nodes {
        node.kill_agent()?;
        asks_the_service(node.netns())?;
        node.restart_agent()?;
        asks_the_service(node.netns())?;
    }
    for pinger in pingers {
        let target = pinger.target();
        wait_until(DEADLINE, "answers", || Ok((pinger.answers() > 10).then_some(())))?;
        let ping = pinger.finish(DEADLINE)?;
        ensure!(ping.lost() == 0, "{target}: {ping:?}");
    }
    for streams in streams {
        let kept = streams.stop()?;
        ensure!((kept.connections, kept.broken) == (4, 0), "{kept:?}");
    }
    ensure!(shown(cluster)? == before, "the interfaces are not what they were");
    for (node, addresses) in cluster.nodes.iter().zip(addresses) {
        ensure!(addresses_of(node)? == Some(*addresses));
    }
    Ok(())
}

/// `serving` are the nodes with pods behind the service.
fn nodes_are_on_the_network(shape: Shape, serving: &[usize]) -> Result<()> {
    let mut cluster = Cluster::build(shape)?;
    cluster.start_agents()?;
    create(&cluster)?;
    let addresses: Vec<[IpAddr; 2]> = cluster.nodes.iter().map(wait_for_addresses).collect::<Result<_>>()?;
    let served = serving.iter().map(|at| serve(&cluster, &cluster.nodes[*at])).collect::<Result<Vec<_>>>()?;
    let (pods, servers): (Vec<Pod>, Vec<Server>) = served.into_iter().unzip();

    let told = cluster.client().get_json("/api/v1/inspect/networks/blue:contivh9/")?.to_string();
    for (node, [ip, _]) in cluster.nodes.iter().zip(&addresses) {
        ensure!(told.contains(&format!("\"{}\"", node.name)) && told.contains(&ip.to_string()), "{told}");
        let routes = node.netns().ip("route show default dev contivh9")?;
        ensure!(routes.is_empty(), "{routes}");
        for to in addresses.iter().flatten().copied() {
            reaches(node.netns(), to)?;
        }
        for pod in &pods {
            reaches(node.netns(), pod.ip.into())?;
            reaches(node.netns(), pod.ipv6.context("the pod has no IPv6 address")?.into())?;
            reaches(pod.netns(), *ip)?;
        }
        let asked = || Ok(asks_the_service(node.netns()).ok());
        wait_until(DEADLINE, &format!("{} reaches the service", node.name), asked)?;
    }
    names_that_cannot_be(&cluster)?;
    agents_come_and_go(&mut cluster, &pods, &addresses)?;

    // Somebody takes an interface away: it comes again, with the same addresses.
    cluster.nodes[0].netns().ip("link del contivh9")?;
    cluster.nodes[0].restart_agent()?;
    ensure!(wait_for_addresses(&cluster.nodes[0])? == addresses[0]);

    servers.into_iter().try_for_each(Server::stop)?;
    for (pod, at) in pods.into_iter().zip(serving) {
        pod.remove(&cluster.nodes[*at])?;
    }
    // An agent that was dead when the network went lets it go when it is back.
    cluster.nodes[1].kill_agent()?;
    cluster.client().delete("/api/v1/serviceLBs/blue:web/")?;
    cluster.client().delete("/api/v1/networks/blue:contivh9/")?;
    is_gone(&cluster.nodes[0], "contivh9")?;
    cluster.nodes[1].restart_agent()?;
    is_gone(&cluster.nodes[1], "contivh9")?;
    for node in &cluster.nodes {
        let path = format!("/api/v1/inspect/endpoints/{}/", node.name);
        let gone = || Ok((cluster.client().get(&path)?.status != 200).then_some(()));
        wait_until(DEADLINE, "the master has let the endpoint go", gone)?;
    }

    // A node that is taken out of the cluster takes its interface along.
    put(&cluster, "/api/v1/networks/blue:contivh9/", &infra(&cluster, "contivh9", "10.1.0.0/16"))?;
    let there = |node: &Node| Ok(node.netns().links()?.contains(&network().name).then_some(()));
    for node in &mut cluster.nodes {
        wait_until(DEADLINE, "the node is on the network again", || there(node))?;
        node.kill_agent()?;
        node.clean_up_with(&[])?;
        is_gone(node, "contivh9")?;
    }
    Ok(())
}

#[test]
fn nodes_talk_to_pods_and_services_by_vxlan() {
    needs!(root(), binary("ping"), binary("ethtool"));
    let _machine = testkit::shared();
    let shape = Shape { datapaths: [Datapath::Ebpf; 2], encap: Encap::Vxlan, store: StoreKind::Embedded };
    nodes_are_on_the_network(shape, &[0, 1]).unwrap();
}

/// The OVS node knows no services: to the other it is a host on the wire.
#[test]
fn a_node_without_services_reaches_them_on_a_vlan() {
    needs!(root(), binary("ping"), binary("ethtool"), binary("ovs-vswitchd"));
    let _machine = testkit::shared();
    let datapaths = [Datapath::Ovs, Datapath::Ebpf];
    nodes_are_on_the_network(Shape { datapaths, encap: Encap::Vlan, store: StoreKind::Embedded }, &[1])
        .unwrap();
}
