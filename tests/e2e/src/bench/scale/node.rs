//! A real agent with the fake datapath, which forwards nothing.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use testkit::{Netns, Process, scratch_dir};

use super::contents::NODE;
use crate::{bench::memory::Memory, binaries::Binary, http::Client};

const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for the allocator to return what only the start needed.
const SETTLE_TIME: Duration = Duration::from_secs(3);
const REST: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// Memory of the agent and the time from its start until it is ready.
pub(super) fn measure(store: SocketAddr) -> Result<(Memory, Duration)> {
    let (folder, netns) = (scratch_dir("agent")?, Netns::new("agent")?);
    let socket = folder.path().join("store.sock");
    forward(&socket, store)?;
    let cni_socket = folder.path().join("cni.sock");
    let mut command = Binary::Netplugin.command()?;
    command
        .args(["--etcd", &format!("unix:{}", socket.display())])
        .args(["--mode", "test", "--netmode", "vxlan", "--fwdmode", "bridge", "--datapath", "fake"])
        .args(["--host", NODE, "--ctrl-ip", "127.0.0.1", "--vtep-ip", "127.0.0.1"])
        .args(["--rest-address", &REST.to_string()])
        .arg("--cni-socket")
        .arg(&cni_socket);
    let start = Instant::now();
    let mut agent = Process::spawn_in(&netns, "netplugin", command)?;
    let client = Client::within(&netns, REST);
    agent.wait_ready(READY_TIMEOUT, "the agent is ready", || {
        Ok((client.get("/readyz")?.status == 200).then_some(()))
    })?;
    let ready = start.elapsed();
    thread::sleep(SETTLE_TIME);
    Ok((Memory::of(agent.pid())?, ready))
}

/// Forwards connections to `socket`, which the agent reaches from its namespace, to `server`.
fn forward(socket: &Path, server: SocketAddr) -> Result<()> {
    let listener = UnixListener::bind(socket)?;
    // Ends with the program.
    thread::spawn(move || {
        for client in listener.incoming() {
            let connected = client.and_then(|client| Ok((client, TcpStream::connect(server)?)));
            match connected.and_then(|(client, server)| relay(client, server)) {
                Ok(()) => {}
                Err(error) => eprintln!("forward a connection to the store: {error}"),
            }
        }
    });
    Ok(())
}

fn relay(client: UnixStream, server: TcpStream) -> io::Result<()> {
    server.set_nodelay(true)?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let (mut from_server, mut to_client) = (server, client);
    // The end of either side is the end of the copy.
    thread::spawn(move || {
        drop(io::copy(&mut from_client, &mut to_server));
        drop(to_server.shutdown(Shutdown::Both));
    });
    thread::spawn(move || {
        drop(io::copy(&mut from_server, &mut to_client));
        drop(to_client.shutdown(Shutdown::Both));
    });
    Ok(())
}
