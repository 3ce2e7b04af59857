//! TC programs in the kernel, programmed through their maps.
//!
//! Everything that forwards is pinned in the BPF file system: programs, maps and the links that hold the
//! programs on their interfaces. So it goes on when the agent stops, and the next agent adopts it: it
//! reads the maps back ([`observe`](Datapath::observe)), measures them against what is desired, and
//! writes the difference. When the agent's own programs are of another build than the pinned ones, they
//! are replaced in place.
//!
//! ```text
//! encode   objects -> entries, pure
//! state    which entries are there, and for whom; put, take, sweep
//! kernel   the maps and programs; roster: the flood lists inside the maps; table: one map
//! services the ports of services, and the rings of backends that they lead to; ring, arena, mapping: pieces
//! announce tells the wire which services have come here
//! epochs   tells the programs that something has changed; shortcuts: counts that these hold back
//! hook     programs on interfaces; filter: where there is no TCX; xdp: in front of them; device: interfaces; pins: the
//!          file system
//! ```

use std::{
    fs::File,
    future,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::Arc,
};

use contiv_abi::{
    DropCount, DropReason, Timeouts,
    maps::{FLOWS, FLOWS_CAPACITY},
};
use nix::fcntl::Flock;

use super::{
    Datapath, Desired, Error, FailedOp, Kind, Object, ObjectId, Observed, Op, PortRequirements,
    telemetry::{Counters, Stats, Telemetry},
};

mod device;
mod failure;
mod forward;
mod kernel;
mod maps;
mod policy;
mod programs;
mod rate;
mod service;
mod telemetry;

use device::{Netlink, Watch};
use failure::failed;
pub use kernel::tables::OBJECT;
use kernel::{
    encode::{Devices, Refused, encode},
    installed::{State, Unqueued},
    tables::Kernel,
};
use maps::{
    names::{RuleNames, ServiceNames},
    pins::Pins,
    usage,
    writes::Writes,
};
pub use programs::{tc::Attachment, xdp::XdpWish};
use programs::{
    tc::{Hooks, Role},
    xdp::{Outcome, XdpHook},
};
use rate::queue;
use service::announce::Herald;
use telemetry::events::MapTelemetry;
use telemetry::{counters, dump};

/// What differs from node to node.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where maps, programs and links are pinned, on a BPF file system or where one can be mounted.
    pub bpf_root: PathBuf,
    /// Tells several nodes on one machine apart.
    pub instance: String,
    /// The name of the VXLAN device.
    pub vxlan_device: String,
    /// The UDP port of the tunnels, one for the whole cluster.
    pub vxlan_port: u16,
    /// This node's end of the tunnels. Only to find the interface below: on a veth, which stands for a
    /// wire in tests and demos, checksums are finished before the tunnel.
    pub vtep: Option<Ipv4Addr>,
    /// The interface that carries the VLAN networks.
    pub uplink: Option<String>,
    /// How programs are attached.
    pub attachment: Attachment,
    /// Where XDP is wanted on the uplink.
    pub xdp: XdpWish,
    /// How long connections are remembered.
    pub timeouts: Timeouts,
    /// How many entries there are for connections; two for each that is translated. A map of another size is made anew
    /// when it is empty.
    pub flows: u32,
}

impl Options {
    /// Where everything is pinned unless told otherwise.
    pub const BPF_ROOT: &'static str = "/sys/fs/bpf/contiv";
    /// The VXLAN device unless told otherwise.
    pub const VXLAN_DEVICE: &'static str = "contivvx0";
    /// The registered port of VXLAN.
    pub const VXLAN_PORT: u16 = 4789;
}

impl Default for Options {
    fn default() -> Self {
        Options {
            bpf_root: Options::BPF_ROOT.into(),
            instance: "default".into(),
            vxlan_device: Options::VXLAN_DEVICE.into(),
            vxlan_port: Options::VXLAN_PORT,
            vtep: None,
            uplink: None,
            attachment: Attachment::default(),
            xdp: XdpWish::default(),
            timeouts: Timeouts::default(),
            flows: FLOWS_CAPACITY as u32,
        }
    }
}

