use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use testkit::{
    BpfDir, Netns, Process,
    ovs::{self, Switch},
    scratch_dir,
};

use super::{
    fabric::Fabric,
    shape::{Datapath, Encap, management_address},
};
use crate::{binaries::Binary, http::Client};

const MANAGEMENT: &str = "mgmt0";
const UNDERLAY: &str = "underlay0";
const UPLINK: &str = "uplink0";
/// Bridge with the underlay address: a userspace switch sends tunnel packets only through its own ports.
const PHYSICAL_BRIDGE: &str = "br-phy";
const REST_PORT: u16 = 9090;
/// Sizes of the maps of eBPF nodes, with room for the largest benchmark.
const LARGE: [&str; 8] = [
    "--bpf-endpoints",
    "262144",
    "--bpf-services",
    "65536",
    "--bpf-backends",
    "131072",
    "--bpf-rules",
    "262144",
];
const REPLACE: &str = "--replace-datapath";
const START_TIMEOUT: Duration = Duration::from_secs(30);
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// A simulated host: namespace, agent, and a switch for the OVS datapath.
#[derive(Debug)]
pub struct Node {
    pub name: String,
    pub datapath: Datapath,
    number: u8,
    agent: Option<Process>,
    command: Option<Vec<String>>,
    switch: Option<Switch>,
    pins: BpfDir,
    netns: Netns,
    run: TempDir,
    client: Client,
}

impl Node {
    pub(super) fn new(number: u8, datapath: Datapath, fabric: &Fabric) -> Result<Node> {
        let name = format!("node{number}");
        let netns = Netns::new(&name)?;
        fabric.connect(&netns, MANAGEMENT, &format!("to-{name}"))?;
        let address = management_address(10 + number);
        netns.address(MANAGEMENT, &format!("{address}/24"))?;
        netns.up(MANAGEMENT)?;
        let switch = match datapath {
            Datapath::Ovs => Some(Switch::start(&netns)?),
            Datapath::Ebpf => None,
        };
        Ok(Node {
            pins: BpfDir::new(&name)?,
            run: scratch_dir(&name)?,
            client: Client::within(fabric.netns(), SocketAddr::from((address, REST_PORT))),
            agent: None,
            command: None,
            name,
            datapath,
            number,
            switch,
            netns,
        })
    }

    /// The link for tunnels and the one for VLANs.
    pub(super) fn wire(first: &Node, second: &Node) -> Result<()> {
        for link in [UNDERLAY, UPLINK] {
            first.netns.veth(link, &second.netns, link)?;
            for node in [first, second] {
                node.netns.up(link)?;
                // A userspace switch at the other end needs complete checksums, and no hardware completes them.
                node.netns.tx_checksum_off(link)?;
            }
        }
        Ok(())
    }

    /// Configures the tunnel address, as an administrator does before starting the agent.
    pub(super) fn prepare_underlay(&mut self) -> Result<()> {
        let device = match &self.switch {
            // The kernel sends tunnel packets through any link.
            Some(switch) if !ovs::on_kernel() => {
                switch.vsctl(&[
                    "add-br",
                    PHYSICAL_BRIDGE,
                    "--",
                    "set",
                    "bridge",
                    PHYSICAL_BRIDGE,
                    "datapath_type=netdev",
                ])?;
                switch.vsctl(&["add-port", PHYSICAL_BRIDGE, UNDERLAY])?;
                // The kernel receives every frame of the port, too, and would reply to ARP requests for the bridge's
                // address with the MAC address of the port.
                self.netns.ip(&format!("link set {UNDERLAY} arp off"))?;
                PHYSICAL_BRIDGE
            }
            _ => UNDERLAY,
        };
        self.netns.address(device, &format!("{}/24", self.underlay_address()))?;
        self.netns.up(device)
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    pub fn switch(&self) -> Option<&Switch> {
        self.switch.as_ref()
    }

    pub fn switch_mut(&mut self) -> Option<&mut Switch> {
        self.switch.as_mut()
    }

    pub fn pins(&self) -> &Path {
        self.pins.path()
    }

    /// Client of the agent's REST API.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn cni_socket(&self) -> PathBuf {
        self.run.path().join("contiv-cni.sock")
    }

    pub fn agent(&mut self) -> Result<&mut Process> {
        self.agent.as_mut().context("the agent was not started")
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        vec![self.netns.path().to_owned(), self.pins().to_owned(), self.run.path().to_owned()]
    }

