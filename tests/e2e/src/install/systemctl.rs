//! `systemctl` and `journalctl` for a machine without systemd: they start what the unit's own `ExecStart` says, with its
//! environment and user, and wait for `READY=1` on the notification socket (sd_notify(3)).
//!
//! Sandboxing, dependencies, restarts and boot are systemd's and are not imitated.

use std::{
    env,
    fs::{self, File, Permissions},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{
            fs::{PermissionsExt as _, symlink},
            net::UnixDatagram,
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, User, chown},
};

use super::unit::Unit;

const FOLDER: &str = "/run/units";
const WANTS: &str = "/etc/systemd/system/multi-user.target.wants";
/// systemd's `DefaultTimeoutStartSec` and `DefaultTimeoutStopSec`.
const TIMEOUT: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(50);
/// Command of the process that waits for a unit after `--no-block`. systemctl has none like it.
const WAIT_READY: &str = "wait-ready";

/// `systemctl VERB [--now] [--no-block] UNIT...`.
pub(super) fn run(arguments: &[String]) -> Result<ExitCode> {
    let has = |flag: &str| arguments.iter().any(|word| word == flag);
    let words: Vec<&str> =
        arguments.iter().map(String::as_str).filter(|word| !word.starts_with('-')).collect();
    let Some((verb, units)) = words.split_first() else { bail!("expected a command") };
    fs::create_dir_all(FOLDER)?;
    let (now, block) = (has("--now"), !has("--no-block"));
    for name in units {
        let name = name.trim_end_matches(".service");
        match *verb {
            "enable" => {
                enable(name)?;
                if now {
                    start(name, block)?;
                }
            }
            "start" => start(name, block)?,
            "restart" => {
                stop(name)?;
                start(name, block)?;
            }
            "try-restart" => {
                if running(name).is_some() {
                    stop(name)?;
                    start(name, block)?;
                }
            }
            "disable" => {
                drop(fs::remove_file(wanted(name)));
                if now {
                    stop(name)?;
                }
            }
            "stop" => stop(name)?,
            "is-enabled" => return Ok(answer(wanted(name).is_symlink(), ["enabled", "disabled"])),
            "is-active" | "status" => return Ok(answer(is_active(name), ["active", "inactive"])),
            WAIT_READY => {
                let socket = io::stdin().as_fd().try_clone_to_owned()?;
                wait_ready(name, &UnixDatagram::from(socket), None)?;
            }
            _ => bail!("{verb}: no stand-in"),
        }
    }
    match *verb {
        _ if !units.is_empty() => Ok(ExitCode::SUCCESS),
        "daemon-reload" => Ok(ExitCode::SUCCESS),
        _ => bail!("{verb}: expected a unit"),
    }
}

fn wanted(name: &str) -> PathBuf {
    Path::new(WANTS).join(format!("{name}.service"))
}

fn enable(name: &str) -> Result<()> {
    let unit = Unit::load(name)?;
    fs::create_dir_all(WANTS)?;
    let link = wanted(name);
    drop(fs::remove_file(&link));
    symlink(&unit.path, &link).with_context(|| format!("link {}", link.display()))
}

fn answer(holds: bool, words: [&str; 2]) -> ExitCode {
    println!("{}", if holds { words[0] } else { words[1] });
    if holds { ExitCode::SUCCESS } else { ExitCode::from(3) }
}

/// `journalctl -u UNIT`: all that the unit has written.
pub(super) fn journal(arguments: &[String]) -> Result<ExitCode> {
    let name = arguments.iter().skip_while(|word| *word != "-u").nth(1).context("expected -u UNIT")?;
    let path = file(name.trim_end_matches(".service"), "log");
    print!("{}", fs::read_to_string(&path).unwrap_or_default());
    Ok(ExitCode::SUCCESS)
}

/// All logs, for a failure.
pub(super) fn print_logs() {
    let Ok(entries) = fs::read_dir(FOLDER) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|extension| extension == "log") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            println!("--- {}:\n{}", path.display(), lines[lines.len().saturating_sub(15)..].join("\n"));
        }
    }
}

fn file(unit: &str, extension: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{unit}.{extension}"))
}

/// The unit's main process, unless it has ended.
fn running(name: &str) -> Option<Pid> {
    let pid: i32 = fs::read_to_string(file(name, "pid")).ok()?.trim().parse().ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before the state may hold anything (proc_pid_stat(5)).
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    (!matches!(state, Some('Z' | 'X') | None)).then_some(Pid::from_raw(pid))
}

/// As systemd: a unit that notifies is not active before it has been ready.
fn is_active(name: &str) -> bool {
    running(name).is_some() && !file(name, "starting").exists()
}

