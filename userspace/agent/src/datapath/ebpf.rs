//! The eBPF datapath: TC and XDP programs in the kernel, which the agent configures through maps.
//!
//! Programs, maps and the links that attach programs to interfaces are pinned in the BPF file system. They outlive the
//! agent: the next process adopts them ([`observe`](Datapath::observe)), compares the maps with the desired state, and
//! writes the difference. Pinned programs of another build are replaced in place.
//!
//! ```text
//! apply, observe   execute operations; compare the kernel with the desired state
//! takeover         flows, sessions and counters of another ABI version
//! kernel           entries of objects, their owners, orphans; all maps and programs
//! telemetry, trace counters, connections, packet events; the way of one packet
//! programs         load and attach programs
//! service, policy, rate, forward   the tables of each subject
//! maps             access to pinned maps
//! device, failure  netlink and ethtool; errors
//! ```

use std::{
    collections::BTreeMap,
    fs::File,
    future,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use contiv_abi::{
    ABI_VERSION, DropCount, DropReason, Phase, Timeouts,
    maps::{FLOWS, FLOWS_CAPACITY},
};
use futures::future::BoxFuture;
use nix::fcntl::Flock;
use serde_json::json;

use super::{
    Datapath, Desired, Error, FailedOp, Object, Observed, Op, PortRequirements, Postponed, TrackedConnection,
    skb,
    telemetry::{Counters, Stats, Telemetry},
    trace::{Findings, Probe},
};
use crate::error::one_line;

mod announce;
mod apply;
mod device;
mod failure;
mod forward;
mod kernel;
mod maps;
mod observe;
mod policy;
mod programs;
mod rate;
mod service;
mod takeover;
mod telemetry;
mod trace;
mod uplinks;

pub use super::skb::skb_layout;
use device::{InterfaceMonitor, Netlink};
use failure::failed;
use forward::peers::Settings;
use kernel::{
    installed::Installed,
    tables::{Kernel, KernelOptions},
};
pub use maps::sizes::Sizes;
use maps::{
    export::PhaseSwitch,
    flows,
    names::{RuleNames, ServiceNames},
    pins::Pins,
    writes::Writes,
};
use programs::{
    interfaces::{Configuration, Devices, Interfaces},
    kernel_port::KernelPort,
    xdp::XdpStatus,
};
pub use programs::{
    load::{LOG_OBJECT, OBJECT},
    stage_log::LogEndpoint,
    tc::AttachMode,
    xdp::XdpPreference,
};
use rate::queues;
use service::announcer::Announcer;
use takeover::Takeovers;
use telemetry::{counters, dump, events::MapTelemetry};
use uplinks::Uplinks;

/// Options of a node.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directory of the pins, on a BPF file system or where the agent may mount one.
    pub bpf_root: PathBuf,
    /// Name of the node's directory in `bpf_root`, for several nodes on one machine.
    pub instance: String,
    /// Name of the VXLAN device.
    pub vxlan_device: String,
    /// UDP port of the tunnels, equal on all nodes of the cluster.
    pub vxlan_port: u16,
    /// Tunnel address of this node, by which the agent finds the underlay interface. On a veth, as in tests and demos, it
    /// disables TX checksum offload of the VXLAN device.
    pub vtep: Option<IpAddr>,
    /// Interfaces that carry the VLAN networks, in the order of preference. One of those with a carrier is active, the
    /// others stand by.
    pub uplinks: Vec<String>,
    /// How TC programs are attached.
    pub attach_mode: AttachMode,
    /// XDP mode on the uplink.
    pub xdp: XdpPreference,
    /// Timeouts of tracked flows.
    pub timeouts: Timeouts,
    /// Broadcast, unknown unicast and multicast frames that a port may send in a second; zero for no limit.
    pub bum_rate: u32,
    /// Capacity of the flow table. A table of another capacity is replaced, with its flows, if they fit.
    pub flows: u32,
    /// Endpoint for whose frames the programs log the result of each stage. Other programs are loaded then, which are slower.
    pub log_stages: Option<LogEndpoint>,
    /// Sizes of the maps that the agent fills. Existing maps keep theirs.
    pub sizes: Sizes,
    /// Whether new endpoints of VLAN networks are announced on the active uplink.
    pub announce: bool,
    /// ABI version of the pins, for tests of upgrades: the maps have the layout of this build.
    #[doc(hidden)]
    pub abi_version: u32,
}

