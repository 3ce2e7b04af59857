//! A service with a backend on each node, and a rule that denies; with what the nodes counted of both.
//!
//! Whoever begins a connection has to have a node that knows services and rules. A node that does not says so, and
//! nothing is asked of it.

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
    cluster::{Cluster, Datapath, Network, Pod},
    demo::report,
    http::Client,
};

/// The group of the tenant's pods.
pub(super) const GROUP: &str = "web";
const SERVICE: &str = "shop";
const POLICY: &str = "house-rules";
const RULE: &str = "no-echo";
/// Of the service, and of its backends.
const PORT: u16 = 80;
const TARGET: u16 = 8080;
/// What the rule is about.
const DENIED: u16 = 7;
const CONNECTIONS: usize = 20;
const CONVERGENCE: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(2);
/// A connection that is denied gets no answer.
const SILENCE: Duration = Duration::from_millis(300);
/// How often a server looks whether all is over.
const LOOK: i64 = 50;

/// Before there are pods: the rule, the group that it is on, and the service.
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

/// After the pods.
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

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    vip: IpAddr,
    backends: Vec<String>,
    /// By the client's name.
    clients: BTreeMap<String, Answers>,
    /// What nodes say that they do not do, by their names.
    unsupported: Vec<(String, String)>,
    /// What the rule stopped, by node.
    stopped: BTreeMap<String, u64>,
}

#[derive(Debug, Default)]
struct Answers {
    /// By backend.
    served: Vec<usize>,
    /// What the node counted of them.
    packets: u64,
    /// Connections that the rule forbids, and which came about all the same.
    let_through: usize,
}

