//! Agents of eBPF nodes are killed, restarted and upgraded under load.

use std::{
    env, fs,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use aya::{
    maps::{Array, Map, MapData},
    programs::SchedClassifier,
};
use e2e::{
    cluster::{Cluster, Encap, Network, Pod},
    load::{Datagrams, Denied, NewStreams, Server, Streams},
};
use serde_json::{Value, json};
use testkit::{needs, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
const ROUNDS: usize = 20;
const CONNECTIONS: usize = 1000;
/// Datagrams per second; `CONTIV_LOAD_RATE` overrides it.
const RATE: u64 = 10_000;
/// Service addresses, in the order of the nodes of their backends.
const VIPS: [[u8; 4]; 2] = [[10, 1, 200, 1], [10, 1, 200, 2]];
const WEB: u16 = 8080;
const CLOSED: u16 = 9999;

/// Clients on the first node, and a server with a service and a denied port on each node. One service with both backends
/// would not test both nodes, because of session affinity.
struct Site {
    client: Pod,
    servers: Vec<Pod>,
    cluster: Cluster,
}

impl Site {
    fn build() -> Result<Site> {
        let network = Network::pods();
        let cluster = Cluster::ebpf(Encap::Vxlan, &network)?;
        let put = |path: String, body: Value| cluster.client().post_json(&path, &body).map(drop);
        put("/api/v1/policys/blue:closed/".into(), json!({"tenantName": "blue", "policyName": "closed"}))?;
        for group in ["clients", "web"] {
            let body = json!({"tenantName": "blue", "groupName": group, "networkName": "pods",
                "policies": if group == "web" { vec!["closed"] } else { vec![] }});
            put(format!("/api/v1/endpointGroups/blue:{group}/"), body)?;
        }
        let nodes = &cluster.nodes;
        let servers = nodes
            .iter()
            .map(|node| Pod::add_to(node, &network, Some("web"), &format!("web-{}", node.name)))
            .collect::<Result<Vec<_>>>()?;
        for (server, vip) in servers.iter().zip(VIPS) {
            let name = &server.name;
            let service = json!({"tenantName": "blue", "serviceName": name, "networkName": "pods",
                "ipAddress": IpAddr::from(vip).to_string(), "selectors": [format!("app={name}")],
                "ports": [format!("80:{WEB}:TCP"), format!("53:{WEB}:UDP")]});
            put(format!("/api/v1/serviceLBs/blue:{name}/"), service)?;
            let body = json!({"Event": "start", "Tenant": "blue", "Network": "pods",
                "EndpointID": server.call().container_id, "ContainerID": server.call().container_id,
                "EPCommonName": name, "Labels": {"app": name}});
            put("/plugin/updateEndpoint".into(), body)?;
        }
        let client = Pod::add_to(&nodes[0], &network, Some("clients"), "client")?;
        Ok(Site { client, servers, cluster })
    }

    /// Adds rules that deny the port for TCP and UDP.
    fn deny_port(&self) -> Result<()> {
        for (number, protocol) in ["tcp", "udp"].into_iter().enumerate() {
            let rule = json!({"tenantName": "blue", "policyName": "closed", "ruleId": number.to_string(),
                "direction": "in", "protocol": protocol, "port": CLOSED, "action": "deny", "priority": 10});
            self.cluster.client().post_json(&format!("/api/v1/rules/blue:closed:{number}/"), &rule)?;
        }
        Ok(())
    }

    fn denied(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(|server| SocketAddr::from((server.ip, CLOSED))).collect()
    }

    /// Whether a port responds over UDP.
    fn answers(&self, target: SocketAddr) -> Result<bool> {
        self.client.netns().run(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(target)?;
            socket.set_read_timeout(Some(Duration::from_millis(100)))?;
            socket.send(b"open?")?;
            Ok(socket.recv(&mut [0; 64]).is_ok())
        })
    }
}

/// Changes the recorded build id of the pinned programs: the next agent replaces them in place.
fn change_build_id(pins: &Path, mark: u8) -> Result<()> {
    let pin = find(pins, "ctv_build")?.context("find the pinned map ctv_build")?;
    let mut build: Array<_, [u8; 16]> = Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
    build.set(0, [mark; 16], 0)?;
    Ok(())
}

/// Kernel id of the program for packets from pods.
fn program(pins: &Path) -> Result<u32> {
    let pin = find(pins, "ctv_from_pod")?.context("find the pinned program ctv_from_pod")?;
    Ok(SchedClassifier::from_pin(pin)?.info()?.id())
}

fn find(folder: &Path, name: &str) -> Result<Option<PathBuf>> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.ends_with(name) {
            return Ok(Some(path));
        }
        if path.is_dir()
            && let Some(found) = find(&path, name)?
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[test]
fn agent_kills_and_upgrades_lose_nothing_and_allow_nothing() {
    needs!(root(), binary("ip"), binary("ethtool"));
    let _machine = testkit::exclusive();
    let rate = env::var("CONTIV_LOAD_RATE").map_or(RATE, |text| text.parse().unwrap());
    let mut site = Site::build().unwrap();
    let server = |pod: &Pod, port| Server::start(pod.netns(), pod.ip.into(), port).unwrap();
    let mut servers: Vec<Server> = site.servers.iter().map(|pod| server(pod, WEB)).collect();
    let forbidden: Vec<Server> = site.servers.iter().map(|pod| server(pod, CLOSED)).collect();

    // The port responds before the rules and not after them: the rules are the reason.
    for target in site.denied() {
        wait_until(DEADLINE, "the port is open", || Ok(site.answers(target)?.then_some(()))).unwrap();
    }
    site.deny_port().unwrap();
    for target in site.denied() {
        wait_until(DEADLINE, "the port is denied", || Ok((!site.answers(target)?).then_some(()))).unwrap();
    }
    let leaked = |forbidden: &[Server]| forbidden.iter().map(Server::seen).sum::<u64>();
    let before = leaked(&forbidden);

    let netns = site.client.netns();
    let web = VIPS.map(|vip| SocketAddr::from((vip, 80)));
    for service in web {
        wait_until(DEADLINE, "the service answers", || {
            let streams = Streams::open(netns, service, 1);
            Ok(streams.and_then(Streams::stop).is_ok().then_some(()))
        })
        .unwrap();
    }
    let streams = web.map(|to| Streams::open(netns, to, CONNECTIONS / web.len()).unwrap());
    let dns = VIPS.map(|vip| SocketAddr::from((vip, 53)));
    let datagrams = dns.map(|to| Datagrams::start(netns, to, rate / dns.len() as u64).unwrap());
    let new = web.map(|to| NewStreams::start(netns, to, 25).unwrap());
    let denied = Denied::start(netns, site.denied(), 500).unwrap();

    let mut upgrades = 0;
    for round in 0..ROUNDS {
        // Both nodes in turn, alternately with the same programs and as an upgrade.
        let node = &mut site.cluster.nodes[round % 2];
        node.kill_agent().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let programs = program(node.pins()).unwrap();
        let upgrade = round % 4 < 2;
        if upgrade {
            change_build_id(node.pins(), round as u8 + 1).unwrap();
            upgrades += 1;
        }
        node.restart_agent().unwrap();
        assert_eq!(
            program(node.pins()).unwrap() != programs,
            upgrade,
            "round {round}: replacement of programs"
        );
        std::thread::sleep(Duration::from_millis(200));
    }

    let datagrams = datagrams.map(|datagrams| datagrams.stop().unwrap());
    let (new, denied) = (new.map(|new| new.stop().unwrap()), denied.stop().unwrap());
    let persistent = streams.map(|streams| streams.stop().unwrap());
    let seen: Vec<u64> = servers.iter().map(Server::seen).collect();
    let leaked = leaked(&forbidden) - before;
    println!("{ROUNDS} kills, {upgrades} of them upgrades; target rate {rate} datagrams/s");
    for (index, service) in VIPS.iter().enumerate() {
        let (datagrams, persistent, new) = (&datagrams[index], &persistent[index], &new[index]);
        println!(
            "{}: {} datagrams at {:.0}/s over {} flows, {} lost; {} connections, {} requests, {} broken; \
             {} new connections, {} failed; {} received by the server",
            IpAddr::from(*service),
            datagrams.sent,
            datagrams.rate,
            datagrams.flows,
            datagrams.lost,
            persistent.connections,
            persistent.exchanges,
            persistent.broken,
            new.opened,
            new.failed,
            seen[index],
        );
        assert_eq!(datagrams.lost, 0, "{datagrams:?}");
        assert_eq!(
            (persistent.connections, persistent.broken),
            (CONNECTIONS / web.len(), 0),
            "{persistent:?}"
        );
        assert_eq!(new.failed, 0, "{new:?}");
        assert!(new.opened > 0 && seen[index] > 0);
    }
    let allowed = denied.allowed + leaked;
    println!(
        "{} datagrams and {} connections to the denied port, {allowed} allowed",
        denied.datagrams, denied.connections
    );
    assert_eq!(allowed, 0, "{denied:?}");
    assert!(denied.datagrams > 0);

    servers.extend(forbidden);
    servers.into_iter().try_for_each(Server::stop).unwrap();
    let Site { client, servers, cluster } = site;
    for pod in servers.into_iter().chain([client]) {
        let node = cluster.nodes.iter().find(|node| node.name == pod.node).unwrap();
        pod.remove(node).unwrap();
    }
    cluster.shut_down().unwrap();
}
