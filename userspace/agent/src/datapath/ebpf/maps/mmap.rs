//! Array maps in the memory of the process: a write needs no system call.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _},
    ptr::{self, NonNull},
};

use aya::maps::MapData;
use bytemuck::Pod;

/// Number of bytes that are compared at a time.
const CHUNK: usize = 4096;

/// A memory-mapped array map (`BPF_F_MMAPABLE`). Programs read the values at any time: a writer must complete a value
/// before another map refers to it.
pub(crate) struct MmapArray<V> {
    values: NonNull<V>,
    len: usize,
    /// Keeps the map alive as long as the mapping.
    _map: MapData,
}

// SAFETY: the memory belongs to the process, not to a thread.
unsafe impl<V: Send> Send for MmapArray<V> {}
// SAFETY: a write needs `&mut`.
unsafe impl<V: Sync> Sync for MmapArray<V> {}

impl<V: Pod> MmapArray<V> {
    /// Maps the first `len` values. The kernel aligns values to 8 bytes, so the size of `V` must be a multiple of 8.
    pub(crate) fn new(map: MapData, len: usize) -> io::Result<Self> {
        const { assert!(size_of::<V>().is_multiple_of(8)) };
        // SAFETY: a new mapping of an open descriptor.
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
        Ok(MmapArray { values, len, _map: map })
    }

    /// The value at `index`; `None` if the index is out of range.
    pub(crate) fn get(&self, index: u32) -> Option<V> {
        let index = index as usize;
        // SAFETY: the index is inside the mapping. A value that programs write meanwhile may be torn.
        (index < self.len).then(|| unsafe { self.values.add(index).read_volatile() })
    }

    /// Returns the indexes of the values that are not zero. Large maps are mostly empty, so memory is compared in pages.
    pub(crate) fn occupied(&self) -> Vec<u32> {
        let mut occupied = vec![];
        let per_chunk = (CHUNK / size_of::<V>()).max(1);
        let mut chunk = vec![V::zeroed(); per_chunk];
        let zero = chunk.clone();
        let bytes = bytemuck::cast_slice::<V, u8>;
        for first in (0..self.len).step_by(per_chunk) {
            let len = per_chunk.min(self.len - first);
            // SAFETY: inside the mapping. Values that programs write meanwhile may be torn.
            unsafe { ptr::copy_nonoverlapping(self.values.as_ptr().add(first), chunk.as_mut_ptr(), len) };
            if bytes(&chunk[..len]) != bytes(&zero[..len]) {
                let values = (first as u32..).zip(&chunk[..len]);
                occupied.extend(
                    values.filter(|(_, v)| bytes(&[**v]) != bytes(&zero[..1])).map(|(index, _)| index),
                );
            }
        }
        occupied
    }

    /// Writes the value at `index`; false if the index is out of range.
    pub(crate) fn set(&mut self, index: u32, value: V) -> bool {
        let index = index as usize;
        if index < self.len {
            // SAFETY: the index is inside the mapping.
            unsafe { self.values.add(index).write_volatile(value) };
        }
        index < self.len
    }
}

/// A memory-mapped array map with values of a layout that is known only at run time. It is read-only.
pub(crate) struct MmapValues {
    bytes: NonNull<u8>,
    len: usize,
    stride: usize,
    /// Keeps the map alive as long as the mapping.
    _map: MapData,
}

// SAFETY: the memory belongs to the process, not to a thread.
unsafe impl Send for MmapValues {}
// SAFETY: the memory is only read.
unsafe impl Sync for MmapValues {}

impl MmapValues {
    /// Maps `len` values of `size` bytes.
    pub(crate) fn new(map: MapData, len: usize, size: usize) -> io::Result<Self> {
        let stride = size.next_multiple_of(8);
        let fd = map.fd().as_fd().as_raw_fd();
        // SAFETY: a new mapping of an open descriptor.
        let address =
            unsafe { libc::mmap(ptr::null_mut(), len * stride, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let bytes =
            NonNull::new(address.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
        Ok(MmapValues { bytes, len, stride, _map: map })
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Copies the beginning of the value at `index`; false if the index is out of range. Bytes that programs write meanwhile
    /// may be torn between aligned words.
    pub(crate) fn read(&self, index: u32, offset: usize, to: &mut [u8]) -> bool {
        let fits = (index as usize) < self.len && offset + to.len() <= self.stride;
        if fits {
            // SAFETY: inside the mapping. Programs write the memory, so the bytes may change at any time.
            unsafe {
                let from = self.bytes.add(index as usize * self.stride + offset);
                ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len());
            }
        }
        fits
    }
}

impl Drop for MmapValues {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` created. The call cannot fail for mapped memory.
        let _unmapped = unsafe { libc::munmap(self.bytes.as_ptr().cast(), self.len * self.stride) };
    }
}

impl<V> Drop for MmapArray<V> {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` created. The call cannot fail for mapped memory.
        let _unmapped = unsafe { libc::munmap(self.values.as_ptr().cast(), self.len * size_of::<V>()) };
    }
}
