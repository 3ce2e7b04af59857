//! Debian packages, installed without starting their services.

use std::{
    fs,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    progress::step,
    workspace::{Workspace, output, run_logged},
};

const MIRROR: &str = "http://deb.debian.org/debian";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// invoke-rc.d runs this program; exit status 101 forbids the action.
const POLICY_TEXT: &str =
    "#!/bin/sh\n# cargo xtask setup: packages are installed without starting their services.\nexit 101\n";

pub(super) fn is_debian() -> bool {
    Path::new("/etc/debian_version").exists() && crate::workspace::find_program("apt-get").is_some()
}

pub(super) fn install(workspace: &Workspace, packages: &[&str]) -> Result<()> {
    update_if_unknown(workspace, packages)?;
    step(&format!("packages: {}", packages.join(" ")), || {
        let _services_stay_stopped = Policy::install()?;
        Sources::machine().with_fresh_lists(workspace, || {
            let mut apt = apt_get(workspace);
            apt.args(["install", "--yes", "--no-install-recommends"]).args(packages);
            run_logged(&mut apt, &log(workspace, "apt-install.log")?)
        })
    })
}

/// Where packages come from.
pub(crate) struct Sources {
    /// Configuration of apt with its own lists; `None` for those of the machine.
    configuration: Option<PathBuf>,
}

impl Sources {
    /// The sources of this machine.
    pub(crate) fn machine() -> Sources {
        Sources { configuration: None }
    }

    /// One suite of Debian, beside the sources of this machine, which stay as they are.
    pub(crate) fn suite(workspace: &Workspace, suite: &str) -> Result<Sources> {
        Sources::of(workspace, suite, &["deb"])
    }

    /// Like [`Sources::suite`], with source packages.
    pub(super) fn suite_with_source(workspace: &Workspace, suite: &str) -> Result<Sources> {
        Sources::of(workspace, suite, &["deb", "deb-src"])
    }

    fn of(workspace: &Workspace, suite: &str, kinds: &[&str]) -> Result<Sources> {
        let folder = workspace.tools().join(format!("apt-{suite}"));
        let (lists, cache) = (folder.join("lists"), folder.join("cache"));
        for folder in [lists.join("partial"), cache.join("archives/partial")] {
            fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        }
        let list = folder.join("sources.list");
        let lines = kinds.iter().map(|kind| format!("{kind} [signed-by={KEYRING}] {MIRROR} {suite} main\n"));
        fs::write(&list, lines.collect::<String>())?;
        let configuration = folder.join("apt.conf");
        let text = format!(
            "Dir::Etc::SourceList \"{}\";\nDir::Etc::SourceParts \"/dev/null\";\nDir::State::Lists \"{}\";\n\
             Dir::Cache \"{}\";\nAcquire::Languages \"none\";\n",
            list.display(),
            lists.display(),
            cache.display()
        );
        fs::write(&configuration, text)?;
        Ok(Sources { configuration: Some(configuration) })
    }

    fn command(&self, mut command: Command) -> Command {
        command.envs(self.configuration.iter().map(|file| ("APT_CONFIG", file)));
        command
    }

    /// Updates the package lists.
    pub(crate) fn update(&self, workspace: &Workspace) -> Result<()> {
        run_logged(self.command(apt_get(workspace)).arg("update"), &log(workspace, "apt-update.log")?)
    }

    /// Names of the packages that match a regular expression.
    pub(crate) fn search(&self, workspace: &Workspace, pattern: &str) -> Result<Vec<String>> {
        let mut search = self.command(workspace.command("apt-cache"));
        let text = output(search.args(["search", "--names-only", pattern]))?;
        Ok(text.lines().filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect())
    }

    /// Downloads packages into `folder` without installing them.
    pub(crate) fn download(
        &self,
        workspace: &Workspace,
        packages: &[&str],
        folder: &Path,
        log_name: &str,
    ) -> Result<()> {
        self.fetch(workspace, &[&["download"], packages].concat(), folder, log_name)
    }

