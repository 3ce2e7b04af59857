//! A server to test against, in a process of its own.

use anyhow::{Context, Result};
use contiv_store::{Config, Store, embedded};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use testkit::etcd::Etcd;
use testkit::{Process, copy_folder, free_port, scratch_dir};

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
                let process = spawn(&dir, address, None)?;
                Peer::Embedded(Embedded { dir, address, process })
            }
        })
    }

    /// An embedded store whose disk can fill up; needs root.
    pub(crate) fn start_on_a_small_disk(bytes: u64) -> Result<Peer> {
        let dir = scratch_dir("store")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let process = spawn(&dir, address, Some(bytes))?;
        Ok(Peer::Embedded(Embedded { dir, address, process }))
    }

    /// Where the embedded store has its disk.
    pub(crate) fn dir(&self) -> Option<&Path> {
        match self {
            Peer::Etcd(_) => None,
            Peer::Embedded(embedded) => Some(embedded.dir.path()),
        }
    }

    pub(crate) fn pid(&mut self) -> Pid {
        self.process().pid()
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
                embedded.process = spawn(&embedded.dir, embedded.address, None)?;
                Ok(())
            }
        }
    }

    /// A copy of the data of a peer that does not run.
    pub(crate) fn copy_data(&self) -> Result<TempDir> {
        let copy = scratch_dir("copy")?;
        copy_folder(&self.data(), copy.path())?;
        Ok(copy)
    }

    /// Replaces the data of a peer that does not run by a copy.
    pub(crate) fn replace_data(&self, copy: &TempDir) -> Result<()> {
        std::fs::remove_dir_all(self.data())?;
        copy_folder(copy.path(), &self.data())
    }

    fn data(&self) -> PathBuf {
        match self {
            Peer::Etcd(etcd) => etcd.data_dir(),
            Peer::Embedded(embedded) => embedded.dir.path().join("data"),
        }
    }

    /// Connections stay, answers do not come.
    pub(crate) fn freeze(&mut self) -> Result<()> {
        let process = self.process();
        process.freeze()?;
        // A thread that runs on another processor stops a moment later.
        let tasks = format!("/proc/{}/task", process.pid());
        testkit::wait_until(Duration::from_secs(5), "all threads to stop", || {
            for task in std::fs::read_dir(&tasks)? {
                let stat = std::fs::read_to_string(task?.path().join("stat"))?;
                if !stat.rsplit_once(')').is_some_and(|(_, state)| state.trim_start().starts_with('T')) {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
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

/// On a disk of so many bytes, if given, that only the process sees.
fn spawn(dir: &TempDir, address: SocketAddr, disk: Option<u64>) -> Result<Process> {
    let program = std::env::current_exe()?;
    let mut command = match disk {
        None => Command::new(&program),
        Some(bytes) => {
            let mut command = Command::new("unshare");
            let mount = format!("mount -t tmpfs -o size={bytes} none \"$0\" && exec \"$@\"");
            command.args(["--mount", "sh", "-c", &mount]).arg(dir.path()).arg(&program);
            command
        }
    };
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
