//! A private Open vSwitch: one `ovsdb-server` and one `ovs-vswitchd` per simulated host.

mod upcalls;

use std::{
    env,
    ffi::OsString,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::{
    process::Process,
    resource::{
        netns::{Netns, run_program},
        scratch::scratch_dir,
    },
    skip::{binary, find_program, root},
    wait::wait_until,
};

const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// As on a node: the name of the control socket contains the process id.
const PID_FILE: &str = "ovs-vswitchd.pid";
const START_TIMEOUT: Duration = Duration::from_secs(20);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the reason if Open vSwitch cannot run here.
pub fn missing() -> Option<String> {
    root().or_else(|| binary("ovsdb-server")).or_else(|| binary("ovs-vswitchd"))
}

/// Whether tests use the kernel datapath instead of the userspace datapath: with `CONTIV_TEST_OVS=system`, on machines with its module.
pub fn on_kernel() -> bool {
    env::var_os("CONTIV_TEST_OVS").is_some_and(|kind| kind == "system")
}

/// A switch with an empty database, in a namespace. It and its bridges are removed when this is dropped.
#[derive(Debug)]
pub struct Switch {
    namespace: Netns,
    vswitchd: Option<Process>,
    database: Option<Process>,
    directory: TempDir,
}

impl Switch {
    pub fn start(namespace: &Netns) -> Result<Switch> {
        let directory = scratch_dir("ovs")?;
        let path = directory.path();
        let conf = path.join("conf.db");
        run_program("ovsdb-tool", &["create", &conf.to_string_lossy(), SCHEMA])?;
        let mut switch = Switch { namespace: namespace.clone(), vswitchd: None, database: None, directory };
        switch.start_database()?;
        switch.vsctl(&["--no-wait", "init"])?;
        switch.start_vswitchd()?;
        Ok(switch)
    }

    /// Starts `ovsdb-server` again after [`Switch::kill_database`], with the same database.
    pub fn start_database(&mut self) -> Result<()> {
        let path = self.directory.path();
        let mut command = program("ovsdb-server", path)?;
        let remote = flag("--remote=punix:", path, "db.sock");
        command.arg(path.join("conf.db")).arg(remote).arg(flag("--unixctl=", path, "db.ctl"));
        let mut database = Process::spawn_in(&self.namespace, "ovsdb-server", command)?;
        let socket = self.socket();
        database.wait_ready(START_TIMEOUT, "ovsdb-server listens", || {
            Ok(UnixStream::connect(&socket).map(drop).map(Some)?)
        })?;
        self.database = Some(database);
        Ok(())
    }

    /// Starts `ovs-vswitchd` again after [`Switch::kill_vswitchd`].
    pub fn start_vswitchd(&mut self) -> Result<()> {
        self.spawn_vswitchd()?;
        self.wait_vswitchd()
    }

    /// As [`Switch::start_vswitchd`], without waiting: the database may start later.
    pub fn spawn_vswitchd(&mut self) -> Result<()> {
        let path = self.directory.path();
        let mut command = program("ovs-vswitchd", path)?;
        command.arg(flag("unix:", path, "db.sock")).arg(flag("--pidfile=", path, PID_FILE));
        self.vswitchd = Some(Process::spawn_in(&self.namespace, "ovs-vswitchd", command)?);
        Ok(())
    }

    /// Waits until `ovs-vswitchd` has applied the database.
    pub fn wait_vswitchd(&mut self) -> Result<()> {
        let mut vswitchd = self.vswitchd.take().context("ovs-vswitchd is not started")?;
        let ready = vswitchd.wait_ready(START_TIMEOUT, "ovs-vswitchd has applied its database", || {
            // ovs-vswitchd writes `cur_cfg` after it has applied the first configuration.
            let current = self.vsctl(&["get", "Open_vSwitch", ".", "cur_cfg", "ovs_version"]);
            self.appctl(&["version"])?;
            current.map(Some)
        });
        self.vswitchd = Some(vswitchd);
        ready?;
        // Without --no-wait, ovs-vsctl returns after the switch has applied the configuration.
        self.vsctl(&["--timeout=20", "set", "Open_vSwitch", ".", "external_ids:testkit=ready"]).map(drop)
    }

    /// Sends SIGKILL to ovs-vswitchd; the database server keeps running.
    pub fn kill_vswitchd(&mut self) -> Result<()> {
        match self.vswitchd.take() {
            Some(mut vswitchd) => vswitchd.kill(),
            None => Ok(()),
        }
    }

    /// Sends SIGKILL to ovsdb-server; ovs-vswitchd keeps running.
    pub fn kill_database(&mut self) -> Result<()> {
        match self.database.take() {
            Some(mut database) => database.kill(),
            None => Ok(()),
        }
    }

    /// Process of `ovs-vswitchd`; `None` after [`Switch::kill_vswitchd`].
    pub fn vswitchd(&self) -> Option<&Process> {
        self.vswitchd.as_ref()
    }

    /// Process of `ovsdb-server`; `None` after [`Switch::kill_database`].
    pub fn database(&self) -> Option<&Process> {
        self.database.as_ref()
    }

    /// Socket of the database, for the agent's `--ovsdb unix:<path>`.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("db.sock")
    }

    /// Directory of the sockets, such as `<bridge>.mgmt`.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub fn vsctl(&self, arguments: &[&str]) -> Result<String> {
        let database = format!("--db=unix:{}", self.socket().display());
        run_program("ovs-vsctl", &[&[database.as_str()], arguments].concat())
    }

    /// Runs `ovs-ofctl -O OpenFlow13 COMMAND BRIDGE ...`.
    pub fn ofctl(&self, command: &str, bridge: &str, arguments: &[&str]) -> Result<String> {
        let target = format!("unix:{}", self.directory.path().join(format!("{bridge}.mgmt")).display());
        run_program("ovs-ofctl", &[&["-O", "OpenFlow13", command, &target], arguments].concat())
    }

    /// Runs `ovs-appctl` for ovs-vswitchd.
    pub fn appctl(&self, arguments: &[&str]) -> Result<String> {
        let pid = std::fs::read_to_string(self.directory.path().join(PID_FILE))?;
        let control = self.directory.path().join(format!("ovs-vswitchd.{}.ctl", pid.trim()));
        run_program("ovs-appctl", &[&["-t", &control.to_string_lossy()], arguments].concat())
    }

    /// Waits until no packet is between the kernel's datapath and a handler of ovs-vswitchd. That a marker has come says nothing of the
    /// packets before it: each recirculation, such as one for connection tracking, may take a packet to a handler again.
    pub fn wait_for_upcalls(&self) -> Result<()> {
        let vswitchd = self.vswitchd().context("ovs-vswitchd is not started")?;
        let process = PathBuf::from(format!("/proc/{}", vswitchd.pid()));
        wait_until(START_TIMEOUT, "ovs-vswitchd has no packets in hand", || {
            let before = upcalls::handlers(&process)?;
            ensure!(!before.is_empty(), "ovs-vswitchd has no threads named handler*");
            let is_idle = !upcalls::are_queued(&process)?
                && before.iter().all(upcalls::Handler::waits)
                && upcalls::handlers(&process)? == before
                && !upcalls::are_queued(&process)?;
            Ok(is_idle.then_some(()))
        })
    }

    /// Stops both daemons in order and removes bridges and ports from the kernel.
    pub fn stop(mut self) -> Result<()> {
        self.shut_down().map(drop)
    }

    fn shut_down(&mut self) -> Result<Option<ExitStatus>> {
        let Some(mut vswitchd) = self.vswitchd.take() else { return Ok(None) };
        if vswitchd.ended()?.is_none() {
            self.appctl(&["exit", "--cleanup"])?;
        }
        let status = vswitchd.wait(STOP_TIMEOUT)?;
        if let Some(mut database) = self.database.take() {
            database.terminate(STOP_TIMEOUT)?;
        }
        Ok(Some(status))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // A graceful exit; the processes are killed in any case.
        if let Err(error) = self.shut_down() {
            eprintln!("stop Open vSwitch in {}: {error:#}", self.namespace.name());
        }
    }
}

fn program(name: &str, directory: &Path) -> Result<Command> {
    let path = find_program(name)
        .with_context(|| format!("the program {name} is missing: run `cargo xtask setup`"))?;
    let mut command = Command::new(path);
    for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(variable, directory);
    }
    // No --mlockall and no changed limits: they need capabilities that a container may lack.
    command.args(["-vconsole:warn", "-vsyslog:off", "--no-chdir"]);
    Ok(command)
}

fn flag(start: &str, directory: &Path, file: &str) -> OsString {
    let mut flag = OsString::from(start);
    flag.push(directory.join(file));
    flag
}
