//! Paths of the binaries under test.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    Netmaster,
    Netplugin,
    Netctl,
    Contivk8s,
}

impl Binary {
    pub fn name(self) -> &'static str {
        match self {
            Binary::Netmaster => "netmaster",
            Binary::Netplugin => "netplugin",
            Binary::Netctl => "netctl",
            Binary::Contivk8s => "contivk8s",
        }
    }

    /// Path of the binary, which is in the folder of this program or, for a test in `deps/`, in its parent: the same profile.
    pub fn path(self) -> Result<PathBuf> {
        let own = env::current_exe().context("get the path of this program")?;
        let found = own
            .ancestors()
            .skip(1)
            .take(2)
            .map(|folder: &Path| folder.join(self.name()))
            .find(|candidate| candidate.is_file());
        match found {
            Some(path) => Ok(path),
            None => bail!("find {}: not built; run `cargo build --workspace --bins`", self.name()),
        }
    }

    /// Command without the environment variables that configure it.
    pub fn command(self) -> Result<Command> {
        let mut command = Command::new(self.path()?);
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("CONTIV_") || text.starts_with("CNI_") || text == "RUST_LOG" {
                command.env_remove(name);
            }
        }
        Ok(command)
    }
}
