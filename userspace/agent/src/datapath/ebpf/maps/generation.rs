//! When the programs' shortcuts end: with every change of what they rely on.

use std::{
    mem::MaybeUninit,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::{maps::MapData, util::KernelVersion};
use contiv_abi::{Epochs as Shared, maps::EPOCHS};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{mmap::Mapping, writes::Writes},
    },
};

/// `ctv_epochs`, and what it stands for.
pub(crate) struct Epochs {
    memory: Mapping<Shared>,
    writes: Writes,
    /// How many writes there were when the programs were told last.
    told: u64,
}

impl Epochs {
    /// What was written before, by whomever, is told at once.
    pub(crate) fn new(map: MapData, writes: Writes) -> Result<Self, Error> {
        let memory =
            Mapping::new(map, 1).map_err(|error| failed(format!("map {EPOCHS} into memory"), error))?;
        let epochs = Epochs { memory, told: writes.get(), writes };
        epochs.tell_kernel();
        epochs.end();
        Ok(epochs)
    }

    /// What the programs cannot ask the kernel: how long a tick is, of which they have the number at hand, where the time is a
    /// call; and whether it makes a pod's own of what they give to a pod.
    fn tell_kernel(&self) {
        let Some(place) = self.memory.place(0).map(NonNull::as_ptr) else { return };
        // SAFETY: numbers in the mapping, which the programs read at any time.
        let (ticks, takes) = unsafe {
            (AtomicU64::from_ptr(&raw mut (*place).ticks), AtomicU64::from_ptr(&raw mut (*place).takes))
        };
        ticks.store(ticks_in_a_second(), Ordering::Release);
        takes.store(u64::from(takes_what_is_given()), Ordering::Release);
    }

    /// To be called when a change is whole: from then on the programs go by it. Nothing is done unless something was written.
    pub(crate) fn turn(&mut self) {
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

/// `CONFIG_HZ` of the kernel: its coarse clocks move with the ticks.
fn ticks_in_a_second() -> u64 {
    const SECOND: u64 = 1_000_000_000;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills what it is given; it fails only for clocks that are not there.
    let time = unsafe {
        libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, time.as_mut_ptr());
        time.assume_init()
    };
    let tick = (time.tv_nsec as u64).max(1);
    (SECOND + tick / 2) / tick
}

/// Whether `bpf_redirect_peer` scrubs the packet, its type included ("bpf: Scrub packet on bpf_redirect_peer"). Where that
/// cannot be told, the programs do it.
fn takes_what_is_given() -> bool {
    KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(6, 15, 0))
}
