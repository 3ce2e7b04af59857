//! A netmaster of the test's own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use testkit::Process;

use crate::client::get;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Can be killed and started again as it was.
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

    /// `lease_ttl`: the seconds that a killed master's lock stays.
    pub(crate) fn embedded_with(dir: &Path, lease_ttl: &str) -> Master {
        let store = format!("embedded:{}", dir.display());
        Master::start(
            vec!["--store".into(), store, "--store-listen".into(), loopback().to_string()],
            lease_ttl,
        )
    }

    fn start(mut flags: Vec<String>, lease_ttl: &str) -> Master {
        flags.extend(["--lease-ttl".into(), lease_ttl.into()]);
        let address = loopback();
        let mut master = Master { process: spawn(address, &flags), address, flags };
        master.wait_ready();
        master
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
        assert!(self.process.terminate(PATIENCE).unwrap().success(), "{}", self.process.tail());
    }

    fn wait_ready(&mut self) {
        let address = self.address;
        let answers = || Ok(get(address, "/info").ok().filter(|answer| answer.status == 200));
        self.process.wait_ready(PATIENCE, "/info answers", answers).unwrap();
    }
}

fn spawn(address: SocketAddr, flags: &[String]) -> Process {
    let mut command = Command::new(program());
    command.args(["--mode", "test", "--netmode", "vlan", "--fwdmode", "bridge"]);
    command.args(["--external-address", &address.to_string()]).args(flags);
    Process::spawn("netmaster", command).unwrap()
}
