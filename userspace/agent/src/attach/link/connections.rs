//! Connections that the kernel tracks, accessed with ctnetlink (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`).

use std::{io, net::Ipv4Addr, os::fd::AsRawFd as _};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use crate::netlink::{HEADER, NESTED, attributes, message};

/// Messages of the subsystem (`NFNL_SUBSYS_CTNETLINK`).
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const ENTRY: u16 = 1 << 8;
/// Attributes of an entry.
const ORIGINAL: u16 = 1;
const ID: u16 = 12;
const ZONE: u16 = 18;
const FILTER: u16 = 25;
/// Attributes of a direction.
const ADDRESSES: u16 = 1;
const IPV4_SOURCE: u16 = 1;
/// Attribute of a filter: the fields of the original direction that must match.
const ORIGINAL_FLAGS: u16 = 1;
/// The source address (`CTA_FILTER_F_CTA_IP_SRC` in `net/netfilter/nf_internals.h`).
const SOURCE: u32 = 1;
/// Header of the subsystem: family, version, resource.
const FAMILY: [u8; 4] = [libc::AF_INET as u8, 0, 0, 0];

/// Deletes the connection tracking entries of connections that the IPv4 address `source` has opened, so that the kernel
/// no longer translates their packets. Returns their number.
///
/// # Errors
///
/// The kernel has no ctnetlink, or rejects a message.
pub fn forget_connections(source: Ipv4Addr) -> io::Result<usize> {
    let kernel = Kernel::connect()?;
    let mut entries = vec![];
    kernel.list(source, |entry| entries.extend(begun_by(source, entry)))?;
    for entry in &entries {
        kernel.send(DELETE, libc::NLM_F_ACK, entry)?;
        match kernel.receive(|_| {}) {
            // The connection has ended.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            other => other?,
        }
    }
    Ok(entries.len())
}

/// Attributes of a request for the entries of connections that the address has opened.
fn filter(source: Ipv4Addr) -> Vec<u8> {
    let addresses = attribute(ADDRESSES | NESTED, &attribute(IPV4_SOURCE, &source.octets()));
    let flags = attribute(ORIGINAL_FLAGS, &SOURCE.to_ne_bytes());
    [attribute(ORIGINAL | NESTED, &addresses), attribute(FILTER | NESTED, &flags)].concat()
}

/// Encodes an attribute whose value has a multiple of four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let len = (4 + value.len()) as u16;
    [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat()
}

/// Returns the attributes that identify an entry, if the address has opened its connection.
fn begun_by(source: Ipv4Addr, entry: &[u8]) -> Option<Vec<u8>> {
    let find = |kind, of| attributes(of).find(|attribute| attribute.kind == kind);
    let original = find(ORIGINAL, entry)?;
    let address = find(IPV4_SOURCE, find(ADDRESSES, original.value)?.value)?;
    (address.value == source.octets()).then(|| {
        let names = [Some(original), find(ZONE, entry), find(ID, entry)];
        names.into_iter().flatten().flat_map(|attribute| attribute.padded.to_vec()).collect()
    })
}

/// A socket of netfilter.
struct Kernel(std::os::fd::OwnedFd);

impl Kernel {
    fn connect() -> io::Result<Kernel> {
        let protocol = SockProtocol::NetlinkNetFilter;
        Ok(Kernel(socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?))
    }

    /// Calls `found` with the attributes of the entries of connections that the address has opened. Kernels before Linux
    /// 5.8 ignore the filter, and send all entries.
    fn list(&self, source: Ipv4Addr, mut found: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(GET, libc::NLM_F_DUMP, &filter(source))?;
        match self.receive(&mut found) {
            // The kernel supports filters, but not this one.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
                self.send(GET, libc::NLM_F_DUMP, &[])?;
                self.receive(found)
            }
            listed => listed,
        }
    }

    fn send(&self, kind: u16, flags: libc::c_int, attributes: &[u8]) -> io::Result<()> {
        let len = (HEADER + FAMILY.len() + attributes.len()) as u32;
        let flags = (libc::NLM_F_REQUEST | flags) as u16;
        let header =
            [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], &FAMILY, attributes];
        sendto(self.0.as_raw_fd(), &header.concat(), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        Ok(())
    }

    /// Reads the whole answer to the last message, and calls `found` with the attributes of its entries.
    fn receive(&self, mut found: impl FnMut(&[u8])) -> io::Result<()> {
        // Maximum size of one answer of the kernel.
        let mut buffer = vec![0; 1 << 16];
        loop {
            let len = recv(self.0.as_raw_fd(), &mut buffer, MsgFlags::empty())?;
            let mut bytes = buffer.get(..len).unwrap_or_default();
            while let Some((kind, body, rest)) = message(bytes) {
                match i32::from(kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => return status(body),
                    _ if kind == ENTRY => found(body.get(FAMILY.len()..).unwrap_or_default()),
                    _ => {}
                }
                bytes = rest;
            }
        }
    }
}

/// Returns the result in an acknowledgement: zero, or a negative error number.
fn status(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).and_then(|code| code.try_into().ok()).map_or(-libc::EBADMSG, i32::from_ne_bytes);
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) }
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, process::Command};

    use testkit::{Netns, needs};

    use super::*;

    /// The table may have a million entries.
    #[test]
    fn the_kernel_lists_no_connections_of_other_addresses() {
        needs!(root(), binary("nft"));
        let node = Netns::new("node").unwrap();
        let addresses = ["172.19.0.7", "172.19.0.8"];
        for address in addresses {
            node.address("lo", &format!("{address}/32")).unwrap();
        }
        // The kernel tracks connections only if a rule matches their state.
        let rule = "add table ip t; add chain ip t c { type filter hook output priority 0; }; add rule ip t c ct state new counter";
        node.run(|| {
            assert!(Command::new("nft").arg(rule).status()?.success());
            for address in addresses {
                UdpSocket::bind((address, 5000))?.send_to(b"one", "172.19.0.8:5001")?;
            }
            let mut listed = vec![];
            let first = addresses[0].parse().unwrap();
            Kernel::connect()?.list(first, |entry| listed.push(begun_by(first, entry).is_some()))?;
            assert_eq!(listed, [true]);
            Ok(())
        })
        .unwrap();
    }
}