impl Outcome {
    /// Talks to the service from each pod of the tenant whose node knows it.
    pub(super) fn measure(cluster: &Cluster, network: &Network, pods: &[Pod]) -> Result<Outcome> {
        let of_tenant = || pods.iter().filter(|pod| pod.tenant == network.tenant);
        let backends: Vec<&Pod> =
            cluster.nodes.iter().filter_map(|node| of_tenant().find(|pod| pod.node == node.name)).collect();
        let vip = offer(cluster.client(), network, &backends)?;
        let able: Vec<&Pod> = of_tenant().filter(|pod| pod.datapath == Datapath::Ebpf).collect();
        let over = AtomicBool::new(false);
        // All of them, before anybody may be sent to one.
        let listeners = backends.iter().map(|pod| Ok([listen(pod, TARGET)?, listen(pod, DENIED)?]));
        let listeners = listeners.collect::<Result<Vec<_>>>()?;
        let clients = thread::scope(|scope| {
            let mut servers = vec![];
            for (number, listeners) in (0..).zip(&listeners) {
                let over = &over;
                servers.extend(listeners.iter().map(|it| scope.spawn(move || serve(it, number, over))));
            }
            let clients: Result<BTreeMap<String, Answers>> = able
                .iter()
                .map(|pod| {
                    Ok((pod.name.clone(), talk(pod, vip, &backends).with_context(|| pod.name.clone())?))
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
            Outcome { vip, backends: names, clients, unsupported: vec![], stopped: BTreeMap::new() };
        outcome.ask_nodes(cluster, pods)?;
        Ok(outcome)
    }

    /// What the nodes have counted, or say that they do not do.
    fn ask_nodes(&mut self, cluster: &Cluster, pods: &[Pod]) -> Result<()> {
        for node in &cluster.nodes {
            let ready = node.client().get_json("/readyz")?;
            let degraded = ready["degraded"].as_array().into_iter().flatten().filter_map(Value::as_str);
            self.unsupported.extend(degraded.map(|line| (node.name.clone(), line.to_owned())));
            if node.datapath != Datapath::Ebpf {
                continue;
            }
            let stats = node.client().get_json("/svcstats")?;
            for pod in pods.iter().filter(|pod| pod.node == node.name) {
                if let Some(answers) = self.clients.get_mut(&pod.name) {
                    let service = &stats[pod.ip.to_string()]["SvcStats"][self.vip.to_string()];
                    answers.packets = service["SvcStats"]["PacketsIn"].as_u64().unwrap_or(0);
                }
            }
            let driver = node.client().get_json("/inspect/driver")?;
            let rules = driver["rules"].as_object().into_iter().flatten();
            let ours = rules.filter(|(id, _)| id.contains(RULE));
            let stopped = ours.filter_map(|(_, count)| count["packets"].as_u64()).sum();
            self.stopped.insert(node.name.clone(), stopped);
        }
        Ok(())
    }

    /// One line for each thing that is not as it should be.
    pub(super) fn wrong(&self) -> Vec<String> {
        let mut wrong = vec![];
        for (client, answers) in &self.clients {
            if answers.served.iter().sum::<usize>() != CONNECTIONS {
                wrong.push(format!("{client} -> {}:{PORT}: {:?} of {CONNECTIONS}", self.vip, answers.served));
            }
            // All to the same: a client stays with its backend.
            if answers.served.iter().filter(|count| **count > 0).count() != 1 {
                wrong.push(format!(
                    "{client} -> {}:{PORT}: changed its backend, {:?}",
                    self.vip, answers.served
                ));
            }
            if answers.packets == 0 {
                wrong.push(format!("{client} -> {}:{PORT}: its node counted nothing", self.vip));
            }
            if answers.let_through > 0 {
                wrong.push(format!("{client}: rule {RULE} let {} connections through", answers.let_through));
            }
        }
        for (node, stopped) in &self.stopped {
            if *stopped == 0 {
                wrong.push(format!("{node}: rule {RULE} counted nothing"));
            }
        }
        wrong
    }

    pub(super) fn table(&self) -> String {
        let mut table = report::table();
        let columns = [format!("{SERVICE} {}:{PORT} from", self.vip)];
        let backends = self.backends.iter().map(|name| format!("by {name}"));
        let rest = ["packets counted".to_owned(), format!("port {DENIED} (rule {RULE})")];
        table.set_header(columns.into_iter().chain(backends).chain(rest));
        for (client, answers) in &self.clients {
            let served = answers.served.iter().map(ToString::to_string);
            let denied = if answers.let_through == 0 { "denied".to_owned() } else { "OPEN".to_owned() };
            let rest = [answers.packets.to_string(), denied];
            table.add_row([client.clone()].into_iter().chain(served).chain(rest));
        }
        let mut text = if self.clients.is_empty() { String::new() } else { format!("{table}\n") };
        for (node, stopped) in &self.stopped {
            text += &format!("{node}: rule {RULE} stopped {stopped} packets\n");
        }
        for (node, line) in &self.unsupported {
            text += &format!("{node}: {line}\n");
        }
        text.trim_end().to_owned()
    }
}

/// Tells the master which pods are behind the service; its address.
fn offer(client: &Client, network: &Network, backends: &[&Pod]) -> Result<IpAddr> {
    let Network { tenant, name, .. } = network;
    let answer = client.get_json(&format!("/api/v1/inspect/networks/{tenant}:{name}/"))?;
    let endpoints = serde_json::from_value::<Inspect<Value, NetworkOper>>(answer)?.oper.endpoints;
    for pod in backends {
        let ip = pod.ip.to_string();
        let known = endpoints.iter().find(|endpoint| endpoint.ip_address[0] == ip);
        let known = known.with_context(|| format!("the master does not know {}", pod.name))?;
        let started = json!({
            "Event": "start", "Tenant": tenant, "Network": name, "EndpointID": known.endpoint_id,
            "ContainerID": pod.call().container_id, "EPCommonName": pod.name,
            "Labels": { "app": "shop" }, "IPAddress": ip,
        });
        client.post_json("/plugin/updateEndpoint", &started)?;
    }
    let service = client.get_json(&format!("/api/v1/inspect/serviceLBs/{tenant}:{SERVICE}/"))?;
    let vip = service["Oper"]["serviceVip"].as_str().context("the service has no address")?;
    Ok(vip.parse()?)
}

fn listen(pod: &Pod, port: u16) -> Result<TcpListener> {
    pod.netns().run(|| {
        let listener =
            TcpListener::bind((pod.ip, port)).with_context(|| format!("listen on {}", pod.name))?;
        setsockopt(&listener, sockopt::ReceiveTimeout, &TimeVal::milliseconds(LOOK))?;
        Ok(listener)
    })
}

/// Says its number to whoever connects.
fn serve(listener: &TcpListener, number: u8, over: &AtomicBool) -> Result<()> {
    while !over.load(Ordering::SeqCst) {
        match listener.accept() {
            // Whoever has gone meanwhile does not want to know.
            Ok((mut stream, _)) => drop(stream.write_all(&[number])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("accept"),
        }
    }
    Ok(())
}

/// Connections to the service, and such as the rule forbids.
fn talk(pod: &Pod, vip: IpAddr, backends: &[&Pod]) -> Result<Answers> {
    let ask = || -> Result<usize> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(vip, PORT), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut number = [0];
        stream.read_exact(&mut number)?;
        Ok(number[0].into())
    };
    pod.netns().run(|| {
        // What is not there yet is given time to come; then it counts.
        wait_until(CONVERGENCE, "the service", || Ok(ask().ok()))?;
        let mut answers = Answers { served: vec![0; backends.len()], ..Answers::default() };
        for _ in 0..CONNECTIONS {
            let backend = ask().with_context(|| format!("connect to {vip}:{PORT}"))?;
            match answers.served.get_mut(backend) {
                Some(count) => *count += 1,
                None => bail!("{vip}:{PORT} is answered by a backend {backend}"),
            }
        }
        for backend in backends.iter().filter(|backend| backend.name != pod.name) {
            let denied = SocketAddr::new(backend.ip.into(), DENIED);
            answers.let_through += usize::from(TcpStream::connect_timeout(&denied, SILENCE).is_ok());
        }
        Ok(answers)
    })
}
