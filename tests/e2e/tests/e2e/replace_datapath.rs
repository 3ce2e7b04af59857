//! A node changes its datapath while its pods communicate.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod deleted;
mod refusal;
mod silent_switch;

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use e2e::{
    binaries::Binary,
    cluster::{Cluster, Datapath, Encap, Network, Pod},
    load::{Denied, Server, Streams},
};
use serde_json::{Value, json};
use testkit::{Pinger, needs, ovs, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(10);
/// Connections to each server.
const CONNECTIONS: usize = 20;
const OPEN: u16 = 8080;
/// Ports of the backends. OVS has one connection of a client from one port to each.
const OF_ONE: u16 = 8081;
const OF_BOTH: u16 = 8082;
const CLOSED: u16 = 9999;

/// Addresses of services with one backend, in the order of the nodes of the backends.
const VIPS: [[u8; 4]; 2] = [[10, 1, 200, 1], [10, 1, 200, 2]];
/// Address of a service with both backends.
const VIP_OF_BOTH: [u8; 4] = [10, 1, 200, 3];

/// A client and a server on the first node, which changes, and a server on the second one. The servers have a denied port, and
/// each is the backend of a service.
struct Site {
    client: Pod,
    servers: Vec<Pod>,
    cluster: Cluster,
}

impl Site {
    fn build(encap: Encap) -> Result<Site> {
        let network = Network::pods();
        let cluster = Cluster::of([Datapath::Ovs, Datapath::Ebpf], encap, &network)?;
        let put = |path: &str, body: Value| cluster.client().post_json(path, &body).map(drop);
        put("/api/v1/policys/blue:closed/", json!({"tenantName": "blue", "policyName": "closed"}))?;
        for (number, protocol) in ["tcp", "udp"].into_iter().enumerate() {
            let rule = json!({"tenantName": "blue", "policyName": "closed", "ruleId": number.to_string(),
                "direction": "in", "protocol": protocol, "port": CLOSED, "action": "deny", "priority": 10});
            put(&format!("/api/v1/rules/blue:closed:{number}/"), rule)?;
        }
        let body = json!({"tenantName": "blue", "groupName": "web", "networkName": "pods",
            "policies": ["closed"]});
        put("/api/v1/endpointGroups/blue:web/", body)?;
        let server = |node| Pod::add_to(node, &network, Some("web"), "web");
        let servers: Vec<Pod> = cluster.nodes.iter().map(server).collect::<Result<_>>()?;
        let service = |name: &str, (vip, target): ([u8; 4], u16), selector: String| {
            let service = json!({"tenantName": "blue", "serviceName": name, "networkName": "pods",
                "ipAddress": IpAddr::from(vip).to_string(), "selectors": [selector],
                "ports": [format!("80:{target}:TCP")]});
            put(&format!("/api/v1/serviceLBs/blue:{name}/"), service)
        };
        service("both", (VIP_OF_BOTH, OF_BOTH), "tier=web".to_owned())?;
        for (server, vip) in servers.iter().zip(VIPS) {
            let (name, id) = (&server.node, &server.call().container_id);
            service(name, (vip, OF_ONE), format!("app={name}"))?;
            let started = json!({"Event": "start", "Tenant": "blue", "Network": "pods", "EndpointID": id,
                "ContainerID": id, "EPCommonName": "web", "Labels": {"app": name, "tier": "web"}});
            put("/plugin/updateEndpoint", started)?;
        }
        let client = Pod::add(&cluster.nodes[0], &network, "client")?;
        Ok(Site { client, servers, cluster })
    }

    /// Servers on the denied port, and traffic to it.
    fn deny(&self) -> Result<(Vec<Server>, Denied)> {
        let server = |pod: &Pod| Server::start(pod.netns(), pod.ip.into(), CLOSED);
        let targets = self.servers.iter().map(|pod| SocketAddr::from((pod.ip, CLOSED))).collect();
        Ok((
            self.servers.iter().map(server).collect::<Result<_>>()?,
            Denied::start(self.client.netns(), targets, 100)?,
        ))
    }

    fn shut_down(self) -> Result<()> {
        let Site { client, servers, cluster } = self;
        for pod in servers.into_iter().chain([client]) {
            let node = cluster.nodes.iter().find(|node| node.name == pod.node).context("a pod has a node")?;
            pod.remove(node)?;
        }
        cluster.shut_down()
    }
}

/// Changes the first node from OVS to eBPF and back. Connections stay, also those to services; a denied port stays closed, and
/// what comes up afterwards works.
fn change_and_change_back(encap: Encap) {
    let mut site = Site::build(encap).unwrap();
    let server = |pod: &Pod, port| Server::start(pod.netns(), pod.ip.into(), port).unwrap();
    let all = |pod| [OPEN, OF_ONE, OF_BOTH].map(|port| server(pod, port));
    let _open: Vec<Server> = site.servers.iter().flat_map(all).collect();
    let netns = site.client.netns();
    site.wait_pings();
    let wait_services = || {
        for vip in [VIPS[0], VIPS[1], VIP_OF_BOTH] {
            wait_until(DEADLINE, "the service answers", || {
                let stream = Streams::open(netns, SocketAddr::from((vip, 80)), 1);
                Ok(stream.and_then(Streams::stop).is_ok_and(|count| count.broken == 0).then_some(()))
            })
            .unwrap();
        }
    };
    wait_services();
    let streams: Vec<Streams> = (site.servers.iter())
        .map(|pod| Streams::open(netns, SocketAddr::from((pod.ip, OPEN)), CONNECTIONS).unwrap())
        .collect();
    let (closed, denied) = site.deny().unwrap();
    for datapath in [Datapath::Ebpf, Datapath::Ovs] {
        let to_services: Vec<Streams> = [VIPS[0], VIPS[1], VIP_OF_BOTH]
            .map(|vip| Streams::open(netns, SocketAddr::from((vip, 80)), CONNECTIONS).unwrap())
            .into();
        let pingers: Vec<Pinger> =
            (site.servers.iter()).map(|pod| Pinger::start(netns, pod.ip.into(), INTERVAL).unwrap()).collect();
        site.cluster.nodes[0].replace_datapath(datapath).unwrap();
        site.wait_pings();
        for (pod, pinger) in site.servers.iter().zip(pingers) {
            let pings = pinger.finish(DEADLINE).unwrap();
            println!(
                "to {}: pings to {}: {} of {} lost",
                datapath.name(),
                pod.node,
                pings.lost(),
                pings.sent
            );
        }
        wait_services();
        for streams in to_services {
            let count = streams.stop().unwrap();
            println!(
                "to {}: {} of {} connections to a service are broken",
                datapath.name(),
                count.broken,
                count.connections
            );
            assert_eq!((count.connections, count.broken), (CONNECTIONS, 0), "{:?}", count.first_error);
        }
        // A new pod, and what the store changes, as before.
        let node = &site.cluster.nodes[0];
        let pod = Pod::add(node, &Network::pods(), "new").unwrap();
        site.wait_answer(&pod);
        pod.remove(node).unwrap();
    }
    let denied = denied.stop().unwrap();
    for streams in streams {
        let count = streams.stop().unwrap();
        println!("{} connections, {} requests, {} broken", count.connections, count.exchanges, count.broken);
        assert_eq!((count.connections, count.broken), (CONNECTIONS, 0), "{:?}", count.first_error);
    }
    assert_eq!((denied.allowed, closed.iter().map(Server::seen).sum::<u64>()), (0, 0));
    assert!(denied.datagrams > 0 && denied.connections > 0, "{denied:?}");
    site.shut_down().unwrap();
}

#[test]
fn pods_keep_their_connections_vxlan() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    change_and_change_back(Encap::Vxlan);
}

