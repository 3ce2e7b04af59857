use std::{
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{Netns, scratch_dir, sweep, wait_until};

const TAIL_LINES: usize = 30;
const FREEZE: Duration = Duration::from_secs(10);

/// A program that a test started: its output goes to a file, and it is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    label: String,
    child: Child,
    log: PathBuf,
    ended: Option<ExitStatus>,
    _directory: TempDir,
}

impl Process {
    pub fn spawn(label: &str, command: Command) -> Result<Process> {
        Process::start(label, None, command)
    }

    pub fn spawn_in(namespace: &Netns, label: &str, command: Command) -> Result<Process> {
        Process::start(label, Some(namespace), command)
    }

    fn start(label: &str, namespace: Option<&Netns>, mut command: Command) -> Result<Process> {
        let directory = scratch_dir(label)?;
        let log = directory.path().join("log");
        let output = File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // Ctrl-C on a terminal is for whoever owns this process and ends it in order.
        command.process_group(0);
        let program = command.get_program().to_owned();
        let mut spawn = move || command.spawn().with_context(|| format!("start {}", program.display()));
        let child = match namespace {
            Some(namespace) => namespace.run(spawn)?,
            None => spawn()?,
        };
        let process = Process { label: label.to_owned(), child, log, ended: None, _directory: directory };
        process.record()?;
        Ok(process)
    }

    /// For the sweep after a killed test.
    fn record(&self) -> Result<()> {
        if let Some(started) = sweep::start_time(self.pid().as_raw()) {
            let record = self.log.with_file_name("child.pid");
            fs::write(record, format!("{} {started}\n", self.child.id()))?;
        }
        Ok(())
    }

    pub fn pid(&self) -> Pid {
        // Linux pids end at 2^22.
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// All that it wrote so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// The last lines that it wrote, for messages.
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().with_context(|| format!("look at {}", self.label))?;
        }
        Ok(self.ended)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.ended.is_some() {
            bail!("{} has ended already", self.label);
        }
        kill(self.pid(), signal).with_context(|| format!("send {signal} to {}", self.label))
    }

    /// Stops it where it is, until `SIGCONT`. None of its threads runs any more when this returns: a signal alone
    /// reaches those on other processors a moment later.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let tasks = format!("/proc/{}/task", self.pid());
        let frozen = || {
            for task in fs::read_dir(&tasks)? {
                let stat = fs::read_to_string(task?.path().join("stat"))?;
                // The name before it may hold anything (proc_pid_stat(5)).
                let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
                if state != Some('T') {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        };
        wait_until(FREEZE, &format!("{} to stand still", self.label), frozen)
    }

    /// kill -9, and waits for the end.
    pub fn kill(&mut self) -> Result<()> {
        if self.ended()?.is_none() {
            self.child.kill().with_context(|| format!("kill {}", self.label))?;
            self.ended = Some(self.child.wait()?);
        }
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    pub fn terminate(&mut self, deadline: Duration) -> Result<ExitStatus> {
        if self.ended()?.is_none() {
            self.signal(Signal::SIGTERM)?;
        }
        self.wait(deadline)
    }

    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("{} to end", self.label);
        wait_until(deadline, &what, || self.ended()).with_context(|| format!("it said: {}", self.tail()))
    }

    /// As [`wait_until`], but gives up at once when the process has ended, and tells what it wrote.
    pub fn wait_ready<T>(
        &mut self,
        deadline: Duration,
        what: &str,
        mut ask: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let answer = wait_until(deadline, what, || match self.ended()? {
            Some(status) => Ok(Some(Err(status))),
            None => ask().map(|answer| answer.map(Ok)),
        });
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(status)) => {
                bail!("{} ended ({status}) before {what}; it said:\n{}", self.label, self.tail())
            }
            Err(error) => Err(error.context(format!("{} said:\n{}", self.label, self.tail()))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("{error:#}");
        }
        if thread::panicking() {
            eprintln!("--- {} ({}) wrote at the end:\n{}\n---", self.label, self.child.id(), self.tail());
        }
    }
}