impl Options {
    /// Default of `bpf_root`.
    pub const BPF_ROOT: &'static str = "/sys/fs/bpf/contiv";
    /// Default of `vxlan_device`.
    pub const VXLAN_DEVICE: &'static str = "contivvx0";
    /// Default of `vxlan_port`, assigned by IANA.
    pub const VXLAN_PORT: u16 = 4789;
    /// Default of `bum_rate`: far above what address resolution and discovery need.
    pub const BUM_RATE: u32 = 1000;
}

impl Default for Options {
    fn default() -> Self {
        Options {
            bpf_root: Options::BPF_ROOT.into(),
            instance: "default".into(),
            vxlan_device: Options::VXLAN_DEVICE.into(),
            vxlan_port: Options::VXLAN_PORT,
            vtep: None,
            uplinks: vec![],
            attach_mode: AttachMode::default(),
            xdp: XdpPreference::default(),
            timeouts: Timeouts::default(),
            bum_rate: Options::BUM_RATE,
            flows: FLOWS_CAPACITY as u32,
            log_stages: None,
            sizes: Sizes::default(),
            announce: false,
            abi_version: ABI_VERSION,
        }
    }
}

/// The eBPF datapath of the network namespace in which it is used.
pub struct Ebpf {
    options: Options,
    pins: Pins,
    interfaces: Interfaces,
    writes: Writes,
    rule_names: RuleNames,
    service_names: ServiceNames,
    /// `None` before the first `observe`, and after an error: the next `observe` then starts from the pins.
    installed: Option<Installed>,
    announcer: Announcer,
    uplinks: Uplinks,
    takeovers: Takeovers,
    /// Another datapath forwards: the programs pass every frame on.
    stands_by: bool,
    /// Another datapath has taken over: it needs the uplinks as they are.
    is_stopped: bool,
    /// What belongs to no object stays.
    retains_orphans: bool,
    /// The last `observe` has found something that stays.
    has_retained: bool,
    /// Set by `observe`.
    monitor: Option<InterfaceMonitor>,
    /// Lock of the pins, held from the first `observe` on.
    lock: Option<Flock<File>>,
}

impl Ebpf {
    /// Creates the value. Accesses nothing until the first [`observe`](Datapath::observe).
    pub fn new(options: Options) -> Self {
        let writes = Writes::default();
        let pins = Pins::new(&options.bpf_root, &options.instance, options.abi_version);
        let configuration = Configuration {
            vxlan_device: options.vxlan_device.clone(),
            vxlan_port: options.vxlan_port,
            vtep: options.vtep,
            uplinks: options.uplinks.clone(),
        };
        let interfaces =
            Interfaces::new(configuration, options.attach_mode, options.xdp, pins.clone(), writes.clone());
        Ebpf {
            options,
            pins,
            interfaces,
            writes,
            rule_names: RuleNames::default(),
            service_names: ServiceNames::default(),
            installed: None,
            announcer: Announcer::default(),
            uplinks: Uplinks::default(),
            takeovers: Takeovers::default(),
            stands_by: false,
            is_stopped: false,
            retains_orphans: false,
            has_retained: false,
            monitor: None,
            lock: None,
        }
    }

    /// Loads the programs, or opens those of an earlier process, unless they are open.
    async fn open(&mut self) -> Result<Installed, Error> {
        if self.lock.is_none() {
            self.pins.prepare()?;
            self.lock = self.pins.lock()?;
        }
        // A flow table of another capacity is replaced as soon as its flows fit.
        let resizable = self.unconfigured_flow_capacity().is_some()
            && flows::fits(flows::usage(&self.pins)?.entries, self.options.flows);
        Ok(match self.installed.take() {
            Some(installed) if !resizable => installed,
            _ => Installed::new(
                Kernel::open(
                    &self.pins,
                    self.interfaces.hooks(),
                    self.interfaces.xdp(),
                    (&self.rule_names, &self.service_names),
                    KernelOptions {
                        flows: self.options.flows,
                        sizes: self.options.sizes,
                        logged: self.options.log_stages.as_ref(),
                    },
                    &self.writes,
                )
                .await?,
                self.interfaces.hooks().clone(),
            ),
        })
    }

    /// Fails while orphans are retained that only the maps of another ABI version have, which this one cannot change.
    fn check_retained(&mut self) -> Result<(), Error> {
        if !self.retains_orphans {
            return Ok(());
        }
        let Some(other) = takeover::forwarding_version(&self.pins)? else { return Ok(()) };
        if self.lock.is_none() {
            self.lock = self.pins.lock()?;
        }
        Err(failed(format!("upgrade from ABI version {other} to {}", self.pins.version()), Postponed))
    }

