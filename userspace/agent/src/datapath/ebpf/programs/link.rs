//! Immediate detachment of pinned links, which aya does not provide.

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

const BPF_OBJ_GET: libc::c_int = 7;
const BPF_LINK_DETACH: libc::c_int = 34;

/// Detaches the link from its interface. An unpinned link stays attached until an RCU grace period ends.
///
/// # Errors
/// `ENOLINK` if the interface has been deleted.
pub(crate) fn detach(pin: &Path) -> io::Result<()> {
    let link = open(pin)?;
    call(BPF_LINK_DETACH, &[link.as_raw_fd() as u64, 0]).map(drop)
}

fn open(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let descriptor = call(BPF_OBJ_GET, &[path.as_ptr() as u64, 0])?;
    // SAFETY: the kernel has opened the descriptor for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// `attributes` is the beginning of `union bpf_attr` for the command, on a little-endian machine.
fn call(command: libc::c_int, attributes: &[u64; 2]) -> io::Result<i32> {
    // SAFETY: both commands read the attributes, and `BPF_OBJ_GET` a string that outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}
