//! The test programs for the guests.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};

use crate::{
    suite::programs::{Kind, TestProgram},
    workspace::{Workspace, output},
};

const PACKAGE: &str = "netplugin";
pub(super) const NAMES: [&str; 4] = ["packets", "conformance", "ovs", "attacks"];

pub(super) fn is_guest_program(program: &TestProgram) -> bool {
    program.package == PACKAGE
        && NAMES.contains(&program.target.as_str())
        && program.kind == Kind::Integration
}

/// Copies the test programs that guests run into `folder`, without debug information: the guest reads them through 9p,
/// and they shrink to a tenth.
pub(super) fn strip(workspace: &Workspace, built: &[TestProgram], folder: &Path) -> Result<Vec<TestProgram>> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let mut programs = vec![];
    for name in NAMES {
        let is_it = |program: &&TestProgram| is_guest_program(program) && program.target == name;
        let Some(program) = built.iter().find(is_it) else {
            bail!("cargo has built no test program {name} of {PACKAGE}");
        };
        let file = folder.join(name);
        let partial = folder.join(format!("{name}.partial-{}", std::process::id()));
        let mut strip = workspace.command("strip");
        output(strip.arg("--strip-debug").arg("-o").arg(&partial).arg(&program.file))?;
        fs::rename(&partial, &file).with_context(|| format!("rename {}", file.display()))?;
        programs.push(TestProgram { file, ..program.clone() });
    }
    Ok(programs)
}
