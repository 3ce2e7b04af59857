//! Who may import whom: between crates from `cargo metadata`, inside the agent from its `use` lines.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use cargo_metadata::{DependencyKind, Package};

use super::Findings;
use crate::workspace::Workspace;

/// The table of `docs/src/architecture.md`: a crate, and ours that it may import. An edge that is not here is refused.
const ALLOWED: &[(&str, &[&str])] = &[
    ("contiv-model", &[]),
    ("contiv-abi", &[]),
    ("openflow-rs", &[]),
    ("contivk8s", &[]),
    ("testkit", &[]),
    ("xtask", &[]),
    ("contiv-ebpf", &["contiv-abi"]),
    ("contiv-daemon", &["contiv-store"]),
    ("contiv-store", &["contiv-model"]),
    ("netmaster", &["contiv-model", "contiv-store", "contiv-daemon"]),
    ("netctl", &["contiv-model"]),
    (
        "netplugin",
        &["contiv-model", "contiv-store", "contiv-daemon", "contiv-abi", "openflow-rs", "contivk8s"],
    ),
    ("e2e", &["contiv-model", "testkit"]),
];

/// Tests of any crate may use this one.
const FOR_TESTS: &str = "testkit";

pub(super) fn check(workspace: &Workspace) -> Result<Findings> {
    let mut packages = workspace.metadata()?.packages;
    let mut ebpf = cargo_metadata::MetadataCommand::new();
    ebpf.manifest_path(workspace.path("ebpf/Cargo.toml")).no_deps();
    packages.extend(ebpf.exec().context("cargo metadata of ebpf/")?.packages);
    Ok(packages.iter().flat_map(check_package).collect())
}

fn check_package(package: &Package) -> Findings {
    let name = package.name.as_str();
    let Some((_, allowed)) = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name) else {
        return vec![format!(
            "{name}: a new crate; say in the table of xtask/src/lint/imports.rs whom it may import"
        )];
    };
    package
        .dependencies
        .iter()
        // Ours are those that come by path.
        .filter(|dependency| dependency.path.is_some())
        .filter(|dependency| {
            let for_tests = dependency.kind == DependencyKind::Development && dependency.name == FOR_TESTS;
            !for_tests && !allowed.contains(&dependency.name.as_str())
        })
        .map(|dependency| {
            format!(
                "{name} imports {} ({}), which the table does not allow",
                dependency.name, dependency.kind
            )
        })
        .collect()
}

/// A part of the agent, and paths that its files must not name.
const AGENT: &[(&str, &[&str])] = &[
    ("plan", &["tokio", "aya", "kube", "crate::datapath::ovs", "crate::datapath::ebpf", "crate::source"]),
    ("reconcile/diff", &["tokio", "aya", "kube", "crate::source"]),
    ("datapath", &["crate::source", "crate::state", "crate::sources"]),
    ("source", &["crate::datapath"]),
    ("sources", &["crate::datapath"]),
];

pub(super) fn check_agent(workspace: &Workspace) -> Result<Findings> {
    let source = workspace.path("userspace/agent/src");
    let mut findings = vec![];
    for (part, forbidden) in AGENT {
        let file = source.join(part).with_extension("rs");
        if file.is_file() {
            check_file(workspace, &file, forbidden, &mut findings)?;
        }
        let folder = source.join(part);
        if folder.is_dir() {
            check_folder(workspace, &folder, forbidden, &mut findings)?;
        }
    }
    Ok(findings)
}

fn check_folder(
    workspace: &Workspace,
    folder: &Path,
    forbidden: &[&str],
    findings: &mut Findings,
) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            check_folder(workspace, &path, forbidden, findings)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            check_file(workspace, &path, forbidden, findings)?;
        }
    }
    Ok(())
}

fn check_file(workspace: &Workspace, file: &Path, forbidden: &[&str], findings: &mut Findings) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let name = file.strip_prefix(workspace.root()).unwrap_or(file).display();
    findings.extend(
        forbidden_uses(&text, forbidden).map(|(line, path)| format!("{name}:{line}: must not see {path}")),
    );
    Ok(())
}

/// Lines before the tests that begin a path with one of `forbidden`.
fn forbidden_uses<'a>(text: &'a str, forbidden: &'a [&'a str]) -> impl Iterator<Item = (usize, &'a str)> {
    (1..)
        .zip(text.lines())
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
        .flat_map(move |(number, line)| {
            forbidden.iter().filter(|path| names(line, path)).map(move |path| (number, *path))
        })
}

fn names(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = &line[at + path.len()..];
        let starts = before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != ':');
        starts
            && (after.starts_with("::")
                || (path.contains("::") && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_paths_count() {
        let forbidden = ["tokio", "crate::state"];
        let found = |text| forbidden_uses(text, &forbidden).collect::<Vec<_>>();
        assert_eq!(found("use tokio::sync::watch;"), [(1, "tokio")]);
        assert_eq!(found("\nuse crate::state;"), [(2, "crate::state")]);
        assert_eq!(found("use crate::state::Snapshot;"), [(1, "crate::state")]);
        assert_eq!(found("use crate::statement;\n// tokio::spawn\nuse my_tokio::x;"), []);
        assert_eq!(found("#[cfg(test)]\nmod tests { use tokio::test; }"), []);
    }
}