/// The eBPF datapath of the network namespace that it is used in.
pub struct Ebpf {
    options: Options,
    pins: Pins,
    hooks: Hooks,
    xdp: XdpHook,
    /// What came of it.
    at_xdp: Outcome,
    writes: Writes,
    devices: Devices,
    rule_names: RuleNames,
    service_names: ServiceNames,
    state: Option<State>,
    herald: Herald,
    /// From the last `observe` on.
    watch: Option<Watch>,
    /// From the first `observe` on: what is pinned is ours alone.
    claim: Option<Flock<File>>,
}

impl Ebpf {
    /// Touches nothing until the first [`observe`](Datapath::observe).
    pub fn new(options: Options) -> Self {
        let writes = Writes::default();
        let pins = Pins::new(&options.bpf_root, &options.instance);
        let hooks = Hooks::new(options.attachment, pins.clone(), writes.clone());
        let xdp = XdpHook::new(options.xdp, pins.clone(), writes.clone());
        Ebpf {
            options,
            pins,
            hooks,
            xdp,
            at_xdp: Outcome::default(),
            writes,
            devices: Devices::default(),
            rule_names: RuleNames::default(),
            service_names: ServiceNames::default(),
            state: None,
            herald: Herald::default(),
            watch: None,
            claim: None,
        }
    }

    /// Where an agent, of any layout of the maps, has left programs that are attached, if one has.
    pub fn left_behind(&self) -> Result<Option<&Path>, Error> {
        for pins in self.pins.of_other_layouts().into_iter().chain([self.pins.clone()]) {
            if !pins.link_names()?.is_empty() {
                return Ok(Some(&self.options.bpf_root));
            }
        }
        Ok(None)
    }

    /// What the programs dropped since their maps were made, by reason; reasons without drops are left out.
    pub fn drops(&self) -> Result<Vec<(DropReason, DropCount)>, Error> {
        self.state.as_ref().map_or(Ok(vec![]), |state| state.kernel().drops())
    }

    /// What was counted for rules and services, and how full the tables are that packets fill. Nothing before the first
    /// [`observe`](Datapath::observe).
    pub fn counters(&self) -> Result<Counters, Error> {
        match self.state {
            Some(_) => counters::read(&self.pins, &self.rule_names, &self.service_names),
            None => Ok(Counters::default()),
        }
    }

