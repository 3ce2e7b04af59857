//! Demo: two nodes, two tenants with the same subnet. Checks that pods reach pods of their tenant and no others, in forward mode
//! `routing` those of its other network, too.

mod keep;
mod matrix;
mod report;
mod service;
mod speed;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Datapath, Encap, Network, Pod, Shape, StoreKind},
    demo::{matrix::Matrix, service::ServiceCheck},
    interrupt,
    progress::step,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DatapathChoice {
    Ovs,
    Ebpf,
    /// One node with each datapath
    Mixed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ForwardMode {
    /// Networks are apart
    Bridge,
    /// Nodes route between the networks of a tenant
    Routing,
}

#[derive(Debug, Args)]
pub struct Options {
    /// Datapath of the nodes
    #[arg(long, value_enum, default_value = "mixed")]
    datapath: DatapathChoice,
    /// Encapsulation between the nodes
    #[arg(long, value_enum, default_value = "vxlan")]
    encap: Encap,
    /// Forward mode of the cluster
    #[arg(long, value_enum, default_value = "bridge")]
    fwdmode: ForwardMode,
    /// Store of netmaster
    #[arg(long, value_enum, default_value = "embedded")]
    store: StoreKind,
    /// Number of pods of the first tenant per node; the second tenant has one pod per node
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=200))]
    pods: u16,
    /// Keep the demo running after the checks, and print commands to inspect and stop it
    #[arg(long)]
    keep: bool,
    /// Stop a demo that was started with --keep
    #[arg(long, value_name = "NAME", exclusive = true)]
    stop: Option<String>,
    /// Duration of each throughput and connection rate measurement in seconds
    #[arg(long, hide = true, default_value_t = 0.7)]
    speed_seconds: f64,
    /// Internal: run as the process that owns a demo started with --keep
    #[arg(long, hide = true)]
    supervised: bool,
}

pub fn run(options: &Options) -> Result<()> {
    if let Some(name) = &options.stop {
        return keep::stop(name);
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("start the demo: creating network namespaces requires root; run it with sudo");
    }
    if options.keep && !options.supervised {
        return keep::start_supervised();
    }
    if (options.fwdmode, options.encap) == (ForwardMode::Routing, Encap::Vlan) {
        bail!(
            "--fwdmode routing with --encap vlan: networks over VLAN are routed by a switch, which the demo lacks"
        );
    }
    interrupt::catch()?;
    let supervised = options.supervised.then(keep::Supervised::begin).transpose()?;
    let demo = Demo::start(options)?;
    let outcome = demo.run_checks(Duration::from_secs_f64(options.speed_seconds));
    match (&outcome, &supervised) {
        (Ok(()), Some(supervised)) => {
            report::print_commands(&demo.cluster, &demo.pods, supervised.name());
            supervised.leave_running()?;
        }
        (Err(_), _) if interrupt::check().is_ok() => demo.print_logs(),
        _ => {}
    }
    // An interrupt ends the checks; the cleanup still runs.
    interrupt::reset();
    let stopped = step("clean up", || demo.stop());
    if let (Err(error), Some(_)) = (&stopped, &supervised) {
        // Into the log, which `demo --stop` reads.
        eprintln!("error: {error:#}");
    }
    // The first error is the cause.
    outcome.and(stopped)
}

/// A running cluster with its pods; removed when dropped.
struct Demo {
    pods: Vec<Pod>,
    networks: Networks,
    cluster: Cluster,
}

impl Demo {
    fn start(options: &Options) -> Result<Demo> {
        let datapaths = match options.datapath {
            DatapathChoice::Ovs => [Datapath::Ovs; 2],
            DatapathChoice::Ebpf => [Datapath::Ebpf; 2],
            DatapathChoice::Mixed => [Datapath::Ovs, Datapath::Ebpf],
        };
        let shape = Shape { datapaths, encap: options.encap, store: options.store };
        let start = Instant::now();
        let cluster = step("start two nodes and netmaster", || Cluster::build(shape))?;
        let mut demo = Demo { pods: vec![], networks: Networks::of(options.fwdmode), cluster };
        let filled = demo.fill(options);
        if filled.is_err() && interrupt::check().is_ok() {
            demo.print_logs();
        }
        filled?;
        eprintln!("  ready after {:.1} s", start.elapsed().as_secs_f64());
        Ok(demo)
    }

    fn fill(&mut self, options: &Options) -> Result<()> {
        step("start the agents", || self.cluster.start_agents())?;
        if options.fwdmode == ForwardMode::Routing {
            step("change the forward mode to routing", || self.cluster.route())?;
        }
        step("create two tenants with the same subnet", || {
            let Networks { first, routed, second } = &self.networks;
            self.cluster.create_network(first)?;
            routed.iter().try_for_each(|network| self.cluster.add_network(network))?;
            self.cluster.create_network(second)
        })?;
        step("create a service and a deny rule for the first tenant", || {
            service::prepare(self.cluster.client(), &self.networks.first)
        })?;
        step("add pods with the CNI plugin", || self.add_pods(options.pods))
    }