fn stop(name: &str) -> Result<()> {
    let Some(pid) = running(name) else { return Ok(()) };
    kill(pid, Signal::SIGTERM).with_context(|| format!("stop {name}"))?;
    let deadline = Instant::now() + TIMEOUT;
    while running(name).is_some() {
        if Instant::now() > deadline {
            kill(pid, Signal::SIGKILL).with_context(|| format!("kill {name}"))?;
        }
        thread::sleep(POLL);
    }
    Ok(())
}

fn start(name: &str, block: bool) -> Result<()> {
    let unit = Unit::load(name)?;
    if running(name).is_some() {
        return Ok(());
    }
    let user = match &unit.user {
        Some(user) => Some(User::from_name(user)?.with_context(|| format!("{name}: no user {user}"))?),
        None => None,
    };
    for folder in &unit.folders {
        fs::create_dir_all(folder)?;
        if let Some(user) = &user {
            chown(Path::new(folder), Some(user.uid), Some(user.gid))?;
        }
    }
    for line in &unit.exec_start_pre {
        if !command(&unit, line)?.status().with_context(|| format!("start {line}"))?.success() {
            bail!("{name}: ExecStartPre={line} failed");
        }
    }
    let socket = file(name, "notify");
    drop(fs::remove_file(&socket));
    let ready = UnixDatagram::bind(&socket).with_context(|| format!("bind {}", socket.display()))?;
    fs::set_permissions(&socket, Permissions::from_mode(0o777))?;
    let log = File::options().create(true).append(true).open(file(name, "log"))?;
    let mut process = command(&unit, &unit.exec_start)?;
    process.stdout(log.try_clone()?).stderr(log).env("NOTIFY_SOCKET", &socket);
    if unit.notifies {
        fs::write(file(name, "starting"), "")?;
    }
    let child = process.spawn().with_context(|| format!("start {}", unit.exec_start))?;
    fs::write(file(name, "pid"), child.id().to_string())?;
    match (unit.notifies, block) {
        (true, true) => wait_ready(name, &ready, Some(TIMEOUT)),
        (true, false) => wait_ready_in_background(name, ready),
        (false, _) => Ok(()),
    }
}

/// Waits in a process of its own, whose standard input is the socket.
fn wait_ready_in_background(name: &str, ready: UnixDatagram) -> Result<()> {
    let mut waiting = Command::new(env::current_exe()?);
    waiting.arg0("systemctl").args([WAIT_READY, name]).stdin(OwnedFd::from(ready));
    waiting.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    waiting.spawn().with_context(|| format!("wait for {name}"))?;
    Ok(())
}

/// By setpriv(1): as the unit's user, with no capability outside the bounding set and no new privileges.
fn command(unit: &Unit, line: &str) -> Result<Command> {
    let words = unit.words(line);
    if words.is_empty() {
        bail!("{}: an empty command", unit.name);
    }
    let mut command = Command::new("setpriv");
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin");
    if let Some(capabilities) = &unit.bounding_set {
        let kept: String = capabilities.iter().map(|name| format!(",+{name}")).collect();
        command.arg("--inh-caps=-all").arg(format!("--bounding-set=-all{kept}"));
    }
    if unit.no_new_privileges {
        command.arg("--no-new-privs");
    }
    if let Some(user) = &unit.user {
        command.args(["--reuid", user, "--regid", user, "--init-groups"]);
    }
    command
        .arg("--")
        .args(words)
        .envs(&unit.environment)
        .current_dir("/")
        .stdin(Stdio::null())
        .process_group(0);
    Ok(command)
}

/// Waits without an end, unless there is a limit or the process ends.
fn wait_ready(name: &str, ready: &UnixDatagram, limit: Option<Duration>) -> Result<()> {
    ready.set_read_timeout(Some(POLL))?;
    let deadline = limit.map(|limit| Instant::now() + limit);
    let process = running(name);
    let mut message = [0; 4096];
    loop {
        if let Ok(length) = ready.recv(&mut message)
            && message[..length].split(|byte| *byte == b'\n').any(|line| line == b"READY=1")
        {
            return fs::remove_file(file(name, "starting")).context("mark the unit as active");
        }
        let why = match running(name) {
            now if now.is_none() || now != process => "the process has ended",
            _ if deadline.is_some_and(|deadline| Instant::now() > deadline) => "no READY=1 within 90 s",
            _ => continue,
        };
        let log = fs::read_to_string(file(name, "log")).unwrap_or_default();
        bail!("start {name}: {why}; its log:\n{log}");
    }
}
