//! Kernel parameters of network interfaces and of connection tracking in the network namespace of the calling thread.

use std::{fs, io};

/// Disables IPv6 on an interface. Succeeds if the kernel has no IPv6.
pub fn disable_ipv6(interface: &str) -> io::Result<()> {
    set_ipv6(interface, "disable_ipv6", "1")
}

/// Enables IPv6 on an interface of a namespace that has it disabled by default. Succeeds if the kernel has no IPv6.
pub fn enable_ipv6(interface: &str) -> io::Result<()> {
    set_ipv6(interface, "disable_ipv6", "0")
}

/// Disables the acceptance of router advertisements on an interface. Succeeds if the kernel has no IPv6.
pub fn disable_ra(interface: &str) -> io::Result<()> {
    set_ipv6(interface, "accept_ra", "0")
}

/// Makes the kernel form link-local addresses from the Ethernet address (EUI-64). Succeeds if the kernel has no IPv6.
pub fn link_local_from_mac(interface: &str) -> io::Result<()> {
    set_ipv6(interface, "addr_gen_mode", "0")
}

/// Makes the kernel assign no link-local address. Succeeds if the kernel has no IPv6.
pub fn no_link_local(interface: &str) -> io::Result<()> {
    set_ipv6(interface, "addr_gen_mode", "1")
}

/// Disables ICMP redirects for packets that leave through the interface where they came from.
pub fn disable_redirects(interface: &str) -> io::Result<()> {
    set_if_other(&format!("/proc/sys/net/ipv4/conf/{interface}/send_redirects"), "0")
}

/// Forwards IPv4 packets that arrive at an interface.
pub fn forward_ipv4(interface: &str) -> io::Result<()> {
    set_if_other(&format!("/proc/sys/net/ipv4/conf/{interface}/forwarding"), "1")
}

/// Ends what [`forward_ipv4`] has begun, unless the kernel forwards by default. Succeeds if the interface is gone.
pub fn stop_forwarding_ipv4(interface: &str) -> io::Result<()> {
    match forwards_ipv4() {
        true => Ok(()),
        false => {
            present(set_if_other(&format!("/proc/sys/net/ipv4/conf/{interface}/forwarding"), "0")).map(drop)
        }
    }
}

/// Forwards IPv6 packets that arrive at an interface. Returns false if the kernel has no such parameter (before Linux 6.17), and
/// does not forward for all interfaces. Where it does, the parameter stays as it is.
pub fn forward_ipv6(interface: &str) -> io::Result<bool> {
    match forwards_ipv6() {
        true => Ok(true),
        false => present(set_if_other(&force_forwarding(interface), "1")),
    }
}

/// Ends what [`forward_ipv6`] has begun. Succeeds if the interface is gone.
pub fn stop_forwarding_ipv6(interface: &str) -> io::Result<()> {
    present(set_if_other(&force_forwarding(interface), "0")).map(drop)
}

fn force_forwarding(interface: &str) -> String {
    format!("/proc/sys/net/ipv6/conf/{interface}/force_forwarding")
}

/// Makes the interfaces that drop packets from sources without a way back (`rp_filter`, RFC 3704) look for it with the mark of the
/// packet, by the rules that the packet itself is forwarded by. The others need not look, and could be part of a transparent proxy, whose
/// packets have no way back with their mark.
pub fn filter_sources_by_mark() -> io::Result<()> {
    for interface in fs::read_dir("/proc/sys/net/ipv4/conf")? {
        let interface = interface?.file_name();
        let Some(name) = interface.to_str().filter(|name| !["all", "default"].contains(name)) else {
            continue;
        };
        if source_filter(name) == 0 {
            continue;
        }
        match set_if_other(&format!("/proc/sys/net/ipv4/conf/{name}/src_valid_mark"), "1") {
            // It has gone meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => result?,
        }
    }
    Ok(())
}

/// Whether the kernel forwards IPv4 packets by default.
pub fn forwards_ipv4() -> bool {
    is("ipv4/ip_forward", "1")
}

/// Whether the kernel forwards IPv6 packets of all interfaces.
pub fn forwards_ipv6() -> bool {
    is("ipv6/conf/all/forwarding", "1")
}

/// Whether the kernel drops packets from an interface to whose source it has a route through another one (RFC 3704).
pub fn has_strict_filter(interface: &str) -> bool {
    source_filter(interface) == 1
}

/// What `rp_filter` is in effect for an interface.
fn source_filter(interface: &str) -> u8 {
    let value = |of: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{of}/rp_filter");
        fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u8>().ok()).unwrap_or(0)
    };
    // The higher one applies.
    value("all").max(value(interface))
}

/// The kernel's table of connections (`nf_conntrack`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tracking {
    /// Number of connections.
    pub used: u32,
    /// Maximum number of connections; 0 for no limit.
    pub max: u32,
}

/// Size and use of the kernel's table of connections; `None` if connection tracking is not loaded.
pub fn tracking() -> Option<Tracking> {
    Some(Tracking {
        used: number("netfilter/nf_conntrack_count")?,
        max: number("netfilter/nf_conntrack_max")?,
    })
}

fn number(parameter: &str) -> Option<u32> {
    fs::read_to_string(format!("/proc/sys/net/{parameter}")).ok()?.trim().parse().ok()
}

fn is(parameter: &str, value: &str) -> bool {
    fs::read_to_string(format!("/proc/sys/net/{parameter}")).is_ok_and(|text| text.trim() == value)
}

/// Whether there was a parameter to write.
fn present(written: io::Result<()>) -> io::Result<bool> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        result => result.map(|()| true),
    }
}

/// Writes a parameter that has another value.
fn set_if_other(path: &str, value: &str) -> io::Result<()> {
    match fs::read_to_string(path)?.trim() == value {
        true => Ok(()),
        false => fs::write(path, value),
    }
}

fn set_ipv6(interface: &str, parameter: &str, value: &str) -> io::Result<()> {
    match set_if_other(&format!("/proc/sys/net/ipv6/conf/{interface}/{parameter}"), value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
