//! Forward mode `routing` in a cluster with an OVS node and an eBPF node: one wire format, both ways round.

use std::{
    collections::BTreeSet,
    io::ErrorKind,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use e2e::{
    binaries::Binary,
    cluster::{Cluster, Datapath, Encap, Network, Node, Pod, Shape, StoreKind},
    http::Client,
    load::{Server, Streams},
};
use serde_json::{Value, json};
use testkit::{Netns, needs, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_millis(100);
const WEB: u16 = 8080;

/// Network `n` of the tenant blue.
fn network(n: u8) -> Network {
    Network {
        name: format!("net{n}"),
        subnet: format!("10.{n}.0.0/16"),
        gateway: format!("10.{n}.255.254"),
        ipv6_subnet: format!("2001:db8:{n}::/64"),
        ipv6_gateway: format!("2001:db8:{n}::ffff"),
        ..Network::pods()
    }
}

fn answers(to: IpAddr, from: &Netns, name: &str) -> Result<()> {
    wait_until(DEADLINE, &format!("{to} answers {name}"), || {
        Ok((from.ping(to, 1, TICK)?.received == 1).then_some(()))
    })
}

fn reaches(from: &Pod, to: IpAddr) -> Result<()> {
    answers(to, from.netns(), &format!("{} on {:?}", from.name, from.datapath))
}

fn addresses(pod: &Pod) -> Result<[IpAddr; 2]> {
    Ok([pod.ip.into(), pod.ipv6.context("the pod has no IPv6 address")?.into()])
}

/// `netctl trace` follows a packet over the nodes of both pods to the receiver's interface.
fn is_traced(cluster: &Cluster, from: &Pod, to: &Pod) -> Result<()> {
    let master = format!("http://{}", cluster.client().server());
    let port = WEB.to_string();
    let packet = ["--from", from.name.as_str(), "--to", to.name.as_str(), "-l", "tcp", "-P", &port];
    let mut netctl = Binary::Netctl.command()?;
    netctl.args(["--netmaster", &master, "trace", "--tenant", "blue", "-o", "json"]).args(packet);
    let output = cluster.fabric.netns().run(|| Ok(netctl.output()?))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{packet:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let trace: Value = serde_json::from_str(&text).with_context(|| text.to_string())?;
    let nodes = trace["nodes"].as_array().context("the trace has no nodes")?;
    let hosts: Vec<_> = nodes.iter().map(|node| node["host"].as_str().unwrap_or_default()).collect();
    let way = if from.node == to.node { vec![&*from.node] } else { vec![&*from.node, &*to.node] };
    ensure!(trace["delivered"] == true && hosts == way, "{packet:?}: {trace:#}");
    let end = nodes.last().context("the trace has no nodes")?;
    let outputs = end["outputs"].as_array().context("the trace has no outputs")?;
    let receiver = outputs[0]["to"]["endpoint"]["endpoint"].as_str().unwrap_or_default();
    ensure!(outputs.len() == 1 && receiver.ends_with(&to.call().container_id), "{packet:?}: {trace:#}");
    ensure!(outputs[0]["packet"]["destination"] == to.ip.to_string(), "{packet:?}: {trace:#}");
    Ok(())
}

fn is_unreachable(from: &Netns, to: IpAddr) -> Result<()> {
    let ping = from.ping(to, 3, TICK)?;
    ensure!(ping.received == 0, "{to} answers {}: {ping:?}", from.name());
    Ok(())
}

/// Whether a datagram of the pod arrives at this port of another host.
fn receives(cluster: &Cluster, from: &Pod, port: u16) -> Result<bool> {
    let to = SocketAddr::from((cluster.client().server().ip(), port));
    let socket = cluster.fabric.netns().run(|| Ok(UdpSocket::bind(to)?))?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    from.netns().run(|| Ok(UdpSocket::bind(("0.0.0.0", 0))?.send_to(b"datagram", to)?))?;
    match socket.recv(&mut [0; 16]) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether an ICMP error about a datagram reaches the pod.
fn is_refused(from: &Pod, to: SocketAddr) -> Result<bool> {
    let socket = from.netns().run(|| Ok(UdpSocket::bind(("0.0.0.0", 0))?))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    socket.send(b"datagram")?;
    Ok(socket.recv(&mut [0; 16]).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
}

/// By host access a pod reaches its node's agent, which answers it about health and metrics only.
fn agent_refuses_pod(node: &Node, pod: &Pod) -> Result<()> {
    let client = Client::within(pod.netns(), node.client().server());
    for (method, path, status) in [
        ("GET", "/healthz", 200),
        ("GET", "/inspect/driver", 403),
        ("DELETE", "/debug/reclaimEndpoint/none", 403),
    ] {
        let response = client.send(method, path, None, None)?;
        ensure!(response.status == status, "{method} {path} by {}: {response:?}", pod.name);
    }
    Ok(())
}

/// A host that sends to private addresses through a node reaches no pod.
fn is_closed_to_others(cluster: &Cluster, node: &Node) -> Result<()> {
    let other = cluster.fabric.netns();
    let route = format!("172.19.0.0/16 via {}", node.client().server().ip());
    other.ip(&format!("route add {route}"))?;
    for link in node.netns().links()?.iter().filter_map(|link| link.strip_prefix("vvport")) {
        is_unreachable(other, format!("172.19.0.{link}").parse()?)?;
    }
    other.ip(&format!("route del {route}")).map(drop)
}

/// A pod of another tenant does not reach this tenant's pods by the kernel of its node, which reaches them.
fn tenants_are_separate(cluster: &Cluster, pods: &[Pod]) -> Result<()> {
    let red = Network { tenant: "red".to_owned(), ..network(20) };
    cluster.create_network(&red)?;
    for node in &cluster.nodes {
        let stranger = Pod::add(node, &red, "stranger")?;
        reaches(&stranger, cluster.client().server().ip())?;
        for pod in pods {
            is_unreachable(stranger.netns(), pod.ip.into())?;
        }
        stranger.remove(node)?;
    }
    cluster.delete_network(&red)
}

/// Pods reach what their node reaches, and the node reaches them by their private addresses; without an agent, too.
fn pods_have_host_access(cluster: &mut Cluster, pods: &[Pod]) -> Result<()> {
    let outside = cluster.client().server().ip();
    let server = Server::start(cluster.fabric.netns(), outside, WEB)?;
    let served = SocketAddr::from((outside, WEB));
    let is_reached = |cluster: &Cluster| -> Result<()> {
        for pod in pods {
            reaches(pod, outside)?;
            let count = Streams::open(pod.netns(), served, 1)?.stop()?;
            ensure!(count.broken == 0, "{} to {served}: {count:?}", pod.name);
        }
        for node in &cluster.nodes {
            for link in node.netns().links()?.iter().filter_map(|link| link.strip_prefix("vvport")) {
                answers(format!("172.19.0.{link}").parse()?, node.netns(), &node.name)?;
            }
        }
        Ok(())
    };
    is_reached(cluster)?;
    cluster.nodes.iter_mut().try_for_each(|node| node.kill_agent())?;
    is_reached(cluster)?;
    // Without the rules of nftables nothing is forwarded. The agent writes them again.
    for node in &cluster.nodes {
        node.netns().output("nft", &["flush", "ruleset"])?;
        is_closed_to_others(cluster, node)?;
    }
    for pod in pods {
        is_unreachable(pod.netns(), outside)?;
    }
    cluster.nodes.iter_mut().try_for_each(|node| node.restart_agent())?;
    is_reached(cluster)?;
    for node in &cluster.nodes {
        is_closed_to_others(cluster, node)?;
        node.netns().output("nft", &["flush", "ruleset"])?;
    }
    is_reached(cluster)?;
    for node in &cluster.nodes {
        is_closed_to_others(cluster, node)?;
    }
    // With the address of the node it would be a frame of the node.
    for pod in pods {
        ensure!(receives(cluster, pod, 4790)?, "no datagram of {} arrives", pod.name);
        ensure!(!receives(cluster, pod, 4789)?, "{} sends to a port of tunnels", pod.name);
        let refused = || Ok(is_refused(pod, SocketAddr::from((outside, 4791)))?.then_some(()));
        wait_until(DEADLINE, &format!("{} is told that nothing listens", pod.name), refused)?;
    }
    // An address that no pod has, private addresses of pods, and those of no host do not reach the kernel: the datapath drops them.
    let dropped = |node: &Node| node.metric("contiv_datapath_drops_total{reason=\"no-route\"}");
    for pod in pods {
        let node = cluster.nodes.iter().find(|node| node.name == pod.node).context("the pod's node")?;
        agent_refuses_pod(node, pod)?;
        let in_other_network = if pod.ip.octets()[1] == 1 { "10.2.77.77" } else { "10.1.77.77" };
        for nowhere in [in_other_network, "172.19.0.1", "172.19.0.2", "169.254.169.254"] {
            // There is no counter before the first one.
            let before = dropped(node).unwrap_or(0.0);
            is_unreachable(pod.netns(), nowhere.parse()?)?;
            let counted = || Ok((dropped(node)? >= before + 3.0).then_some(()));
            wait_until(DEADLINE, &format!("packets of {} to {nowhere} are dropped", pod.name), counted)?;
        }
    }
    server.stop()
}

/// The other datapath takes over the interface to the kernel, and gives it back.
fn host_access_outlives_a_datapath(cluster: &mut Cluster, pods: &[Pod]) -> Result<()> {
    let outside = cluster.client().server().ip();
    let node = &mut cluster.nodes[0];
    for datapath in [Datapath::Ebpf, Datapath::Ovs] {
        node.replace_datapath(datapath)?;
        for pod in pods.iter().filter(|pod| pod.node == node.name) {
            reaches(pod, outside)?;
        }
    }
    Ok(())
}

/// Destinations of a node's routes by its interface on the infra network `contivh1`, without that network itself.
fn host_routes(node: &Node) -> Result<BTreeSet<String>> {
    let mut routes = BTreeSet::new();
    for family in ["-4", "-6"] {
        let lines = node.netns().ip(&format!("{family} route show proto 98"))?;
        routes.extend(lines.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)));
    }
    Ok(routes)
}

fn have_routes(cluster: &Cluster, networks: &[Network]) -> Result<()> {
    let subnets = networks.iter().flat_map(|network| [network.subnet.clone(), network.ipv6_subnet.clone()]);
    let wanted: BTreeSet<String> = subnets.collect();
    for node in &cluster.nodes {
        wait_until(DEADLINE, &format!("routes of {} to {wanted:?}", node.name), || {
            Ok((host_routes(node)? == wanted).then_some(()))
        })?;
    }
    Ok(())
}

/// By the infra network `contivh1` the nodes reach the pods of the tenant's other networks, without an agent, too.
fn nodes_reach_pods(cluster: &mut Cluster, pods: &[Pod]) -> Result<()> {
    let infra = Network { name: "contivh1".to_owned(), ..network(9) };
    let path = format!("/api/v1/networks/{}:{}/", infra.tenant, infra.name);
    let body = json!({
        "tenantName": infra.tenant, "networkName": infra.name, "nwType": "infra", "encap": "vxlan",
        "subnet": infra.subnet, "gateway": infra.gateway,
        "ipv6Subnet": infra.ipv6_subnet, "ipv6Gateway": infra.ipv6_gateway,
    });
    cluster.client().post_json(&path, &body).context("create contivh1")?;
    have_routes(cluster, &[network(1), network(2)])?;
    // A route that an operator has added to the same prefix stays, and comes first.
    let own = format!("{} via {}", network(3).subnet, network(9).gateway);
    cluster.nodes[0].netns().ip(&format!("route add {own} dev contivh1"))?;
    cluster.add_network(&network(3))?;
    have_routes(cluster, &[network(1), network(2), network(3)])?;
    cluster.client().delete(&format!("/api/v1/networks/{}:net3/", infra.tenant))?;
    have_routes(cluster, &[network(1), network(2)])?;
    ensure!(
        cluster.nodes[0].netns().ip("route show proto boot")?.contains(&own),
        "the operator's route is gone"
    );

    let reach = |cluster: &Cluster| -> Result<()> {
        for (node, pod) in cluster.nodes.iter().flat_map(|node| pods.iter().map(move |pod| (node, pod))) {
            addresses(pod)?.into_iter().try_for_each(|ip| answers(ip, node.netns(), &node.name))?;
        }
        Ok(())
    };
    reach(cluster)?;
    tenants_are_separate(cluster, pods)?;
    cluster.nodes.iter_mut().try_for_each(|node| node.kill_agent())?;
    reach(cluster)?;
    // What was lost meanwhile comes back.
    cluster.nodes[0].netns().ip(&format!("route del {} proto 98", network(1).subnet))?;
    cluster.nodes.iter_mut().try_for_each(|node| node.restart_agent_as("--fwdmode", "routing"))?;
    have_routes(cluster, &[network(1), network(2)])?;
    cluster.client().delete(&path)?;
    have_routes(cluster, &[])
}

fn networks_are_routed(datapaths: [Datapath; 2]) -> Result<()> {
    let shape = Shape { datapaths, encap: Encap::Vxlan, store: StoreKind::Embedded };
    let mut cluster = Cluster::build(shape)?;
    cluster.start_agents()?;
    cluster.route()?;
    cluster.create_network(&network(1))?;
    cluster.add_network(&network(2))?;
    let add = |node: usize, n: u8, name: &str| Pod::add(&cluster.nodes[node], &network(n), name);
    let pods = [add(0, 1, "ra")?, add(0, 2, "rb")?, add(1, 1, "rc")?, add(1, 2, "rd")?];
    let across = [(0, 1), (0, 3), (1, 2), (2, 1), (2, 3), (3, 0)];
    for (from, to) in [(0, 2), (1, 3)] {
        addresses(&pods[to])?.into_iter().try_for_each(|ip| reaches(&pods[from], ip))?;
    }
    for (from, to) in across {
        addresses(&pods[to])?.into_iter().try_for_each(|ip| reaches(&pods[from], ip))?;
    }
    for pod in &pods {
        for n in [1, 2] {
            reaches(pod, network(n).gateway.parse()?)?;
            reaches(pod, network(n).ipv6_gateway.parse()?)?;
        }
    }
    for (from, to) in across {
        let server = Server::start(pods[to].netns(), pods[to].ip.into(), WEB)?;
        let target = SocketAddr::from((pods[to].ip, WEB));
        let count = Streams::open(pods[from].netns(), target, 1)?.stop()?;
        ensure!(count.broken == 0, "{} to {}: {count:?}", pods[from].name, pods[to].name);
        server.stop()?;
    }

    for (from, to) in across {
        is_traced(&cluster, &pods[from], &pods[to])?;
    }

    // Forwarding needs no agent, and a new one changes nothing.
    cluster.nodes.iter_mut().try_for_each(|node| node.kill_agent())?;
    for (from, to) in across {
        reaches(&pods[from], pods[to].ip.into())?;
    }
    cluster.nodes.iter_mut().try_for_each(|node| node.restart_agent_as("--fwdmode", "routing"))?;
    for (from, to) in across {
        addresses(&pods[to])?.into_iter().try_for_each(|ip| reaches(&pods[from], ip))?;
    }
    pods_have_host_access(&mut cluster, &pods)?;
    nodes_reach_pods(&mut cluster, &pods)?;
    host_access_outlives_a_datapath(&mut cluster, &pods)?;
    for (pod, node) in pods.into_iter().zip([0, 0, 1, 1]) {
        pod.remove(&cluster.nodes[node])?;
    }
    cluster.shut_down()
}

#[test]
fn ovs_and_ebpf_nodes_route_to_each_other() {
    needs!(root(), binary("ping"), binary("ethtool"), binary("ovs-vswitchd"), binary("nft"));
    let _machine = testkit::shared();
    networks_are_routed([Datapath::Ovs, Datapath::Ebpf]).unwrap();
}

#[test]
fn ovs_nodes_route_to_each_other() {
    needs!(root(), binary("ping"), binary("ethtool"), binary("ovs-vswitchd"), binary("nft"));
    let _machine = testkit::shared();
    networks_are_routed([Datapath::Ovs; 2]).unwrap();
}
