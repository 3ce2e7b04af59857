//! Two nodes, two tenants with the same subnet, and proof that their pods reach whom they should and nobody else.

mod keep;
mod matrix;
mod report;
mod service;
mod speed;

use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::{
    cluster::{Cluster, Datapath, Encap, Network, Pod, Shape, StoreKind},
    demo::{matrix::Matrix, service::Outcome},
    interrupt,
    progress::step,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mix {
    Ovs,
    Ebpf,
    /// One node on each
    Mixed,
}

#[derive(Debug, Args)]
pub struct Options {
    /// What forwards on the nodes
    #[arg(long, value_enum, default_value = "mixed")]
    datapath: Mix,
    /// What carries packets between the nodes
    #[arg(long, value_enum, default_value = "vxlan")]
    encap: Encap,
    /// Where the master keeps its state
    #[arg(long, value_enum, default_value = "embedded")]
    store: StoreKind,
    /// Pods of the first tenant on each node; the second tenant has one on each
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=200))]
    pods: u16,
    /// Leave it running, and tell how to look at it and how to stop it
    #[arg(long)]
    keep: bool,
    /// Stop a demo that was left running
    #[arg(long, value_name = "NAME", exclusive = true)]
    stop: Option<String>,
    /// This is the process that keeps the demo running
    #[arg(long, hide = true)]
    supervised: bool,
}

pub fn run(options: &Options) -> Result<()> {
    if let Some(name) = &options.stop {
        return keep::stop(name);
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("the demo makes network namespaces and needs root: run it again with sudo");
    }
    if options.keep && !options.supervised {
        return keep::start_supervised();
    }
    interrupt::catch()?;
    let supervised = options.supervised.then(keep::Supervised::begin).transpose()?;
    let demo = Demo::start(options)?;
    let outcome = demo.show();
    match (&outcome, &supervised) {
        (Ok(()), Some(supervised)) => {
            report::how_to_look(&demo.cluster, &demo.pods, supervised.name());
            supervised.leave_running()?;
        }
        (Err(_), _) if interrupt::check().is_ok() => demo.print_logs(),
        _ => {}
    }
    // Ctrl-C ends the work, not the tidying up.
    interrupt::reset();
    let stopped = step("take everything down", || demo.stop());
    if let (Err(error), Some(_)) = (&stopped, &supervised) {
        // Into the log, for whoever stops it: this process has no other reader left.
        eprintln!("error: {error:#}");
    }
    // What went wrong first matters most.
    outcome.and(stopped)
}

/// A running cluster with its pods; everything goes when this is dropped.
struct Demo {
    pods: Vec<Pod>,
    networks: [Network; 2],
    cluster: Cluster,
}

impl Demo {
    fn start(options: &Options) -> Result<Demo> {
        let datapaths = match options.datapath {
            Mix::Ovs => [Datapath::Ovs; 2],
            Mix::Ebpf => [Datapath::Ebpf; 2],
            Mix::Mixed => [Datapath::Ovs, Datapath::Ebpf],
        };
        let shape = Shape { datapaths, encap: options.encap, store: options.store };
        let start = Instant::now();
        let cluster = step("two nodes, a fabric, and netmaster", || Cluster::build(shape))?;
        let mut demo = Demo { pods: vec![], networks: networks(), cluster };
        let made = demo.fill(options);
        if made.is_err() && interrupt::check().is_ok() {
            demo.print_logs();
        }
        made?;
        eprintln!("  up after {:.1} s", start.elapsed().as_secs_f64());
        Ok(demo)
    }

    fn fill(&mut self, options: &Options) -> Result<()> {
        step("agents", || self.cluster.start_agents())?;
        step("two tenants, each with a network of the same subnet", || {
            self.networks.iter().try_for_each(|network| self.cluster.create_network(network))
        })?;
        step("a service, and a rule on the first tenant's pods", || {
            service::prepare(self.cluster.client(), &self.networks[0])
        })?;
        step("pods, by the CNI plugin", || self.add_pods(options.pods))
    }

    fn add_pods(&mut self, count: u16) -> Result<()> {
        let [first, second] = &self.networks;
        for node in &self.cluster.nodes {
            for number in 1..=count {
                interrupt::check()?;
                let name = format!("{}-{}-{number}", first.tenant, node.name);
                self.pods.push(Pod::add_to(node, first, Some(service::GROUP), &name)?);
            }
        }
        self.use_up_ipv6(second, self.pods.len())?;
        for node in &self.cluster.nodes {
            let name = format!("{}-{}-1", second.tenant, node.name);
            self.pods.push(Pod::add(node, second, &name)?);
        }
        Ok(())
    }

    /// Both tenants number their IPv6 hosts from the start. That an address is not reached says something only if
    /// no pod of the own tenant has it, so the second tenant begins behind the first one's.
    fn use_up_ipv6(&self, network: &Network, count: usize) -> Result<()> {
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

    /// Everything that is to be seen; an error if anything is not as it should be.
    fn show(&self) -> Result<()> {
        println!("{}", report::pods(&self.pods));
        let matrix = step("pings between all pods, IPv4 and IPv6", || Matrix::measure(&self.pods))?;
        println!("{}", matrix.table(&self.pods));
        let service = step("connections to the service, and such as the rule forbids", || {
            Outcome::measure(&self.cluster, &self.networks[0], &self.pods)
        })?;
        println!("{}", service.table());
        let speeds = step("TCP between each kind of pair", || speed::measure(&self.pods))?;
        println!("{}", speed::table(&speeds));
        let wrong = [matrix.wrong(&self.pods), service.wrong()].concat();
        if !wrong.is_empty() {
            bail!("not as it should be:\n  {}", wrong.join("\n  "));
        }
        println!("{}", matrix.summary());
        Ok(())
    }

    /// CNI DEL for all pods, networks and tenants by the API, daemons by signal; nothing may be left.
    fn stop(mut self) -> Result<()> {
        for pod in std::mem::take(&mut self.pods) {
            let node = self.cluster.nodes.iter().find(|node| node.name == pod.node);
            pod.remove(node.context("the pod's node is gone")?)?;
        }
        for node in &self.cluster.nodes {
            let left = node.pod_links()?;
            if !left.is_empty() {
                bail!("{} still has {}", node.name, left.join(", "));
            }
        }
        service::remove(self.cluster.client(), &self.networks[0])?;
        for network in &self.networks {
            self.no_endpoints(network)?;
            self.cluster.delete_network(network)?;
        }
        self.cluster.shut_down()?;
        // The cluster looked after its own; this process made nothing else that may stay.
        let left: Vec<_> = testkit::leftovers()?.iter().map(|path| path.display().to_string()).collect();
        if !left.is_empty() {
            bail!("left behind: {}", left.join(", "));
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

/// The same subnet twice; the ranges only keep the addresses apart, so that "reached" has one meaning.
fn networks() -> [Network; 2] {
    [("blue", "10.1.1.1-10.1.100.254/16", "10.1.254.1"), ("red", "10.1.101.1-10.1.200.254/16", "10.1.254.2")]
        .map(|(tenant, subnet, gateway)| Network {
            tenant: tenant.to_owned(),
            name: "pods".to_owned(),
            subnet: subnet.to_owned(),
            gateway: gateway.to_owned(),
            ipv6_subnet: "2001:db8:1::/64".to_owned(),
            ipv6_gateway: "2001:db8:1::ffff".to_owned(),
        })
}
