//! Takes the interfaces over from the programs of another ABI version, with their flows. Also imports the connections of
//! another datapath.
//!
//! ```text
//! programs of this version   attached behind the others    IMPORTING ──────────────▶ RUNNING
//! programs of the other one  RUNNING                       RETIRED: pass every frame on
//! flows                      pass ─▶ pass                  ─▶ pass ─▶ pass
//! ```
//!
//! One write retires the programs of the other version on all interfaces at once. Until the flows that existed by then
//! are imported, packets without a flow are dropped and need a retransmission, unless they open a flow in any case.
//! Otherwise a reply of a service's backend would not be translated. Versions whose programs do not support phases are
//! detached one interface after the other, while no flows are created.
//!
//! The takeover does not begin while orphans are retained: the maps of this version do not contain them, so their traffic
//! would stop.
//!
//! Another datapath is removed before this one forwards. Its connections are imported when the tables are complete. Until
//! then packets without a flow are dropped likewise.

use std::time::Instant;

use contiv_abi::{Domain, Phase};

use super::{
    forward::ports::Ports,
    kernel::tables::Kernel,
    maps::{export::PhaseSwitch, pins::Pins, rcu},
    programs::{
        import::Importer,
        interfaces::Interfaces,
        migration::{FlowMigration, Moved, MovedDomains, Pass},
        tc::AttachMode,
    },
};
use crate::{
    datapath::{Error, TrackedConnection},
    error::one_line,
};

mod dsr;
mod inherited;
mod sessions;
mod statistics;
pub(super) mod tracked;

/// The takeovers of this process.
#[derive(Default)]
pub(super) struct Takeovers {
    /// Lost state, for operators.
    losses: Vec<String>,
    /// Connections of the datapath that this one replaces.
    inherited: Vec<TrackedConnection>,
    /// Loaded before the other datapath is removed, because loading takes a while.
    importer: Option<Importer>,
}

impl Takeovers {
    /// Returns what was lost.
    pub(super) fn losses(&self) -> &[String] {
        &self.losses
    }

    /// Prepares the import of connections.
    pub(super) fn prepare(&mut self, pins: &Pins) -> Result<(), Error> {
        self.importer = Some(Importer::load(pins)?);
        Ok(())
    }

    /// Stores connections of the datapath that this one replaces.
    pub(super) fn inherit(&mut self, connections: Vec<TrackedConnection>) {
        self.inherited = connections;
    }

    /// Whether there are connections to import.
    pub(super) fn has_inherited(&self) -> bool {
        !self.inherited.is_empty()
    }

    /// Imports the connections of the datapath that this one replaces.
    fn import_inherited(&mut self, kernel: &Kernel, pins: &Pins) {
        let (connections, importer) = (std::mem::take(&mut self.inherited), self.importer.take());
        if connections.is_empty() {
            return;
        }
        let importer = importer.map_or_else(|| Importer::load(pins), Ok);
        let moved = importer.and_then(|mut importer| inherited::import(&mut importer, kernel, &connections));
        match moved {
            Ok(Moved { flows, lost }) => {
                tracing::info!("took over {flows} connections of the other datapath; {lost} lost");
            }
            Err(error) => {
                let loss = format!(
                    "connections: all {} of the other datapath are lost: {}; connections to services break",
                    connections.len(),
                    one_line(&error)
                );
                tracing::warn!("{loss}");
                self.losses.push(loss);
            }
        }
    }

    /// Takes over from all other ABI versions, and removes their programs and maps. The maps of this version are complete, and
    /// its programs are attached.
    pub(super) async fn run(
        &mut self,
        kernel: &mut Kernel,
        interfaces: &mut Interfaces,
    ) -> Result<(), Error> {
        let pins = interfaces.pins().clone();
        let others = pins.other_abi_versions();
        if others.is_empty() {
            self.import_inherited(kernel, &pins);
            // A process may have stopped just before the end of a takeover.
            return kernel.peers.set_phase(Phase::RUNNING);
        }
        let has_links = interfaces.hooks().mode() != AttachMode::Clsact;
        let mut others: Vec<Predecessor> = others
            .into_iter()
            .map(|other| Predecessor::open(&pins, other, has_links, moved_domains(&kernel.ports)))
            .collect::<Result<_, _>>()?;
        for other in &mut others {
            other.prepare(&pins);
        }
        let are_switched = others.iter().all(|other| other.phase.is_some());
        kernel.peers.set_phase(if are_switched { Phase::IMPORTING } else { Phase::HOLDING })?;
        interfaces.take_over_xdp(&mut kernel.programs).await?;
        for other in &others {
            other.stop(interfaces).await?;
        }
        let stopped = Instant::now();
        others.iter_mut().for_each(|other| other.import(Pass::After));
        // Program runs that have started before must end first.
        rcu::synchronize();
        others.iter_mut().for_each(|other| other.import(Pass::After));
        self.import_inherited(kernel, &pins);
        kernel.peers.set_phase(Phase::RUNNING)?;
        tracing::info!("packets without a flow waited for {} ms", stopped.elapsed().as_millis());
        others.iter().for_each(|other| other.add_counters(&pins));
        self.losses.extend(others.into_iter().filter_map(Predecessor::report));
        interfaces.remove_other_abi_versions().await
    }
}

