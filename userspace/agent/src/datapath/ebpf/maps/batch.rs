//! Many entries of a hash map in one call. aya has no such calls (Linux 5.6, `man 2 bpf`).

use std::{
    io,
    marker::PhantomData,
    os::fd::{AsFd as _, AsRawFd as _},
};

use aya::{Pod, maps::MapData};

use crate::datapath::{
    Error,
    ebpf::{failure::failed, maps::writes::Writes},
};

/// Entries per call: enough to make the call itself cheap, and less than half a megabyte.
const CHUNK: usize = 8192;

const BPF_MAP_LOOKUP_BATCH: libc::c_int = 24;
const BPF_MAP_DELETE_BATCH: libc::c_int = 27;

/// The part of `union bpf_attr` that these commands read (`include/uapi/linux/bpf.h`).
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

/// A hash map that is read and emptied by the thousand, and of which no copy is kept.
pub(crate) struct BatchMap<K, V> {
    name: &'static str,
    map: MapData,
    writes: Writes,
    types: PhantomData<(K, V)>,
}

impl<K: Pod, V: Pod> BatchMap<K, V> {
    /// Fails unless keys and values of the map have the sizes of `K` and `V`.
    pub(crate) fn new(name: &'static str, map: MapData, writes: Writes) -> Result<Self, Error> {
        let what = || format!("open the map {name}");
        let info = map.info().map_err(|error| failed(what(), error))?;
        if (info.key_size() as usize, info.value_size() as usize) != (size_of::<K>(), size_of::<V>()) {
            return Err(failed(what(), "its keys or values have another size than ours"));
        }
        Ok(BatchMap { name, map, writes, types: PhantomData })
    }

    /// Every entry.
    pub(crate) fn read(&self) -> Result<Vec<(K, V)>, Error> {
        entries(self.name, &self.map)
    }

    /// Removes entries; those that are not there are none the less gone.
    pub(crate) fn remove(&self, keys: &[K]) -> Result<(), Error> {
        for mut part in keys.chunks(CHUNK) {
            while !part.is_empty() {
                let mut attributes =
                    Attributes { keys: part.as_ptr() as u64, count: part.len() as u32, ..self.attributes() };
                self.writes.count();
                // SAFETY: `count` keys of the size that `new` compared.
                match unsafe { call(BPF_MAP_DELETE_BATCH, &mut attributes) } {
                    Ok(()) => break,
                    // It stops there: the count is of those before.
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

/// Every entry of a hash map whose keys and values have the sizes of `K` and `V`.
pub(crate) fn entries<K: Pod, V: Pod>(name: &'static str, map: &MapData) -> Result<Vec<(K, V)>, Error> {
    let mut entries = vec![];
    read(name, map, 1, |key, values: &[V]| {
        entries.extend(values.first().map(|value| (key, *value)));
        true
    })?;
    Ok(entries)
}

/// Reads a hash map whose keys and values have the sizes of `K` and `V`, with `copies` values to each key, until `each`
/// has enough. Where it stopped: after so many buckets; `None` at the end of the map.
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
        // Where the next call goes on: the number of a bucket.
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
        // SAFETY: there is room for `count` keys and values of the sizes that the caller promises, and for the
        // position, which has four bytes for a hash map.
        let result = unsafe { call(BPF_MAP_LOOKUP_BATCH, &mut attributes) };
        let last = match result {
            Ok(()) => false,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
            // One bucket has more entries than there is room for.
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                chunk *= 2;
                continue;
            }
            Err(error) => return Err(failed(format!("read the map {name}"), error)),
        };
        let count = (attributes.count as usize).min(chunk);
        // SAFETY: the kernel has written so many, and every bit pattern is valid (`Pod`).
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

/// # Safety
///
/// The addresses in `attributes` are those of memory that the command may read or write as it says.
unsafe fn call(command: libc::c_int, attributes: &mut Attributes) -> io::Result<()> {
    // SAFETY: the caller's promise; the kernel reads and writes no more of the attributes than their size.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<Attributes>() as libc::c_uint)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