#[test]
fn pods_keep_their_connections_vlan() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    change_and_change_back(Encap::Vlan);
}

#[test]
fn a_datapath_that_cannot_be_prepared_replaces_nothing() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.wait_pings();
    let (netns, pod) = (site.client.netns(), &site.servers[1]);
    let node = &mut site.cluster.nodes[0];
    node.kill_agent().unwrap();
    let pinger = Pinger::start(netns, pod.ip.into(), INTERVAL).unwrap();
    // No BPF file system can be mounted there.
    let nowhere = [("--datapath", "ebpf"), ("--bpf-root", "/proc/nowhere")];
    let refused = node.refusal_with(&nowhere, &["--replace-datapath"]).unwrap();
    assert!(refused.contains("prepare the datapath") && refused.contains("/proc/nowhere"), "{refused}");
    let bridges = node.switch().unwrap().vsctl(&["list-br"]).unwrap();
    assert!(bridges.contains("contivVlanBridge") && bridges.contains("contivVxlanBridge"), "{bridges}");
    assert_eq!(pinger.finish(DEADLINE).unwrap().lost(), 0);
    node.restart_agent().unwrap();
    site.shut_down().unwrap();
}

impl Site {
    fn set_datapath(&self, node: &str, datapath: &str) -> Result<()> {
        let mut netctl = Binary::Netctl.command()?;
        let master = format!("http://{}", self.cluster.client().server());
        netctl.args(["--netmaster", &master, "node", "set-datapath", node, datapath]);
        let output = self.cluster.fabric.netns().run(move || netctl.output().context("run netctl"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "netctl node set-datapath: {said}");
        Ok(())
    }

    /// Status that the agent of the first node has reported.
    fn status(&self) -> Result<Value> {
        self.cluster.client().get_json("/api/v1/inspect/nodes/node1/")
    }

    fn wait_datapath(&self, datapath: &str) {
        wait_until(DEADLINE, &format!("node1 has the datapath {datapath}"), || {
            let is_ready = self.cluster.nodes[0].client().get("/readyz")?.status == 200;
            Ok((is_ready && self.status()?["datapath"] == datapath).then_some(()))
        })
        .unwrap();
    }

    /// Waits until the agent of the first node reports that it does not have the chosen datapath, for this cause.
    fn wait_refused(&self, datapath: &str, cause: &str) {
        wait_until(DEADLINE, &format!("node1 reports that it refused {datapath}: {cause}"), || {
            let degraded = self.cluster.nodes[0].client().get("/readyz")?.json()?["degraded"].to_string();
            let is_refused = degraded.contains(&format!("datapath {datapath}, which was chosen"));
            if is_refused && degraded.contains(cause) { Ok(Some(())) } else { bail!("{degraded}") }
        })
        .unwrap();
    }

    fn wait_pings(&self) {
        self.servers.iter().for_each(|pod| self.wait_answer(pod));
    }

    fn wait_answer(&self, pod: &Pod) {
        wait_until(DEADLINE, &format!("{} of {} answers", pod.name, pod.node), || {
            Ok((self.client.netns().ping(pod.ip.into(), 1, INTERVAL)?.received == 1).then_some(()))
        })
        .unwrap();
    }
}

#[test]
fn an_operator_changes_the_datapath() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.wait_pings();
    let error = format!("{:#}", site.set_datapath("node9", "ebpf").unwrap_err());
    assert!(error.contains("node not found"), "{error}");

