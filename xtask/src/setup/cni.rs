//! Programs that drive CNI plugins in tests: containerd 2 with a runtime for containers, `cnitool` of libcni, and plugins
//! that a chain is made of.
//!
//! They come from Debian, whose signatures apt checks, and are unpacked below `.tools/cni`: nothing is installed. Debian has
//! no package of `cnitool`: it is built from the source package of libcni, with a compiler that is removed afterwards.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    debian::{self, Sources},
    folder,
};
use crate::{
    progress::step,
    workspace::{Workspace, output, run_logged},
};

/// The suite of Debian 14, the first with containerd 2 and with CNI 1.1.0 in libcni and in the plugins.
const SUITE: &str = "forky";
const LIBCNI: &str = "golang-github-appc-cni";
/// Files to keep, from the packages below.
const PROGRAMS: [&str; 5] =
    ["usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr", "usr/sbin/runc", "bin/busybox"];
const PLUGINS: [&str; 2] = ["loopback", "tuning"];
const FROM_SUITE: [&str; 2] = ["containerd", "containernetworking-plugins"];
/// Newer builds of these need a newer C library than Debian 12 has, or are in no other suite for longer.
const FROM_MACHINE: [&str; 2] = ["runc", "busybox-static"];
/// Changes with what this module installs.
const RECIPE: &str = "1\n";

fn prefix(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("cni")
}

pub(super) fn missing(workspace: &Workspace) -> Option<String> {
    let complete = fs::read_to_string(prefix(workspace).join("recipe")).is_ok_and(|here| here == RECIPE);
    (!complete).then(|| "cnitool, containerd 2 and CNI plugins in .tools/cni (cargo xtask setup)".to_owned())
}

/// Installs the programs if they are missing. Without them their tests are skipped.
pub(super) fn offer(workspace: &Workspace) {
    if missing(workspace).is_none() || !debian::is_debian() {
        return;
    }
    if let Err(error) = folder::replace(&prefix(workspace), |work| install(workspace, work)) {
        eprintln!("warning: install cnitool and containerd: {error:#}");
    }
}

fn install(workspace: &Workspace, work: &Path) -> Result<()> {
    let suite = Sources::suite_with_source(workspace, SUITE)?;
    let (tree, log) = (work.join("tree"), "cni-fetch.log");
    step("containerd, cnitool, CNI plugins: download (85 MB)", || {
        let go = compiler(workspace, &suite)?;
        let newer: Vec<_> = FROM_SUITE.into_iter().chain(go.iter().map(String::as_str)).collect();
        suite.download(workspace, &newer, work, log)?;
        Sources::machine().download(workspace, &FROM_MACHINE, work, log)?;
        suite.download_source(workspace, LIBCNI, work, log)
    })?;
    step("containerd, CNI plugins: unpack", || unpack(work, &tree))?;
    step("cnitool: build", || build_cnitool(workspace, work, &tree))?;
    folder::remove(&tree)?;
    let said = output(Command::new(work.join("bin/containerd")).arg("--version"))?;
    ensure!(said.contains(" 2."), "containerd of Debian {SUITE} is not version 2: {said}");
    fs::write(work.join("recipe"), RECIPE).context("write the recipe of the CNI programs")
}

/// The packages of the suite's newest Go compiler; their names have its version.
fn compiler(workspace: &Workspace, suite: &Sources) -> Result<[String; 2]> {
    let newest = || -> Result<Option<String>> {
        let names = suite.search(workspace, "^golang-1[.][0-9]+-go$")?;
        let minor =
            |name: &String| name.trim_start_matches("golang-1.").trim_end_matches("-go").parse::<u32>().ok();
        Ok(names.into_iter().max_by_key(minor))
    };
    // Lists are missing at first.
    if newest()?.is_none() {
        suite.update(workspace)?;
    }
    let go = newest()?.with_context(|| format!("Debian {SUITE} has no package golang-1.*-go"))?;
    let source = format!("{}-src", go.trim_end_matches("-go"));
    Ok([go, source])
}

fn unpack(work: &Path, tree: &Path) -> Result<()> {
    for entry in fs::read_dir(work)? {
        let path = entry?.path();
        if path.extension().is_some_and(|kind| kind == "deb") {
            output(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(tree))?;
            fs::remove_file(&path)?;
        }
    }
    let (programs, plugins) = (work.join("bin"), work.join("plugins"));
    for folder in [&programs, &plugins] {
        fs::create_dir_all(folder)?;
    }
    let plugin_files = PLUGINS.map(|name| (format!("usr/lib/cni/{name}"), &plugins));
    let program_files = PROGRAMS.map(|name| (name.to_owned(), &programs));
    for (file, folder) in program_files.into_iter().chain(plugin_files) {
        let (from, name) = (tree.join(&file), Path::new(&file).file_name().unwrap_or_default());
        fs::rename(&from, folder.join(name)).with_context(|| format!("Debian's packages have no {file}"))?;
    }
    Ok(())
}

fn build_cnitool(workspace: &Workspace, work: &Path, tree: &Path) -> Result<()> {
    let archive = find(work, |name| name.starts_with(LIBCNI) && name.contains(".orig.tar."))?;
    let source = tree.join("libcni");
    fs::create_dir_all(&source)?;
    output(Command::new("tar").arg("--strip-components=1").arg("-xf").arg(&archive).arg("-C").arg(&source))?;
    fs::remove_file(archive)?;
    let root = find(&tree.join("usr/lib"), |name| name.starts_with("go-1."))?;
    let mut build = Command::new(root.join("bin/go"));
    build
        .args(["build", "-mod=mod", "-o"])
        .arg(work.join("bin/cnitool"))
        .arg("./cnitool")
        .current_dir(&source)
        // Nothing else is fetched, and the result runs everywhere.
        .envs([("GOPROXY", "off"), ("GOTOOLCHAIN", "local"), ("GOFLAGS", ""), ("CGO_ENABLED", "0")])
        .env("GOROOT", &root)
        .env("GOPATH", tree.join("gopath"))
        .env("GOCACHE", tree.join("gocache"));
    run_logged(&mut build, &debian::log(workspace, "cnitool.log")?)
}

fn find(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let mut entries = fs::read_dir(folder)?.filter_map(Result::ok);
    let found = entries.find(|entry| entry.file_name().to_str().is_some_and(&wanted));
    Ok(found.with_context(|| format!("{} has not the expected file", folder.display()))?.path())
}