    /// Downloads the original archive of a source package into `folder`.
    pub(super) fn download_source(
        &self,
        workspace: &Workspace,
        package: &str,
        folder: &Path,
        log_name: &str,
    ) -> Result<()> {
        self.fetch(workspace, &["source", "--download-only", "--tar-only", package], folder, log_name)
    }

    fn fetch(&self, workspace: &Workspace, arguments: &[&str], folder: &Path, log_name: &str) -> Result<()> {
        self.with_fresh_lists(workspace, || {
            let mut fetch = self.command(Command::new("apt-get"));
            // The user that apt downloads as cannot write to the folder.
            fetch.args(["-q", "-o", "APT::Sandbox::User=root"]).args(arguments);
            run_logged(fetch.current_dir(folder), &log(workspace, log_name)?)
        })
    }

    /// Retries once with updated package lists: old lists name files that the archive no longer has.
    fn with_fresh_lists(&self, workspace: &Workspace, fetch: impl Fn() -> Result<()>) -> Result<()> {
        fetch().or_else(|stale| {
            self.update(workspace).with_context(|| format!("update package lists after {stale:#}"))?;
            fetch()
        })
    }
}

/// Installs those of the packages that are missing.
pub(super) fn install_missing(workspace: &Workspace, packages: &[String]) -> Result<()> {
    let missing: Vec<_> =
        packages.iter().map(String::as_str).filter(|package| !installed(workspace, package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("packages {0} are missing; run `apt-get install {0}` as root", missing.join(" "));
    }
    install(workspace, &missing)
}

fn installed(workspace: &Workspace, package: &str) -> bool {
    let mut query = workspace.command("dpkg-query");
    let status = output(query.args(["--show", "--showformat=${db:Status-Status}", package]));
    status.is_ok_and(|status| status == "installed")
}

/// Updates the package lists if a package is unknown: a container image has none.
pub(super) fn update_if_unknown(workspace: &Workspace, packages: &[&str]) -> Result<()> {
    if packages.iter().all(|package| candidate(workspace, package)) {
        return Ok(());
    }
    step("package lists", || Sources::machine().update(workspace))?;
    for package in packages {
        if !candidate(workspace, package) {
            bail!("package {package}: not in the configured suites; use Debian 12 with its security suite");
        }
    }
    Ok(())
}

fn candidate(workspace: &Workspace, package: &str) -> bool {
    let policy = output(workspace.command("apt-cache").env("LC_ALL", "C").args(["policy", package]));
    policy.is_ok_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
}

fn apt_get(workspace: &Workspace) -> Command {
    let mut command = workspace.command("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").args([
        "-q",
        "-o",
        "DPkg::Lock::Timeout=120",
    ]);
    command
}

pub(crate) fn log(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    let tools = workspace.tools();
    fs::create_dir_all(&tools).with_context(|| format!("make {}", tools.display()))?;
    Ok(tools.join(name))
}

/// Keeps installed services from starting until it is dropped, then restores the previous policy.
struct Policy {
    previous: Option<(Vec<u8>, fs::Permissions)>,
}

impl Policy {
    fn install() -> Result<Policy> {
        let previous = match fs::read(POLICY) {
            Ok(text) if text == POLICY_TEXT.as_bytes() => None, // left by a killed run
            Ok(text) => Some((text, fs::metadata(POLICY)?.permissions())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| format!("read {POLICY}")),
        };
        let policy = Policy { previous };
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o755)
            .open(POLICY)
            .with_context(|| format!("write {POLICY}"))?;
        std::io::Write::write_all(&mut file, POLICY_TEXT.as_bytes())?;
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        Ok(policy)
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        let restored = match self.previous.take() {
            Some((text, permissions)) => {
                fs::write(POLICY, text).and_then(|()| fs::set_permissions(POLICY, permissions))
            }
            None => fs::remove_file(POLICY),
        };
        if let Err(error) = restored {
            eprintln!("warning: restore {POLICY}: {error}");
        }
    }
}
