//! The test programs, built here and run there.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::Message;

use crate::{
    progress::step,
    workspace::{Workspace, output},
};

const PACKAGE: &str = "netplugin";

/// A test program and where cargo would run it.
#[derive(Debug, Clone)]
pub(super) struct TestProgram {
    pub(super) name: String,
    pub(super) file: PathBuf,
    pub(super) folder: PathBuf,
}

/// Without debug information they are a tenth of the size: the guest reads them through 9p.
pub(super) fn build(workspace: &Workspace, folder: &Path) -> Result<Vec<TestProgram>> {
    let mut cargo = workspace.cargo();
    let names = ["packets", "conformance", "ovs"];
    cargo.args([
        "test",
        "--no-run",
        "--quiet",
        "--message-format",
        "json-render-diagnostics",
        "--package",
        PACKAGE,
    ]);
    cargo.args(names.iter().flat_map(|name| ["--test", name]));
    let built = step("test programs", || {
        let built = cargo.stderr(Stdio::inherit()).output().context("run cargo test --no-run")?;
        if !built.status.success() {
            bail!("cargo test --no-run: {}", built.status);
        }
        Ok(built.stdout)
    })?;
    let mut programs = vec![];
    for message in Message::parse_stream(&built[..]) {
        let Message::CompilerArtifact(artifact) = message? else { continue };
        let (Some(executable), true) = (artifact.executable, artifact.profile.test) else { continue };
        let manifest = artifact.manifest_path.as_std_path();
        let name = artifact.target.name;
        let file = folder.join(&name);
        let partial = folder.join(format!("{name}.partial-{}", std::process::id()));
        let mut strip = workspace.command("strip");
        output(strip.arg("--strip-debug").arg("-o").arg(&partial).arg(executable.as_std_path()))?;
        fs::rename(&partial, &file).with_context(|| format!("put {}", file.display()))?;
        let folder = manifest.parent().context("a manifest has a folder")?.to_owned();
        programs.push(TestProgram { name, file, folder });
    }
    for name in names {
        if !programs.iter().any(|program| program.name == name) {
            bail!("cargo has built no test program {name} of {PACKAGE}");
        }
    }
    Ok(programs)
}
