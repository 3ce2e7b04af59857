//! Kernel parameters of network interfaces in the network namespace of the calling thread.

use std::{fs, io};

/// Disables IPv6 on an interface. Succeeds if the kernel has no IPv6.
pub fn disable_ipv6(interface: &str) -> io::Result<()> {
    set_ipv6(interface, "disable_ipv6", "1")
}

/// Disables the acceptance of router advertisements on an interface. Succeeds if the kernel has no IPv6.
pub fn disable_ra(interface: &str) -> io::Result<()> {
    set_ipv6(interface, "accept_ra", "0")
}

/// Makes the kernel form link-local addresses from the Ethernet address (EUI-64). Succeeds if the kernel has no IPv6.
pub fn link_local_from_mac(interface: &str) -> io::Result<()> {
    set_ipv6(interface, "addr_gen_mode", "0")
}

fn set_ipv6(interface: &str, parameter: &str, value: &str) -> io::Result<()> {
    match fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/{parameter}"), value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