    /// What holds pods to the rates of their groups.
    fn rates_by(&self) -> Option<&'static str> {
        let queues = self.state.as_ref()?.queues();
        match queues.pair() {
            Some(_) => Some("queues"),
            None => queues.are_missing().then_some("drops"),
        }
    }

    /// Room for flows, where it is not what is wanted.
    fn flows_as_before(&self) -> Option<u32> {
        let room = self.state.as_ref()?.kernel().flows();
        (room != self.options.flows).then_some(room)
    }

    /// Frames of services' clients that were sent on to other nodes, by the program that did it.
    pub fn relayed(&self) -> Result<Vec<(&'static str, DropCount)>, Error> {
        self.state.as_ref().map_or(Ok(vec![]), |state| state.kernel().relayed())
    }

    fn inspect_xdp(&self) -> serde_json::Value {
        let why = match &self.at_xdp {
            Outcome::Refused(why) => Some(why.as_str()),
            _ => None,
        };
        let wish = format!("{:?}", self.xdp.wish()).to_lowercase();
        serde_json::json!({ "wanted": wish, "mode": self.at_xdp.as_str(), "why": why })
    }

    /// Where a program is pinned, for tools that look at it or run it.
    pub fn program_pin(&self, name: &str) -> PathBuf {
        self.pins.program(name)
    }

    /// Where the maps are pinned.
    pub fn maps_directory(&self) -> PathBuf {
        self.pins.maps()
    }

    /// Devices, and the programs on them.
    async fn scaffold(&mut self, netlink: &Netlink, kernel: &mut Kernel) -> Result<(), Error> {
        let Options { vxlan_device, vxlan_port, vtep, uplink, .. } = &self.options;
        let overlay = netlink.ensure_vxlan(vxlan_device, *vxlan_port, &self.writes).await?;
        if let Some(below) = vtep.and_then(device::holder_of)
            && device::is_veth(&below)
        {
            device::ensure_tx_checksum_off(vxlan_device, &self.writes)?;
        }
        self.ensure_hook(netlink, kernel, Role::Overlay, vxlan_device, overlay).await?;
        let mut devices = Devices { overlay, overlay_port: *vxlan_port, uplink: 0 };
        if let Some(uplink) = uplink {
            devices.uplink = netlink.ensure_uplink(uplink, &self.writes).await?;
            if device::is_veth(uplink) {
                device::ensure_tx_checksum_off(uplink, &self.writes)?;
            }
            self.ensure_hook(netlink, kernel, Role::Uplink, uplink, devices.uplink).await?;
            let outcome = self.xdp.ensure(kernel.xdp(), netlink, uplink, devices.uplink).await?;
            self.note_xdp(outcome);
        } else {
            self.xdp.remove_all()?;
        }
        self.devices = devices;
        for (role, ifindex) in self.hooks.pinned()? {
            let ours = match role {
                Role::Pod => true,
                Role::Queue => Some(ifindex) == device::ifindex(queue::EXIT),
                Role::Overlay => ifindex == devices.overlay,
                Role::Uplink => ifindex == devices.uplink,
            };
            if !ours {
                self.hooks.detach(role, None, ifindex)?;
            }
        }
        Ok(())
    }

    /// Tells where XDP runs, when that is news.
    fn note_xdp(&mut self, outcome: Outcome) {
        if self.at_xdp == outcome {
            return;
        }
        let uplink = self.options.uplink.as_deref().unwrap_or_default();
        match &outcome {
            Outcome::Nowhere => tracing::info!(uplink, "XDP is off"),
            Outcome::At(place) => {
                tracing::info!(uplink, mode = place.as_str(), "XDP sends on what is for services elsewhere");
                if !device::is_veth(uplink) && device::takes_tags_off(uplink) {
                    tracing::warn!(
                        uplink,
                        "the NIC takes the VLAN tags out of the frames, and XDP sees none: \
                         turn that off (ethtool -K {uplink} rxvlan off), or TC does it all"
                    );
                }
            }
            Outcome::Refused(why) => tracing::warn!(uplink, "no XDP, TC does it all: {why}"),
        }
        self.at_xdp = outcome;
    }

    async fn ensure_hook(
        &self,
        netlink: &Netlink,
        kernel: &mut Kernel,
        role: Role,
        interface: &str,
        ifindex: u32,
    ) -> Result<(), Error> {
        let program = kernel.program(role);
        if !self.hooks.is_attached(program, role, interface, ifindex, netlink).await? {
            self.hooks.attach(program, role, interface, ifindex).await?;
        }
        Ok(())
    }

    async fn apply_op(&mut self, state: &mut State, op: &Op) -> Result<(), Error> {
        match op {
            Op::Set(Object::Group(group)) => state.set_group(group),
            Op::Set(object) => {
                let id = object.id();
                let entries =
                    encode(object, &self.devices, device::ifindex).map_err(|refused| match refused {
                        Refused::Unsupported => Error::unsupported(Kind::Ebpf, object),
                        other => failed(format!("set {id}"), other),
                    })?;
                state.set(&id, &entries).await
            }
            Op::Delete(id) => state.delete(id),
            Op::GarbageCollect => {
                state.sweep()?;
                self.take_over_xdp(state.kernel_mut()).await?;
                self.retire().await
            }
        }
    }

    /// Of XDP programs an interface has one: ours takes the place of the one of another layout of the maps.
    async fn take_over_xdp(&mut self, kernel: &mut Kernel) -> Result<(), Error> {
        let Some(uplink) = &self.options.uplink else { return Ok(()) };
        if self.xdp.take_over(kernel.xdp(), self.devices.uplink)? {
            // The older one may have been in another place than is wanted now.
            let netlink = Netlink::open()?;
            let outcome = self.xdp.ensure(kernel.xdp(), &netlink, uplink, self.devices.uplink).await?;
            self.note_xdp(outcome);
        }
        Ok(())
    }

    /// What an agent with another layout of the maps has left has forwarded until now, when ours know everything
    /// that theirs did. Its programs come first on each interface; without them those behind have the frames.
    async fn retire(&self) -> Result<(), Error> {
        let others = self.pins.of_other_layouts();
        if others.is_empty() {
            return Ok(());
        }
        // Before the pins, which are what tells that there is something to retire.
        self.hooks.retire(&Netlink::open()?).await?;
        for old in others {
            let removed = old.remove_all()?;
            (0..removed).for_each(|_| self.writes.count());
        }
        Ok(())
    }

    async fn note_attached(
        &self,
        netlink: &Netlink,
        state: &mut State,
        interface: &str,
    ) -> Result<(), Error> {
        let program = state.kernel_mut().program(Role::Pod);
        if let Some(ifindex) = device::ifindex(interface)
            && self.hooks.is_attached(program, Role::Pod, interface, ifindex, netlink).await?
        {
            state.note_attached(ifindex, interface);
        }
        Ok(())
    }

    async fn measure(
        &self,
        netlink: &Netlink,
        state: &mut State,
        desired: &Desired,
    ) -> Result<Observed, Error> {
        state.read()?;
        if let Some(pair) = state.read_queues(netlink).await? {
            self.ensure_hook(netlink, state.kernel_mut(), Role::Queue, queue::EXIT, pair.exit).await?;
        }
        if self.hooks.attachment() == Attachment::Clsact {
            // Filters have no pins that would tell of those on other interfaces.
            for interface in netlink.names().await? {
                self.note_attached(netlink, state, &interface).await?;
            }
        }
        let mut observed = Observed::default();
        for (id, object) in desired.iter() {
            if let Object::Group(group) = object {
                if state.claim_group(group) {
                    observed.in_sync.insert(id.clone());
                }
                continue;
            }
            // What cannot be encoded now fails, and says why, when it is set.
            let Ok(entries) = encode(object, &self.devices, device::ifindex) else { continue };
            if let Object::Local(local) = object
                && self.hooks.attachment() == Attachment::Tcx
            {
                self.note_attached(netlink, state, &local.port).await?;
            }
            if state.claim(id, &entries) {
                observed.in_sync.insert(id.clone());
            }
        }
        observed.orphans = state.strays()? + self.pins.of_other_layouts().len();
        Ok(observed)
    }
}