/// Returns the other ABI version whose programs forward, if this version has not begun to take over. When it begins, its
/// maps are complete.
pub(super) fn forwarding_version(own: &Pins) -> Result<Option<u32>, Error> {
    let phase = PhaseSwitch::open(own).map(|phase| phase.get()).transpose()?;
    if matches!(phase, Some(Phase::HOLDING | Phase::IMPORTING)) {
        return Ok(None);
    }
    for other in own.other_abi_versions() {
        if forwards(&other)? {
            return Ok(Some(other.version()));
        }
    }
    Ok(None)
}

/// Whether the programs of another ABI version forward.
fn forwards(other: &Pins) -> Result<bool, Error> {
    // A start that failed early has left only maps.
    if !other.has_programs() {
        return Ok(false);
    }
    match PhaseSwitch::open(other) {
        Some(phase) => Ok(phase.get()? == Phase::RUNNING),
        // They forward until they are detached.
        None => Ok(true),
    }
}

/// Programs and maps of another ABI version.
struct Predecessor {
    pins: Pins,
    phase: Option<PhaseSwitch>,
    /// The import of the flows, or the reason why they are lost.
    flows: Result<FlowMigration, Error>,
    /// An earlier process has begun the takeover: packets change the table of this version.
    resumed: bool,
    /// Networks that now share a domain with other networks.
    domains: MovedDomains,
}

/// Returns the networks whose flows have another domain than that of the network alone. Up to version 6, each network was
/// its own domain.
fn moved_domains(ports: &Ports) -> MovedDomains {
    let domains = ports.segments().map(|(segment, entry)| (Domain::of_segment(*segment), entry.domain));
    domains
        .filter(|(own, current)| own != current)
        .map(|(own, current)| (own.number(), current.number()))
        .collect()
}

impl Predecessor {
    /// `has_links`: programs are attached by pinned links.
    fn open(own: &Pins, pins: Pins, has_links: bool, domains: MovedDomains) -> Result<Predecessor, Error> {
        let phase = PhaseSwitch::open(&pins);
        let resumed = match &phase {
            Some(phase) => phase.get()? == Phase::RETIRED,
            None => has_links && pins.link_names()?.is_empty(),
        };
        // Rule numbers are valid only for the policies of one version.
        let flows = FlowMigration::open(own, &pins, false, domains.clone());
        Ok(Predecessor { pins, phase, flows, resumed, domains })
    }

    /// Imports flows while packets of the other version still change them.
    fn prepare(&mut self, own: &Pins) {
        let pass = if self.resumed { Pass::After } else { Pass::Before };
        // The second pass imports what has changed during the first, and is short.
        self.import(pass);
        self.import(pass);
        self.warn("connections to other nodes", dsr::copy(own, &self.pins, &self.domains));
        self.warn("session affinities", sessions::copy_affinity(own, &self.pins));
    }

    /// Adds the counters, which no longer change.
    fn add_counters(&self, own: &Pins) {
        self.warn("counters", statistics::add(own, &self.pins));
    }

    fn warn(&self, what: &str, result: Result<(), Error>) {
        if let Err(error) = result {
            tracing::warn!("{what} of ABI version {} are lost: {}", self.pins.version(), one_line(&error));
        }
    }

    fn import(&mut self, pass: Pass) {
        if let Ok(migration) = &mut self.flows
            && let Err(error) = migration.run(pass)
        {
            self.flows = Err(error);
        }
    }

    /// Ends the processing of frames by the programs of the other version.
    async fn stop(&self, interfaces: &Interfaces) -> Result<(), Error> {
        match &self.phase {
            Some(phase) => phase.set(Phase::RETIRED),
            None => {
                interfaces.detach_other_filters().await?;
                self.pins.detach_links().map(drop)
            }
        }
    }

    /// Logs the outcome. Returns what was lost.
    fn report(self) -> Option<String> {
        let version = self.pins.version();
        match self.flows {
            Ok(migration) => {
                let Moved { flows, lost } = migration.moved();
                tracing::info!("imported {flows} flows of ABI version {version}; {lost} lost");
                (lost > 0).then(|| {
                    format!(
                        "connections: {lost} of {} flows of ABI version {version} are lost, because the flow table has no \
                         room for them; increase --conntrack-max",
                        flows + lost
                    )
                })
            }
            // A start that failed early has left only directories.
            Err(_) if !self.pins.has_maps() => None,
            Err(error) => {
                let loss = format!(
                    "connections: all flows of ABI version {version} are lost: {}; connections to services break",
                    one_line(&error)
                );
                tracing::warn!("{loss}");
                Some(loss)
            }
        }
    }
}
