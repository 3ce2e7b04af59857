//! When the programs' shortcuts end: with every change of what they rely on.

use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapData;
use contiv_abi::{Epochs as Shared, maps::EPOCHS};

use super::{failure::failed, mapping::Mapping, table::Writes};
use crate::datapath::Error;

/// `ctv_epochs`, and what it stands for.
pub(super) struct Epochs {
    memory: Mapping<Shared>,
    writes: Writes,
    /// How many writes there were when the programs were told last.
    told: u64,
}

impl Epochs {
    /// What was written before, by whomever, is told at once.
    pub(super) fn new(map: MapData, writes: Writes) -> Result<Self, Error> {
        let memory =
            Mapping::new(map, 1).map_err(|error| failed(format!("map {EPOCHS} into memory"), error))?;
        let epochs = Epochs { memory, told: writes.get(), writes };
        epochs.end();
        Ok(epochs)
    }

    /// To be called when a change is whole: from then on the programs go by it. Nothing is done unless something was written.
    pub(super) fn turn(&mut self) {
        let written = self.writes.get();
        if written != self.told {
            self.told = written;
            self.end();
        }
    }

    fn end(&self) {
        if let Some(place) = self.memory.place(0) {
            // SAFETY: a number in the mapping, which the programs read at any time and nobody else writes.
            let all = unsafe { AtomicU64::from_ptr(&raw mut (*place.as_ptr()).all) };
            all.fetch_add(1, Ordering::Release);
        }
    }
}
