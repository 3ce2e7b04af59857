//! The host ends of endpoints' veth pairs.
//!
//! A host end that belongs to no endpoint of the datapath is down: what its pod goes on to send would otherwise enter the network
//! stack of the node, past all checks and rules.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd as _, OwnedFd},
    time::{Duration, Instant},
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

const UP: libc::c_short = libc::IFF_UP as libc::c_short;
/// Up, and the kernel has noticed that the other end is.
const RUNNING: libc::c_short = libc::IFF_RUNNING as libc::c_short;
/// Time limit for the kernel to notice that the other end is up, if it is.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(1);
const RUNNING_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Beginning of the names of host ends.
const PREFIX: &str = "vvport";

/// The name of a host end by its index, in the network namespace of the calling thread; `None` for another interface.
pub(crate) fn by_index(ifindex: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(ifindex).ok()?.into_string().ok()?;
    name.starts_with(PREFIX).then_some(name)
}

/// Whether the interface exists and is down, in the network namespace of the calling thread.
pub(crate) fn is_down(name: &str) -> bool {
    Request::new(name).and_then(|mut request| request.flags()).is_ok_and(|flags| flags & UP == 0)
}

/// Sets the interface down; true if it was up. Succeeds if it does not exist.
pub(crate) fn set_down(name: &str) -> io::Result<bool> {
    change(name, |flags| flags & !UP)
}

/// Sets the interface up, and waits until it forwards frames, if its other end is up; true if it was down. Succeeds if it does not
/// exist.
pub(crate) async fn set_up(name: &str) -> io::Result<bool> {
    if !change(name, |flags| flags | UP)? {
        return Ok(false);
    }
    let deadline = Instant::now() + RUNNING_TIMEOUT;
    while !is_running(name) && Instant::now() < deadline {
        tokio::time::sleep(RUNNING_POLL_INTERVAL).await;
    }
    Ok(true)
}

fn is_running(name: &str) -> bool {
    Request::new(name).and_then(|mut request| request.flags()).is_ok_and(|flags| flags & RUNNING != 0)
}

/// Changes the flags of an interface, if they differ; true if they did.
fn change(name: &str, flags: impl FnOnce(libc::c_short) -> libc::c_short) -> io::Result<bool> {
    let changed = || -> io::Result<bool> {
        let mut request = Request::new(name)?;
        let before = request.flags()?;
        let after = flags(before);
        if before != after {
            request.set_flags(after)?;
        }
        Ok(before != after)
    };
    match changed() {
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
        changed => changed,
    }
}

/// A request for the flags of an interface (`man 7 netdevice`).
struct Request {
    socket: OwnedFd,
    ifreq: libc::ifreq,
}

impl Request {
    fn new(name: &str) -> io::Result<Request> {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        let name = CString::new(name)?;
        // SAFETY: all fields of ifreq are integers and pointers, for which zero is a valid value.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        let bytes = name.as_bytes_with_nul();
        if bytes.len() > ifreq.ifr_name.len() {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in ifreq.ifr_name.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Ok(Request { socket, ifreq })
    }

    fn flags(&mut self) -> io::Result<libc::c_short> {
        const SIOCGIFFLAGS: libc::c_ulong = 0x8913;
        self.execute(SIOCGIFFLAGS)?;
        // SAFETY: the kernel has written the flags.
        Ok(unsafe { self.ifreq.ifr_ifru.ifru_flags })
    }

    fn set_flags(&mut self, flags: libc::c_short) -> io::Result<()> {
        const SIOCSIFFLAGS: libc::c_ulong = 0x8914;
        self.ifreq.ifr_ifru.ifru_flags = flags;
        self.execute(SIOCSIFFLAGS)
    }

    fn execute(&mut self, command: libc::c_ulong) -> io::Result<()> {
        // SAFETY: the argument of both commands is an `ifreq`, which outlives the call.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), command, &raw mut self.ifreq) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
