//! The test programs for the guests.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    suite::programs::{Kind, TestProgram},
    workspace::{Workspace, output},
};

/// Tests of the agent's datapaths.
pub(super) const NAMES: [&str; 4] = ["packets", "conformance", "ovs", "attacks"];
/// Those, and the tests of clusters.
pub(super) const ALL_NAMES: [&str; 5] = [NAMES[0], NAMES[1], NAMES[2], NAMES[3], CLUSTERS];
const CLUSTERS: &str = "e2e";
/// What the tests of clusters run.
const BINARIES: [&str; 4] = ["netmaster", "netplugin", "netctl", "contivk8s"];

pub(super) fn is_guest_program(program: &TestProgram) -> bool {
    let is_it = match program.package.as_str() {
        "netplugin" => NAMES.contains(&program.target.as_str()),
        package => package == CLUSTERS && program.target == CLUSTERS,
    };
    is_it && program.kind == Kind::Integration
}

/// Copies the test programs that guests run into `folder`, without debug information: the guest reads them through 9p,
/// and they shrink to a tenth.
pub(super) fn strip(
    workspace: &Workspace,
    built: &[TestProgram],
    names: &[&str],
    folder: &Path,
) -> Result<Vec<TestProgram>> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let copy = |from: &Path, name: &str| -> Result<PathBuf> {
        let file = folder.join(name);
        let partial = folder.join(format!("{name}.partial-{}", std::process::id()));
        let mut strip = workspace.command("strip");
        output(strip.arg("--strip-debug").arg("-o").arg(&partial).arg(from))?;
        fs::rename(&partial, &file).with_context(|| format!("rename {}", file.display()))?;
        Ok(file)
    };
    let mut programs = vec![];
    for name in names {
        let is_it = |program: &&TestProgram| is_guest_program(program) && program.target == *name;
        let Some(program) = built.iter().find(is_it) else {
            bail!("cargo has built no test program {name}");
        };
        if *name == CLUSTERS {
            // Beside the folder of the test, and beside its copy.
            let bin = program.file.ancestors().nth(2).context("a test program has a folder")?;
            for binary in BINARIES {
                copy(&bin.join(binary), binary)?;
            }
        }
        programs.push(TestProgram { file: copy(&program.file, name)?, ..program.clone() });
    }
    Ok(programs)
}
