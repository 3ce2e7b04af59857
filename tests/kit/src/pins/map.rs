//! Empties a map by the system call `bpf` (`man 2 bpf`, include/uapi/linux/bpf.h).

use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    ptr,
};

use anyhow::{Context as _, Result, bail};

const UPDATE_ELEM: libc::c_int = 2;
const DELETE_ELEM: libc::c_int = 3;
const GET_NEXT_KEY: libc::c_int = 4;
const OBJ_GET: libc::c_int = 7;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;

const HASH: u32 = 1;
const ARRAY: u32 = 2;
const PROG_ARRAY: u32 = 3;
const PERCPU_HASH: u32 = 5;
const PERCPU_ARRAY: u32 = 6;
const LRU_HASH: u32 = 9;
const LPM_TRIE: u32 = 11;
const RINGBUF: u32 = 27;
const MMAPABLE: u32 = 1 << 10;

static ZEROS: [u8; 4096] = [0; 4096];

/// The start of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

/// The attributes of commands for one element.
#[repr(C)]
struct Element {
    map: u32,
    zero: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Removes all entries of a pinned map, or sets them to zero. Programs in an array of programs stay.
pub(super) fn empty(path: &Path) -> Result<()> {
    let map = open(path)?;
    let info = info(&map)?;
    match info.kind {
        HASH | PERCPU_HASH | LRU_HASH | LPM_TRIE => remove_keys(&map, &info),
        ARRAY if info.flags & MMAPABLE != 0 => zero_memory(&map, &info),
        ARRAY | PERCPU_ARRAY => zero_values(&map, &info),
        RINGBUF => skip_records(&map),
        PROG_ARRAY => Ok(()),
        kind => bail!("maps of type {kind} cannot be emptied"),
    }
}

/// # Safety
///
/// `T` must be the part of `union bpf_attr` for the command, and its addresses must refer to memory that the command may use.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: guaranteed by the caller.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, ptr::from_mut(attributes), size_of::<T>() as libc::c_uint)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn open(path: &Path) -> Result<OwnedFd> {
    #[repr(C)]
    struct Pin {
        path: u64,
        fd: u32,
        flags: u32,
    }
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut pin = Pin { path: name.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the path lives until the call returns.
    let fd = unsafe { bpf(OBJ_GET, &mut pin) }.context("open it")?;
    // SAFETY: a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn info(map: &OwnedFd) -> Result<Info> {
    #[repr(C)]
    struct Query {
        fd: u32,
        len: u32,
        info: u64,
    }
    let mut info = Info::default();
    let mut query = Query {
        fd: map.as_raw_fd() as u32,
        len: size_of::<Info>() as u32,
        info: ptr::from_mut(&mut info) as u64,
    };
    // SAFETY: the buffer has the length that the query names.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut query) }.context("query it")?;
    Ok(info)
}

fn element(map: &OwnedFd, key: u64, value: u64) -> Element {
    Element { map: map.as_raw_fd() as u32, zero: 0, key, value, flags: 0 }
}

fn remove_keys(map: &OwnedFd, info: &Info) -> Result<()> {
    let mut key = vec![0_u8; info.key_size as usize];
    loop {
        let mut first = element(map, 0, key.as_mut_ptr() as u64);
        // SAFETY: the buffer has the length of a key.
        match unsafe { bpf(GET_NEXT_KEY, &mut first) } {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            result => result.context("read a key")?,
        };
        let mut found = element(map, key.as_ptr() as u64, 0);
        // SAFETY: as above.
        match unsafe { bpf(DELETE_ELEM, &mut found) } {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                return Err(error).context("remove a key");
            }
            _ => {}
        }
    }
}

fn zero_values(map: &OwnedFd, info: &Info) -> Result<()> {
    let values = if info.kind == PERCPU_ARRAY { possible_cpus()? } else { 1 };
    let zeros = vec![0_u8; info.value_size.next_multiple_of(8) as usize * values];
    for index in 0..info.max_entries {
        let mut entry = element(map, &raw const index as u64, zeros.as_ptr() as u64);
        // SAFETY: the key is an index, and the buffer has a value for each CPU.
        unsafe { bpf(UPDATE_ELEM, &mut entry) }.with_context(|| format!("write to index {index}"))?;
    }
    Ok(())
}

fn zero_memory(map: &OwnedFd, info: &Info) -> Result<()> {
    let len = info.value_size.next_multiple_of(8) as usize * info.max_entries as usize;
    map_memory(map, (0, len), libc::PROT_READ | libc::PROT_WRITE, |start| {
        // SAFETY: inside the mapping. Only pages that were written are written again.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
        for page in bytes.chunks_mut(ZEROS.len()) {
            if page != &ZEROS[..page.len()] {
                page.fill(0);
            }
        }
    })
}

/// Moves the position of the consumer, which is in the first page, to that of the producer, in the second one.
fn skip_records(map: &OwnedFd) -> Result<()> {
    // SAFETY: no requirements.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let mut produced = 0;
    map_memory(map, (page, page), libc::PROT_READ, |start| {
        // SAFETY: the page begins with the position.
        produced = unsafe { start.cast::<u64>().read_volatile() };
    })?;
    map_memory(map, (0, page), libc::PROT_READ | libc::PROT_WRITE, |start| {
        // SAFETY: as above; no other consumer exists.
        unsafe { start.cast::<u64>().write_volatile(produced) };
    })
}

fn map_memory(
    map: &OwnedFd,
    (offset, len): (usize, usize),
    protection: libc::c_int,
    work: impl FnOnce(*mut u8),
) -> Result<()> {
    let offset = libc::off_t::try_from(offset)?;
    // SAFETY: a new mapping of an open descriptor.
    let start =
        unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, map.as_raw_fd(), offset) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error()).context("map it into memory");
    }
    work(start.cast());
    // SAFETY: the mapping from above, to which nothing refers any more.
    if unsafe { libc::munmap(start, len) } != 0 {
        return Err(io::Error::last_os_error()).context("unmap it");
    }
    Ok(())
}

/// One more than the last number in a list such as `0-3`.
fn possible_cpus() -> Result<usize> {
    const LIST: &str = "/sys/devices/system/cpu/possible";
    let text = fs::read_to_string(LIST).with_context(|| format!("read {LIST}"))?;
    let last = text.trim().rsplit([',', '-']).next().unwrap_or_default();
    Ok(last.parse::<usize>().with_context(|| format!("parse {LIST}: {text:?}"))? + 1)
}
