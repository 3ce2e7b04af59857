//! Notifications about the tables of nftables (`include/uapi/linux/netfilter/nf_tables.h`).

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::netlink::{attributes, message};

/// Bit of the multicast group `NFNLGRP_NFTABLES`.
const GROUP: u32 = 1 << 6;
/// Subsystem of the messages (`NFNL_SUBSYS_NFTABLES`), the high byte of their type.
const SUBSYSTEM: u16 = 10;
/// Header of the subsystem: family, version, resource.
const FAMILY: usize = 4;
/// The attribute with the name of the table, in messages about tables and about all that is in them.
const TABLE_NAME: u16 = 1;
/// At least as long as the kernel's messages.
const BUFFER: usize = 1 << 16;

/// Follows the changes of all tables.
#[derive(Debug)]
pub(super) struct Ruleset {
    socket: AsyncFd<OwnedFd>,
    buffer: Vec<u8>,
}

impl Ruleset {
    /// Subscribes to the changes from now on. Requires a tokio runtime.
    ///
    /// # Errors
    ///
    /// The kernel has no nftables.
    pub(super) fn follow() -> io::Result<Ruleset> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUP))?;
        // SAFETY: the descriptor is owned, and stays open until the value is dropped.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Ruleset { socket, buffer: vec![0; BUFFER] })
    }

    /// Waits until this table, or something in it, may have changed. Dropping the future loses nothing.
    ///
    /// # Errors
    ///
    /// The kernel sends no more notifications.
    pub(super) async fn changed(&mut self, table: &str) -> io::Result<()> {
        loop {
            let mut ready = self.socket.readable().await?;
            let buffer = &mut self.buffer;
            let received = ready.try_io(|socket| Ok(recv(socket.as_raw_fd(), buffer, MsgFlags::empty())?));
            match received {
                Ok(Ok(len)) if concerns(self.buffer.get(..len).unwrap_or_default(), table) => return Ok(()),
                // Notifications were lost.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => return Ok(()),
                Ok(Err(error)) => return Err(error),
                // It is about others, or there is none.
                Ok(Ok(_)) | Err(_) => {}
            }
        }
    }
}

/// Whether one of the messages is about the table or something in it.
fn concerns(mut bytes: &[u8], table: &str) -> bool {
    while let Some((kind, body, rest)) = message(bytes) {
        let is_named = || {
            let body = body.get(FAMILY..).unwrap_or_default();
            attributes(body).any(|attribute| {
                attribute.kind == TABLE_NAME && attribute.value.strip_suffix(&[0]) == Some(table.as_bytes())
            })
        };
        if kind >> 8 == SUBSYSTEM && is_named() {
            return true;
        }
        bytes = rest;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::HEADER;

    /// `NFT_MSG_DELTABLE` and `NFT_MSG_DELRULE`.
    const DELETED_TABLE: u16 = SUBSYSTEM << 8 | 2;
    const DELETED_RULE: u16 = SUBSYSTEM << 8 | 8;
    /// `NFT_MSG_NEWGEN`, whose first attribute is a number.
    const GENERATION: u16 = SUBSYSTEM << 8 | 15;

    fn notification(kind: u16, value: &[u8]) -> Vec<u8> {
        let own = 4 + value.len() as u16;
        let attribute = [&own.to_ne_bytes()[..], &TABLE_NAME.to_ne_bytes(), value].concat();
        let len = (HEADER + FAMILY + attribute.len()) as u32;
        let header = [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &[2, 0, 0, 0]].concat();
        let mut message = [header, attribute].concat();
        message.resize(message.len().next_multiple_of(4), 0);
        message
    }

    #[test]
    fn notifications_about_other_tables_are_ignored() {
        let other = notification(DELETED_TABLE, b"filter\0");
        let own = notification(DELETED_RULE, b"own\0");
        let generation = notification(GENERATION, b"own\0");
        assert!(!concerns(&other, "own") && concerns(&own, "own"));
        assert!(concerns(&[other.clone(), own.clone(), generation.clone()].concat(), "own"));
        assert!(!concerns(&[other, notification(DELETED_TABLE, b"owner\0")].concat(), "own"));
        assert!(!concerns(&notification(DELETED_TABLE & 0xff, b"own\0"), "own"), "another subsystem");
        for cut in 0..own.len() {
            assert!(!concerns(&own[..cut], "own"), "{cut} bytes");
        }
    }
}
