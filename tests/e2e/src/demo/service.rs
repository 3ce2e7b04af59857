//! A service with a backend on each node, and a rule that denies a port. Compares connections with the counters of nodes.

use std::{
    collections::BTreeMap,
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use contiv_model::api::{Inspect, NetworkOper};
use nix::sys::{
    socket::{setsockopt, sockopt},
    time::{TimeVal, TimeValLike as _},
};
use serde_json::{Value, json};
use testkit::wait_until;

use crate::{
    cluster::{Cluster, Network, Node, Pod},
    demo::report,
    http::Client,
};

/// Endpoint group of the tenant's pods.
pub(super) const GROUP: &str = "web";
const SERVICE: &str = "shop";
const POLICY: &str = "house-rules";
const RULE: &str = "no-echo";
/// Port of the service.
const PORT: u16 = 80;
/// Port of the backends.
const TARGET: u16 = 8080;
/// Port that the rule denies.
const DENIED: u16 = 7;
const CONNECTIONS: usize = 20;
const CONVERGENCE_TIMEOUT: Duration = Duration::from_secs(15);
const IO_TIMEOUT: Duration = Duration::from_secs(2);
/// Connection timeout for the denied port: its SYNs are dropped.
const DENIED_TIMEOUT: Duration = Duration::from_millis(300);
/// Interval of checks of the stop flag, in milliseconds.
const STOP_CHECK_INTERVAL: i64 = 50;

/// Creates the policy with its rule, the group and the service, before the pods.
pub(super) fn prepare(client: &Client, network: &Network) -> Result<()> {
    let Network { tenant, name, .. } = network;
    for (path, body) in [
        (format!("policys/{tenant}:{POLICY}"), json!({ "tenantName": tenant, "policyName": POLICY })),
        (
            format!("rules/{tenant}:{POLICY}:{RULE}"),
            json!({
                "tenantName": tenant, "policyName": POLICY, "ruleId": RULE, "priority": 10,
                "direction": "out", "protocol": "tcp", "port": DENIED, "action": "deny",
            }),
        ),
        (
            format!("endpointGroups/{tenant}:{GROUP}"),
            json!({ "tenantName": tenant, "groupName": GROUP, "networkName": name, "policies": [POLICY] }),
        ),
        (
            format!("serviceLBs/{tenant}:{SERVICE}"),
            json!({
                "tenantName": tenant, "serviceName": SERVICE, "networkName": name,
                "selectors": ["app=shop"], "ports": [format!("{PORT}:{TARGET}:TCP")],
            }),
        ),
    ] {
        client.post_json(&format!("/api/v1/{path}/"), &body).with_context(|| format!("create {path}"))?;
    }
    Ok(())
}

/// Deletes them, after the pods.
pub(super) fn remove(client: &Client, network: &Network) -> Result<()> {
    let tenant = &network.tenant;
    for path in [
        format!("serviceLBs/{tenant}:{SERVICE}"),
        format!("endpointGroups/{tenant}:{GROUP}"),
        format!("rules/{tenant}:{POLICY}:{RULE}"),
        format!("policys/{tenant}:{POLICY}"),
    ] {
        client.delete(&format!("/api/v1/{path}/"))?;
    }
    Ok(())
}

/// Results of the check.
#[derive(Debug)]
pub(super) struct ServiceCheck {
    vip: IpAddr,
    backends: Vec<String>,
    /// Results by name of the client pod.
    clients: BTreeMap<String, ClientResult>,
    /// Degraded conditions with the name of their node.
    degraded: Vec<(String, String)>,
    /// Counters by node.
    counted: BTreeMap<String, Counted>,
}

/// What a node has counted.
#[derive(Debug)]
struct Counted {
    /// Packets of clients to the service.
    packets: u64,
    /// Packets that the rule dropped.
    dropped: u64,
}

#[derive(Debug, Default)]
struct ClientResult {
    /// Connections by backend.
    served: Vec<usize>,
    /// Connections to the denied port that were established.
    allowed: usize,
}

impl ServiceCheck {
    /// Connects to the service from each pod of the network.
    pub(super) fn run(cluster: &Cluster, network: &Network, pods: &[Pod]) -> Result<ServiceCheck> {
        let is_member = |pod: &&Pod| (&pod.tenant, &pod.network) == (&network.tenant, &network.name);
        let members: Vec<&Pod> = pods.iter().filter(is_member).collect();
        let of_node = |node: &Node| members.iter().find(|pod| pod.node == node.name).copied();
        let backends: Vec<&Pod> = cluster.nodes.iter().filter_map(of_node).collect();
        let vip = register_backends(cluster.client(), network, &backends)?;
        let over = AtomicBool::new(false);
        // All listeners exist before the first connection.
        let listeners = backends.iter().map(|pod| Ok([listen(pod, TARGET)?, listen(pod, DENIED)?]));
        let listeners = listeners.collect::<Result<Vec<_>>>()?;
        let clients = thread::scope(|scope| {
            let mut servers = vec![];
            for (number, listeners) in (0..).zip(&listeners) {
                let over = &over;
                servers.extend(listeners.iter().map(|it| scope.spawn(move || serve(it, number, over))));
            }
            let clients: Result<BTreeMap<String, ClientResult>> = members
                .iter()
                .map(|pod| {
                    Ok((
                        pod.name.clone(),
                        connect_all(pod, vip, &backends).with_context(|| pod.name.clone())?,
                    ))
                })
                .collect();
            over.store(true, Ordering::SeqCst);
            for server in servers {
                server.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            clients
        })?;
        let names = backends.iter().map(|pod| pod.name.clone()).collect();
        let mut outcome =
            ServiceCheck { vip, backends: names, clients, degraded: vec![], counted: BTreeMap::new() };
        outcome.read_counters(cluster)?;
        Ok(outcome)
    }

    /// Reads counters and degraded conditions of the nodes.
    fn read_counters(&mut self, cluster: &Cluster) -> Result<()> {
        for node in &cluster.nodes {
            let ready = node.client().get_json("/readyz")?;
            let degraded = ready["degraded"].as_array().into_iter().flatten().filter_map(Value::as_str);
            self.degraded.extend(degraded.map(|line| (node.name.clone(), line.to_owned())));
            self.counted.insert(node.name.clone(), Counted::read(node)?);
        }
        Ok(())
    }

    /// One line per failed check.
    pub(super) fn errors(&self) -> Vec<String> {
        let mut errors = vec![];
        for (client, result) in &self.clients {
            if result.served.iter().sum::<usize>() != CONNECTIONS {
                errors.push(format!(
                    "{client} -> {}:{PORT}: connections by backend {:?}, expected {CONNECTIONS} in total",
                    self.vip, result.served
                ));
            }
            // Session affinity: a client keeps its backend.
            if result.served.iter().filter(|count| **count > 0).count() != 1 {
                errors.push(format!(
                    "{client} -> {}:{PORT}: connections to several backends, {:?}",
                    self.vip, result.served
                ));
            }
            if result.allowed > 0 {
                errors.push(format!("{client}: rule {RULE} did not deny {} connections", result.allowed));
            }
        }
        for (node, Counted { packets, dropped }) in &self.counted {
            if *packets == 0 {
                errors.push(format!("{node}: service {SERVICE} counted no packets"));
            }
            if *dropped == 0 {
                errors.push(format!("{node}: rule {RULE} counted no packets"));
            }
        }
        errors
    }

    pub(super) fn table(&self) -> String {
        let mut table = report::table();
        let columns = [format!("{SERVICE} {}:{PORT} from", self.vip)];
        let backends = self.backends.iter().map(|name| format!("to {name}"));
        let denied = format!("port {DENIED} (rule {RULE})");
        table.set_header(columns.into_iter().chain(backends).chain([denied]));
        for (client, result) in &self.clients {
            let served = result.served.iter().map(ToString::to_string);
            let denied = if result.allowed == 0 { "denied".to_owned() } else { "OPEN".to_owned() };
            table.add_row([client.clone()].into_iter().chain(served).chain([denied]));
        }
        let mut text = format!("{table}\n");
        for (node, Counted { packets, dropped }) in &self.counted {
            text +=
                &format!("{node}: {packets} packets to service {SERVICE}, rule {RULE} dropped {dropped}\n");
        }
        for (node, line) in &self.degraded {
            text += &format!("{node}: {line}\n");
        }
        text.trim_end().to_owned()
    }
}

impl Counted {
    fn read(node: &Node) -> Result<Counted> {
        let metrics = node.client().get("/metrics")?.body;
        let sum = |metric: &str, labels: [&str; 2]| {
            let counts = metrics.lines().filter_map(|line| {
                let (has, count) = line.strip_prefix(metric)?.rsplit_once(' ')?;
                labels.iter().all(|label| has.contains(label)).then(|| count.parse::<u64>())
            });
            counts.sum::<Result<u64, _>>().with_context(|| format!("read {metric} of {}", node.name))
        };
        Ok(Counted {
            packets: sum("contiv_service_packets_total{", [SERVICE, "direction=\"in\""])?,
            dropped: sum("contiv_rule_packets_total{", [POLICY, RULE])?,
        })
    }
}

/// Registers the backends at netmaster; returns the address of the service.
fn register_backends(client: &Client, network: &Network, backends: &[&Pod]) -> Result<IpAddr> {
    let Network { tenant, name, .. } = network;
    let answer = client.get_json(&format!("/api/v1/inspect/networks/{tenant}:{name}/"))?;
    let endpoints = serde_json::from_value::<Inspect<Value, NetworkOper>>(answer)?.oper.endpoints;
    for pod in backends {
        let ip = pod.ip.to_string();
        let known = endpoints.iter().find(|endpoint| endpoint.ip_address[0] == ip);
        let known = known.with_context(|| format!("netmaster has no endpoint for {}", pod.name))?;
        let started = json!({
            "Event": "start", "Tenant": tenant, "Network": name, "EndpointID": known.endpoint_id,
            "ContainerID": pod.call().container_id, "EPCommonName": pod.name,
            "Labels": { "app": "shop" }, "IPAddress": ip,
        });
        client.post_json("/plugin/updateEndpoint", &started)?;
    }
    let service = client.get_json(&format!("/api/v1/inspect/serviceLBs/{tenant}:{SERVICE}/"))?;
    let vip = service["Oper"]["serviceVip"].as_str().context("no address of the service")?;
    Ok(vip.parse()?)
}

fn listen(pod: &Pod, port: u16) -> Result<TcpListener> {
    pod.netns().run(|| {
        let listener =
            TcpListener::bind((pod.ip, port)).with_context(|| format!("listen on {}", pod.name))?;
        setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::milliseconds(STOP_CHECK_INTERVAL))?;
        Ok(listener)
    })
}

/// Sends its number on each connection.
fn serve(listener: &TcpListener, number: u8, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::SeqCst) {
        match listener.accept() {
            // The client may have closed the connection.
            Ok((mut stream, _)) => drop(stream.write_all(&[number])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("accept"),
        }
    }
    Ok(())
}

/// Connects to the service and to the denied port.
fn connect_all(pod: &Pod, vip: IpAddr, backends: &[&Pod]) -> Result<ClientResult> {
    let connect = || -> Result<usize> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(vip, PORT), IO_TIMEOUT)?;
        stream.set_read_timeout(Some(IO_TIMEOUT))?;
        let mut number = [0];
        stream.read_exact(&mut number)?;
        Ok(number[0].into())
    };
    pod.netns().run(|| {
        // Wait until the service works; only the connections below count.
        wait_until(CONVERGENCE_TIMEOUT, "the service", || Ok(connect().ok()))?;
        let mut result = ClientResult { served: vec![0; backends.len()], ..ClientResult::default() };
        for _ in 0..CONNECTIONS {
            let backend = connect().with_context(|| format!("connect to {vip}:{PORT}"))?;
            match result.served.get_mut(backend) {
                Some(count) => *count += 1,
                None => bail!("{vip}:{PORT} unexpected backend number {backend}"),
            }
        }
        for backend in backends.iter().filter(|backend| backend.name != pod.name) {
            let denied = SocketAddr::new(backend.ip.into(), DENIED);
            result.allowed += usize::from(TcpStream::connect_timeout(&denied, DENIED_TIMEOUT).is_ok());
        }
        Ok(result)
    })
}
