//! Packages for the machines of a cluster: release binaries, man pages, completions and units, as .deb and as a tarball.

mod check;
mod debian_root;

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{
    lab,
    progress::step,
    setup,
    workspace::{Workspace, find_program, install_tool, output},
};

const CARGO_DEB_VERSION: &str = "3.8.0";
/// Crates with a package of their own.
const CRATES: [&str; 3] = ["netmaster", "netplugin", "netctl"];
/// Shells that netctl completes in.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Install the packages in a clean Debian 12 root, follow the installation page, attach pods, upgrade and downgrade
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    setup::ensure(workspace)?;
    let folder = build(workspace)?;
    println!("packages are in {}", folder.display());
    if options.check {
        check::run(workspace, &folder)?;
    }
    Ok(())
}

/// Builds everything into `target/package`.
fn build(workspace: &Workspace) -> Result<PathBuf> {
    let target = workspace.metadata()?.target_directory.into_std_path_buf();
    let folder = target.join("package");
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("remove {}", folder.display()));
        }
        _ => {}
    }
    step("release binaries", || lab::build_programs(workspace))?;
    let release = target.join("release");
    step("man pages and completions", || documents(workspace, &release, &folder))?;
    let cargo_deb = cargo_deb(workspace)?;
    step(".deb packages", || debs(workspace, &cargo_deb, &folder, None))?;
    step("tarball", || tarball(workspace, &release, &folder))?;
    Ok(folder)
}

fn cargo_deb(workspace: &Workspace) -> Result<PathBuf> {
    match find_program("cargo-deb") {
        Some(found) => Ok(found),
        None => install_tool(workspace, "cargo-deb", CARGO_DEB_VERSION),
    }
}

/// What the binaries say of themselves.
fn documents(workspace: &Workspace, release: &Path, folder: &Path) -> Result<()> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for directory in [&man, &completions] {
        fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    }
    for program in CRATES {
        output(workspace.command(release.join(program)).args(["reference", "man"]).arg(&man))?;
    }
    let page = "contivk8s.8";
    fs::copy(workspace.path("deploy/man").join(page), man.join(page))
        .context("copy the man page of contivk8s")?;
    for shell in SHELLS {
        let script =
            output(workspace.command(release.join("netctl")).args(["reference", "completion", shell]))?;
        fs::write(completions.join(format!("netctl.{shell}")), script)
            .context("write a completion script")?;
    }
    Ok(())
}

/// One package for each of [`CRATES`], into `folder`; `revision` is Debian's, 1 if none.
fn debs(workspace: &Workspace, cargo_deb: &Path, folder: &Path, revision: Option<&str>) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    for name in CRATES {
        let mut deb = workspace.command(cargo_deb);
        // An unoptimised cargo-deb compresses slowly, the system's xz does not.
        deb.args(["--quiet", "--no-build", "--strip", "--compress-system", "--package", name, "--output"])
            .arg(folder);
        deb.args(revision.iter().flat_map(|revision| ["--deb-revision", revision]));
        output(&mut deb).with_context(|| format!("package {name}"))?;
    }
    Ok(())
}

/// `contiv-VERSION-linux-ARCHITECTURE.tar.gz` with a folder for each kind of file.
fn tarball(workspace: &Workspace, release: &Path, folder: &Path) -> Result<()> {
    let metadata = workspace.metadata()?;
    let version = metadata.packages.iter().find(|package| package.name.as_str() == "netmaster");
    let version = &version.context("cargo metadata has netmaster")?.version;
    let name = format!("contiv-{version}-linux-{}", std::env::consts::ARCH);
    let stage = folder.join(&name);
    fs::create_dir_all(stage.join("bin")).with_context(|| format!("make {}", stage.display()))?;
    for program in lab::PROGRAMS {
        let copy = stage.join("bin").join(program);
        fs::copy(release.join(program), &copy).with_context(|| format!("copy {program}"))?;
        output(workspace.command("strip").arg("--strip-debug").arg(copy))?;
    }
    let copied = [
        (workspace.path("deploy/systemd"), "systemd"),
        (workspace.path("deploy/config"), "config"),
        (workspace.path("deploy/cni"), "cni"),
        (workspace.path("deploy/monitoring"), "monitoring"),
        (folder.join("man"), "man"),
        (folder.join("completions"), "completions"),
    ];
    for (source, directory) in copied {
        output(workspace.command("cp").arg("-r").arg(source).arg(stage.join(directory)))?;
    }
    for file in ["LICENSE", "CHANGELOG.md"] {
        fs::copy(workspace.path(file), stage.join(file)).with_context(|| format!("copy {file}"))?;
    }
    let archive = format!("{name}.tar.gz");
    // Owners and times of the build machine say nothing to its users.
    let mut tar = workspace.command("tar");
    tar.args(["--create", "--gzip", "--owner=0", "--group=0", "--sort=name", "--directory"]).arg(folder);
    output(tar.args(["--file"]).arg(folder.join(&archive)).arg(&name))?;
    fs::remove_dir_all(&stage).with_context(|| format!("remove {}", stage.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon may not become ready before its store is there again, and dpkg's lock is held meanwhile.
    #[test]
    fn upgrades_restart_daemons_without_waiting_for_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let read = |path: String| fs::read_to_string(root.join(&path)).unwrap();
        for (crate_folder, name) in [("master", "netmaster"), ("userspace/agent", "netplugin")] {
            let manifest = read(format!("{crate_folder}/Cargo.toml"));
            assert!(manifest.contains("restart-after-upgrade = false, stop-on-upgrade = false"), "{name}");
            assert!(manifest.contains(&format!("deploy/debian/{name}\"")), "{name}: maintainer-scripts");
            let script = read(format!("deploy/debian/{name}/postinst"));
            assert!(script.contains("\n#DEBHELPER#\n"), "{name}");
            let restarts: Vec<_> = script.lines().filter(|line| line.contains("restart ")).collect();
            let expected = format!("    systemctl --no-block try-restart {name}.service || true");
            assert_eq!(restarts, [expected]);
        }
    }
}
