//! The test programs, built once for all users: the tests here and those on other kernels.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use cargo_metadata::{Message, Package, TargetKind};

use crate::{
    progress::step,
    workspace::{Workspace, output},
};

/// What a test program tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Unit tests of a library.
    Library,
    /// Unit tests of a binary or an example.
    Binary,
    Integration,
}

impl Kind {
    fn of(kinds: &[TargetKind]) -> Kind {
        match kinds {
            [TargetKind::Test, ..] => Kind::Integration,
            [TargetKind::Bin | TargetKind::Example, ..] => Kind::Binary,
            _ => Kind::Library,
        }
    }
}

/// A test program and the folder that cargo would run it in.
#[derive(Debug, Clone)]
pub(crate) struct TestProgram {
    pub(crate) package: String,
    pub(crate) target: String,
    pub(crate) kind: Kind,
    pub(crate) file: PathBuf,
    pub(crate) folder: PathBuf,
}

impl TestProgram {
    /// Names of its tests, each with the program's name in front, as skips name them.
    pub(crate) fn tests(&self) -> Result<Vec<String>> {
        let list = output(Command::new(&self.file).arg("--list").current_dir(&self.folder))?;
        let names = list.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(|name| format!("{}::{name}", self.target.replace('-', "_"))).collect())
    }

    /// Different for each program: failed tests are found again by it.
    pub(crate) fn label(&self) -> String {
        let TestProgram { package, target, kind, .. } = self;
        match kind {
            Kind::Library => format!("{package} unit tests"),
            Kind::Binary => format!("{package} unit tests (program {target})"),
            Kind::Integration => format!("{package} {target}"),
        }
    }
}

/// Programs and tests to build. Everything is built with the same features whatever is selected from the whole workspace,
/// so that no dependency is built twice.
#[derive(Debug, Clone)]
pub(crate) enum Selection {
    /// The whole workspace.
    All,
    /// Some crates of it.
    Crates { packages: Vec<String>, libraries: Vec<String> },
    /// These tests, with the agent optimised, and for tests of clusters also netmaster and what loads it.
    OptimizedAgent { tests: &'static [&'static str] },
}

impl Selection {
    pub(crate) fn of(packages: &[&Package]) -> Selection {
        let has_library =
            |package: &&&Package| package.targets.iter().any(|target| target.kind.contains(&TargetKind::Lib));
        Selection::Crates {
            packages: packages.iter().map(|package| package.name.to_string()).collect(),
            libraries: packages.iter().filter(has_library).map(|package| package.name.to_string()).collect(),
        }
    }

    fn arguments(packages: &[String]) -> Vec<String> {
        packages.iter().flat_map(|package| ["--package".to_owned(), package.clone()]).collect()
    }

    /// Arguments of `cargo build`.
    fn build_arguments(&self) -> Vec<String> {
        let words = |words: &[&str]| words.iter().copied().map(str::to_owned).collect::<Vec<_>>();
        match self {
            Selection::All => words(&["--bins", "--tests", "--examples", "--workspace"]),
            Selection::Crates { packages, .. } => {
                let mut arguments = words(&["--bins", "--tests"]);
                arguments.extend(Selection::arguments(packages));
                if packages.iter().any(|package| package == "e2e") {
                    let run = ["netmaster", "netplugin", "netctl", "contivk8s"].map(str::to_owned);
                    arguments.extend(Selection::arguments(&run));
                }
                arguments
            }
            Selection::OptimizedAgent { tests } => {
                let mut arguments = words(&["--workspace", "--config", &optimized("netplugin")]);
                arguments.extend(tests.iter().flat_map(|test| words(&["--test", test])));
                if tests.contains(&"e2e") {
                    arguments.push("--bins".to_owned());
                    for package in ["netmaster", "contiv-store", "e2e"] {
                        arguments.extend(["--config".to_owned(), optimized(package)]);
                    }
                }
                arguments
            }
        }
    }

    fn has(&self, package: &str) -> bool {
        match self {
            Selection::Crates { packages, .. } => packages.iter().any(|selected| selected == package),
            Selection::All | Selection::OptimizedAgent { .. } => true,
        }
    }

    /// Arguments of `cargo test --doc`; none if no selected crate has a library.
    pub(crate) fn doc_arguments(&self) -> Option<Vec<String>> {
        match self {
            Selection::All => Some(vec!["--workspace".to_owned()]),
            Selection::Crates { libraries, .. } => {
                (!libraries.is_empty()).then(|| Selection::arguments(libraries))
            }
            Selection::OptimizedAgent { .. } => None,
        }
    }
}

/// The setting of cargo that optimises a package.
fn optimized(package: &str) -> String {
    format!("profile.dev.package.{package}.opt-level=1")
}

/// Builds the programs and tests of the selection. Tests of `e2e` run the programs of all crates.
pub(crate) fn build(workspace: &Workspace, selection: &Selection) -> Result<Vec<TestProgram>> {
    let mut cargo = workspace.build_cargo();
    cargo.args(["build", "--message-format", "json-render-diagnostics"]).args(selection.build_arguments());
    let built = step("build programs and tests", || {
        let built =
            cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("run cargo build")?;
        if !built.status.success() {
            bail!("cargo build: {}", built.status);
        }
        Ok(built.stdout)
    })?;
    let packages = workspace.metadata()?.packages;
    let mut programs = vec![];
    for message in Message::parse_stream(&built[..]) {
        let Message::CompilerArtifact(artifact) = message? else { continue };
        let (Some(executable), true) = (artifact.executable, artifact.profile.test) else { continue };
        let package = packages.iter().find(|package| package.id == artifact.package_id);
        let package = package.with_context(|| format!("{} is no crate of ours", artifact.package_id))?;
        if !selection.has(&package.name) {
            continue;
        }
        let folder = package.manifest_path.parent().context("a manifest has a folder")?;
        programs.push(TestProgram {
            package: package.name.to_string(),
            kind: Kind::of(&artifact.target.kind),
            target: artifact.target.name,
            file: executable.into_std_path_buf(),
            folder: folder.as_std_path().to_owned(),
        });
    }
    programs.sort_by_key(TestProgram::label);
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_and_a_program_of_one_name_have_different_labels() {
        let label = |kind: &[TargetKind]| {
            let (package, target) = ("netplugin".to_owned(), "netplugin".to_owned());
            TestProgram { package, target, kind: Kind::of(kind), file: "".into(), folder: "".into() }.label()
        };
        let labels = [&[TargetKind::Lib], &[TargetKind::Bin], &[TargetKind::Test]].map(|kind| label(kind));
        assert_eq!(
            labels,
            ["netplugin unit tests", "netplugin unit tests (program netplugin)", "netplugin netplugin"]
        );
    }
}
