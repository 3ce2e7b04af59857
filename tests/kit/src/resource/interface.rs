//! Settings of an interface in the network namespace of the calling thread. Requests of netdevice(7) and not the program
//! `ip`: a test makes dozens of them, and under emulation each program costs 60 ms.

use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

/// Sets the interface up.
pub(super) fn up(link: &str) -> Result<()> {
    let socket = control()?;
    let mut request = request(link)?;
    send(&socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: the kernel has filled in the flags.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::c_short::try_from(libc::IFF_UP)?;
    send(&socket, libc::SIOCSIFFLAGS, &mut request)
}

pub(super) fn mtu(link: &str, mtu: u16) -> Result<()> {
    let mut request = request(link)?;
    request.ifr_ifru.ifru_mtu = mtu.into();
    send(&control()?, libc::SIOCSIFMTU, &mut request)
}

fn control() -> Result<OwnedFd> {
    socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).context("open a socket")
}

fn request(link: &str) -> Result<libc::ifreq> {
    // SAFETY: ifreq is plain numbers, for which all zeros is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    ensure!(link.len() < request.ifr_name.len(), "{link}: longer than a name of an interface");
    for (to, from) in request.ifr_name.iter_mut().zip(link.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

fn send(socket: &OwnedFd, command: libc::Ioctl, request: &mut libc::ifreq) -> Result<()> {
    // SAFETY: the kernel reads and writes one ifreq.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), command, &raw mut *request) };
    Errno::result(result).map(drop).context("ioctl")
}
