//! The eBPF datapath: TC and XDP programs in the kernel, which the agent configures through maps.
//!
//! Programs, maps and the links that attach programs to interfaces are pinned in the BPF file system. They outlive the
//! agent: the next process adopts them ([`observe`](Datapath::observe)), compares the maps with the desired state, and
//! writes the difference. Pinned programs of another build are replaced in place.
//!
//! ```text
//! handover         stop for another datapath, and resume
//! status, warnings counters, statistics, debug dump; degraded conditions
//! apply, observe   execute operations; compare the kernel with the desired state
//! takeover         flows, sessions and counters of another ABI version
//! kernel           entries of objects, their owners, orphans; all maps and programs
//! telemetry, trace counters, connections, packet events; the way of one packet
//! options          options of a node
//! programs         load and attach programs
//! service, policy, rate, forward   the tables of each subject
//! maps             access to pinned maps
//! device, failure  netlink and ethtool; errors
//! ```

use std::{
    fs::File,
    future,
    path::{Path, PathBuf},
    sync::Arc,
};

use contiv_abi::Phase;
use futures::future::BoxFuture;
use nix::fcntl::Flock;

use super::{
    Datapath, Desired, Error, FailedOp, Object, Observed, Op, PortRequirements, Postponed, TrackedConnection,
    skb,
    telemetry::{Stats, Telemetry},
    trace::{Findings, Probe},
};

mod announce;
mod apply;
mod device;
mod failure;
mod forward;
mod handover;
mod kernel;
mod maps;
mod observe;
mod options;
mod policy;
mod programs;
mod rate;
mod service;
mod status;
mod takeover;
mod telemetry;
mod trace;
mod uplinks;
mod warnings;

pub use super::skb::skb_layout;
use apply::Reserved;
use device::{InterfaceMonitor, Netlink};
use failure::failed;
use forward::peers::Settings;
use kernel::{
    installed::Installed,
    tables::{Kernel, KernelOptions},
};
pub use maps::sizes::Sizes;
use maps::{
    flows,
    names::{RuleNames, ServiceNames},
    pins::Pins,
    writes::Writes,
};
pub use options::Options;
use programs::{
    interfaces::{Configuration, Devices, Interfaces},
    kernel_port::KernelPort,
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
use telemetry::events::MapTelemetry;
use uplinks::Uplinks;

/// The eBPF datapath of the network namespace in which it is used.
pub struct Ebpf {
    options: Options,
    pins: Pins,
    interfaces: Interfaces,
    writes: Writes,
    rule_names: RuleNames,
    service_names: ServiceNames,
    /// `None` before the first `observe`, and after an error: the next `observe` then starts from the pinned objects.
    installed: Option<Installed>,
    announcer: Announcer,
    uplinks: Uplinks,
    takeovers: Takeovers,
    /// Another datapath forwards: the programs pass every frame to the next program.
    stands_by: bool,
    /// The UDP port of the tunnels becomes free when the other datapath is removed.
    yields_tunnel_port: bool,
    /// Another datapath has taken over: cleanup keeps the uplinks promiscuous, because that datapath needs them.
    is_stopped: bool,
    /// Entries without an object are retained.
    retains_orphans: bool,
    /// The last `observe` has found retained entries.
    has_retained: bool,
    /// Set by `observe`.
    monitor: Option<InterfaceMonitor>,
    /// Lock of the pins, held from the first `observe`.
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
            yields_tunnel_port: false,
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
        // A flow table of another capacity is replaced as soon as its flows fit into the new one.
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

    /// Fails while orphans are retained that exist only in the maps of another ABI version: this version cannot change
    /// them.
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

    /// Directory that contains the pins of all instances.
    pub fn bpf_root(&self) -> &Path {
        &self.options.bpf_root
    }

    /// Path of a pinned program.
    pub fn program_pin(&self, name: &str) -> PathBuf {
        self.pins.program(name)
    }

    /// Directory of the pinned maps.
    pub fn maps_directory(&self) -> PathBuf {
        self.pins.maps()
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
}

impl Datapath for Ebpf {
    /// Loads the programs, because the verifier takes most of the time. Fails without a VLAN uplink, unless the programs
    /// already forward: [`observe`](Self::observe) continues without an uplink, but the pods of another datapath would
    /// lose their VLAN networks.
    async fn prepare(&mut self) -> Result<(), Error> {
        if self.left_behind().await?.is_none() || self.is_passive().await? {
            self.interfaces.check_uplinks(&Netlink::open()?).await?;
        }
        self.installed = Some(self.open().await?);
        self.takeovers.prepare(&self.pins)
    }

    fn stand_by(&mut self) {
        self.stands_by = true;
    }

    /// The other datapath owns the interfaces to the node's kernel. A VLAN network that the node routes is written
    /// without its kernel interface: as a bridged network, it would send frames to the uplinks.
    fn can_stand_by(&self, object: &Object) -> bool {
        KernelPort::of(object) != Some(KernelPort::HostAccess)
    }

    async fn take_over(&mut self, connections: Vec<TrackedConnection>) -> Result<(), Error> {
        self.inherit(connections);
        if self.interfaces.devices().overlay == 0 {
            // The next resync installs it: it creates the VXLAN device when the other datapath is gone.
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

    /// Once the ports of a switch are gone, frames that the programs pass on enter the network stack of the node.
    fn hold(&mut self) -> Result<(), Error> {
        let Some(installed) = &mut self.installed else { return Ok(()) };
        let peers = &mut installed.kernel_mut().peers;
        match peers.phase()? {
            Phase::RETIRED => peers.set_phase(Phase::HOLDING),
            _ => Ok(()),
        }
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
            // Must be set before programs are attached.
            installed.kernel_mut().peers.set_phase(Phase::RETIRED)?;
        }
        let configured = self.options.uplinks.len();
        let reading = self.uplinks.watch(&self.pins, configured, &mut self.announcer, &self.writes)?;
        let queue = device::ifindex(queues::EXIT);
        let programs = &mut installed.kernel_mut().programs;
        let yields_port = self.stands_by && self.yields_tunnel_port;
        self.interfaces.ensure(&netlink, programs, queue, yields_port).await?;
        reading.finish(&self.interfaces.devices().uplinks)?;
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
        // Garbage collection ends a takeover.
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
        let reserved = Reserved { orphans: self.has_retained, kernel_ports: self.stands_by };
        let failures = apply::execute(&mut installed, interfaces, takeovers, ops, reserved).await?;
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

    /// Resolves when an interface of the datapath is deleted, and its program with it, or when a missing uplink appears.
    /// No other process writes the maps.
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

    /// Programs that cannot find the checksum fields forward only frames whose checksums are complete.
    fn port_requirements(&self) -> PortRequirements {
        PortRequirements { disable_tx_offload: skb::layout().is_err() }
    }

    fn inspect(&self) -> serde_json::Value {
        self.debug_dump()
    }

    fn stats(&self) -> Stats {
        self.statistics()
    }

    fn warnings(&self) -> Vec<String> {
        self.degraded_conditions()
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
        // The other datapath, which forwards, needs the uplinks.
        let needs_uplinks = self.is_stopped || self.stands_by || self.is_passive().await.unwrap_or_default();
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
