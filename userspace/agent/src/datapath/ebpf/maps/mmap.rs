//! An array map in the agent's own memory: thousands of slots are written without a call for each.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    ptr::{self, NonNull},
};

use aya::maps::MapData;
use bytemuck::Pod;

/// The values of an array map, mapped. The kernel's programs read them at any time, so whoever writes sees to it
/// that nothing leads to a slot before it is whole.
pub(crate) struct Mapping<V> {
    values: NonNull<V>,
    len: usize,
    /// The map is there as long as the mapping.
    _map: MapData,
}

// SAFETY: memory of the process, not of a thread.
unsafe impl<V: Send> Send for Mapping<V> {}
// SAFETY: to write takes a `&mut`.
unsafe impl<V: Sync> Sync for Mapping<V> {}

impl<V: Pod> Mapping<V> {
    /// Of the first `len` values of an array map that was made mappable. The kernel keeps values at multiples
    /// of 8 bytes.
    pub(crate) fn new(map: MapData, len: usize) -> io::Result<Self> {
        const { assert!(size_of::<V>().is_multiple_of(8)) };
        // SAFETY: a new mapping, of a descriptor that is open.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len * size_of::<V>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.fd().as_fd().as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let values =
            NonNull::new(address.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        Ok(Mapping { values, len, _map: map })
    }

    /// The value in a slot, if there is such a slot.
    pub(crate) fn get(&self, slot: u32) -> Option<V> {
        let slot = slot as usize;
        // SAFETY: inside of the mapping; nobody but us writes there.
        (slot < self.len).then(|| unsafe { self.values.add(slot).read_volatile() })
    }

    /// Where a slot lies, if there is such a slot; for what the programs change, too.
    pub(crate) fn place(&self, slot: u32) -> Option<NonNull<V>> {
        let slot = slot as usize;
        // SAFETY: inside of the mapping.
        (slot < self.len).then(|| unsafe { self.values.add(slot) })
    }

    /// Writes a slot; false if there is no such slot.
    pub(crate) fn set(&mut self, slot: u32, value: V) -> bool {
        let slot = slot as usize;
        if slot < self.len {
            // SAFETY: inside of the mapping.
            unsafe { self.values.add(slot).write_volatile(value) };
        }
        slot < self.len
    }
}

impl<V> Drop for Mapping<V> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made. It cannot fail for what is mapped.
        let _unmapped = unsafe { libc::munmap(self.values.as_ptr().cast(), self.len * size_of::<V>()) };
    }
}