impl Datapath for Ebpf {
    async fn observe(&mut self, desired: &Desired) -> Result<Observed, Error> {
        let netlink = Netlink::open()?;
        if !self.watch.as_ref().is_some_and(Watch::is_open) {
            self.watch = Some(Watch::open()?);
        }
        if self.claim.is_none() {
            self.pins.prepare()?;
            self.claim = self.pins.claim()?;
        }
        // With a table of flows that was not empty, and is now, it is made in the size that is wanted.
        let resizable = self.flows_as_before().is_some() && usage::flows(&self.pins)?.entries == 0;
        let mut state = match self.state.take() {
            Some(state) if !resizable => state,
            _ => State::new(
                Kernel::open(
                    &self.pins,
                    &self.hooks,
                    &self.xdp,
                    (&self.rule_names, &self.service_names),
                    self.options.flows,
                    &self.writes,
                )?,
                self.hooks.clone(),
            ),
        };
        // On an error the state is not put back, and the next call begins from the pins.
        self.scaffold(&netlink, state.kernel_mut()).await?;
        state.kernel_mut().ensure_timeouts(self.options.timeouts)?;
        state.kernel_mut().epochs.turn();
        let observed = self.measure(&netlink, &mut state, desired).await?;
        self.herald.compare(self.devices.uplink, state.answers());
        self.state = Some(state);
        Ok(observed)
    }

