//! A real etcd, alone or as a cluster.

mod proxy;

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

use crate::{
    process::Process,
    resource::{netns::Netns, port::free_port, scratch::scratch_dir},
    skip::find_program,
};

pub use proxy::Proxy;

const START_TIMEOUT: Duration = Duration::from_secs(20);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
const CLIENT_PORT: u16 = 2379;
const PEER_PORT: u16 = 2380;

/// Options of a member.
#[derive(Debug)]
pub struct Options {
    namespace: Option<Netns>,
    address: Ipv4Addr,
    client_port: Option<u16>,
    peer_port: Option<u16>,
    name: String,
    /// Members in the format of etcd's `--initial-cluster`; empty for a single member.
    cluster: String,
    /// Folder for the data; a scratch folder if none.
    disk: Option<PathBuf>,
    fsync: bool,
    arguments: Vec<String>,
}

impl Options {
    /// Runs etcd inside a namespace, at one of its addresses.
    pub fn in_netns(mut self, namespace: &Netns, address: Ipv4Addr) -> Self {
        self.namespace = Some(namespace.clone());
        self.address = address;
        self
    }

    pub fn client_port(mut self, port: u16) -> Self {
        self.client_port = Some(port);
        self
    }

    /// Whether etcd calls fsync: tests do not need it, measurements do.
    pub fn fsync(mut self, fsync: bool) -> Self {
        self.fsync = fsync;
        self
    }

    /// Adds a flag for etcd, such as `--max-txn-ops=16`.
    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub fn start(self) -> Result<Etcd> {
        let mut etcd = self.launch()?;
        etcd.wait_healthy()?;
        Ok(etcd)
    }

    fn launch(self) -> Result<Etcd> {
        let directory = scratch_dir("etcd")?;
        let client = SocketAddr::from((self.address, self.client_port.map_or_else(free_port, Ok)?));
        let peer = SocketAddr::from((self.address, self.peer_port.map_or_else(free_port, Ok)?));
        let process = spawn(&self, &directory, client, peer)?;
        Ok(Etcd { options: self, directory, client, peer, process })
    }
}

/// A running member. It is killed and its data removed when this is dropped.
#[derive(Debug)]
pub struct Etcd {
    options: Options,
    directory: TempDir,
    client: SocketAddr,
    peer: SocketAddr,
    process: Process,
}

impl Etcd {
    /// Starts a single member on free loopback ports, without fsync.
    pub fn start() -> Result<Etcd> {
        Etcd::options().start()
    }

    pub fn options() -> Options {
        Options {
            namespace: None,
            address: Ipv4Addr::LOCALHOST,
            client_port: None,
            peer_port: None,
            name: "test".to_owned(),
            cluster: String::new(),
            disk: None,
            fsync: false,
            arguments: vec![],
        }
    }

    /// Starts a cluster with a member in each namespace, on the default ports, each with its data in the folder if one
    /// is given.
    pub fn cluster(hosts: &[(Netns, Ipv4Addr, Option<PathBuf>)], fsync: bool) -> Result<Vec<Etcd>> {
        let peers: Vec<_> = hosts
            .iter()
            .enumerate()
            .map(|(number, (_, address, _))| format!("member{number}=http://{address}:{PEER_PORT}"))
            .collect();
        let launch = |(number, (namespace, address, disk)): (usize, &(Netns, Ipv4Addr, Option<PathBuf>))| {
            let mut options =
                Etcd::options().in_netns(namespace, *address).client_port(CLIENT_PORT).fsync(fsync);
            options.peer_port = Some(PEER_PORT);
            options.name = format!("member{number}");
            options.cluster = peers.join(",");
            options.disk.clone_from(disk);
            options.launch()
        };
        let mut members = hosts.iter().enumerate().map(launch).collect::<Result<Vec<_>>>()?;
        members.iter_mut().try_for_each(Etcd::wait_healthy)?;
        Ok(members)
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.client)
    }

    pub fn address(&self) -> SocketAddr {
        self.client
    }

    /// Folder with its data.
    pub fn data_dir(&self) -> PathBuf {
        data_dir(&self.options, &self.directory)
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Sends SIGKILL; [`Etcd::restart`] starts the member again with its data.
    pub fn kill(&mut self) -> Result<()> {
        self.process.kill()
    }

    /// Restarts the member on the same ports and data; kills it first if it runs.
    pub fn restart(&mut self) -> Result<()> {
        self.relaunch()?;
        self.wait_healthy()
    }

    /// As [`Etcd::restart`], without waiting until it is healthy.
    pub fn relaunch(&mut self) -> Result<()> {
        self.process.kill()?;
        self.process = spawn(&self.options, &self.directory, self.client, self.peer)?;
        Ok(())
    }

    /// Runs `etcdctl` (API v3) against this member and returns its output.
    pub fn ctl(&self, arguments: &[&str]) -> Result<String> {
        let run = || etcdctl(&self.endpoint(), arguments);
        match &self.options.namespace {
            Some(namespace) => namespace.run(run),
            None => run(),
        }
    }

    pub fn wait_healthy(&mut self) -> Result<()> {
        let (namespace, address) = (self.options.namespace.clone(), self.client);
        self.process.wait_ready(START_TIMEOUT, "etcd is healthy", || {
            let healthy = match &namespace {
                Some(namespace) => namespace.run(|| healthy(address))?,
                None => healthy(address)?,
            };
            Ok(healthy.then_some(()))
        })
    }
}

fn data_dir(options: &Options, directory: &TempDir) -> PathBuf {
    options.disk.as_deref().unwrap_or(directory.path()).join("data")
}

fn spawn(options: &Options, directory: &TempDir, client: SocketAddr, peer: SocketAddr) -> Result<Process> {
    let etcd = find_program("etcd").context("the program etcd is missing: run `cargo xtask setup`")?;
    let cluster = match options.cluster.as_str() {
        "" => format!("{}=http://{peer}", options.name),
        cluster => cluster.to_owned(),
    };
    let mut command = Command::new(etcd);
    command
        .env_clear() // etcd reads ETCD_* variables
        .arg(format!("--name={}", options.name))
        .arg(format!("--data-dir={}", data_dir(options, directory).display()))
        .arg(format!("--listen-client-urls=http://{client}"))
        .arg(format!("--advertise-client-urls=http://{client}"))
        .arg(format!("--listen-peer-urls=http://{peer}"))
        .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
        .arg(format!("--initial-cluster={cluster}"))
        .arg("--logger=zap")
        .arg("--log-level=warn");
    if !options.fsync {
        command.arg("--unsafe-no-fsync");
    }
    command.args(&options.arguments);
    match &options.namespace {
        Some(namespace) => Process::spawn_in(namespace, "etcd", command),
        None => Process::spawn("etcd", command),
    }
}

/// Runs `etcdctl` (API v3) against any server of the etcd API.
pub fn etcdctl(endpoint: &str, arguments: &[&str]) -> Result<String> {
    let program =
        find_program("etcdctl").context("the program etcdctl is missing: run `cargo xtask setup`")?;
    let output = Command::new(program)
        .env("ETCDCTL_API", "3")
        .arg(format!("--endpoints={endpoint}"))
        .args(arguments)
        .output()
        .context("run etcdctl")?;
    if !output.status.success() {
        bail!("etcdctl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn healthy(address: SocketAddr) -> Result<bool> {
    let mut stream = TcpStream::connect_timeout(&address, REQUEST_TIMEOUT)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.write_all(format!("GET /health HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    Ok(response.contains("\"health\":\"true\""))
}
