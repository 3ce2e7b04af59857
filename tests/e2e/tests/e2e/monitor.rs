//! Packet events of an eBPF node: `netctl monitor`, `--bpf-log`, and counters by name.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result};
use e2e::{
    binaries::Binary,
    cluster::{Cluster, Encap, Network, Pod},
};
use serde_json::{Value, json};
use testkit::{Process, needs, wait_until};

const DEADLINE: Duration = Duration::from_secs(30);
const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 200, 1));
const WEB: u16 = 8080;
const CLOSED: u16 = 9999;

/// A client and a server on the first node; the server is the backend of a service and has a denied port.
struct Site {
    client: Pod,
    server: Pod,
    cluster: Cluster,
}

impl Site {
    fn build() -> Result<Site> {
        let network = Network::pods();
        let cluster = Cluster::ebpf(Encap::Vxlan, &network)?;
        let put = |path: &str, body: Value| cluster.client().post_json(path, &body).map(drop);
        put("/api/v1/policys/blue:closed/", json!({"tenantName": "blue", "policyName": "closed"}))?;
        let rule = json!({"tenantName": "blue", "policyName": "closed", "ruleId": "no-admin",
            "direction": "in", "protocol": "tcp", "port": CLOSED, "action": "deny", "priority": 10});
        put("/api/v1/rules/blue:closed:no-admin/", rule)?;
        for (group, policies) in [("clients", vec![]), ("web", vec!["closed"])] {
            let body = json!({"tenantName": "blue", "groupName": group, "networkName": "pods",
                "policies": policies});
            put(&format!("/api/v1/endpointGroups/blue:{group}/"), body)?;
        }
        let server = Pod::add_to(&cluster.nodes[0], &network, Some("web"), "server")?;
        let service = json!({"tenantName": "blue", "serviceName": "shop", "networkName": "pods",
            "ipAddress": VIP.to_string(), "selectors": ["app=shop"], "ports": [format!("80:{WEB}:TCP")]});
        put("/api/v1/serviceLBs/blue:shop/", service)?;
        let id = &server.call().container_id;
        let started = json!({"Event": "start", "Tenant": "blue", "Network": "pods", "EndpointID": id,
            "ContainerID": id, "EPCommonName": "server", "Labels": {"app": "shop"}});
        put("/plugin/updateEndpoint", started)?;
        let client = Pod::add_to(&cluster.nodes[0], &network, Some("clients"), "client")?;
        Ok(Site { client, server, cluster })
    }

    /// Sends a datagram from a new port, which creates a flow.
    fn send(&self, port: u16) -> Result<()> {
        self.client.netns().run(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.send_to(b"hello", (self.server.ip, port))?;
            Ok(())
        })
    }

    fn connects(&self, to: SocketAddr) -> Result<bool> {
        let timeout = Duration::from_millis(200);
        self.client.netns().run(|| Ok(TcpStream::connect_timeout(&to, timeout).is_ok()))
    }

    /// Starts `netctl monitor` with JSON output; it ends when dropped.
    fn monitor(&self) -> Result<Process> {
        let mut netctl = Binary::Netctl.command()?;
        let master = format!("http://{}", self.cluster.client().server());
        netctl.args(["--netmaster", &master, "monitor", "--node", "node1", "-o", "json"]);
        Process::spawn_in(self.cluster.fabric.netns(), "netctl", netctl)
    }

    fn endpoint(pod: &Pod) -> String {
        format!("pods.blue-{}", pod.call().container_id)
    }
}

