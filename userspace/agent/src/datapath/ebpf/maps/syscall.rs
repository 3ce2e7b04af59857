//! The system call `bpf` (`man 2 bpf`), for commands that aya does not provide.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_GET_NEXT_KEY: libc::c_int = 4;
const BPF_OBJ_GET: libc::c_int = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const BPF_BTF_GET_FD_BY_ID: libc::c_int = 19;
const BPF_LINK_DETACH: libc::c_int = 34;

/// Executes a command. Returns its result.
///
/// # Safety
///
/// `T` must be the part of `union bpf_attr` for the command, and its addresses must refer to memory that the command may read
/// or write.
pub(crate) unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: guaranteed by the caller; the kernel accesses only `size_of::<T>()` bytes of the attributes.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), size_of::<T>() as libc::c_uint)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// The attributes of lookups and updates.
#[repr(C)]
struct Element {
    map: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Reads a value of an array map into `value`, which must be as long as the map's values.
pub(crate) fn read_array(map: impl AsFd, index: u32, value: &mut [u8]) -> io::Result<()> {
    let mut attributes = element(map, &raw const index as u64, value.as_mut_ptr() as u64);
    // SAFETY: the key is an index, and the buffer has the length of a value.
    unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes) }.map(drop)
}

/// Writes a value of an array map; `value` must be as long as the map's values.
pub(crate) fn write_array(map: impl AsFd, index: u32, value: &[u8]) -> io::Result<()> {
    let mut attributes = element(map, &raw const index as u64, value.as_ptr() as u64);
    // SAFETY: as above.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attributes) }.map(drop)
}

/// Reads the value of a key. Both must be as long as those of the map.
///
/// # Errors
///
/// `ENOENT` if there is no such key.
pub(crate) fn lookup(map: impl AsFd, key: &[u8], value: &mut [u8]) -> io::Result<()> {
    let mut attributes = element(map, key.as_ptr() as u64, value.as_mut_ptr() as u64);
    // SAFETY: key and value have the lengths of those of the map.
    unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attributes) }.map(drop)
}

/// Reads the key after `key`, or the first one, which must be as long as those of the map. Returns false at the end.
pub(crate) fn next_key(map: impl AsFd, key: Option<&[u8]>, next: &mut [u8]) -> io::Result<bool> {
    let mut attributes = element(map, key.map_or(0, |key| key.as_ptr() as u64), next.as_mut_ptr() as u64);
    // SAFETY: both keys have the length of those of the map.
    match unsafe { bpf(BPF_MAP_GET_NEXT_KEY, &mut attributes) } {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

fn element(map: impl AsFd, key: u64, value: u64) -> Element {
    Element { map: map.as_fd().as_raw_fd().cast_unsigned(), zero: 0, key, value, flags: 0 }
}

/// Reads the information about an object into `T`, one of `struct bpf_*_info`. The kernel writes at most the length that
/// it knows.
///
/// # Safety
///
/// Every bit pattern must be valid for `T`, and addresses in it must refer to memory that the kernel may write.
pub(crate) unsafe fn info<T>(object: impl AsFd, info: &mut T) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        object: u32,
        len: u32,
        info: u64,
    }
    let mut attributes = Attributes {
        object: object.as_fd().as_raw_fd().cast_unsigned(),
        len: size_of::<T>() as u32,
        info: std::ptr::from_mut(info) as u64,
    };
    // SAFETY: guaranteed by the caller.
    unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes) }.map(drop)
}

/// Opens BTF by its id.
pub(crate) fn open_btf(id: u32) -> io::Result<OwnedFd> {
    let mut attributes = [id, 0, 0];
    // SAFETY: the attributes have no addresses.
    let fd = unsafe { bpf(BPF_BTF_GET_FD_BY_ID, &mut attributes) }?;
    // SAFETY: a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Detaches the program of a pinned link, and waits until it is not running any more.
pub(crate) fn detach_link(pin: &Path) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        path: u64,
        fd: u32,
        flags: u32,
    }
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let mut attributes = Attributes { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the path is a string that outlives the call.
    let fd = unsafe { bpf(BPF_OBJ_GET, &mut attributes) }?;
    // SAFETY: a new descriptor.
    let link = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut attributes = link.as_raw_fd().cast_unsigned();
    // SAFETY: the attributes have no addresses.
    unsafe { bpf(BPF_LINK_DETACH, &mut attributes) }.map(drop)
}
