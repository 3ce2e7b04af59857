//! A server to test against, in a process of its own.

use anyhow::{Context, Result};
use contiv_store::{Config, Store, embedded};
use nix::sys::signal::Signal;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use testkit::etcd::Etcd;
use testkit::{Process, free_port, scratch_dir};

const START: Duration = Duration::from_secs(20);
const DIR: &str = "CONTIV_STORE_TEST_DIR";
const LISTEN: &str = "CONTIV_STORE_TEST_LISTEN";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Etcd,
    Embedded,
}

pub(crate) enum Peer {
    Etcd(Etcd),
    Embedded(Embedded),
}

pub(crate) struct Embedded {
    dir: TempDir,
    address: SocketAddr,
    process: Process,
}

impl Peer {
    pub(crate) fn start(kind: Kind) -> Result<Peer> {
        Ok(match kind {
            Kind::Etcd => Peer::Etcd(Etcd::start()?),
            Kind::Embedded => {
                let dir = scratch_dir("store")?;
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
                let process = spawn(&dir, address)?;
                Peer::Embedded(Embedded { dir, address, process })
            }
        })
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Peer::Etcd(_) => Kind::Etcd,
            Peer::Embedded(_) => Kind::Embedded,
        }
    }

    pub(crate) fn endpoint(&self) -> String {
        match self {
            Peer::Etcd(etcd) => etcd.endpoint(),
            Peer::Embedded(embedded) => format!("http://{}", embedded.address),
        }
    }

    pub(crate) async fn store(&self) -> Result<Store> {
        Ok(Store::connect(&Config::new([self.endpoint()])).await?)
    }

    /// The plain protocol, for what [`Store`] does not offer.
    pub(crate) async fn client(&self) -> Result<etcd_client::Client> {
        Ok(etcd_client::Client::connect([self.endpoint()], None).await?)
    }

    /// kill -9.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process().kill()
    }

    /// With the same data at the same address.
    pub(crate) fn restart(&mut self) -> Result<()> {
        match self {
            Peer::Etcd(etcd) => etcd.restart(),
            Peer::Embedded(embedded) => {
                embedded.process.kill()?;
                embedded.process = spawn(&embedded.dir, embedded.address)?;
                Ok(())
            }
        }
    }

    /// Connections stay, answers do not come.
    pub(crate) fn freeze(&mut self) -> Result<()> {
        self.process().signal(Signal::SIGSTOP)
    }

    pub(crate) fn thaw(&mut self) -> Result<()> {
        self.process().signal(Signal::SIGCONT)
    }

    fn process(&mut self) -> &mut Process {
        match self {
            Peer::Etcd(etcd) => etcd.process(),
            Peer::Embedded(embedded) => &mut embedded.process,
        }
    }
}

fn spawn(dir: &TempDir, address: SocketAddr) -> Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["peer::serve_for_a_test", "--exact", "--nocapture"])
        .env(DIR, dir.path().join("data"))
        .env(LISTEN, address.to_string());
    let mut process = Process::spawn("store", command)?;
    process.wait_ready(START, "the embedded store listens", || {
        Ok(TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok().map(drop))
    })?;
    Ok(process)
}

/// Not a test but the embedded store in a process that a test can kill: only [`spawn`] sets the variables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn serve_for_a_test() -> Result<()> {
    let (Some(dir), Ok(listen)) = (std::env::var_os(DIR), std::env::var(LISTEN)) else { return Ok(()) };
    tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).init();
    let server = embedded::Server::open(dir.as_ref(), listen.parse()?).await?;
    server.failed().await;
    server.shutdown().await.context("the embedded store stopped by itself")
}
