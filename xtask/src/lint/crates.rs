use std::fs;

use anyhow::{Context as _, Result};
use toml::Table;

use super::Findings;
use crate::workspace::Workspace;

/// Every crate must inherit the lints of the workspace.
pub(super) fn check_lints(workspace: &Workspace) -> Result<Findings> {
    let mut findings = vec![];
    for package in workspace.metadata()?.packages {
        let text = fs::read_to_string(&package.manifest_path)
            .with_context(|| format!("read {}", package.manifest_path))?;
        let manifest: Table = text.parse().with_context(|| format!("parse {}", package.manifest_path))?;
        if !inherits(&manifest) {
            findings.push(format!("{}: add [lints] workspace = true", package.manifest_path));
        }
    }
    Ok(findings)
}

fn inherits(manifest: &Table) -> bool {
    manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"))
        .and_then(toml::Value::as_bool)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inheriting_is_saying_so() {
        assert!(inherits(&"[lints]\nworkspace = true".parse().unwrap()));
        assert!(!inherits(&"[lints.clippy]\ntodo = \"deny\"".parse().unwrap()));
        assert!(!inherits(&"[package]\nname = \"x\"".parse().unwrap()));
    }
}
