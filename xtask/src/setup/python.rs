//! Python programs that tests run, in a virtual environment of this checkout with pinned versions.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use super::debian;
use crate::{
    progress::step,
    workspace::{Workspace, find_program, output, run_logged},
};

const REQUIREMENTS: &str = "tests/e2e/schemathesis/requirements.txt";
const PACKAGES: [&str; 2] = ["python3", "python3-venv"];

/// Folder of the virtual environment.
fn prefix(workspace: &Workspace) -> PathBuf {
    workspace.tools().join("python")
}

/// The requirements that are installed. Written last, so that an environment that has it is complete.
fn mark(workspace: &Workspace) -> PathBuf {
    prefix(workspace).join("requirements.txt")
}

fn wanted(workspace: &Workspace) -> Result<String> {
    fs::read_to_string(workspace.path(REQUIREMENTS)).with_context(|| format!("read {REQUIREMENTS}"))
}

pub(super) fn missing(workspace: &Workspace) -> Option<String> {
    let here = fs::read_to_string(mark(workspace)).ok();
    let complete = here.is_some() && here == wanted(workspace).ok();
    (!complete).then(|| format!("the Python packages of {REQUIREMENTS} (cargo xtask setup)"))
}

pub(super) fn ensure(workspace: &Workspace) -> Result<()> {
    if missing(workspace).is_none() {
        return Ok(());
    }
    let has_venv = || output(workspace.command("python3").args(["-c", "import venv, ensurepip"])).is_ok();
    if find_program("python3").is_none() || !has_venv() {
        if !debian::is_debian() || !nix::unistd::geteuid().is_root() {
            bail!("python3 with the module venv is missing; run `apt-get install {}`", PACKAGES.join(" "));
        }
        debian::install(workspace, &PACKAGES)?;
    }
    let prefix = prefix(workspace);
    step("Python packages for the tests of the API", || {
        fs::create_dir_all(workspace.tools())?;
        let mut venv = workspace.command("python3");
        venv.args(["-m", "venv", "--clear"]).arg(&prefix);
        run_logged(&mut venv, &debian::log(workspace, "python-venv.log")?)?;
        let mut pip = workspace.command(prefix.join("bin/python"));
        pip.args([
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--only-binary=:all:",
            "--requirement",
            REQUIREMENTS,
        ]);
        run_logged(&mut pip, &debian::log(workspace, "python-packages.log")?)
    })?;
    fs::write(mark(workspace), wanted(workspace)?).context("write the installed requirements")
}