/// Events in the output of the monitor; other lines are messages.
fn events(monitor: &Process) -> Vec<Value> {
    let log = monitor.log();
    log.lines()
        .filter(|line| line.starts_with('{'))
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Waits for an event. Repeats `action`, because the monitor may have connected after it.
fn wait_event(
    monitor: &Process,
    mut action: impl FnMut() -> Result<()>,
    matches: impl Fn(&Value) -> bool,
) -> Value {
    wait_until(DEADLINE, "the event", || {
        action()?;
        Ok(events(monitor).into_iter().find(|line| matches(line)))
    })
    .with_context(|| monitor.tail())
    .unwrap()
}

fn is_flow_to(port: u16) -> impl Fn(&Value) -> bool {
    move |line| line["event"] == "flow" && line["destination"]["port"] == port
}

#[test]
fn monitor_shows_names_and_reconnects_to_a_restarted_agent() {
    needs!(root(), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let mut site = Site::build().unwrap();
    let mut monitor = site.monitor().unwrap();
    let flow = wait_event(&monitor, || site.send(7001), is_flow_to(7001));
    let end = |pod: &Pod, group: &str| (json!(Site::endpoint(pod)), json!(pod.ip.to_string()), json!(group));
    let ends = |line: &Value| {
        let end = |end: &Value| (end["endpoint"].clone(), end["ip"].clone(), end["group"].clone());
        [end(&line["source"]), end(&line["destination"])]
    };
    let here = [end(&site.client, "clients:blue"), end(&site.server, "web:blue")];
    assert_eq!(ends(&flow), here);
    assert_eq!(
        (&flow["host"], &flow["network"], &flow["protocol"]),
        (&json!("node1"), &json!("pods.blue"), &json!("udp"))
    );

    let admin = SocketAddr::from((site.server.ip, CLOSED));
    let try_admin = || site.connects(admin).map(|connected| assert!(!connected));
    let drop = wait_event(&monitor, try_admin, |line| {
        line["event"] == "drop" && line["destination"]["port"] == CLOSED
    });
    assert_eq!((&drop["reason"], ends(&drop)), (&json!("policy"), here));
    let rule = drop["rules"][0].as_str().unwrap();
    assert!(rule.contains("closed") && rule.contains("no-admin"), "{rule}");

    let web = site.server.netns().run(|| Ok(TcpListener::bind((site.server.ip, WEB))?)).unwrap();
    let shop = SocketAddr::new(VIP, 80);
    let connect = || site.connects(shop).map(std::mem::drop);
    let service =
        wait_event(&monitor, connect, |line| line["event"] == "flow" && line["service"] == "shop:blue");
    assert_eq!(service["backend"]["endpoint"], Site::endpoint(&site.server));
    counters_are_equal(&site);

    // Agent restart.
    let node = &mut site.cluster.nodes[0];
    let quiet = node.agent().unwrap().log();
    assert!(!quiet.contains("no-admin"), "packet events in the log without --bpf-log: {quiet}");
    node.kill_agent().unwrap();
    node.restart_agent_with(&["--bpf-log"]).unwrap();
    wait_event(&monitor, || site.send(7002), is_flow_to(7002));
    assert!(monitor.log().contains("reconnecting"), "{}", monitor.log());
    // With --bpf-log the events are in the log of the agent, too.
    wait_until(DEADLINE, "the agent's log", || {
        site.send(7003)?;
        assert!(!site.connects(admin)?);
        let log = site.cluster.nodes[0].agent()?.log();
        Ok((log.contains(":7003 (") && log.contains("no-admin")).then_some(()))
    })
    .unwrap();
    monitor.kill().unwrap();

    std::mem::drop(web);
    let Site { client, server, cluster } = site;
    for pod in [client, server] {
        pod.remove(&cluster.nodes[0]).unwrap();
    }
    cluster.shut_down().unwrap();
}

/// Counters of service, rule and endpoints are equal in all interfaces.
fn counters_are_equal(site: &Site) {
    let node = &site.cluster.nodes[0];
    let shop = r#"service="shop:blue",protocol="tcp",port="80""#;
    let metric =
        |name: &str, labels: &str| node.metric(&format!("contiv_{name}{{{labels}}}")).unwrap() as u64;
    // The last packets of a connection may be in flight.
    let counts = wait_until(DEADLINE, "equal counters", || {
        let driver = node.client().get_json("/inspect/driver")?;
        let stats = node.client().get_json("/svcstats")?;
        let inside = &driver["services"]["shop:blue:TCP:80"];
        let stats = &stats[site.client.ip.to_string()]["SvcStats"][VIP.to_string()]["SvcStats"];
        let of_metrics = ["in", "out"].map(|direction| {
            let labels = format!(r#"{shop},direction="{direction}""#);
            (metric("service_packets_total", &labels), metric("service_bytes_total", &labels))
        });
        let of =
            |packets: &Value, bytes: &Value| (packets.as_u64().unwrap_or(0), bytes.as_u64().unwrap_or(0));
        let of_driver = ["in", "out"].map(|way| of(&inside[way]["packets"], &inside[way]["bytes"]));
        let of_stats =
            ["In", "Out"].map(|way| of(&stats[format!("Packets{way}")], &stats[format!("Bytes{way}")]));
        let same = of_metrics == of_driver && of_driver == of_stats;
        Ok(same.then_some((of_metrics, inside["connections"].as_u64(), driver)))
    });
    let ([forward, reply], connections, driver) = counts.unwrap();
    assert!(forward.0 > 0 && reply.0 > 0);
    assert_eq!(Some(metric("service_connections_total", shop)), connections);
    let rules = driver["rules"].as_object().unwrap();
    let (rule, count) = rules.iter().find(|(id, _)| id.contains("no-admin")).unwrap();
    assert_eq!(Some(metric("rule_packets_total", &format!(r#"rule="{rule}""#))), count["packets"].as_u64());
    for (pod, group) in [(&site.client, "clients:blue"), (&site.server, "web:blue")] {
        let id = Site::endpoint(pod);
        let inside = &driver["endpoints"][&id];
        let port = inside["interface"].as_str().unwrap();
        for direction in ["in", "out"] {
            let labels = format!(
                r#"endpoint="{id}",network="pods.blue",group="{group}",interface="{port}",direction="{direction}""#
            );
            let (now, before) =
                (metric("endpoint_packets_total", &labels), inside[direction]["packets"].as_u64());
            assert!(before.is_some_and(|before| 0 < before && before <= now), "{labels}: {before:?}, {now}");
        }
    }
    for table in ["ctv_flows", "ctv_frags", "ctv_affinity", "ctv_meters"] {
        let (entries, capacity) = (
            metric("datapath_table_entries", &format!(r#"table="{table}""#)),
            metric("datapath_table_capacity", &format!(r#"table="{table}""#)),
        );
        assert!(entries <= capacity && capacity > 0, "{table}: {entries} of {capacity}");
    }
}
