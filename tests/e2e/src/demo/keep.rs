//! A demo that outlives its command: a process of its own session holds it and takes it down when told.

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

/// One folder for each demo that runs: `ready` when it is up, `log` for what it says from then on.
const FOLDER: &str = "/run/contiv-demo";
const READY: &str = "ready";
const LOG: &str = "log";
/// A demo that is not up by then will not come.
const START: Duration = Duration::from_secs(600);
const STOP: Duration = Duration::from_secs(120);

fn name_of(pid: u32) -> String {
    format!("demo{pid}")
}

fn folder(name: &str) -> PathBuf {
    Path::new(FOLDER).join(name)
}

/// Starts the process that will hold the demo and waits until it is up, or has failed.
pub(super) fn start_supervised() -> Result<()> {
    interrupt::catch()?;
    let mut supervisor = Command::new(env::current_exe()?)
        .args(env::args_os().skip(1))
        .arg("--supervised")
        .stdin(Stdio::null())
        .spawn()
        .context("start the process that holds the demo")?;
    let pid = Pid::from_raw(supervisor.id().cast_signed());
    let ready = folder(&name_of(supervisor.id())).join(READY);
    let mut told = false;
    let ended = wait_until(START, "the demo to be up", || {
        if interrupt::check().is_err() && !told {
            kill(pid, Signal::SIGTERM)?;
            told = true;
        }
        match supervisor.try_wait()? {
            Some(status) => Ok(Some(Some(status))),
            None => Ok(ready.exists().then_some(None)),
        }
    })?;
    match ended {
        None => Ok(()),
        Some(status) => bail!("the demo did not stay up ({status})"),
    }
}

/// The process that holds a demo.
pub(super) struct Supervised {
    name: String,
    folder: PathBuf,
}

impl Supervised {
    pub(super) fn begin() -> Result<Supervised> {
        // Away from the terminal: closing it must not end the demo.
        setsid().context("leave the terminal's session")?;
        let name = name_of(process::id());
        let folder = folder(&name);
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Supervised { name, folder })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Lets the user's command end, and waits to be told to stop.
    pub(super) fn leave_running(&self) -> Result<()> {
        let log = fs::File::create(self.folder.join(LOG))?;
        dup2_stdout(&log).context("redirect the output")?;
        dup2_stderr(&log).context("redirect the output")?;
        fs::write(self.folder.join(READY), "").context("say that the demo is up")?;
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
        bail!("no demo {name} runs here; running: {}", running()?);
    };
    // Open before the folder goes: the end of it tells how it went.
    let mut log = fs::File::open(folder(name).join(LOG)).context("open the demo's log")?;
    match kill(Pid::from_raw(pid), Signal::SIGTERM) {
        Ok(()) => {}
        Err(nix::Error::ESRCH) => {
            fs::remove_dir_all(folder(name))?;
            bail!("{name} was killed; what it left is swept by the next demo or test");
        }
        Err(error) => return Err(error).with_context(|| format!("stop {name}")),
    }
    let stopped = wait_until(STOP, "the demo to end", || Ok((!folder(name).exists()).then_some(())));
    let mut said = String::new();
    log.read_to_string(&mut said)?;
    stopped.with_context(|| format!("it said: {}", said.trim()))?;
    match said.lines().find_map(|line| line.strip_prefix("error: ")) {
        Some(error) => bail!("{name} is stopped, but: {error}"),
        None => {
            println!("{name} is stopped, nothing is left");
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
