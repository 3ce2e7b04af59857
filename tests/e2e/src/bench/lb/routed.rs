//! Baseline: a node that routes between two namespaces, with the rules of kube-proxy or without rules.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use testkit::{Netns, scratch_dir, skip};

use super::rules::{self, Service};
use crate::traffic::{Cpus, Route};

/// First address of the server; the endpoints of the measured services.
const ENDPOINTS: Ipv4Addr = Ipv4Addr::new(10, 100, 2, 2);
const PORT: u16 = 8080;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    None,
    Nftables,
    /// iptables with the legacy backend.
    IptablesLegacy,
    /// iptables with the nf_tables backend.
    IptablesNft,
}

impl Rules {
    pub(super) const ALL: [Rules; 4] =
        [Rules::None, Rules::Nftables, Rules::IptablesLegacy, Rules::IptablesNft];

    pub(super) fn name(self) -> &'static str {
        match self {
            Rules::None => "no rules",
            Rules::Nftables => "nftables",
            Rules::IptablesLegacy => "iptables-legacy",
            Rules::IptablesNft => "iptables-nft",
        }
    }

    /// Program that loads the rules, and its Debian package.
    fn loader(self) -> Option<(&'static str, &'static str)> {
        match self {
            Rules::None => None,
            Rules::Nftables => Some(("nft", "nftables")),
            Rules::IptablesLegacy => Some(("iptables-legacy-restore", "iptables")),
            Rules::IptablesNft => Some(("iptables-nft-restore", "iptables")),
        }
    }

    /// Returns the reason if the program is not installed.
    pub(super) fn missing(self) -> Option<String> {
        let (program, package) = self.loader()?;
        skip::binary(program)?;
        Some(format!(
            "{}: the program {program} is not installed (Debian: apt-get install {package})",
            self.name()
        ))
    }
}

/// Three namespaces: a client, a routing node, and a server with the addresses of all endpoints.
#[derive(Debug)]
pub(super) struct Routed {
    client: Netns,
    server: Netns,
    endpoints: Vec<SocketAddrV4>,
    services: Vec<Service>,
    pub(super) rules: Rules,
    /// Time to load the rules.
    pub(super) load: Duration,
    _node: Netns,
}

impl Routed {
    /// Builds the namespaces. The endpoints of the services in the middle and at the end exist.
    pub(super) fn build(rules: Rules, services: usize, endpoints: usize) -> Result<Routed> {
        let (client, node, server) = (Netns::new("client")?, Netns::new("router")?, Netns::new("server")?);
        let endpoints: Vec<SocketAddrV4> = (0..endpoints as u32)
            .map(|number| SocketAddrV4::new(Ipv4Addr::from(u32::from(ENDPOINTS) + number), PORT))
            .collect();
        node.veth("to-client", &client, "eth0")?;
        node.veth("to-server", &server, "eth0")?;
        client.address("eth0", "10.100.1.2/24")?;
        node.address("to-client", "10.100.1.1/24")?;
        node.address("to-server", "10.100.2.1/24")?;
        for endpoint in &endpoints {
            server.address("eth0", &format!("{}/24", endpoint.ip()))?;
        }
        for (namespace, link) in
            [(&client, "eth0"), (&node, "to-client"), (&node, "to-server"), (&server, "eth0")]
        {
            namespace.up(link)?;
        }
        client.ip("route add default via 10.100.1.1")?;
        server.ip("route add default via 10.100.2.1")?;
        node.output("sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
        let real = [services / 2, services - 1].map(|number| (number, endpoints.clone()));
        let services = rules::services(services, endpoints.len(), &real);
        let load = load(&node, rules, &services).with_context(|| format!("load {}", rules.name()))?;
        Ok(Routed { client, server, endpoints, services, rules, load, _node: node })
    }

    /// Route to the address of the server.
    pub(super) fn direct(&self) -> Result<Route> {
        Ok(self.route(*self.endpoints.first().context("no endpoint")?))
    }

    /// Route to a service, by its position in the rules.
    pub(super) fn service(&self, number: usize) -> Result<Route> {
        Ok(self.route(self.services.get(number).context("no such service")?.address))
    }

    fn route(&self, target: SocketAddrV4) -> Route {
        let servers = self.endpoints.iter().map(|endpoint| (self.server.clone(), (*endpoint).into()));
        Route {
            client: self.client.clone(),
            target: target.into(),
            servers: servers.collect(),
            cpus: None::<Cpus>,
        }
    }
}

fn load(node: &Netns, rules: Rules, services: &[Service]) -> Result<Duration> {
    let text = match rules {
        Rules::None => return Ok(Duration::ZERO),
        Rules::Nftables => rules::nftables(services),
        Rules::IptablesLegacy | Rules::IptablesNft => rules::iptables(services),
    };
    let Some((program, _)) = rules.loader() else { bail!("no program loads {}", rules.name()) };
    let folder = scratch_dir("rules")?;
    let path = folder.path().join("rules");
    fs::write(&path, text)?;
    let path = path.to_string_lossy();
    let arguments = if rules == Rules::Nftables { vec!["-f", &path] } else { vec![&*path] };
    let start = Instant::now();
    node.output(program, &arguments)?;
    Ok(start.elapsed())
}
