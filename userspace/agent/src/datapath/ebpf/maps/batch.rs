//! Batched lookup and delete in hash maps (Linux 5.6, `man 2 bpf`), which aya does not provide.

use std::{
    marker::PhantomData,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::{Pod, maps::MapData};

use super::{syscall::bpf, writes::Writes};
use crate::datapath::{Error, ebpf::failure::failed};

/// Entries per call. Amortises the system call; the buffers stay below 512 KiB.
const CHUNK: usize = 8192;

const BPF_MAP_LOOKUP_BATCH: libc::c_int = 24;
const BPF_MAP_DELETE_BATCH: libc::c_int = 27;

/// The part of `union bpf_attr` for batch commands (`include/uapi/linux/bpf.h`).
#[derive(Default)]
#[repr(C)]
struct Attributes {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map: u32,
    element_flags: u64,
    flags: u64,
}

/// A hash map whose entries are removed in batches, without a copy in the process.
pub(crate) struct BatchMap<K, V> {
    name: &'static str,
    map: MapData,
    writes: Writes,
    types: PhantomData<(K, V)>,
}

impl<K: Pod, V: Pod> BatchMap<K, V> {
    /// Fails if the map's keys or values differ in size from `K` or `V`.
    pub(crate) fn new(name: &'static str, map: MapData, writes: Writes) -> Result<Self, Error> {
        let what = || format!("open the map {name}");
        let info = map.info().map_err(|error| failed(what(), error))?;
        if (info.key_size() as usize, info.value_size() as usize) != (size_of::<K>(), size_of::<V>()) {
            return Err(failed(what(), "its keys or values have an unexpected size"));
        }
        Ok(BatchMap { name, map, writes, types: PhantomData })
    }

    /// Removes entries. Ignores keys without an entry.
    pub(crate) fn remove(&self, keys: &[K]) -> Result<(), Error> {
        for mut part in keys.chunks(CHUNK) {
            while !part.is_empty() {
                let mut attributes =
                    Attributes { keys: part.as_ptr() as u64, count: part.len() as u32, ..self.attributes() };
                self.writes.count();
                // SAFETY: `keys` has `count` keys of the size that `new` checked.
                match unsafe { bpf(BPF_MAP_DELETE_BATCH, &mut attributes) } {
                    Ok(_) => break,
                    // The call stops at a missing key; `count` is the number of keys before it.
                    Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                        part = part.get(attributes.count as usize + 1..).unwrap_or_default();
                    }
                    Err(error) => return Err(failed(format!("remove from the map {}", self.name), error)),
                }
            }
        }
        Ok(())
    }

    fn attributes(&self) -> Attributes {
        Attributes { map: self.map.fd().as_fd().as_raw_fd() as u32, ..Attributes::default() }
    }
}

/// Reads every entry of a hash map. Its keys and values must have the sizes of `K` and `V`.
pub(crate) fn entries<K: Pod, V: Pod>(name: &'static str, map: &MapData) -> Result<Vec<(K, V)>, Error> {
    let mut entries = vec![];
    read(name, map, 1, |key, values: &[V]| {
        entries.extend(values.first().map(|value| (key, *value)));
        true
    })?;
    Ok(entries)
}

/// Calls `each` for the entries of a hash map until it returns false. The map's keys and values must have the sizes of
/// `K` and `V`; `copies` is the number of values per key (the number of CPUs for a per-CPU map).
///
/// Returns the number of buckets read, or `None` at the end of the map.
pub(crate) fn read<K: Pod, V: Pod>(
    name: &'static str,
    map: &MapData,
    copies: usize,
    mut each: impl FnMut(K, &[V]) -> bool,
) -> Result<Option<u32>, Error> {
    let mut position = None;
    let mut chunk = CHUNK;
    loop {
        let mut keys: Vec<K> = Vec::with_capacity(chunk);
        let mut values: Vec<V> = Vec::with_capacity(chunk * copies);
        // Index of the bucket at which the next call continues.
        let mut next = 0_u32;
        let mut attributes = Attributes {
            in_batch: position.as_ref().map_or(0, |position: &u32| &raw const *position as u64),
            out_batch: &raw mut next as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: chunk as u32,
            map: map.fd().as_fd().as_raw_fd() as u32,
            ..Attributes::default()
        };
        // SAFETY: the buffers hold `count` keys and values of the sizes that the caller guarantees; the position of a
        // hash map has four bytes.
        let result = unsafe { bpf(BPF_MAP_LOOKUP_BATCH, &mut attributes) };
        let last = match result {
            Ok(_) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            // One bucket has more entries than the buffers hold.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                chunk *= 2;
                continue;
            }
            Err(error) => return Err(failed(format!("read the map {name}"), error)),
        };
        let count = (attributes.count as usize).min(chunk);
        // SAFETY: the kernel has written `count` entries, and every bit pattern is valid (`Pod`).
        unsafe {
            keys.set_len(count);
            values.set_len(count * copies);
        }
        let mut goes_on = true;
        for (key, values) in keys.into_iter().zip(values.chunks(copies)) {
            goes_on &= each(key, values);
        }
        if last {
            return Ok(None);
        }
        if !goes_on {
            return Ok(Some(next));
        }
        position = Some(next);
    }
}