    /// Directory of pinned links that an agent of any ABI version has left; `None` if there are none.
    pub fn left_behind(&self) -> Result<Option<&Path>, Error> {
        for pins in self.pins.other_abi_versions().into_iter().chain([self.pins.clone()]) {
            if !pins.link_names()?.is_empty() {
                return Ok(Some(&self.options.bpf_root));
            }
        }
        Ok(None)
    }

    /// Whether programs are attached that pass every frame on: they were to take over from another datapath, or that has taken over.
    pub fn is_passive(&self) -> bool {
        let phase = PhaseSwitch::open(&self.pins).and_then(|phase| phase.get().ok());
        phase == Some(Phase::RETIRED) && self.pins.other_abi_versions().is_empty()
    }

    /// Has the programs pass every frame on, for another datapath that takes over.
    ///
    /// # Errors
    ///
    /// The programs are of another build.
    pub fn stop(&mut self) -> Result<(), Error> {
        let phase = PhaseSwitch::open(&self.pins);
        let phase = phase.ok_or_else(|| failed("stop the programs", "there are none of this version"))?;
        phase.set(Phase::RETIRED)?;
        self.is_stopped = true;
        Ok(())
    }

    /// Has the programs forward again that [`stop`](Self::stop) has stopped, or ends a takeover that was interrupted: connections
    /// that were not imported are lost.
    ///
    /// # Errors
    ///
    /// The programs are of another build.
    pub fn resume(&mut self) -> Result<(), Error> {
        let phase = PhaseSwitch::open(&self.pins);
        let phase = phase.ok_or_else(|| failed("resume the programs", "there are none of this version"))?;
        phase.set(Phase::RUNNING)?;
        self.is_stopped = false;
        Ok(())
    }

    /// Deletes the interfaces whose names and ports another datapath needs.
    ///
    /// # Errors
    ///
    /// Some of them may exist still.
    pub async fn delete_devices(&self) -> Result<(), Error> {
        self.interfaces.delete_devices(&Netlink::open()?).await
    }

    /// Directory that contains the pins of all instances.
    pub fn bpf_root(&self) -> &Path {
        &self.options.bpf_root
    }

    /// The connections that the programs track, of the networks in `desired`. Changes nothing.
    ///
    /// # Errors
    ///
    /// The maps do not exist, or are of another build.
    pub fn connections(&self, desired: &Desired) -> Result<Vec<TrackedConnection>, Error> {
        takeover::tracked::connections(&self.pins, desired)
    }

    /// Path of a pinned program.
    pub fn program_pin(&self, name: &str) -> PathBuf {
        self.pins.program(name)
    }

    /// Directory of the pinned maps.
    pub fn maps_directory(&self) -> PathBuf {
        self.pins.maps()
    }

    /// Dropped frames since the maps were created, by reason. Omits reasons without drops.
    pub fn drops(&self) -> Result<Vec<(DropReason, DropCount)>, Error> {
        self.installed.as_ref().map_or(Ok(vec![]), |installed| installed.kernel().drops())
    }

    /// Service frames that were forwarded to the nodes of their backends (DSR), by program.
    pub fn dsr_forwarded(&self) -> Result<Vec<(&'static str, DropCount)>, Error> {
        self.installed.as_ref().map_or(Ok(vec![]), |installed| installed.kernel().dsr_forwarded())
    }

    /// Counters of rules and services, and usage of the tables that packets fill. Empty before the first
    /// [`observe`](Datapath::observe).
    pub fn counters(&self) -> Result<Counters, Error> {
        match self.installed {
            Some(_) => counters::read(&self.pins, &self.rule_names, &self.service_names),
            None => Ok(Counters::default()),
        }
    }

