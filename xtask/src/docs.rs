//! `cargo xtask docs`: the book, the API documentation of the crates, and the reference pages that are generated from the
//! code.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{
    progress::step,
    setup,
    suite::programs::{self, Selection},
    workspace::{Workspace, execute, install_tool, output},
};

const MDBOOK_VERSION: &str = "0.5.4";

/// Pages of the reference, with the binary and its arguments that print each.
const REFERENCE: &[(&str, &str, &str)] = &[
    ("netmaster", "netmaster", "markdown"),
    ("netplugin", "netplugin", "markdown"),
    ("netctl", "netctl", "markdown"),
    ("metrics-netmaster", "netmaster", "metrics"),
    ("metrics-netplugin", "netplugin", "metrics"),
    ("rest", "netmaster", "rest"),
];
const REFERENCE_FOLDER: &str = "docs/src/reference";

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Write the reference pages from the code, and build nothing else
    #[arg(long)]
    reference: bool,
}

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    setup::ensure(workspace)?;
    if options.reference {
        return write_reference(workspace);
    }
    let mdbook = install_tool(workspace, "mdbook", MDBOOK_VERSION)?;
    step("the book", || execute(workspace.command(mdbook).args(["build", "docs"])))?;
    step("documentation of the crates", || {
        let mut cargo = workspace.cargo();
        execute(cargo.args(["doc", "--no-deps", "--workspace"]).env("RUSTDOCFLAGS", "--deny warnings"))
    })
}

fn write_reference(workspace: &Workspace) -> Result<()> {
    for (path, text) in reference(workspace)? {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    }
    println!("docs: wrote {} pages to {REFERENCE_FOLDER}", REFERENCE.len());
    Ok(())
}

/// Pages of the reference that differ from what the code prints.
pub(crate) fn stale_reference(workspace: &Workspace) -> Result<Vec<String>> {
    let mut findings = vec![];
    for (path, text) in reference(workspace)? {
        let current = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("read {}", path.display()))?,
        };
        if current != text {
            let name = path.strip_prefix(workspace.root()).unwrap_or(&path).display();
            findings.push(format!("{name}: differs from the code; run `cargo xtask docs --reference`"));
        }
    }
    Ok(findings)
}

/// Paths of the pages with their text from the binaries, which are built first.
fn reference(workspace: &Workspace) -> Result<Vec<(PathBuf, String)>> {
    programs::build(workspace, &Selection::All)?;
    let folder = workspace.metadata()?.target_directory.into_std_path_buf().join("debug");
    let folder: &Path = &folder;
    let page = |(page, binary, argument): &(&str, &str, &str)| {
        let mut command = workspace.command(folder.join(binary));
        // Values from the environment do not belong to the reference.
        command.env_clear().args(["reference", argument]);
        let path = workspace.path(REFERENCE_FOLDER).join(page).with_extension("md");
        Ok((path, output(&mut command)?))
    };
    REFERENCE.iter().map(page).collect()
}
