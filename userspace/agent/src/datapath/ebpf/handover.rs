//! Handover to another datapath: what this one has left behind, the stop of its programs, and the connections that they track.

use std::path::Path;

use contiv_abi::Phase;

use super::{Ebpf, device::Netlink, failure::failed, maps::export::PhaseSwitch, takeover};
use crate::datapath::{Desired, Error, TrackedConnection, host_end};

impl Ebpf {
    /// Directory of the pins of an agent of any ABI version that has left links or filters; `None` if there are none.
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
        let has_filters = self.interfaces.hooks().has_filters(&Netlink::open()?).await?;
        Ok(has_filters.then_some(&self.options.bpf_root))
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

    /// The host ends of endpoints that the programs of any ABI version are attached to.
    ///
    /// # Errors
    ///
    /// The interfaces or the pins cannot be read.
    pub async fn host_ends(&self) -> Result<Vec<String>, Error> {
        let pods = self.interfaces.hooks().pods(&Netlink::open()?).await?;
        Ok(pods.into_iter().filter_map(host_end::by_index).collect())
    }

    /// Deletes the interfaces whose names and ports another datapath needs.
    ///
    /// # Errors
    ///
    /// Some of them may exist still.
    pub async fn delete_devices(&self) -> Result<(), Error> {
        self.interfaces.delete_devices(&Netlink::open()?).await
    }

    /// The connections that the programs track, of the networks in `desired`. Changes nothing.
    ///
    /// # Errors
    ///
    /// The maps do not exist, or are of another build.
    pub fn connections(&self, desired: &Desired) -> Result<Vec<TrackedConnection>, Error> {
        takeover::tracked::connections(&self.pins, desired)
    }
}
