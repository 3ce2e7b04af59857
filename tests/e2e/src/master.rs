//! A netmaster process.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Result, bail};
use testkit::{Netns, Process, free_port};

use crate::{binaries::Binary, http::Client};

const START_TIMEOUT: Duration = Duration::from_secs(20);
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Store of a netmaster.
#[derive(Debug, Clone)]
pub enum Store {
    /// Embedded store in this folder, served at the address.
    Embedded {
        folder: PathBuf,
        listen: SocketAddr,
    },
    Etcd {
        endpoint: String,
    },
}

impl Store {
    /// URL for agents and etcdctl.
    pub fn endpoint(&self) -> String {
        match self {
            Store::Embedded { listen, .. } => format!("http://{listen}"),
            Store::Etcd { endpoint } => endpoint.clone(),
        }
    }
}

#[derive(Debug, Clone)]
pub struct Options {
    pub mode: &'static str,
    pub netmode: &'static str,
    pub store: Store,
    /// Namespace, and address in it; none for loopback.
    pub location: Option<(Netns, Ipv4Addr)>,
    pub port: u16,
    /// Seconds after which another netmaster replaces a leader that is silent; the default if none.
    pub failover_after: Option<u32>,
}

impl Options {
    /// A single netmaster on loopback, as in the recordings.
    pub fn alone(store: Store) -> Result<Options> {
        let port = free_port()?;
        Ok(Options { mode: "test", netmode: "vlan", store, location: None, port, failover_after: None })
    }
}

#[derive(Debug)]
pub struct Master {
    options: Options,
    process: Process,
    client: Client,
}

impl Master {
    /// Starts netmaster and waits until it leads.
    pub fn start(options: Options) -> Result<Master> {
        let mut master = Master::launch(options)?;
        master.wait_leading()?;
        Ok(master)
    }

    /// Starts netmaster.
    pub fn launch(options: Options) -> Result<Master> {
        let process = spawn(&options)?;
        let client = match &options.location {
            Some((namespace, address)) => {
                Client::within(namespace, SocketAddr::from((*address, options.port)))
            }
            None => Client::new(SocketAddr::from((Ipv4Addr::LOCALHOST, options.port))),
        };
        Ok(Master { options, process, client })
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    pub fn tail(&self) -> String {
        self.process.tail()
    }

    pub fn store(&self) -> &Store {
        &self.options.store
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Restarts netmaster on the same store and port; kills it first if it runs.
    pub fn restart(&mut self) -> Result<()> {
        self.relaunch()?;
        self.wait_leading()
    }

    /// As [`Master::restart`], without waiting until it leads.
    pub fn relaunch(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = spawn(&self.options)?;
        Ok(())
    }

    /// Sends SIGTERM; fails unless netmaster exits with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.process.terminate(STOP_TIMEOUT)?;
        if !status.success() {
            bail!("netmaster ended with {status}: {}", self.process.tail());
        }
        Ok(())
    }

    pub fn wait_leading(&mut self) -> Result<()> {
        self.wait_leading_for(START_TIMEOUT)
    }

    pub fn wait_leading_for(&mut self, limit: Duration) -> Result<()> {
        let client = &self.client;
        self.process.wait_ready(limit, "netmaster leads", || {
            // A new leader creates the global object.
            let response = client.get("/api/v1/globals/global/")?;
            Ok((response.status == 200).then_some(()))
        })
    }
}

fn spawn(options: &Options) -> Result<Process> {
    let address = options.location.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address);
    let listen = SocketAddr::from((IpAddr::from(address), options.port));
    let mut command = Binary::Netmaster.command()?;
    command
        .args(["--mode", options.mode, "--netmode", options.netmode, "--fwdmode", "bridge"])
        .args(["--external-address", &listen.to_string()])
        .args(["--internal-address", &listen.to_string()]);
    match &options.store {
        Store::Embedded { folder, listen } => {
            command.arg("--store").arg(format!("embedded:{}", folder.display()));
            command.args(["--store-listen", &listen.to_string()]);
        }
        Store::Etcd { endpoint } => {
            command.args(["--etcd", endpoint]);
        }
    }
    if let Some(seconds) = options.failover_after {
        // As by default, a lease is ten times as long.
        command.args(["--failover-after", &seconds.to_string(), "--lease-ttl", &(10 * seconds).to_string()]);
    }
    match &options.location {
        Some((namespace, _)) => Process::spawn_in(namespace, "netmaster", command),
        None => Process::spawn("netmaster", command),
    }
}
