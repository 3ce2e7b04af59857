//! Connections that the kernel tracks, by ctnetlink (`include/uapi/linux/netfilter/nfnetlink_conntrack.h`).

use std::{io, net::Ipv4Addr, os::fd::AsRawFd as _};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};

use crate::netlink::{HEADER, attributes, message};

/// Messages of the subsystem (`NFNL_SUBSYS_CTNETLINK`).
const GET: u16 = 1 << 8 | 1;
const DELETE: u16 = 1 << 8 | 2;
const ENTRY: u16 = 1 << 8;
/// Attributes of an entry.
const ORIGINAL: u16 = 1;
const ID: u16 = 12;
const ZONE: u16 = 18;
/// Attributes of a direction.
const ADDRESSES: u16 = 1;
const IPV4_SOURCE: u16 = 1;
/// Header of the subsystem: family, version, resource.
const FAMILY: [u8; 4] = [libc::AF_INET as u8, 0, 0, 0];

/// Ends the connections that the IPv4 address `source` has begun: the kernel translates no packet of them any more. Returns how many
/// there were.
///
/// # Errors
/// The kernel has no ctnetlink, or refuses a message.
pub fn forget_connections(source: Ipv4Addr) -> io::Result<usize> {
    let kernel = Kernel::connect()?;
    kernel.send(GET, libc::NLM_F_DUMP, &[])?;
    let mut entries = vec![];
    kernel.receive(|entry| entries.extend(begun_by(source, entry)))?;
    for entry in &entries {
        kernel.send(DELETE, libc::NLM_F_ACK, entry)?;
        match kernel.receive(|_| {}) {
            // It has ended.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            other => other?,
        }
    }
    Ok(entries.len())
}

/// The attributes that name an entry, if its connection was begun by the address.
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

    fn send(&self, kind: u16, flags: libc::c_int, attributes: &[u8]) -> io::Result<()> {
        let len = (HEADER + FAMILY.len() + attributes.len()) as u32;
        let flags = (libc::NLM_F_REQUEST | flags) as u16;
        let header =
            [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], &FAMILY, attributes];
        sendto(self.0.as_raw_fd(), &header.concat(), &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        Ok(())
    }

    /// Reads the answer to the last message up to its end, and hands over the attributes of the entries in it.
    fn receive(&self, mut found: impl FnMut(&[u8])) -> io::Result<()> {
        // The kernel sends at most as much at a time.
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

/// What an acknowledgement says: zero, or a negative error number.
fn status(body: &[u8]) -> io::Result<()> {
    let code = body.get(..4).and_then(|code| code.try_into().ok()).map_or(-libc::EBADMSG, i32::from_ne_bytes);
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(-code)) }
}