    site.set_datapath("node1", "ebpf").unwrap();
    site.wait_datapath("ebpf");
    site.wait_pings();
    // The choice goes before the flag, also when the store is away.
    site.cluster.nodes[0].restart_agent().unwrap();
    site.wait_datapath("ebpf");
    site.wait_pings();

    site.set_datapath("node1", "ovs").unwrap();
    site.wait_datapath("ovs");
    site.wait_pings();
    let pod = Pod::add(&site.cluster.nodes[0], &Network::pods(), "new").unwrap();
    pod.remove(&site.cluster.nodes[0]).unwrap();

    // The agent tells that it cannot have the datapath, and keeps the one that it has.
    site.cluster.nodes[0].restart_agent_as("--bpf-root", "/proc/nowhere").unwrap();
    site.wait_datapath("ovs");
    let pinger = Pinger::start(site.client.netns(), site.servers[1].ip.into(), INTERVAL).unwrap();
    site.set_datapath("node1", "ebpf").unwrap();
    site.wait_refused("ebpf", "/proc/nowhere");
    site.wait_datapath("ovs");
    // An agent that starts with such a choice, too.
    site.cluster.nodes[0].restart_agent().unwrap();
    site.wait_refused("ebpf", "/proc/nowhere");
    site.wait_datapath("ovs");
    assert_eq!(pinger.finish(DEADLINE).unwrap().lost(), 0);
    site.shut_down().unwrap();
}