    pub(super) fn tail(&self) -> Option<String> {
        self.agent.as_ref().map(Process::tail)
    }

    pub fn underlay_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(192, 168, 77, self.number)
    }

    pub(super) fn start_agent(&mut self, store: &str, encap: Encap) -> Result<()> {
        let address = management_address(10 + self.number).to_string();
        let mut words =
            vec!["--mode", "cni", "--netmode", encap.name(), "--fwdmode", "bridge", "--etcd", store];
        let (underlay, socket) = (self.underlay_address().to_string(), self.cni_socket());
        let (socket, rest) = (socket.to_string_lossy(), format!("{address}:{REST_PORT}"));
        words.extend(["--host", &self.name, "--ctrl-ip", &address, "--vtep-ip", &underlay]);
        words.extend(["--cni-socket", &socket, "--rest-address", &rest]);
        if self.switch.is_none() {
            words.extend(LARGE);
        }
        let words = words.into_iter().map(str::to_owned);
        self.command = Some(words.chain(self.datapath_flags()).collect());
        self.spawn_agent()
    }

    fn datapath_flags(&self) -> Vec<String> {
        let pins = self.pins().to_string_lossy();
        let mut words =
            vec!["--vlan-uplinks", UPLINK, "--datapath", self.datapath.name(), "--bpf-root", &pins];
        let database = self.switch.as_ref().map(|switch| format!("unix:{}", switch.socket().display()));
        if let Some(database) = &database {
            let kind = if ovs::on_kernel() { "system" } else { "netdev" };
            words.extend(["--ovsdb", database, "--ovs-datapath-type", kind]);
        }
        words.into_iter().map(str::to_owned).collect()
    }

    /// Runs `netplugin cleanup --ports`, which removes a node from the cluster.
    pub fn clean_up(&self) -> Result<()> {
        self.clean_up_with(&["--ports"])
    }

    /// Runs `netplugin cleanup` with these flags.
    pub fn clean_up_with(&self, flags: &[&str]) -> Result<()> {
        let mut command = Binary::Netplugin.command()?;
        command.arg("cleanup").args(flags).args(self.datapath_flags());
        let output = self.netns.run(move || command.output().context("run netplugin cleanup"))?;
        if !output.status.success() {
            bail!("netplugin cleanup on {}: {}", self.name, String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(())
    }

    /// Starts an agent with the other datapath and returns its output; fails unless the agent exits with an error.
    pub fn refusal_of(&self, other: Datapath) -> Result<String> {
        self.refusal_with(&[("--datapath", other.name())], &[])
    }

    /// As [`refusal_of`](Self::refusal_of), with other values of flags and additional ones.
    pub fn refusal_with(&self, values: &[(&str, &str)], more: &[&str]) -> Result<String> {
        let mut agent = self.agent_with(values, more)?;
        if agent.wait(START_TIMEOUT)?.success() {
            bail!("netplugin with {values:?} {more:?} on {} ended without an error", self.name);
        }
        Ok(agent.log())
    }

    /// Starts an agent with other values of flags and additional ones, beside the node's own, which must not run.
    pub fn agent_with(&self, values: &[(&str, &str)], more: &[&str]) -> Result<Process> {
        let mut words = self.command.clone().context("the agent was not started")?;
        for (flag, value) in values {
            let at = words.iter().position(|word| word == flag).with_context(|| format!("no {flag}"))?;
            words[at + 1] = (*value).to_owned();
        }
        words.extend(more.iter().map(|flag| (*flag).to_owned()));
        let mut command = Binary::Netplugin.command()?;
        command.args(words);
        Process::spawn_in(&self.netns, &format!("other-{}", self.name), command)
    }

    fn spawn_agent(&mut self) -> Result<()> {
        self.spawn_agent_with(None)
    }

    fn spawn_agent_with(&mut self, variable: Option<(&str, String)>) -> Result<()> {
        let words = self.command.as_ref().context("the agent was not started")?;
        let mut command = Binary::Netplugin.command()?;
        command.args(words).envs(variable);
        self.agent = Some(Process::spawn_in(&self.netns, &format!("netplugin-{}", self.name), command)?);
        Ok(())
    }

    /// Waits until the agent has applied the state of the store.
    pub fn wait_ready(&mut self) -> Result<()> {
        let client = self.client.clone();
        self.agent()?.wait_ready(START_TIMEOUT, "the agent is ready", || {
            let response = client.get("/readyz")?;
            match response.status {
                200 => Ok(Some(())),
                status => bail!("/readyz: {status} {}", response.first_line()),
            }
        })
    }

    /// Sends SIGKILL to the agent; forwarding continues.
    pub fn kill_agent(&mut self) -> Result<()> {
        self.agent()?.kill()
    }

    /// Restarts the agent with the same flags.
    pub fn restart_agent(&mut self) -> Result<()> {
        self.agent()?.kill()?;
        self.spawn_agent()?;
        self.wait_ready()
    }

    /// Restarts the agent with additional flags.
    pub fn restart_agent_with(&mut self, flags: &[&str]) -> Result<()> {
        let words = self.command.as_mut().context("the agent was not started")?;
        words.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.restart_agent()
    }

    /// Restarts the agent with another value of a flag that it has.
    pub fn restart_agent_as(&mut self, flag: &str, value: &str) -> Result<()> {
        let words = self.command.as_mut().context("the agent was not started")?;
        let at = words.iter().position(|word| word == flag).with_context(|| format!("no {flag}"))?;
        words[at + 1] = value.to_owned();
        self.restart_agent()
    }

    /// Restarts the agent with another datapath, which takes the pods over. OVS needs the switch that the node was built with.
    pub fn replace_datapath(&mut self, datapath: Datapath) -> Result<()> {
        self.set_datapath(datapath)?;
        self.restart_agent()
    }

    /// As [`replace_datapath`](Self::replace_datapath), and sends SIGKILL to the agent after this time.
    pub fn begin_to_replace_datapath(&mut self, datapath: Datapath, time: Duration) -> Result<()> {
        self.set_datapath(datapath)?;
        self.restart_and_kill_agent(time)
    }

    /// Restarts the agent with the same flags, and sends SIGKILL after this time.
    pub fn restart_and_kill_agent(&mut self, time: Duration) -> Result<()> {
        self.kill_agent()?;
        self.spawn_agent()?;
        thread::sleep(time);
        self.kill_agent()
    }

    /// As [`replace_datapath`](Self::replace_datapath), with an agent that kills itself after this step. Returns its name; `None` if
    /// there are not so many.
    pub fn replace_datapath_until(&mut self, datapath: Datapath, step: usize) -> Result<Option<String>> {
        self.set_datapath(datapath)?;
        self.kill_agent()?;
        self.spawn_agent_with(Some(("CONTIV_KILL_AT_STEP", step.to_string())))?;
        let ready = self.wait_ready();
        let agent = self.agent()?;
        if agent.ended()?.is_none() {
            return ready.map(|()| None);
        }
        let log = agent.log();
        let (_, name) = log.split_once("killed after step").with_context(|| format!("not killed: {log}"))?;
        Ok(name.lines().next().map(str::to_owned))
    }

    /// Restarts the agent with this datapath, and without the permission to replace another one.
    pub fn keep_datapath(&mut self, datapath: Datapath) -> Result<()> {
        self.set_datapath(datapath)?;
        let words = self.command.as_mut().context("the agent was not started")?;
        words.retain(|word| word != REPLACE);
        self.restart_agent()
    }

    fn set_datapath(&mut self, datapath: Datapath) -> Result<()> {
        let words = self.command.as_mut().context("the agent was not started")?;
        let at = words.iter().position(|word| word == "--datapath").context("no --datapath")?;
        words[at + 1] = datapath.name().to_owned();
        if !words.iter().any(|word| word == REPLACE) {
            words.push(REPLACE.to_owned());
        }
        self.datapath = datapath;
        Ok(())
    }

    /// Value of a counter or gauge of `/metrics`; `name` includes its labels.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let response = self.client.get("/metrics")?;
        response
            .body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
            .with_context(|| format!("{} has no metric {name}", self.name))
    }

    /// Host interfaces of pods on this node.
    pub fn pod_links(&self) -> Result<Vec<String>> {
        Ok(self.netns.links()?.into_iter().filter(|link| link.starts_with("vvport")).collect())
    }

    /// Stops the agent, then the switch, which removes the forwarding state.
    pub(super) fn stop(&mut self) -> Result<()> {
        if let Some(mut agent) = self.agent.take() {
            let status = agent.terminate(STOP_TIMEOUT)?;
            if !status.success() {
                bail!("the agent of {} ended with {status}: {}", self.name, agent.tail());
            }
        }
        match self.switch.take() {
            Some(switch) => switch.stop(),
            None => Ok(()),
        }
    }
}
