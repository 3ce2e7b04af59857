//! A netmaster process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::Process;

use crate::client::get;

pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Can be killed and restarted with the same flags.
pub(crate) struct Master {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    flags: Vec<String>,
}

pub(crate) fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, testkit::free_port().unwrap()).into()
}

pub(crate) fn program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_netmaster")).to_owned()
}

impl Master {
    pub(crate) fn on_etcd(endpoint: &str) -> Master {
        Master::start(vec!["--etcd".into(), endpoint.into()], "2")
    }

    pub(crate) fn embedded(dir: &Path) -> Master {
        Master::embedded_with(dir, "2")
    }

    /// Starts with additional flags, and waits for the log line of leadership instead of a
    /// response.
    pub(crate) fn start_unprobed(dir: &Path, more: &[&str]) -> Master {
        let mut flags = embedded_flags(dir);
        flags.extend(more.iter().map(|&flag| flag.to_owned()));
        Master::wait_leading(flags)
    }

    pub(crate) fn wait_leading(flags: Vec<String>) -> Master {
        Master::wait_word(flags, "leading; ready")
    }

    /// Starts and waits until it knows a leader.
    pub(crate) fn follow(flags: Vec<String>) -> Master {
        Master::wait_word(flags, "following leader=\"127.0.0.1")
    }

    pub(crate) fn wait_word(flags: Vec<String>, word: &str) -> Master {
        let address = loopback();
        let mut master = Master { process: spawn(address, &flags), address, flags };
        let log = master.process.log_path().to_owned();
        let said = || Ok(std::fs::read_to_string(&log)?.contains(word).then_some(()));
        master.process.wait_ready(WAIT_TIMEOUT, word, said).unwrap();
        master
    }

    /// `lease_ttl`: seconds after which the lock of a killed master expires.
    pub(crate) fn embedded_with(dir: &Path, lease_ttl: &str) -> Master {
        Master::start(embedded_flags(dir), lease_ttl)
    }

    fn start(mut flags: Vec<String>, lease_ttl: &str) -> Master {
        flags.extend(["--lease-ttl".into(), lease_ttl.into()]);
        let address = loopback();
        let mut master = Master { process: spawn(address, &flags), address, flags };
        master.wait_ready();
        master
    }

    /// Address of its embedded store.
    pub(crate) fn store(&self) -> String {
        let flag = |name: &str| self.flags.iter().skip_while(|flag| *flag != name).nth(1);
        let embedded = flag("--store-listen").map(|address| format!("http://{address}"));
        embedded.or_else(|| flag("--etcd").cloned()).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    pub(crate) fn restart(&mut self) {
        self.kill();
        self.process = spawn(self.address, &self.flags);
        self.wait_ready();
    }

    pub(crate) fn stop(&mut self) {
        assert!(self.process.terminate(WAIT_TIMEOUT).unwrap().success(), "{}", self.process.tail());
    }

    fn wait_ready(&mut self) {
        let address = self.address;
        // While it is elected and not ready, it reports that it follows itself.
        let settled = || {
            let Ok(answer) = get(address, "/info") else { return Ok(None) };
            let info = answer.json();
            let follows = info["leader-ip"] != "" && info["leader-ip"] != address.to_string();
            Ok((follows || info["current-state"] == "leader").then_some(()))
        };
        self.process.wait_ready(WAIT_TIMEOUT, "it leads, or follows another", settled).unwrap();
    }
}

fn embedded_flags(dir: &Path) -> Vec<String> {
    let store = format!("embedded:{}", dir.display());
    vec!["--store".into(), store, "--store-listen".into(), loopback().to_string()]
}

fn spawn(address: SocketAddr, flags: &[String]) -> Process {
    let mut command = Command::new(program());
    command.args(["--mode", "test", "--netmode", "vlan", "--fwdmode", "bridge"]);
    command.args(["--external-address", &address.to_string()]).args(flags);
    Process::spawn("netmaster", command).unwrap()
}
