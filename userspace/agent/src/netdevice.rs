//! Requests about one interface by ioctl (netdevice(7), linux/ethtool.h). They are synchronous, and name the features of ethtool by
//! numbers; ethtool's netlink interface would need the names of the feature bits.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

const SIOCGIFFLAGS: libc::c_ulong = 0x8913;
const SIOCSIFFLAGS: libc::c_ulong = 0x8914;
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 3;
const ETHTOOL_GLINK: u32 = 0x0a;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GFLAGS: u32 = 0x25;

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`, of which only the driver's name is used.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}

/// Requests about an interface in the network namespace of the thread that created it. They fail with `ENODEV` if there is no such
/// interface.
pub(crate) struct Requests {
    socket: OwnedFd,
    ifreq: libc::ifreq,
}

impl Requests {
    pub(crate) fn new(name: &str) -> io::Result<Requests> {
        let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        // SAFETY: an all-zero `ifreq` is a valid one: integers, and a pointer that may be null.
        let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
        // The last byte ends the name.
        if name.len() >= ifreq.ifr_name.len() || name.contains('\0') {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        for (to, from) in ifreq.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        Ok(Requests { socket, ifreq })
    }

    /// `IFF_UP` and others.
    pub(crate) fn flags(&mut self) -> io::Result<libc::c_short> {
        // SAFETY: the kernel writes the flags, for which all values are valid.
        unsafe {
            self.execute(SIOCGIFFLAGS)?;
            Ok(self.ifreq.ifr_ifru.ifru_flags)
        }
    }

    pub(crate) fn set_flags(&mut self, flags: libc::c_short) -> io::Result<()> {
        self.ifreq.ifr_ifru.ifru_flags = flags;
        // SAFETY: the kernel reads the flags.
        unsafe { self.execute(SIOCSIFFLAGS) }
    }

    /// Sets the length of the transmit queue, in packets.
    pub(crate) fn set_queue_length(&mut self, packets: i32) -> io::Result<()> {
        // `ifr_qlen` of the C structure.
        self.ifreq.ifr_ifru.ifru_metric = packets;
        // SAFETY: the kernel reads an integer.
        unsafe { self.execute(libc::SIOCSIFTXQLEN) }
    }

    /// Whether the interface is up and has a carrier. Of a veth pair, both ends are up then.
    pub(crate) fn has_link(&mut self) -> io::Result<bool> {
        Ok(self.value(ETHTOOL_GLINK, 0)? != 0)
    }

    pub(crate) fn tx_checksum_offload(&mut self) -> io::Result<bool> {
        Ok(self.value(ETHTOOL_GTXCSUM, 0)? != 0)
    }

    pub(crate) fn set_tx_checksum_offload(&mut self, enabled: bool) -> io::Result<()> {
        self.value(ETHTOOL_STXCSUM, enabled.into()).map(drop)
    }

    /// `enum ethtool_flags`.
    pub(crate) fn ethtool_flags(&mut self) -> io::Result<u32> {
        self.value(ETHTOOL_GFLAGS, 0)
    }

    /// The name of the driver, which zeros follow.
    pub(crate) fn driver(&mut self) -> io::Result<[u8; 32]> {
        let mut info = DriverInfo { command: ETHTOOL_GDRVINFO, driver: [0; 32], rest: [0; 160] };
        // SAFETY: the structure of this command.
        unsafe { self.ethtool(&mut info)? };
        Ok(info.driver)
    }

    fn value(&mut self, command: u32, data: u32) -> io::Result<u32> {
        let mut value = Value { command, data };
        // SAFETY: all these commands have this structure.
        unsafe { self.ethtool(&mut value)? };
        Ok(value.data)
    }

    /// Executes a command of ethtool.
    ///
    /// # Safety
    ///
    /// `T` is the C structure of the command, and starts with the command.
    unsafe fn ethtool<T>(&mut self, request: &mut T) -> io::Result<()> {
        self.ifreq.ifr_ifru.ifru_data = std::ptr::from_mut(request).cast();
        // SAFETY: the kernel reads and writes the structure of the command, which outlives the call.
        unsafe { self.execute(SIOCETHTOOL) }
    }

    /// # Safety
    ///
    /// The argument of `command` is an `ifreq`, and the union in it has what the command reads.
    unsafe fn execute(&mut self, command: libc::c_ulong) -> io::Result<()> {
        // SAFETY: by the contract of this function; the structure outlives the call.
        match unsafe { libc::ioctl(self.socket.as_raw_fd(), command, &raw mut self.ifreq) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Disables TX checksum offload of `name`, in the network namespace of the calling thread.
pub(crate) fn disable_tx_checksum(name: &str) -> io::Result<()> {
    Requests::new(name)?.set_tx_checksum_offload(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_an_interface_and_refuses_others() {
        let flags = Requests::new("lo").and_then(|mut requests| requests.flags()).unwrap();
        assert_ne!(flags & libc::IFF_LOOPBACK as libc::c_short, 0);
        for name in ["vvmissing", "lo\0", "name-of-16-bytes", "name-of-more-than-16-bytes"] {
            let error = Requests::new(name).and_then(|mut requests| requests.flags()).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{name}");
        }
    }
}
