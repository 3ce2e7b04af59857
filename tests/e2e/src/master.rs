//! A netmaster of one's own.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Result, bail};
use testkit::{Netns, Process, free_port};

use crate::{binaries::Binary, http::Client};

const START: Duration = Duration::from_secs(20);
const STOP: Duration = Duration::from_secs(15);

/// Where it keeps its state.
#[derive(Debug, Clone)]
pub enum Store {
    /// One file in this folder, served to others at the address.
    Embedded {
        folder: PathBuf,
        listen: SocketAddr,
    },
    Etcd {
        endpoint: String,
    },
}

impl Store {
    /// For agents and etcdctl.
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
    /// Its namespace, and its address there.
    pub home: Option<(Netns, Ipv4Addr)>,
    pub port: u16,
}

impl Options {
    /// Alone on loopback, as the recordings were made.
    pub fn alone(store: Store) -> Result<Options> {
        Ok(Options { mode: "test", netmode: "vlan", store, home: None, port: free_port()? })
    }
}

#[derive(Debug)]
pub struct Master {
    options: Options,
    process: Process,
    client: Client,
}

impl Master {
    /// Starts it and waits until somebody leads.
    pub fn start(options: Options) -> Result<Master> {
        let mut master = Master::launch(options)?;
        master.wait_leading()?;
        Ok(master)
    }

    /// Starts it.
    pub fn launch(options: Options) -> Result<Master> {
        let process = spawn(&options)?;
        let client = match &options.home {
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

    /// kill -9.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Starts it again on the same store and port, killing it first if it still runs.
    pub fn restart(&mut self) -> Result<()> {
        self.relaunch()?;
        self.wait_leading()
    }

    /// As [`Master::restart`], without waiting for it.
    pub fn relaunch(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = spawn(&self.options)?;
        Ok(())
    }

    /// SIGTERM; it must end well.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.process.terminate(STOP)?;
        if !status.success() {
            bail!("netmaster ended with {status}: {}", self.process.tail());
        }
        Ok(())
    }

    pub fn wait_leading(&mut self) -> Result<()> {
        let client = &self.client;
        self.process.wait_ready(START, "netmaster leads", || {
            // The global object is made by whoever has just become leader.
            let answer = client.get("/api/v1/globals/global/")?;
            Ok((answer.status == 200).then_some(()))
        })
    }
}

fn spawn(options: &Options) -> Result<Process> {
    let address = options.home.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address);
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
    match &options.home {
        Some((namespace, _)) => Process::spawn_in(namespace, "netmaster", command),
        None => Process::spawn("netmaster", command),
    }
}
