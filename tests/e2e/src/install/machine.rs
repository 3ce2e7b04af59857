//! A machine made from namespaces, with one shell that keeps its variables from block to block.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::{fs::symlink, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use nix::{
    mount::{MsFlags, mount},
    sys::wait::{WaitStatus, waitpid},
    unistd::{Pid, chroot},
};
use tempfile::TempDir;
use testkit::{Netns, scratch_dir};

use super::systemctl;

/// Printed after a block; a block cannot print it by accident.
const DONE: &str = "\u{1}done\u{1}";
const STAND_INS: &str = "/run/stand-ins";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const START: Duration = Duration::from_secs(30);
/// Lines of output that a failure shows.
const TAIL: usize = 60;

/// What a machine's file systems are made of.
pub(super) struct Files {
    /// Lower layer of the root; it is not changed.
    pub(super) root: PathBuf,
    /// `/srv/contiv` of the machine.
    pub(super) packages: PathBuf,
}

/// A running machine, seen from outside. Its processes and mounts end when it is dropped.
pub(super) struct Machine {
    name: String,
    child: Child,
    shell: Option<ChildStdin>,
    output: Receiver<String>,
    verbose: bool,
    _root: TempDir,
    _namespace: Netns,
}

impl Machine {
    pub(super) fn start(name: &str, namespace: Netns, files: &Files, verbose: bool) -> Result<Machine> {
        let root = scratch_dir(name)?;
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--uts", "--fork", "--kill-child", "--propagation=private"])
            .arg(env::current_exe()?)
            .args(["install-machine", "--name", name])
            .arg("--folder")
            .arg(root.path())
            .arg("--lower")
            .arg(&files.root)
            .arg("--packages")
            .arg(&files.packages)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = namespace.run(|| command.spawn().context("start unshare"))?;
        let shell = child.stdin.take();
        let stdout = child.stdout.take().context("read the machine's output")?;
        let (sender, output) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        let mut machine = Machine {
            name: name.to_owned(),
            child,
            shell,
            output,
            verbose,
            _root: root,
            _namespace: namespace,
        };
        machine.run("exec 2>&1; set -eo pipefail", START)?;
        Ok(machine)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Runs `text` in the machine's shell. A command that fails ends the shell and is an error.
    pub(super) fn run(&mut self, text: &str, limit: Duration) -> Result<()> {
        let quoted = text.replace('\'', r"'\''");
        let shell = self.shell.as_mut().context("use the shell of a stopped machine")?;
        writeln!(shell, "eval '{quoted}' </dev/null\nprintf '\\n%s\\n' '{DONE}'")
            .with_context(|| format!("send a block to {}", self.name))?;
        let deadline = Instant::now() + limit;
        let mut lines = vec![];
        loop {
            match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line == DONE => return Ok(()),
                Ok(line) => {
                    if self.verbose && !line.is_empty() {
                        eprintln!("    {}| {line}", self.name);
                    }
                    lines.push(line);
                }
                Err(error) => {
                    let why = match error {
                        RecvTimeoutError::Timeout => format!("no end within {} s", limit.as_secs()),
                        RecvTimeoutError::Disconnected => "a command failed".to_owned(),
                    };
                    let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n");
                    bail!("run a block on {}: {why}\n{text}--- output:\n{tail}", self.name);
                }
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // `unshare --kill-child` ends PID 1 of the machine with itself, and the kernel ends the others.
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("stop {}: {error}", self.name);
        }
    }
}

/// PID 1 of a machine; `unshare` has made its namespaces.
#[derive(Debug, Args)]
pub struct Inside {
    #[arg(long)]
    name: String,
    /// Where the machine's file systems are mounted
    #[arg(long)]
    folder: PathBuf,
    /// Lower layer of the root
    #[arg(long)]
    lower: PathBuf,
    #[arg(long)]
    packages: PathBuf,
}

impl Inside {
    /// Runs until the shell ends.
    pub fn run(&self) -> Result<bool> {
        self.enter().with_context(|| format!("make the file systems of {}", self.name))?;
        Command::new(Path::new(STAND_INS).join("scpd"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("start the server for copies")?;
        let shell = Command::new("bash")
            .env_clear()
            .envs([("PATH", PATH), ("HOME", "/root"), ("LANG", "C.UTF-8"), ("TERM", "dumb")])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .spawn()
            .context("start bash")?;
        let succeeded = reap_until(Pid::from_raw(shell.id().cast_signed()))?;
        if !succeeded {
            systemctl::print_logs();
        }
        Ok(succeeded)
    }

    /// Makes the root, and moves into it.
    fn enter(&self) -> Result<()> {
        fs::write("/proc/sys/kernel/hostname", &self.name).context("set the host name")?;
        let none = None::<&str>;
        let flags = MsFlags::empty();
        mount(Some("tmpfs"), &self.folder, Some("tmpfs"), flags, Some("size=2g"))?;
        let [upper, work, root] = ["upper", "work", "root"].map(|name| self.folder.join(name));
        for folder in [&upper, &work, &root] {
            fs::create_dir(folder)?;
        }
        let lower = self.lower.display();
        let layers = format!("lowerdir={lower},upperdir={},workdir={}", upper.display(), work.display());
        mount(Some("overlay"), &root, Some("overlay"), flags, Some(layers.as_str()))
            .with_context(|| format!("mount an overlay of {lower}"))?;
        let at = |path: &str| root.join(path.trim_start_matches('/'));
        mount(Some("proc"), &at("/proc"), Some("proc"), flags, none)?;
        mount(Some("sysfs"), &at("/sys"), Some("sysfs"), flags, none)?;
        mount(Some("bpf"), &at("/sys/fs/bpf"), Some("bpf"), flags, none)?;
        mount(Some("/dev"), &at("/dev"), none, MsFlags::MS_BIND | MsFlags::MS_REC, none)?;
        mount(Some("tmpfs"), &at("/run"), Some("tmpfs"), flags, none)?;
        mount(Some("tmpfs"), &at("/tmp"), Some("tmpfs"), flags, none)?;
        fs::create_dir_all(at("/srv/contiv"))?;
        mount(Some(&self.packages), &at("/srv/contiv"), none, MsFlags::MS_BIND, none)?;
        let own = at(STAND_INS);
        fs::create_dir_all(&own)?;
        fs::copy(env::current_exe()?, own.join("lab"))?;
        symlink("lab", own.join("scpd"))?;
        // Maintainer scripts of packages run with a PATH of dpkg's own.
        for name in ["systemctl", "journalctl", "scp"] {
            let path = at("/usr/bin").join(name);
            drop(fs::remove_file(&path));
            symlink(Path::new(STAND_INS).join("lab"), path)?;
        }
        // deb-systemd-invoke(1) and maintainer scripts look for systemd here.
        fs::create_dir_all(at("/run/systemd/system"))?;
        chroot(&root).context("change the root")?;
        env::set_current_dir("/root")?;
        Ok(())
    }
}

/// Collects all processes that end; whether `shell` succeeded, once it has ended.
fn reap_until(shell: Pid) -> Result<bool> {
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == shell => return Ok(code == 0),
            Ok(WaitStatus::Signaled(pid, ..)) if pid == shell => return Ok(false),
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(error) => return Err(error).context("wait for the shell"),
        }
    }
}
