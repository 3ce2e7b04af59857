//! Handover to another datapath: remaining links and filters of this datapath, stopping its programs, and the connections
//! that they track.

use std::path::Path;

use contiv_abi::Phase;

use super::{
    Ebpf,
    device::{self, Netlink},
    failure::failed,
    maps::{export::PhaseSwitch, pins::Pins},
    takeover,
};
use crate::datapath::{Desired, Error, TrackedConnection, host_end};

impl Ebpf {
    /// Returns the directory of the pins of an agent of any ABI version that has left links or filters; `None` if there
    /// are none.
    ///
    /// # Errors
    ///
    /// The pins or the filters cannot be read.
    pub async fn left_behind(&self) -> Result<Option<&Path>, Error> {
        for pins in self.pins.other_abi_versions().into_iter().chain([self.pins.clone()]) {
            if !pins.link_names()?.is_empty() {
                return Ok(Some(&self.options.bpf_root));
            }
        }
        let has_filters = self.interfaces.hooks().has_filters(None, &Netlink::open()?).await?;
        Ok(has_filters.then_some(&self.options.bpf_root))
    }

    /// Allows standby without the VXLAN device while Open vSwitch uses its UDP port for tunnels, which are removed with
    /// the other datapath.
    pub fn yield_tunnel_port(&mut self) {
        self.yields_tunnel_port = true;
    }

    /// Reports whether programs are attached and those of all ABI versions pass every frame on. This is the case before a
    /// takeover from another datapath, and after another datapath has taken over.
    ///
    /// # Errors
    ///
    /// The pins or the filters cannot be read.
    pub async fn is_passive(&self) -> Result<bool, Error> {
        let attached = self.attached().await?;
        Ok(!attached.is_empty() && attached.iter().all(is_retired))
    }

    /// Makes the programs of all ABI versions pass every frame on, so that another datapath can take over.
    ///
    /// # Errors
    ///
    /// No programs are attached, or they are of a version without phases.
    pub async fn stop(&mut self) -> Result<(), Error> {
        let attached = self.attached().await?;
        if attached.is_empty() {
            return Err(failed("stop the programs", "none are attached"));
        }
        for pins in attached {
            if !set_phase(&pins, Phase::RETIRED)? {
                let operation = format!("stop the programs of ABI version {}", pins.version());
                return Err(failed(operation, "they have no phase"));
            }
        }
        self.is_stopped = true;
        Ok(())
    }

    /// Makes the programs forward again after [`stop`](Self::stop), or ends an interrupted takeover: connections that
    /// were not imported are lost.
    ///
    /// # Errors
    ///
    /// No programs are attached.
    pub async fn resume(&mut self) -> Result<(), Error> {
        let (retired, others): (Vec<Pins>, Vec<Pins>) =
            self.attached().await?.into_iter().partition(is_retired);
        let is_own = |pins: &&Pins| pins.version() == self.pins.version();
        let own: Vec<Pins> = retired.iter().filter(is_own).cloned().collect();
        // Retired programs have been replaced if other versions are not retired. If all are retired, the maps of this
        // version are at least as new as the others.
        let resumed = [others, own, retired].into_iter().find(|versions| !versions.is_empty());
        let resumed = resumed.ok_or_else(|| failed("resume the programs", "none are attached"))?;
        for pins in resumed {
            // A version without phases forwards as long as it is attached.
            set_phase(&pins, Phase::RUNNING)?;
        }
        self.is_stopped = false;
        Ok(())
    }

    /// Returns the pins of the ABI versions whose programs are attached. Other versions may only have been loaded, or
    /// have left only directories.
    async fn attached(&self) -> Result<Vec<Pins>, Error> {
        let netlink = Netlink::open()?;
        let mut attached = vec![];
        for pins in self.pins.other_abi_versions().into_iter().chain([self.pins.clone()]) {
            let hooks = self.interfaces.hooks();
            if !pins.link_names()?.is_empty() || hooks.has_filters(Some(pins.version()), &netlink).await? {
                attached.push(pins);
            }
        }
        Ok(attached)
    }

    /// Returns the host interfaces of endpoints to which the programs of any ABI version are attached.
    ///
    /// # Errors
    ///
    /// The interfaces or the pins cannot be read.
    pub async fn host_ends(&self) -> Result<Vec<String>, Error> {
        let pods = self.interfaces.hooks().pods(&Netlink::open()?).await?;
        Ok(pods.into_iter().filter_map(host_end::by_index).collect())
    }

    /// Reports whether the VXLAN device exists. [`delete_devices`](Self::delete_devices) deletes it last.
    pub fn has_vxlan_device(&self) -> bool {
        device::ifindex(&self.options.vxlan_device).is_some()
    }

    /// Deletes the interfaces whose names and ports another datapath needs.
    ///
    /// # Errors
    ///
    /// Some of them may still exist.
    pub async fn delete_devices(&self) -> Result<(), Error> {
        self.interfaces.delete_devices(&Netlink::open()?).await
    }

    /// Returns the connections of the networks in `desired` that the programs track. Changes nothing.
    ///
    /// # Errors
    ///
    /// The maps do not exist, or are of another build.
    pub fn connections(&self, desired: &Desired) -> Result<Vec<TrackedConnection>, Error> {
        takeover::tracked::connections(&self.pins, desired)
    }
}

/// Reports whether attached programs pass every frame on. While their flow table is being replaced, they use the old
/// table.
fn is_retired(pins: &Pins) -> bool {
    let switch = PhaseSwitch::open(&pins.resized()).or_else(|| PhaseSwitch::open(pins));
    switch.and_then(|switch| switch.get().ok()) == Some(Phase::RETIRED)
}

/// Sets the phase of attached programs, including those of another flow table. Returns false if none of them reads a
/// phase.
fn set_phase(pins: &Pins, phase: u32) -> Result<bool, Error> {
    let mut is_set = false;
    for switch in [pins.resized(), pins.clone()].iter().filter_map(PhaseSwitch::open) {
        switch.set(phase)?;
        is_set = true;
    }
    Ok(is_set)
}