    /// How bandwidth limits are enforced.
    fn rate_enforcement(&self) -> Option<&'static str> {
        let queues = self.installed.as_ref()?.queues();
        match queues.pair() {
            Some(_) => Some("queues"),
            None => queues.are_unsupported().then_some("drops"),
        }
    }

    /// Capacity of the flow table, if it differs from the configured one.
    fn unconfigured_flow_capacity(&self) -> Option<u32> {
        let capacity = self.installed.as_ref()?.kernel().flow_capacity();
        (capacity != self.options.flows).then_some(capacity)
    }

    fn trace_request(&self, probe: Probe) -> Result<trace::Request, Error> {
        let installed = self.installed.as_ref();
        let installed = installed.ok_or_else(|| failed("trace", "the datapath has not been observed yet"))?;
        let Devices { overlay, host, vlans, .. } = *self.interfaces.devices();
        let devices = trace::Interfaces {
            overlay,
            kernel: [host, vlans],
            uplink: self.uplinks.active()?,
            endpoints: installed.endpoints(),
        };
        let flows = installed.kernel().flow_capacity();
        trace::prepare((&self.pins, flows, &self.rule_names), devices, probe)
    }

    fn attach_mode(&self) -> String {
        format!("{:?}", self.interfaces.hooks().mode()).to_lowercase()
    }

    fn inspect_xdp(&self) -> serde_json::Value {
        let status = self.interfaces.xdp_status();
        let cause = match status {
            XdpStatus::Unavailable(cause) => Some(cause.as_str()),
            _ => None,
        };
        let preference = format!("{:?}", self.interfaces.xdp().preference()).to_lowercase();
        json!({ "wanted": preference, "mode": status.as_str(), "why": cause })
    }
}

impl Datapath for Ebpf {
    /// The verifier takes most of the time. Fails without a VLAN uplink, unless the programs forward already: [`observe`](Self::observe)
    /// goes on without one, but the pods of another datapath would lose their VLAN networks.
    async fn prepare(&mut self) -> Result<(), Error> {
        if self.left_behind()?.is_none() || self.is_passive() {
            self.interfaces.check_uplinks(&Netlink::open()?).await?;
        }
        self.installed = Some(self.open().await?);
        self.takeovers.prepare(&self.pins)
    }

    fn stand_by(&mut self) {
        self.stands_by = true;
    }

    /// The other datapath has the interfaces to the node's kernel.
    fn can_stand_by(&self, object: &Object) -> bool {
        KernelPort::of(object).is_none()
    }

    async fn take_over(&mut self, connections: Vec<TrackedConnection>) -> Result<(), Error> {
        self.inherit(connections);
        if self.interfaces.devices().overlay == 0 {
            // With the next resync, which creates the VXLAN device when the other datapath is gone.
            return Ok(());
        }
        let Some(mut installed) = self.installed.take() else {
            return Err(failed("take over from the other datapath", "nothing has been observed yet"));
        };
        let kernel = installed.kernel_mut();
        kernel.peers.set_phase(Phase::IMPORTING)?;
        self.takeovers.run(kernel, &mut self.interfaces).await?;
        self.installed = Some(installed);
        Ok(())
    }

    fn inherit(&mut self, connections: Vec<TrackedConnection>) {
        self.stands_by = false;
        self.takeovers.inherit(connections);
    }

    fn retain_orphans(&mut self, retain: bool) {
        self.retains_orphans = retain;
    }

    async fn observe(&mut self, desired: &Desired) -> Result<Observed, Error> {
        self.check_retained()?;
        let netlink = Netlink::open()?;
        if !self.monitor.as_ref().is_some_and(InterfaceMonitor::is_open) {
            self.monitor = Some(InterfaceMonitor::open()?);
        }
        let mut installed = self.open().await?;
        if self.stands_by {
            // Before programs are attached.
            installed.kernel_mut().peers.set_phase(Phase::RETIRED)?;
        }
        let queue = device::ifindex(queues::EXIT);
        let programs = &mut installed.kernel_mut().programs;
        self.interfaces.ensure(&netlink, programs, queue, self.stands_by).await?;
        let uplinks = &self.interfaces.devices().uplinks;
        self.uplinks.ensure(&self.pins, uplinks, &mut self.announcer, &self.writes)?;
        installed.kernel_mut().ensure_settings(Settings {
            timeouts: self.options.timeouts,
            bum_rate: self.options.bum_rate,
            vtep: self.options.vtep,
            tunnel_port: self.options.vxlan_port,
        })?;
        if let Some(log) = &mut installed.kernel_mut().stage_log {
            log.select(desired.iter().map(|(_, object)| object))?;
        }
        if self.takeovers.has_inherited() {
            installed.kernel_mut().peers.set_phase(Phase::IMPORTING)?;
        }
        let mut observed = observe::compare(&netlink, &mut installed, &self.interfaces, desired).await?;
        if self.retains_orphans {
            observed.retained = std::mem::take(&mut observed.orphans);
        }
        self.has_retained = observed.retained > 0;
        if !self.has_retained {
            observed.orphans += self.interfaces.superseded_stages()?;
        }
        observed.orphans += self.pins.other_abi_versions().len();
        // The collection of garbage ends a takeover.
        observed.orphans += usize::from(installed.kernel().peers.phase()? != Phase::RUNNING);
        let Devices { host, vlans, .. } = *self.interfaces.devices();
        installed.kernel_mut().ensure_kernel_port(vlans)?;
        for (port, ifindex) in [(KernelPort::HostAccess, host), (KernelPort::Vlans, vlans)] {
            observed.orphans += usize::from(ifindex != 0 && !installed.needs(port));
        }
        self.announcer.replace(self.uplinks.active()?, installed.answered_services());
        self.installed = Some(installed);
        Ok(observed)
    }

