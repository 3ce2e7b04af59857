use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{START_TIMEOUT, healthy};
use crate::{process::Process, resource::port::free_port, skip::find_program};

/// A running `etcd grpc-proxy` on loopback. It is killed when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    member: SocketAddr,
    address: SocketAddr,
    process: Process,
}

impl Proxy {
    /// Starts a proxy of the member at `member`.
    pub fn start(member: SocketAddr) -> Result<Proxy> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let mut proxy = Proxy { member, address, process: spawn(member, address)? };
        proxy.wait_healthy()?;
        Ok(proxy)
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends SIGKILL; [`Proxy::restart`] starts it again.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Restarts the proxy on the same port; kills it first if it runs.
    pub fn restart(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = spawn(self.member, self.address)?;
        self.wait_healthy()
    }

    fn wait_healthy(&mut self) -> Result<()> {
        let address = self.address;
        self.process.wait_ready(START_TIMEOUT, "the proxy is healthy", || Ok(healthy(address)?.then_some(())))
    }
}

fn spawn(member: SocketAddr, address: SocketAddr) -> Result<Process> {
    let etcd = find_program("etcd").context("the program etcd is missing: run `cargo xtask setup`")?;
    let mut command = Command::new(etcd);
    command
        .env_clear()
        .args(["grpc-proxy", "start"])
        .arg(format!("--endpoints={member}"))
        .arg(format!("--listen-addr={address}"))
        // Without it, the proxy registers an address of its own in the store.
        .arg("--advertise-client-url=");
    Process::spawn("grpc-proxy", command)
}