    async fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>, Error> {
        let Some(mut state) = self.state.take() else {
            return Err(failed("change the datapath", "it has not been observed yet"));
        };
        let mut failures = vec![];
        for (op, what) in ops.iter().enumerate() {
            if let Err(error) = self.apply_op(&mut state, what).await {
                failures.push(FailedOp { index: op, error });
            }
            state.kernel_mut().epochs.turn();
        }
        // On an error, the next call begins from the pins.
        for Unqueued { owner, group, error } in state.settle().await? {
            match ops.iter().position(|op| is_about(op, owner.as_ref(), group)) {
                Some(op) => failures.push(FailedOp { index: op, error }),
                None => return Err(error),
            }
        }
        self.herald.note(self.devices.uplink, state.changed_answers());
        self.state = Some(state);
        Ok(failures)
    }

    /// Nobody but us writes the maps; but devices may be taken away, and the programs on them with them.
    async fn resync_needed(&mut self) {
        let queue = self.state.as_ref().and_then(|state| state.queues().pair());
        let devices = [self.devices.overlay, self.devices.uplink, queue.map_or(0, |pair| pair.entry)];
        match &mut self.watch {
            Some(watch) => watch.gone(&devices).await,
            None => future::pending().await,
        }
        self.watch = None;
    }

    fn writes(&self) -> u64 {
        self.writes.get()
    }

    fn port_requirements(&self) -> PortRequirements {
        PortRequirements { disable_tx_offload: false }
    }

    fn inspect(&self) -> serde_json::Value {
        let entries = self.state.as_ref().map(|state| {
            let tables = state.kernel().fill();
            let counts = tables.iter().map(|fill| (fill.table.to_owned(), fill.entries.into()));
            serde_json::Value::Object(counts.collect())
        });
        let drops = self.drops().map_or_else(
            |error| serde_json::json!({ "error": error.to_string() }),
            |drops| {
                let counts =
                    drops.iter().map(|(reason, count)| (reason.as_str().to_owned(), count.packets.into()));
                serde_json::Value::Object(counts.collect())
            },
        );
        let flows = self.state.as_ref().map(|state| {
            state.kernel().flow_events().map_or_else(
                |error| serde_json::json!({ "error": error.to_string() }),
                |events| {
                    let counts = events.into_iter().map(|(name, count)| (name.to_owned(), count.into()));
                    serde_json::Value::Object(counts.collect())
                },
            )
        });
        let [rules, services, packets] = dump::counted(&self.counters());
        let relayed = self.relayed().map_or_else(
            |error| serde_json::json!({ "error": error.to_string() }),
            |counts| {
                let counts = counts.iter().map(|(by, count)| {
                    let count = serde_json::json!({ "packets": count.packets, "bytes": count.bytes });
                    ((*by).to_owned(), count)
                });
                serde_json::Value::Object(counts.collect())
            },
        );
        serde_json::json!({
            "datapath": "ebpf",
            "attachment": format!("{:?}", self.hooks.attachment()).to_lowercase(),
            "xdp": self.inspect_xdp(),
            "relayed": relayed,
            "announced": self.herald.counts().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            "maps": self.maps_directory(),
            "vxlanDevice": self.options.vxlan_device,
            "uplink": self.options.uplink,
            "rates": self.rates_by(),
            "entries": entries,
            "drops": drops,
            "rules": rules,
            "services": services,
            "rulesInForce": self.state.as_ref().map(|state| state.kernel().policies.rules()),
            "flows": flows,
            "entriesOfPackets": packets,
            "writes": self.writes(),
        })
    }