    async fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>, Error> {
        let Some(mut installed) = self.installed.take() else {
            return Err(failed("change the datapath", "it has not been observed yet"));
        };
        let before = announce::announced(&installed, if self.options.announce { ops } else { &[] });
        let (interfaces, takeovers) = (&mut self.interfaces, &mut self.takeovers);
        let failures = apply::execute(&mut installed, interfaces, takeovers, ops, self.has_retained).await?;
        let uplink = self.uplinks.active()?;
        announce::changed(&mut self.announcer, uplink, &installed, &before, ops);
        if let Some(log) = &mut installed.kernel_mut().stage_log {
            log.select(ops.iter().filter_map(|op| match op {
                Op::Set(object) => Some(object),
                Op::Delete(_) | Op::GarbageCollect => None,
            }))?;
        }
        self.announcer.update(uplink, installed.changed_services());
        self.installed = Some(installed);
        Ok(failures)
    }

    /// Resolves when an interface of the datapath is deleted, and its program with it, or when a missing uplink appears. No other
    /// process writes the maps.
    async fn resync_needed(&mut self) {
        let queue = self.installed.as_ref().and_then(|installed| installed.queues().pair());
        let devices = self.interfaces.devices();
        let others = [devices.overlay, devices.host, devices.vlans, queue.map_or(0, |pair| pair.entry)];
        let uplinks = devices.uplinks.iter().map(|(uplink, _)| *uplink);
        let interfaces: Vec<u32> = uplinks.chain(others).collect();
        match &mut self.monitor {
            Some(monitor) => monitor.changed(&interfaces, self.interfaces.missing_uplinks()).await,
            None => future::pending().await,
        }
        self.monitor = None;
    }

    fn writes(&self) -> u64 {
        self.writes.get()
    }

    /// Programs that cannot see where a checksum goes forward only frames that have theirs.
    fn port_requirements(&self) -> PortRequirements {
        PortRequirements { disable_tx_offload: skb::layout().is_err() }
    }

    fn inspect(&self) -> serde_json::Value {
        let kernel = self.installed.as_ref().map(Installed::kernel);
        let usage = kernel.map(|kernel| {
            dump::object(Ok(kernel.usage().iter().map(|usage| (usage.table, usage.entries)).collect()))
        });
        let drops = self.drops().map(|drops| {
            drops.iter().map(|(reason, count)| (reason.as_str(), count.packets)).collect::<Vec<_>>()
        });
        let forwarded = self.dsr_forwarded().map(|counts| {
            let count = |count: &DropCount| json!({ "packets": count.packets, "bytes": count.bytes });
            counts.iter().map(|(program, frames)| (*program, count(frames))).collect::<Vec<_>>()
        });
        let [rules, services, packet_tables] = dump::render(&self.counters());
        json!({
            "datapath": "ebpf",
            "attachment": self.attach_mode(),
            "xdp": self.inspect_xdp(),
            "relayed": dump::object(forwarded),
            "announced": self.announcer.counts().into_iter().collect::<BTreeMap<_, _>>(),
            "announcedEndpoints": self.announcer.endpoint_counts().into_iter().collect::<BTreeMap<_, _>>(),
            "maps": self.maps_directory(),
            "vxlanDevice": self.options.vxlan_device,
            "uplinks": self.options.uplinks,
            "activeUplink": dump::object(self.uplinks.active().map(|active| vec![("ifindex", active)])),
            "rates": self.rate_enforcement(),
            "entries": usage,
            "drops": dump::object(drops),
            "rules": rules,
            "services": services,
            "rulesInForce": kernel.map(|kernel| kernel.policies.rules()),
            "flows": kernel.map(|kernel| dump::object(kernel.flow_events())),
            "entriesOfPackets": packet_tables,
            "writes": self.writes(),
        })
    }

