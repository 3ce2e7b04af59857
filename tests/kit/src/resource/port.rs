use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Result, bail};

/// Below the ephemeral range of Linux, so that no outgoing connection takes a port before it is used.
const FIRST: u32 = 20_000;
const COUNT: u32 = 12_000;
/// Distance of the first ports of processes with consecutive pids, so that they do not compete for the same ports.
const STRIDE: u32 = 97;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Returns a loopback port without a listener. This process gets the same port again only after all others.
pub fn free_port() -> Result<u16> {
    for _ in 0..COUNT {
        let offset = process::id().wrapping_mul(STRIDE).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + offset % COUNT)?;
        let address = (Ipv4Addr::LOCALHOST, port);
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT)
}
