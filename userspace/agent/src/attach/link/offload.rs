//! TX checksum offload, set by the ioctl of linux/ethtool.h: ethtool netlink would need the names of the feature bits.

use std::{io, os::fd::AsRawFd as _};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_STXCSUM: u32 = 0x17;

#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// Disables TX checksum offload of `name`, in the network namespace of the calling thread.
pub(super) fn disable_tx_checksum(name: &str) -> io::Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut value = Value { command: ETHTOOL_STXCSUM, data: 0 };
    // SAFETY: an all-zero `ifreq` is a valid one: integers, and a pointer that may be null.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads a command and its value from `ifru_data`, which points to `value`;
    // both live until the call returns.
    match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
