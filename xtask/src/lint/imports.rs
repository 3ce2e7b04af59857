//! Which crate may import which other one, from `cargo metadata`.

use anyhow::{Context as _, Result};
use cargo_metadata::{DependencyKind, Package};

use super::Findings;
use crate::workspace::Workspace;

/// Each crate with those of ours that it may import. An import that is not listed is refused.
const ALLOWED: &[(&str, &[&str])] = &[
    ("contiv-model", &[]),
    ("contiv-abi", &[]),
    ("openflow-rs", &[]),
    ("contiv-bgp", &[]),
    ("contiv-cli", &[]),
    ("contivk8s", &[]),
    ("testkit", &[]),
    ("xtask", &[]),
    ("contiv-ebpf", &["contiv-abi"]),
    ("contiv-daemon", &["contiv-store"]),
    ("contiv-store", &["contiv-model"]),
    ("netmaster", &["contiv-model", "contiv-store", "contiv-cli", "contiv-daemon"]),
    ("netctl", &["contiv-cli", "contiv-model"]),
    (
        "netplugin",
        &[
            "contiv-model",
            "contiv-store",
            "contiv-bgp",
            "contiv-cli",
            "contiv-daemon",
            "contiv-abi",
            "openflow-rs",
            "contivk8s",
        ],
    ),
    ("e2e", &["contiv-model", "contiv-store", "testkit"]),
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
            "{name}: not in the table of xtask/src/lint/imports.rs; add it with the crates that it may import"
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
