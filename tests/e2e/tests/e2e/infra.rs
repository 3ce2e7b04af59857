//! Networks of type `infra`: nodes are endpoints, and communicate with pods and services like pods.

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

/// Its host interfaces have the name of the network.
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

/// Creates the network and a service.
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

/// Adds a backend of the service.
fn serve(cluster: &Cluster, node: &Node) -> Result<(Pod, Server)> {
    let pod = Pod::add(node, &network(), &format!("web-{}", node.name))?;
    let server = Server::start(pod.netns(), pod.ip.into(), WEB)?;
    let started = json!({"Event": "start", "Tenant": "blue", "Network": network().name,
        "EndpointID": pod.call().container_id, "ContainerID": pod.call().container_id,
        "EPCommonName": pod.name, "Labels": {"app": "web"}});
    put(cluster, "/plugin/updateEndpoint", &started)?;
    Ok((pod, server))
}

/// IPv4 and IPv6 address of the node on the network, if its interface is up.
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
    wait_until(DEADLINE, "the infra endpoint of the node", || addresses_of(node))
}

fn reaches(from: &Netns, to: IpAddr) -> Result<()> {
    wait_until(DEADLINE, &format!("{to} answers {}", from.name()), || {
        Ok((from.ping(to, 1, TICK)?.received == 1).then_some(()))
    })
}

fn connects_to_service(from: &Netns) -> Result<()> {
    let count = Streams::open(from, SocketAddr::from((VIP, 80)), 1)?.stop()?;
    ensure!(count.broken == 0, "{count:?}");
    Ok(())
}

fn wait_removed(node: &Node, name: &str) -> Result<()> {
    wait_until(DEADLINE, &format!("the removal of {name}"), || {
        Ok(node.netns().links()?.iter().all(|link| link != name && !link.starts_with("vvport")).then_some(()))
    })
}

/// Invalid interface names are rejected by netmaster, conflicting names are reported by the node.
fn invalid_names_are_reported(cluster: &Cluster) -> Result<()> {
    let name = "name-of-17-letter";
    let path = format!("/api/v1/networks/blue:{name}/");
    let refused = put(cluster, &path, &infra(cluster, name, "10.2.0.0/16")).map_err(|e| format!("{e:#}"));
    ensure!(
        refused
            .as_ref()
            .is_err_and(|why| why.contains("is too long: the limit for infra networks is 15 characters")),
        "{refused:?}"
    );

    put(cluster, "/api/v1/networks/blue:mgmt0/", &infra(cluster, "mgmt0", "10.3.0.0/16"))?;
    for node in &cluster.nodes {
        wait_until(DEADLINE, "the degraded condition of the node", || {
            let body = node.client().get("/readyz")?.body;
            Ok(body.contains("network mgmt0.blue").then_some(()).filter(|()| {
                body.contains(
                    "interface mgmt0 already exists on the node; rename it, or give the network another name",
                )
            }))
        })?;
    }
    cluster.client().delete("/api/v1/networks/blue:mgmt0/")?;
    for node in &cluster.nodes {
        let cleared = || Ok((!node.client().get("/readyz")?.body.contains("mgmt0")).then_some(()));
        wait_until(DEADLINE, "the condition to be cleared", cleared)?;
    }
    Ok(())
}

/// Restarts the agents one after the other under traffic from nodes to pods, nodes and the service.
fn agent_restarts_lose_no_packets(
    cluster: &mut Cluster,
    pods: &[Pod],
    addresses: &[[IpAddr; 2]],
) -> Result<()> {
    let interfaces = |cluster: &Cluster| -> Result<Vec<String>> {
        cluster.nodes.iter().map(|node| node.netns().ip("-o link show dev contivh9")).collect()
    };
    let before = interfaces(cluster)?;
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
        connects_to_service(node.netns())?;
        node.restart_agent()?;
        connects_to_service(node.netns())?;
    }
    for pinger in pingers {
        let target = pinger.target();
        wait_until(DEADLINE, "replies", || Ok((pinger.answers() > 10).then_some(())))?;
        let ping = pinger.finish(DEADLINE)?;
        ensure!(ping.lost() == 0, "{target}: {ping:?}");
    }
    for streams in streams {
        let count = streams.stop()?;
        ensure!((count.connections, count.broken) == (4, 0), "{count:?}");
    }
    ensure!(interfaces(cluster)? == before, "the interfaces have changed");
    for (node, addresses) in cluster.nodes.iter().zip(addresses) {
        ensure!(addresses_of(node)? == Some(*addresses));
    }
    Ok(())
}

