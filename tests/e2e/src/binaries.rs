//! The programs under test, as cargo built them.

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

    /// Beside this program (the lab), or one folder up (a test in `deps/`): same build, same profile.
    pub fn path(self) -> Result<PathBuf> {
        let own = env::current_exe().context("find this program")?;
        let found = own
            .ancestors()
            .skip(1)
            .take(2)
            .map(|folder: &Path| folder.join(self.name()))
            .find(|candidate| candidate.is_file());
        match found {
            Some(path) => Ok(path),
            None => bail!("{} is not built: `cargo build --workspace --bins`", self.name()),
        }
    }

    /// With no variables of the caller that would configure it.
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
