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

use crate::{
    resource::{netns::Netns, scratch::scratch_dir, sweep},
    wait::wait_until,
};

const TAIL_LINES: usize = 30;
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);

/// A child process. Its output goes to a file; it is killed when this is dropped.
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
        // Ctrl-C on the terminal must not reach the child: its owner stops it in order.
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

    /// Records pid and start time for the cleanup after a killed test.
    fn record(&self) -> Result<()> {
        if let Some(started) = sweep::start_time(self.pid().as_raw()) {
            let record = self.log.with_file_name("child.pid");
            fs::write(record, format!("{} {started}\n", self.child.id()))?;
        }
        Ok(())
    }

    pub fn pid(&self) -> Pid {
        // Linux pids are below 2^22.
        Pid::from_raw(self.child.id().cast_signed())
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    pub fn log_path(&self) -> &Path {
        &self.log
    }

    /// Output so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Last lines of the output, for error messages.
    pub fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }

    /// Exit status, if the process has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended =
                self.child.try_wait().with_context(|| format!("query the status of {}", self.label))?;
        }
        Ok(self.ended)
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        if self.ended.is_some() {
            bail!("send {signal} to {}: it has ended", self.label);
        }
        kill(self.pid(), signal).with_context(|| format!("send {signal} to {}", self.label))
    }

    /// Stops the process until [`Process::thaw`], and waits until all of its threads are stopped: the signal reaches threads on
    /// other CPUs with a delay.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let tasks = format!("/proc/{}/task", self.pid());
        let frozen = || {
            for task in fs::read_dir(&tasks)? {
                let stat = fs::read_to_string(task?.path().join("stat"))?;
                // The name before it may contain any character (proc_pid_stat(5)).
                let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
                if state != Some('T') {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        };
        wait_until(FREEZE_TIMEOUT, &format!("{} to stop", self.label), frozen)
    }

    /// Continues the process after [`Process::freeze`].
    pub fn thaw(&self) -> Result<()> {
        self.signal(Signal::SIGCONT)
    }

    /// Sends SIGKILL and waits for the exit.
    pub fn kill(&mut self) -> Result<()> {
        if self.ended()?.is_none() {
            self.child.kill().with_context(|| format!("kill {}", self.label))?;
            self.ended = Some(self.child.wait()?);
        }
        Ok(())
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn terminate(&mut self, deadline: Duration) -> Result<ExitStatus> {
        if self.ended()?.is_none() {
            self.signal(Signal::SIGTERM)?;
        }
        self.wait(deadline)
    }

    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let what = format!("{} to exit", self.label);
        wait_until(deadline, &what, || self.ended()).with_context(|| format!("output: {}", self.tail()))
    }

    /// As [`wait_until`], but fails at once when the process ends. The error has the last lines of its output.
    pub fn wait_ready<T>(
        &mut self,
        deadline: Duration,
        what: &str,
        mut poll: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let answer = wait_until(deadline, what, || match self.ended()? {
            Some(status) => Ok(Some(Err(status))),
            None => poll().map(|answer| answer.map(Ok)),
        });
        match answer {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(status)) => {
                bail!("{} ended ({status}) before {what}; output:\n{}", self.label, self.tail())
            }
            Err(error) => Err(error.context(format!("output of {}:\n{}", self.label, self.tail()))),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("{error:#}");
        }
        if thread::panicking() {
            eprintln!("--- last output of {} ({}):\n{}\n---", self.label, self.child.id(), self.tail());
        }
    }
}