    fn stats(&self) -> Stats {
        let Some(installed) = &self.installed else { return Stats::default() };
        let drops = or_default(self.drops());
        let forwarded = or_default(self.dsr_forwarded());
        Stats {
            drops: drops.iter().map(|(reason, count)| (reason.as_str(), count.packets)).collect(),
            flows: or_default(installed.kernel().flow_events()),
            tables: installed.kernel().usage(),
            dsr_forwarded: forwarded.iter().map(|(program, count)| (*program, count.packets)).collect(),
            announcements: self.announcer.counts(),
            endpoint_announcements: self.announcer.endpoint_counts(),
            hooks: vec![
                ("tc", self.attach_mode()),
                ("xdp", self.interfaces.xdp_status().as_str().to_owned()),
            ],
        }
    }

    fn warnings(&self) -> Vec<String> {
        let flows = self.unconfigured_flow_capacity().map(|capacity| {
            format!(
                "connections: capacity {capacity} instead of {} (--conntrack-max) until the flows in the map {FLOWS} fit, because \
                 connections would break; to change it now, move the pods off the node, stop the agent, and run \
                 `netplugin cleanup`",
                self.options.flows,
            )
        });
        let xdp = match self.interfaces.xdp_status() {
            XdpStatus::Unavailable(cause) => {
                Some(format!("XDP: unavailable on the uplink, TC processes all frames: {cause}"))
            }
            XdpStatus::Off | XdpStatus::Attached(_) => None,
        };
        let effect = if self.interfaces.devices().uplinks.is_empty() {
            "VLAN networks reach nothing outside of the node until an uplink exists"
        } else {
            "its networks use the other uplinks"
        };
        let missing = self.interfaces.missing_uplinks().iter();
        let missing =
            missing.map(|name| format!("VLAN uplink {name}: does not exist; {effect} (--vlan-uplinks)"));
        let log = self.options.log_stages.as_ref().map(|endpoint| {
            format!(
                "eBPF programs: those that log the stages of frames are in force, for the endpoint {endpoint} \
                 (--bpf-log-stages); they are slower"
            )
        });
        let existing = self.installed.as_ref().map(|installed| installed.kernel().sizes());
        let sizes = existing.into_iter().flat_map(|existing| existing.differences(&self.options.sizes));
        let sizes = sizes.map(|(flag, existing, configured)| {
            format!(
                "maps: size {existing} instead of {configured} ({flag}), because a map cannot be resized; to change it, move \
                 the pods off the node, stop the agent, and run `netplugin cleanup`"
            )
        });
        let checksums = skb::layout().err().map(skb::offload_warning);
        let losses = self.takeovers.losses().iter().cloned();
        flows
            .into_iter()
            .chain(xdp)
            .chain(missing)
            .chain(log)
            .chain(sizes)
            .chain(checksums)
            .chain(losses)
            .collect()
    }

    fn telemetry(&self) -> Option<Arc<dyn Telemetry>> {
        let (rules, services) = (self.rule_names.clone(), self.service_names.clone());
        Some(Arc::new(MapTelemetry::new(self.pins.clone(), rules, services)))
    }

    fn trace(&self, probe: Probe) -> BoxFuture<'static, Result<Findings, Error>> {
        let request = self.trace_request(probe);
        Box::pin(async move { request?.run().await })
    }

    async fn cleanup(&mut self) -> Result<(), Error> {
        // By the other datapath, which forwards.
        let needs_uplinks = self.is_stopped || self.stands_by || self.is_passive();
        self.installed = None;
        if self.lock.is_none() {
            self.lock = self.pins.lock()?;
        }
        let netlink = Netlink::open()?;
        // Every step is tried; the first error is returned.
        let mut outcome = self.interfaces.detach(&netlink, needs_uplinks).await;
        outcome = outcome.and(self.pins.remove_all().map(|removed| {
            (0..removed).for_each(|_| self.writes.count());
        }));
        outcome = outcome.and(queues::cleanup(&netlink, &self.writes).await);
        outcome.and(self.interfaces.delete_devices(&netlink).await)
    }
}

/// The statistics, or none with a warning if they cannot be read.
fn or_default<T: Default>(statistics: Result<T, Error>) -> T {
    statistics
        .inspect_err(|error| tracing::warn!("statistics are incomplete: {}", one_line(error)))
        .unwrap_or_default()
}
