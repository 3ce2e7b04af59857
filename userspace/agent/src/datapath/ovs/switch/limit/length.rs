//! Length of the queue of an interface, set by the ioctl of netdevice(7).
//!
//! `htb` takes the length of its queue from the interface when it is created. By default that is 1,000 packets: seconds at a
//! low rate.

use std::{io, os::fd::AsRawFd as _};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use crate::datapath::ovs::options::DatapathType;

/// Packets.
pub(super) fn of(datapath_type: DatapathType) -> i32 {
    match datapath_type {
        // 48 KB of unsegmented packets.
        DatapathType::System => 32,
        // The userspace datapath sends to all ports through one socket. Queued packets occupy the socket's buffer, which holds
        // about 90: when it is full, frames to all pods are dropped.
        DatapathType::Netdev => 2,
    }
}

/// Sets the queue length of `interface`, in the network namespace of the calling thread.
pub(super) fn set(interface: &str, packets: i32) -> io::Result<()> {
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: an all-zero `ifreq` is a valid one: integers, and a pointer that may be null.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    // `ifr_qlen` of the C structure.
    request.ifr_ifru.ifru_metric = packets;
    // SAFETY: the kernel reads the name and an integer from `request`, which lives until the call returns.
    match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFTXQLEN, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