    fn stats(&self) -> Stats {
        let Some(state) = &self.state else { return Stats::default() };
        let drops = or_none(self.drops());
        Stats {
            drops: drops.iter().map(|(reason, count)| (reason.as_str(), count.packets)).collect(),
            flows: or_none(state.kernel().flow_events()),
            tables: state.kernel().fill(),
            dsr_forwarded: or_none(self.relayed()).iter().map(|(by, count)| (*by, count.packets)).collect(),
            announcements: self.herald.counts(),
            hooks: vec![
                ("tc", format!("{:?}", self.hooks.attachment()).to_lowercase()),
                ("xdp", self.at_xdp.as_str().to_owned()),
            ],
        }
    }

    fn warnings(&self) -> Vec<String> {
        let flows = self.flows_as_before().map(|room| {
            format!(
                "connections: room for {room}, not for the {} of --conntrack-max, until the map {} is empty, because those \
                 in it would break (to have it now, move the pods off the node, stop the agent, run netplugin cleanup)",
                self.options.flows,
                FLOWS
            )
        });
        let xdp = match &self.at_xdp {
            Outcome::Refused(why) => Some(format!("XDP: not on the uplink, TC does it all: {why}")),
            Outcome::Nowhere | Outcome::At(_) => None,
        };
        flows.into_iter().chain(xdp).collect()
    }

    fn telemetry(&self) -> Option<Arc<dyn Telemetry>> {
        let (rules, services) = (self.rule_names.clone(), self.service_names.clone());
        Some(Arc::new(MapTelemetry::new(self.pins.clone(), rules, services)))
    }

    async fn cleanup(&mut self) -> Result<(), Error> {
        self.state = None;
        if self.claim.is_none() {
            self.claim = self.pins.claim()?;
        }
        let netlink = Netlink::open()?;
        // Everything is tried; the first failure is told.
        let mut outcome = Ok(());
        for interface in netlink.names().await? {
            for role in Role::ALL {
                if self.hooks.attachment() == Attachment::Clsact {
                    outcome = outcome.and(self.hooks.detach(role, Some(&interface), 0));
                }
            }
        }
        // Where no agent has been, the flag is the operator's.
        if let Some(uplink) = &self.options.uplink
            && (self.pins.maps().exists() || !self.pins.of_other_layouts().is_empty())
        {
            outcome = outcome.and(netlink.release_uplink(uplink, &self.writes).await);
        }
        outcome = outcome.and(self.retire().await);
        outcome = outcome.and(self.pins.remove_all().map(|removed| {
            (0..removed).for_each(|_| self.writes.count());
        }));
        outcome = outcome.and(queue::cleanup(&netlink, &self.writes).await);
        if let Some(link) = netlink.link(&self.options.vxlan_device).await? {
            let index = link.header.index;
            outcome = outcome.and(netlink.delete(&self.options.vxlan_device, index, &self.writes).await);
        }
        outcome
    }
}

impl Ebpf {
    /// The directory that holds all pins of all instances.
    pub fn bpf_root(&self) -> &Path {
        &self.options.bpf_root
    }
}

/// What was counted; nothing, and that is said, if it cannot be read.
fn or_none<T: Default>(counted: Result<T, Error>) -> T {
    counted
        .inspect_err(|error| tracing::warn!("counts are missing: {}", crate::error::one_line(error)))
        .unwrap_or_default()
}

/// Whether an op is about the port of an object, or about its group.
fn is_about(op: &Op, owner: Option<&ObjectId>, group: u32) -> bool {
    match op {
        Op::Set(Object::Group(set)) => set.number.get() == group,
        Op::Set(object) => owner == Some(&object.id()),
        Op::Delete(_) | Op::GarbageCollect => false,
    }
}
