//! `demo --keep`: a background process in its own session owns the demo until `demo --stop`.

use std::{
    env, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    process::{self, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, dup2_stderr, dup2_stdout, setsid},
};
use testkit::wait_until;

use crate::interrupt;

/// Parent of one folder per running demo: `ready` exists when the demo is ready, `log` has its later output.
const FOLDER: &str = "/run/contiv-demo";
const READY: &str = "ready";
const LOG: &str = "log";
const START_TIMEOUT: Duration = Duration::from_secs(600);
const STOP_TIMEOUT: Duration = Duration::from_secs(120);

fn name_of(pid: u32) -> String {
    format!("demo{pid}")
}

fn folder(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Starts the process that owns the demo, and waits until the demo is ready or has failed.
pub(super) fn start_supervised() -> Result<()> {
    interrupt::catch()?;
    let mut supervisor = Command::new(env::current_exe()?)
        .args(env::args_os().skip(1))
        .arg("--supervised")
        .stdin(Stdio::null())
        .spawn()
        .context("start the demo process")?;
    let pid = Pid::from_raw(supervisor.id().cast_signed());
    let ready = folder(&name_of(supervisor.id())).join(READY);
    let mut signalled = false;
    let ended = wait_until(START_TIMEOUT, "the demo to be ready", || {
        if interrupt::check().is_err() && !signalled {
            kill(pid, Signal::SIGTERM)?;
            signalled = true;
        }
        match supervisor.try_wait()? {
            Some(status) => Ok(Some(Some(status))),
            None => Ok(ready.exists().then_some(None)),
        }
    })?;
    match ended {
        None => Ok(()),
        Some(status) => bail!("the demo failed ({status})"),
    }
}

/// State of the process that owns a demo.
pub(super) struct Supervised {
    name: String,
    folder: PathBuf,
}

impl Supervised {
    pub(super) fn begin() -> Result<Supervised> {
        // Closing the terminal must not end the demo.
        setsid().context("create a session")?;
        let name = name_of(process::id());
        let folder = folder(&name);
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        Ok(Supervised { name, folder })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Lets the user's command end, and waits for the stop signal.
    pub(super) fn leave_running(&self) -> Result<()> {
        let log = fs::File::create(self.folder.join(LOG))?;
        dup2_stdout(&log).context("redirect the output")?;
        dup2_stderr(&log).context("redirect the output")?;
        fs::write(self.folder.join(READY), "").context("report that the demo is ready")?;
        interrupt::wait();
        interrupt::reset();
        Ok(())
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            eprintln!("remove {}: {error}", self.folder.display());
        }
    }
}

pub(super) fn stop(name: &str) -> Result<()> {
    let pid = name.strip_prefix("demo").and_then(|pid| pid.parse::<i32>().ok());
    let (Some(pid), true) = (pid, folder(name).is_dir()) else {
        bail!("stop {name}: no such demo; running: {}", running()?);
    };
    // Open the log before the folder is removed: its end has the result.
    let mut log = fs::File::open(folder(name).join(LOG)).context("open the demo's log")?;
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        Ok(()) => {}
        Err(nix::Error::ESRCH) => {
            fs::remove_dir_all(folder(name))?;
            bail!("{name} was killed; the next demo or test removes its resources");
        }
        Err(error) => return Err(error).with_context(|| format!("stop {name}")),
    }
    let stopped = wait_until(STOP_TIMEOUT, "the demo to stop", || Ok((!folder(name).exists()).then_some(())));
    let mut output = String::new();
    log.read_to_string(&mut output)?;
    stopped.with_context(|| format!("output: {}", output.trim()))?;
    match output.lines().find_map(|line| line.strip_prefix("error: ")) {
        Some(error) => bail!("{name} stopped with an error: {error}"),
        None => {
            println!("{name} stopped, all resources removed");
            Ok(())
        }
    }
}

fn running() -> Result<String> {
    let entries = match fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok("none".to_owned()),
        Err(error) => return Err(error).with_context(|| format!("read {FOLDER}")),
    };
    let mut names = vec![];
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}
