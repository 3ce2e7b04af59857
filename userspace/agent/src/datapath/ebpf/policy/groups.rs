//! The array of groups in the memory of the process: a word is written atomically and without a system call.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use aya::maps::MapData;
use contiv_abi::{
    maps::GROUPS,
    policy::{GROUP_NUMBERS, Group},
};

use crate::datapath::{
    Error,
    ebpf::{failure::failed, maps::writes::Writes},
};

/// [`Group`] in the memory that programs read.
#[repr(C)]
struct Shared {
    sets: [AtomicU32; 2],
    rate: AtomicU64,
    burst: AtomicU32,
    dscp: AtomicU32,
}
const _: () = assert!(size_of::<Shared>() == size_of::<Group>() && align_of::<Shared>() == 8);

/// `ctv_groups`.
pub(crate) struct Groups {
    memory: NonNull<Shared>,
    writes: Writes,
}

// SAFETY: the memory belongs to the process, not to a thread, and all access is atomic.
unsafe impl Send for Groups {}
// SAFETY: as above.
unsafe impl Sync for Groups {}

const BYTES: usize = GROUP_NUMBERS * size_of::<Shared>();
/// Number of entries that are compared together.
const CHUNK: usize = 256;
const ZEROS: [u8; CHUNK * size_of::<Shared>()] = [0; CHUNK * size_of::<Shared>()];

impl Groups {
    pub(crate) fn new(map: &MapData, writes: Writes) -> Result<Groups, Error> {
        let what = || format!("map {GROUPS} into memory");
        let info = map.info().map_err(|error| failed(what(), error))?;
        if info.value_size() as usize != size_of::<Shared>() || info.max_entries() as usize != GROUP_NUMBERS {
            return Err(failed(what(), "it has an unexpected size"));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let fd = map.fd().as_fd().as_raw_fd();
        // SAFETY: a new mapping at an address chosen by the kernel; the map has `BYTES` bytes.
        let address = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, libc::MAP_SHARED, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(failed(what(), io::Error::last_os_error()));
        }
        let memory = NonNull::new(address.cast()).ok_or_else(|| failed(what(), "the address is null"))?;
        Ok(Groups { memory, writes })
    }

    fn all(&self) -> &[Shared] {
        // SAFETY: the mapping contains `GROUP_NUMBERS` values, is page-aligned, and lives as long as `self`; every bit
        // pattern is valid, and all access is atomic.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), GROUP_NUMBERS) }
    }

    /// Returns the groups whose entry is not zero. Few numbers are in use: chunks that are all zero are skipped by
    /// comparing bytes.
    pub(crate) fn read(&self) -> impl Iterator<Item = (u16, Group)> {
        let chunks = self.bytes().chunks(CHUNK * size_of::<Shared>()).zip(self.all().chunks(CHUNK));
        let used = chunks.enumerate().filter(|(_, (bytes, _))| **bytes != ZEROS[..bytes.len()]);
        let groups = used.flat_map(|(chunk, (_, groups))| {
            groups.iter().enumerate().map(move |(at, group)| ((chunk * CHUNK + at) as u16, group.load()))
        });
        groups.filter(|(_, group)| *group != Group::default())
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: as in `all`; nothing in this process writes while the slice exists, because `set` needs `&mut self`, and
        // programs only read.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().cast(), BYTES) }
    }

    pub(crate) fn get(&self, number: u16) -> Group {
        self.all().get(usize::from(number)).map_or(Group::default(), Shared::load)
    }

    /// Writes the entry unless it is equal.
    pub(crate) fn set(&mut self, number: u16, group: Group) {
        if self.get(number) != group
            && let Some(shared) = self.all().get(usize::from(number))
        {
            self.writes.count();
            shared.store(group);
        }
    }
}

impl Shared {
    fn load(&self) -> Group {
        Group {
            sets: self.sets.each_ref().map(|set| set.load(Ordering::Acquire)),
            rate: self.rate.load(Ordering::Relaxed),
            burst: self.burst.load(Ordering::Relaxed),
            dscp: self.dscp.load(Ordering::Relaxed),
        }
    }

    /// Writes each field atomically, the references to rule sets last.
    fn store(&self, group: Group) {
        self.burst.store(group.burst, Ordering::Relaxed);
        self.rate.store(group.rate, Ordering::Relaxed);
        self.dscp.store(group.dscp, Ordering::Relaxed);
        for (shared, set) in self.sets.iter().zip(group.sets) {
            shared.store(set, Ordering::Release);
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` created; no reference into it exists. After a failure it stays mapped.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error;

    use super::*;

    /// Returns memory of the map's size that does not belong to a map.
    fn groups() -> Groups {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address chosen by the kernel.
        let address = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED, "{}", Error::last_os_error());
        Groups { memory: NonNull::new(address.cast()).unwrap(), writes: Writes::default() }
    }

    #[test]
    fn groups_at_all_borders_are_read() {
        let last = (GROUP_NUMBERS - 1) as u16;
        let group = Group { dscp: 46, ..Group::default() };
        let mut groups = groups();
        assert_eq!(groups.read().count(), 0);
        let numbers = [0, 1, CHUNK as u16 - 1, CHUNK as u16, last];
        for number in numbers {
            groups.set(number, group);
        }
        assert_eq!(groups.read().collect::<Vec<_>>(), numbers.map(|number| (number, group)));
        groups.set(last, Group::default());
        assert_eq!(groups.read().last(), Some((CHUNK as u16, group)));
    }
}