/// `serving` are the indices of the nodes with backends.
fn infra_network_works(shape: Shape, serving: &[usize]) -> Result<()> {
    let mut cluster = Cluster::build(shape)?;
    cluster.start_agents()?;
    create(&cluster)?;
    let addresses: Vec<[IpAddr; 2]> = cluster.nodes.iter().map(wait_for_addresses).collect::<Result<_>>()?;
    let served = serving.iter().map(|at| serve(&cluster, &cluster.nodes[*at])).collect::<Result<Vec<_>>>()?;
    let (pods, servers): (Vec<Pod>, Vec<Server>) = served.into_iter().unzip();

    let inspected = cluster.client().get_json("/api/v1/inspect/networks/blue:contivh9/")?.to_string();
    for (node, [ip, _]) in cluster.nodes.iter().zip(&addresses) {
        ensure!(
            inspected.contains(&format!("\"{}\"", node.name)) && inspected.contains(&ip.to_string()),
            "{inspected}"
        );
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
        let connected = || Ok(connects_to_service(node.netns()).ok());
        wait_until(DEADLINE, &format!("{} reaches the service", node.name), connected)?;
    }
    invalid_names_are_reported(&cluster)?;
    agent_restarts_lose_no_packets(&mut cluster, &pods, &addresses)?;

    // A deleted interface is created again with the same addresses.
    cluster.nodes[0].netns().ip("link del contivh9")?;
    cluster.nodes[0].restart_agent()?;
    ensure!(wait_for_addresses(&cluster.nodes[0])? == addresses[0]);

    servers.into_iter().try_for_each(Server::stop)?;
    for (pod, at) in pods.into_iter().zip(serving) {
        pod.remove(&cluster.nodes[*at])?;
    }
    // An agent that was not running removes the interface after its restart.
    cluster.nodes[1].kill_agent()?;
    cluster.client().delete("/api/v1/serviceLBs/blue:web/")?;
    cluster.client().delete("/api/v1/networks/blue:contivh9/")?;
    wait_removed(&cluster.nodes[0], "contivh9")?;
    cluster.nodes[1].restart_agent()?;
    wait_removed(&cluster.nodes[1], "contivh9")?;
    for node in &cluster.nodes {
        let path = format!("/api/v1/inspect/endpoints/{}/", node.name);
        let gone = || Ok((cluster.client().get(&path)?.status != 200).then_some(()));
        wait_until(DEADLINE, "the release of the endpoint", gone)?;
    }

    // `netplugin cleanup` removes the interface.
    put(&cluster, "/api/v1/networks/blue:contivh9/", &infra(&cluster, "contivh9", "10.1.0.0/16"))?;
    let exists = |node: &Node| Ok(node.netns().links()?.contains(&network().name).then_some(()));
    for node in &mut cluster.nodes {
        wait_until(DEADLINE, "the infra endpoint again", || exists(node))?;
        node.kill_agent()?;
        node.clean_up_with(&[])?;
        wait_removed(node, "contivh9")?;
    }
    Ok(())
}

#[test]
fn nodes_reach_pods_and_services_over_vxlan() {
    needs!(root(), binary("ping"), binary("ethtool"));
    let _machine = testkit::shared();
    let shape = Shape { datapaths: [Datapath::Ebpf; 2], encap: Encap::Vxlan, store: StoreKind::Embedded };
    infra_network_works(shape, &[0, 1]).unwrap();
}

/// The OVS node has no services: for the other node it is an external host.
#[test]
fn node_without_services_reaches_them_over_vlan() {
    needs!(root(), binary("ping"), binary("ethtool"), binary("ovs-vswitchd"));
    let _machine = testkit::shared();
    let datapaths = [Datapath::Ovs, Datapath::Ebpf];
    infra_network_works(Shape { datapaths, encap: Encap::Vlan, store: StoreKind::Embedded }, &[1]).unwrap();
}
