//! Generation of the configuration, which invalidates the programs' flow cache.

use std::{
    mem::MaybeUninit,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use aya::{maps::MapData, util::KernelVersion};
use contiv_abi::{Epochs as Shared, maps::EPOCHS};

use super::{mmap::MmapArray, writes::Writes};
use crate::datapath::{Error, ebpf::failure::failed};

/// `ctv_epochs`: the generation, and properties of the kernel that the programs cannot query.
pub(crate) struct Generation {
    memory: MmapArray<Shared>,
    writes: Writes,
    /// Number of writes when the generation was last bumped.
    published: u64,
}

impl Generation {
    /// Bumps the generation: an earlier process may have written entries without doing so.
    pub(crate) fn new(map: MapData, writes: Writes) -> Result<Self, Error> {
        let memory =
            MmapArray::new(map, 1).map_err(|error| failed(format!("map {EPOCHS} into memory"), error))?;
        let generation = Generation { memory, published: writes.get(), writes };
        generation.publish_kernel_properties();
        generation.bump();
        Ok(generation)
    }

    /// Writes the tick rate, by which programs convert jiffies to time, and whether the kernel scrubs redirected packets.
    fn publish_kernel_properties(&self) {
        let Some(shared) = self.memory.pointer(0).map(NonNull::as_ptr) else { return };
        // SAFETY: integers in the mapping, which programs read at any time.
        let (ticks, takes) = unsafe {
            (AtomicU64::from_ptr(&raw mut (*shared).ticks), AtomicU64::from_ptr(&raw mut (*shared).takes))
        };
        ticks.store(ticks_per_second(), Ordering::Release);
        takes.store(u64::from(redirect_peer_scrubs()), Ordering::Release);
    }

    /// Makes the programs use the changes written so far. Call it when a change is complete. Does nothing if nothing was
    /// written since the last call.
    pub(crate) fn bump_if_written(&mut self) {
        let written = self.writes.get();
        if written != self.published {
            self.published = written;
            self.bump();
        }
    }

    fn bump(&self) {
        if let Some(shared) = self.memory.pointer(0) {
            // SAFETY: an integer in the mapping, which programs read at any time and only this process writes.
            let all = unsafe { AtomicU64::from_ptr(&raw mut (*shared.as_ptr()).all) };
            all.fetch_add(1, Ordering::Release);
        }
    }
}

/// `CONFIG_HZ` of the kernel, from the resolution of its coarse clock.
fn ticks_per_second() -> u64 {
    const SECOND: u64 = 1_000_000_000;
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills the structure; it fails only for unknown clocks.
    let time = unsafe {
        libc::clock_getres(libc::CLOCK_MONOTONIC_COARSE, time.as_mut_ptr());
        time.assume_init()
    };
    let tick = (time.tv_nsec as u64).max(1);
    (SECOND + tick / 2) / tick
}

/// Whether `bpf_redirect_peer` scrubs the packet, including its type (Linux 6.15, "bpf: Scrub packet on
/// bpf_redirect_peer"). If the version is unknown, the programs scrub.
fn redirect_peer_scrubs() -> bool {
    KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(6, 15, 0))
}
