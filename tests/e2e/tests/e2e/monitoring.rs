//! `deploy/monitoring`: the alert rules and the dashboard name only metrics, labels and pages that exist.
#![expect(clippy::unwrap_used, reason = "tests may panic")]

mod dashboard;
mod expressions;
mod rules;

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result};
use e2e::cluster::{Cluster, Datapath, Encap, Network, Pod, Shape, StoreKind};
use serde_json::{Value, json};
use testkit::{needs, wait_until};

use self::{
    dashboard::Dashboard,
    expressions::{Labels, Series},
    rules::Rules,
};

const DEADLINE: Duration = Duration::from_secs(60);
const VIP: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 1, 200, 1));
const WEB: u16 = 8080;
const DENIED: u16 = 9999;

/// Text of a file of the repository.
fn read(path: &str) -> Result<String> {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).with_context(|| format!("read {path}"))
}

/// Fails unless each label that `template` prints, as `{{label}}` with `prefix` before it, is among `labels`.
fn check_template(template: &str, prefix: &str, labels: &Labels) -> Result<()> {
    for part in template.split("{{").skip(1) {
        let (inside, _) = part.split_once("}}").with_context(|| format!("{template:?}: no end of {{{{"))?;
        // A filter may follow.
        let value = inside.split('|').next().unwrap_or_default().trim();
        if let Some(label) = value.strip_prefix(prefix) {
            anyhow::ensure!(labels.contains(label), "{template:?}: the result has no label {label}");
        }
    }
    Ok(())
}

/// A node with each datapath. On the eBPF node are a client and a server: the backend of a service, with a denied port.
struct Site {
    client: Pod,
    server: Pod,
    _web: TcpListener,
    cluster: Cluster,
}

impl Site {
    fn build() -> Result<Site> {
        let (network, encap, store) = (Network::pods(), Encap::Vxlan, StoreKind::Embedded);
        let shape = Shape { datapaths: [Datapath::Ovs, Datapath::Ebpf], encap, store };
        let mut cluster = Cluster::build(shape)?;
        cluster.start_agents()?;
        cluster.create_network(&network)?;
        let put = |path: &str, body: Value| cluster.client().post_json(path, &body).map(drop);
        put("/api/v1/policys/blue:closed/", json!({"tenantName": "blue", "policyName": "closed"}))?;
        let rule = json!({"tenantName": "blue", "policyName": "closed", "ruleId": "no-admin",
            "direction": "in", "protocol": "tcp", "port": DENIED, "action": "deny", "priority": 10});
        put("/api/v1/rules/blue:closed:no-admin/", rule)?;
        let group =
            json!({"tenantName": "blue", "groupName": "web", "networkName": "pods", "policies": ["closed"]});
        put("/api/v1/endpointGroups/blue:web/", group)?;
        let [plain, ebpf] = &cluster.nodes[..] else { anyhow::bail!("two nodes") };
        let server = Pod::add_to(ebpf, &network, Some("web"), "server")?;
        let service = json!({"tenantName": "blue", "serviceName": "shop", "networkName": "pods",
            "ipAddress": VIP.to_string(), "selectors": ["app=shop"], "ports": [format!("80:{WEB}:TCP")]});
        put("/api/v1/serviceLBs/blue:shop/", service)?;
        let id = &server.call().container_id;
        let started = json!({"Event": "start", "Tenant": "blue", "Network": "pods", "EndpointID": id,
            "ContainerID": id, "EPCommonName": "server", "Labels": {"app": "shop"}});
        put("/plugin/updateEndpoint", started)?;
        let client = Pod::add_to(ebpf, &network, None, "client")?;
        Pod::add_to(plain, &network, None, "short-lived")?.remove(plain)?;
        let web = server.netns().run(|| Ok(TcpListener::bind((server.ip, WEB))?))?;
        Ok(Site { client, server, _web: web, cluster })
    }

    /// Opens a connection to the service, and one that a rule denies.
    fn connect(&self) -> Result<()> {
        let timeout = Duration::from_millis(100);
        self.client.netns().run(|| {
            for to in [SocketAddr::new(VIP, 80), SocketAddr::from((self.server.ip, DENIED))] {
                drop(TcpStream::connect_timeout(&to, timeout));
            }
            Ok(())
        })
    }

    /// Series of all daemons.
    fn scrape(&self) -> Result<Series> {
        let mut series = Series::default();
        let agents = self.cluster.nodes.iter().map(|node| node.client());
        for daemon in agents.chain([self.cluster.client()]) {
            series.add(&daemon.get("/metrics")?.body)?;
        }
        Ok(series)
    }
}

#[test]
fn expressions_name_series_of_running_daemons() {
    needs!(root(), binary("ovs-vswitchd"), binary("ip"), binary("ethtool"));
    let _machine = testkit::shared();
    let (rules, dashboard) = (Rules::read().unwrap(), Dashboard::read().unwrap());
    let site = Site::build().unwrap();
    // Counters of rules and services appear some time after the packets.
    wait_until(DEADLINE, "the series of all expressions", || {
        site.connect()?;
        let series = site.scrape()?;
        rules.check(&series)?;
        dashboard.check(&series)?;
        Ok(Some(()))
    })
    .unwrap();
    let Site { client, server, cluster, .. } = site;
    for pod in [client, server] {
        pod.remove(&cluster.nodes[1]).unwrap();
    }
    cluster.shut_down().unwrap();
}
