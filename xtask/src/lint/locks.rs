//! `ebpf/` is a workspace of its own. Crates that both workspaces use must have the same version.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;

use super::Findings;
use crate::workspace::Workspace;

#[derive(Debug, Deserialize)]
struct Lock {
    package: Vec<Locked>,
}

#[derive(Debug, Deserialize)]
struct Locked {
    name: String,
    version: String,
}

type Versions = BTreeMap<String, BTreeSet<String>>;

pub(super) fn check(workspace: &Workspace) -> Result<Findings> {
    Ok(differences(&read(workspace, "ebpf/Cargo.lock")?, &read(workspace, "Cargo.lock")?))
}

fn read(workspace: &Workspace, name: &str) -> Result<Versions> {
    let text = fs::read_to_string(workspace.path(name)).with_context(|| format!("read {name}"))?;
    let lock: Lock = toml::from_str(&text).with_context(|| format!("parse {name}"))?;
    let mut versions = Versions::new();
    for package in lock.package {
        versions.entry(package.name).or_default().insert(package.version);
    }
    Ok(versions)
}

fn differences(ebpf: &Versions, ours: &Versions) -> Findings {
    ebpf.iter()
        .filter_map(|(name, versions)| Some((name, versions, ours.get(name)?)))
        .filter(|(_, versions, have)| !versions.is_subset(have))
        .map(|(name, versions, have)| {
            let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
            format!("{name}: ebpf/Cargo.lock has {}, Cargo.lock has {}", list(versions), list(have))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(list: &[(&str, &[&str])]) -> Versions {
        list.iter()
            .map(|(name, versions)| (name.to_string(), versions.iter().map(ToString::to_string).collect()))
            .collect()
    }

    #[test]
    fn only_shared_crates_must_agree() {
        let ours = versions(&[("syn", &["1.0.0", "2.0.1"]), ("bytemuck", &["1.2.0"])]);
        assert!(differences(&versions(&[("syn", &["2.0.1"]), ("aya-ebpf", &["0.2.1"])]), &ours).is_empty());
        let findings = differences(&versions(&[("bytemuck", &["1.1.0"])]), &ours);
        assert_eq!(findings, ["bytemuck: ebpf/Cargo.lock has 1.1.0, Cargo.lock has 1.2.0"]);
    }
}
