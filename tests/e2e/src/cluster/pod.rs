use std::{
    io::Write as _,
    net::{Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use testkit::Netns;

use super::{node::Node, shape::Datapath};
use crate::binaries::Binary;

const INTERFACE: &str = "eth0";
const CNI_VERSION: &str = "1.0.0";

/// A network of a tenant.
#[derive(Debug, Clone)]
pub struct Network {
    pub tenant: String,
    pub name: String,
    /// Subnet, or a range of addresses in it: `10.1.1.10-10.1.1.99/24`.
    pub subnet: String,
    pub gateway: String,
    pub ipv6_subnet: String,
    pub ipv6_gateway: String,
}

impl Network {
    /// Network of benchmarks.
    pub fn bench() -> Network {
        Network { tenant: "bench".to_owned(), ..Network::pods() }
    }

    /// Default network of tests.
    pub fn pods() -> Network {
        Network {
            tenant: "blue".to_owned(),
            name: "pods".to_owned(),
            subnet: "10.1.0.0/16".to_owned(),
            gateway: "10.1.255.254".to_owned(),
            ipv6_subnet: "2001:db8:1::/64".to_owned(),
            ipv6_gateway: "2001:db8:1::ffff".to_owned(),
        }
    }
}

/// A namespace with an interface from the CNI plugin.
#[derive(Debug)]
pub struct Pod {
    pub name: String,
    pub tenant: String,
    pub network: String,
    pub node: String,
    pub datapath: Datapath,
    pub ip: Ipv4Addr,
    pub ipv6: Option<Ipv6Addr>,
    pub mac: String,
    call: Call,
    netns: Netns,
}

/// Parameters of a CNI call.
#[derive(Debug, Clone)]
pub struct Call {
    pub container_id: String,
    pub netns: PathBuf,
    pub arguments: String,
    pub config: Value,
}

impl Call {
    pub fn new(node: &Node, network: &Network, pod: &str, netns: &Netns) -> Call {
        Call::at(&node.cni_socket(), network, pod, netns)
    }

    /// Call to the agent that listens at `socket`.
    pub fn at(socket: &Path, network: &Network, pod: &str, netns: &Netns) -> Call {
        // Hexadecimal like those of container runtimes; unique because the name of the namespace is.
        let container_id = netns.name().bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        Call {
            arguments: format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={container_id}",
                network.tenant
            ),
            container_id,
            netns: netns.path().to_owned(),
            config: json!({
                "cniVersion": CNI_VERSION,
                "name": "contiv-net",
                "type": "contivk8s",
                "socket": socket,
                "args": { "cni": { "labels": [
                    { "key": "io.contiv.tenant", "value": network.tenant },
                    { "key": "io.contiv.network", "value": network.name },
                ] } },
            }),
        }
    }

    /// Runs the plugin on the node and returns its output, whatever its status.
    pub fn run(&self, node: &Node, verb: &str) -> Result<Output> {
        self.run_in(node.netns(), verb)
    }

    /// Runs the plugin in the namespace of a node and returns its output, whatever its status.
    pub fn run_in(&self, node: &Netns, verb: &str) -> Result<Output> {
        let binary = Binary::Contivk8s.path()?;
        let mut command = Binary::Contivk8s.command()?;
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", &self.container_id)
            .env("CNI_NETNS", &self.netns)
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_PATH", binary.parent().context("the path of the plugin has no parent")?)
            .env("CNI_ARGS", &self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let config = self.config.to_string();
        node.run(move || {
            let mut child = command.spawn().context("run contivk8s")?;
            if let Some(mut stdin) = child.stdin.take() {
                match stdin.write_all(config.as_bytes()) {
                    // A plugin that fails early does not read its input; its output has the cause.
                    Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
                    result => result.context("write the network configuration")?,
                }
            }
            child.wait_with_output().context("wait for contivk8s")
        })
    }

    /// Runs the plugin and returns its standard output; the error has its output.
    pub fn expect(&self, node: &Node, verb: &str) -> Result<String> {
        let output = self.run(node, verb)?;
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            bail!(
                "CNI {verb} on {}: {}: {}{}",
                node.name,
                output.status,
                stdout.trim(),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(stdout)
    }
}

impl Pod {
    pub fn add(node: &Node, network: &Network, name: &str) -> Result<Pod> {
        Pod::add_to(node, network, None, name)
    }

    /// Adds a pod to an endpoint group of the network's tenant.
    pub fn add_to(node: &Node, network: &Network, group: Option<&str>, name: &str) -> Result<Pod> {
        let netns = Netns::new(name)?;
        let mut call = Call::new(node, network, name, &netns);
        if let (Some(group), Some(labels)) = (group, call.config["args"]["cni"]["labels"].as_array_mut()) {
            labels.push(json!({ "key": "io.contiv.net-group", "value": group }));
        }
        let result = call.expect(node, "ADD").with_context(|| format!("add pod {name}"))?;
        let result: Value =
            serde_json::from_str(&result).with_context(|| format!("the CNI result of {name}: {result}"))?;
        let (ip, ipv6) = addresses(&result)?;
        let mac = netns.interface(INTERFACE)?.mac;
        Ok(Pod {
            name: name.to_owned(),
            tenant: network.tenant.clone(),
            network: network.name.clone(),
            node: node.name.clone(),
            datapath: node.datapath,
            ip: ip.with_context(|| format!("CNI result without IPv4 address: {result}"))?,
            ipv6,
            mac,
            call,
            netns,
        })
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    pub fn call(&self) -> &Call {
        &self.call
    }

    /// Runs CNI DEL and removes the namespace.
    pub fn remove(self, node: &Node) -> Result<()> {
        self.call.expect(node, "DEL").map(drop).with_context(|| format!("delete pod {}", self.name))
    }
}

fn addresses(result: &Value) -> Result<(Option<Ipv4Addr>, Option<Ipv6Addr>)> {
    let (mut v4, mut v6) = (None, None);
    for entry in result["ips"].as_array().context("CNI result without ips")? {
        let text = entry["address"].as_str().context("address in the CNI result is not a string")?;
        let (address, _length) =
            text.split_once('/').with_context(|| format!("{text}: missing prefix length"))?;
        match address.parse()? {
            std::net::IpAddr::V4(address) => v4 = Some(address),
            std::net::IpAddr::V6(address) => v6 = Some(address),
        }
    }
    Ok((v4, v6))
}
