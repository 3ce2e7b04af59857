use std::{
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    ops::Range,
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixListener},
    },
    process,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result, bail};

/// Below the ephemeral range of Linux, so that no outgoing connection takes a port before it is used.
const FIRST: u16 = 20_000;
/// Ports that a process reserves at once.
const BLOCK: u16 = 64;
const BLOCKS: u16 = 187;

static PORTS: Mutex<Ports> = Mutex::new(Ports { reserved: vec![], free: 0..0 });

/// Ports of this process. Without a reservation, two processes may find a port free, and both start a server on it: the test
/// whose server fails would go on with that of the other one.
struct Ports {
    /// An abstract socket for each block, which the kernel removes with the process.
    reserved: Vec<UnixListener>,
    free: Range<u16>,
}

impl Ports {
    fn take(&mut self) -> Result<u16> {
        loop {
            for port in self.free.by_ref() {
                let address = (Ipv4Addr::LOCALHOST, port);
                if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
                    return Ok(port);
                }
            }
            self.reserve()?;
        }
    }

    fn reserve(&mut self) -> Result<()> {
        for number in 0..BLOCKS {
            let block = (process::id() % u32::from(BLOCKS)) as u16 + number;
            let block = block % BLOCKS;
            let name = SocketAddr::from_abstract_name(format!("contiv-test-ports-{block}"))?;
            match UnixListener::bind_addr(&name) {
                Ok(socket) => {
                    self.reserved.push(socket);
                    let first = FIRST + block * BLOCK;
                    self.free = first..first + BLOCK;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::AddrInUse => {}
                Err(error) => return Err(error).context("reserve ports"),
            }
        }
        bail!("no free port between {FIRST} and {}", FIRST + BLOCK * BLOCKS)
    }
}

/// Returns a loopback port without a listener, which no process gets again while this one runs.
pub fn free_port() -> Result<u16> {
    PORTS.lock().unwrap_or_else(PoisonError::into_inner).take()
}