#[test]
fn an_agent_that_is_killed_while_it_replaces_a_datapath_is_followed() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.wait_pings();
    let closed: Vec<Server> =
        (site.servers.iter()).map(|pod| Server::start(pod.netns(), pod.ip.into(), CLOSED).unwrap()).collect();
    let targets = site.servers.iter().map(|pod| SocketAddr::from((pod.ip, CLOSED))).collect();
    let denied = Denied::start(site.client.netns(), targets, 100).unwrap();
    // From before its first change until after its last one.
    let times = (1..=12).map(|number| Duration::from_millis(50 * number));
    for (time, datapath) in times.zip([Datapath::Ebpf, Datapath::Ovs].into_iter().cycle()) {
        let node = &mut site.cluster.nodes[0];
        node.begin_to_replace_datapath(datapath, time).unwrap();
        node.restart_agent().unwrap();
        site.wait_datapath(datapath.name());
        site.wait_pings();
    }
    let denied = denied.stop().unwrap();
    assert_eq!((denied.allowed, closed.iter().map(Server::seen).sum::<u64>()), (0, 0), "{denied:?}");
    site.shut_down().unwrap();
}

/// Until the other datapath has stopped, it is the one to go on with, without permission to replace anything.
#[test]
fn an_agent_can_be_killed_at_each_step_of_a_change() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.wait_pings();
    let (closed, denied) = site.deny().unwrap();
    for (before, after) in [(Datapath::Ovs, Datapath::Ebpf), (Datapath::Ebpf, Datapath::Ovs)] {
        let (mut step, mut stopped) = (1, false);
        loop {
            // The first time back, the second time on.
            for goes_on in [false, true] {
                let node = &mut site.cluster.nodes[0];
                let Some(name) = node.replace_datapath_until(after, step).unwrap() else { break };
                stopped |= name.contains("has stopped");
                println!("{} to {}: killed after step{name}", before.name(), after.name());
                if stopped {
                    // One of them forwards, also to the other node, though the next agent has no store.
                    let agent = node.agent_with(&[("--etcd", "http://127.0.0.1:1")], &[]).unwrap();
                    wait_until(DEADLINE, "the change to be completed", || {
                        Ok(agent.log().contains("was interrupted").then_some(()))
                    })
                    .unwrap();
                    // The kernel's switch had the port of the tunnels, for which eBPF needs the store then.
                    let is_alone = ovs::on_kernel() && name.contains("is removed") && after == Datapath::Ebpf;
                    let reached = if is_alone { &site.servers[..1] } else { &site.servers[..] };
                    reached.iter().for_each(|pod| site.wait_answer(pod));
                    drop(agent);
                }
                if !stopped {
                    site.wait_pings();
                }
                let node = &mut site.cluster.nodes[0];
                match (goes_on, stopped) {
                    (true, _) => node.replace_datapath(after).unwrap(),
                    (false, true) => node.replace_datapath(before).unwrap(),
                    (false, false) => node.keep_datapath(before).unwrap(),
                }
                site.wait_pings();
                if goes_on {
                    site.cluster.nodes[0].replace_datapath(before).unwrap();
                    site.wait_pings();
                }
            }
            if site.cluster.nodes[0].datapath.name() == after.name() {
                break;
            }
            step += 1;
        }
        assert!(stopped && step > 4, "the change to {} has {step} steps", after.name());
    }
    let denied = denied.stop().unwrap();
    assert_eq!((denied.allowed, closed.iter().map(Server::seen).sum::<u64>()), (0, 0), "{denied:?}");
    assert!(denied.datagrams > 0 && denied.connections > 0, "{denied:?}");
    // The last agent would be killed at a later step.
    site.cluster.nodes[0].restart_agent().unwrap();
    site.shut_down().unwrap();
}

#[test]
fn a_choice_can_be_taken_back_after_an_agent_was_killed() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build(Encap::Vxlan).unwrap();
    site.wait_pings();
    for time in (1..=6).map(|number| Duration::from_millis(100 * number)) {
        site.cluster.nodes[0].kill_agent().unwrap();
        site.set_datapath("node1", "ebpf").unwrap();
        site.cluster.nodes[0].restart_and_kill_agent(time).unwrap();
        site.set_datapath("node1", "ovs").unwrap();
        site.cluster.nodes[0].restart_agent().unwrap();
        site.wait_datapath("ovs");
        site.wait_pings();
    }
    site.shut_down().unwrap();
}