    fn add_pods(&mut self, count: u16) -> Result<()> {
        let Networks { first, routed, second } = &self.networks;
        for node in &self.cluster.nodes {
            for number in 1..=count {
                interrupt::check()?;
                let name = format!("{}-{}-{number}", first.tenant, node.name);
                self.pods.push(Pod::add_to(node, first, Some(service::GROUP), &name)?);
            }
        }
        self.skip_ipv6_addresses(second, self.pods.len())?;
        for (node, network) in
            self.cluster.nodes.iter().flat_map(|node| routed.iter().map(move |it| (node, it)))
        {
            let name = format!("{}-{}-{}", network.tenant, node.name, network.name);
            self.pods.push(Pod::add(node, network, &name)?);
        }
        for node in &self.cluster.nodes {
            let name = format!("{}-{}-1", second.tenant, node.name);
            self.pods.push(Pod::add(node, second, &name)?);
        }
        Ok(())
    }

    /// Allocates and releases the first IPv6 addresses of a network. Both tenants allocate the same addresses otherwise, and
    /// a ping to an address would not show which tenant's pod replies.
    fn skip_ipv6_addresses(&self, network: &Network, count: usize) -> Result<()> {
        for number in 0..count {
            let endpoint = json!({
                "TenantName": network.tenant,
                "NetworkName": network.name,
                "EndpointID": format!("placeholder-{number}"),
                "ConfigEP": { "Container": format!("placeholder-{number}"), "Host": "nowhere" },
            });
            self.cluster.client().post_json("/plugin/createEndpoint", &endpoint)?;
            self.cluster.client().post_json("/plugin/deleteEndpoint", &endpoint)?;
        }
        Ok(())
    }

    /// Runs all checks and prints the results.
    fn run_checks(&self, speed_duration: Duration) -> Result<()> {
        println!("{}", report::pods(&self.pods));
        let matrix = step("ping between all pods, IPv4 and IPv6", || Matrix::measure(&self.pods))?;
        println!("{}", matrix.table(&self.pods));
        let service = step("connect to the service and to the denied port", || {
            ServiceCheck::run(&self.cluster, &self.networks.first, &self.pods)
        })?;
        println!("{}", service.table());
        let speeds = step("measure TCP between pods", || speed::measure(&self.pods, speed_duration))?;
        println!("{}", speed::table(&speeds));
        let errors = [matrix.errors(&self.pods), service.errors()].concat();
        if !errors.is_empty() {
            bail!("checks failed:\n  {}", errors.join("\n  "));
        }
        println!("{}", matrix.summary());
        Ok(())
    }

    /// Deletes pods, networks and tenants, stops the daemons, and checks that all resources are removed.
    fn stop(mut self) -> Result<()> {
        for pod in std::mem::take(&mut self.pods) {
            let node = self.cluster.nodes.iter().find(|node| node.name == pod.node);
            pod.remove(node.context("the pod's node does not exist")?)?;
        }
        for node in &self.cluster.nodes {
            let left = node.pod_links()?;
            if !left.is_empty() {
                bail!("{} still has {}", node.name, left.join(", "));
            }
        }
        service::remove(self.cluster.client(), &self.networks.first)?;
        let networks = self.networks.all();
        networks.iter().try_for_each(|network| self.no_endpoints(network))?;
        self.cluster.delete_networks(&networks)?;
        self.cluster.shut_down()?;
        // `shut_down` checks the resources of the cluster; this checks all resources of the process.
        let left: Vec<_> = testkit::leftovers()?.iter().map(|path| path.display().to_string()).collect();
        if !left.is_empty() {
            bail!("not removed: {}", left.join(", "));
        }
        Ok(())
    }

    fn no_endpoints(&self, network: &Network) -> Result<()> {
        let path = format!("/api/v1/inspect/networks/{}:{}/", network.tenant, network.name);
        let state = self.cluster.client().get_json(&path)?;
        match &state["Oper"]["numEndpoints"] {
            Value::Null => Ok(()),
            count => bail!("{}:{} still has {count} endpoints", network.tenant, network.name),
        }
    }

    fn print_logs(&self) {
        report::logs(&self.cluster);
    }
}

/// The networks of both tenants.
struct Networks {
    first: Network,
    /// Another one of the first tenant, in forward mode `routing`.
    routed: Option<Network>,
    second: Network,
}

impl Networks {
    /// `first` and `second` have the same subnet, with disjoint address ranges: a reply then identifies the pod.
    fn of(mode: ForwardMode) -> Networks {
        let pods = |tenant: &str, subnet: &str, gateway: &str| Network {
            tenant: tenant.to_owned(),
            name: "pods".to_owned(),
            subnet: subnet.to_owned(),
            gateway: gateway.to_owned(),
            ipv6_subnet: "2001:db8:1::/64".to_owned(),
            ipv6_gateway: "2001:db8:1::ffff".to_owned(),
        };
        let routed = Network {
            tenant: "blue".to_owned(),
            name: "db".to_owned(),
            subnet: "10.2.0.0/16".to_owned(),
            gateway: "10.2.254.1".to_owned(),
            ipv6_subnet: "2001:db8:2::/64".to_owned(),
            ipv6_gateway: "2001:db8:2::ffff".to_owned(),
        };
        Networks {
            first: pods("blue", "10.1.1.1-10.1.100.254/16", "10.1.254.1"),
            routed: (mode == ForwardMode::Routing).then_some(routed),
            second: pods("red", "10.1.101.1-10.1.200.254/16", "10.1.254.2"),
        }
    }

    fn all(&self) -> Vec<Network> {
        [&self.first].into_iter().chain(&self.routed).chain([&self.second]).cloned().collect()
    }
}
