//! The compiler for `bpfel-unknown-none`: an installed one, or Debian's packages unpacked into a folder of this checkout.
//!
//! Debian's `rustc-web` has a compiled `core` for BPF, so neither nightly nor rust-src is needed, and nothing is
//! installed into the system.

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{debian, folder};
use crate::{
    progress::step,
    workspace::{Workspace, find_program, output, run_logged},
};

pub(super) const ADVICE: &str = "a Rust compiler for BPF: `rustup toolchain install nightly --component rust-src` and \
     `cargo install bpf-linker`, or set CONTIV_BPF_TOOLCHAIN to a prefix that has \
     lib/rustlib/bpfel-unknown-none and bin/bpf-linker";

const PREFIX_VARIABLE: &str = "CONTIV_BPF_TOOLCHAIN";
/// A prebuilt object, for machines that cannot build one.
const OBJECT_VARIABLE: &str = "CONTIV_EBPF_OBJECT";
const LINKER_VERSION: &str = "0.13.0";
const LIBRARIES: &str = "lib/rustlib/bpfel-unknown-none/lib";

/// Whether `ebpf/` can be built. The agent's build script searches in the same order: an object or a prefix from the
/// environment, the prefix of this checkout, Debian's packages installed as usual, rustup's nightly with rust-src.
pub(crate) fn available(workspace: &Workspace) -> bool {
    if env::var_os(OBJECT_VARIABLE).is_some() {
        return true;
    }
    if let Some(prefix) = env::var_os(PREFIX_VARIABLE) {
        // An explicit prefix is the only one that is used.
        return complete(Path::new(&prefix));
    }
    if complete(&default_prefix(workspace)) {
        return true;
    }
    let libraries = Path::new("/usr").join(LIBRARIES).is_dir();
    find_program("bpf-linker").is_some() && (libraries || nightly_has_source(workspace))
}

fn complete(prefix: &Path) -> bool {
    prefix.join(LIBRARIES).is_dir()
        && prefix.join("bin/rustc").is_file()
        && prefix.join("bin/bpf-linker").is_file()
}

fn default_prefix(workspace: &Workspace) -> PathBuf {
    workspace.path(".bpf-toolchain")
}

fn nightly_has_source(workspace: &Workspace) -> bool {
    let mut rustc = workspace.command("rustup");
    let sysroot = output(rustc.args(["run", "nightly", "rustc", "--print", "sysroot"]));
    sysroot.is_ok_and(|path| Path::new(path.trim()).join("lib/rustlib/src/rust/library/core").is_dir())
}

/// Builds the prefix in a temporary folder and renames it, so that an existing prefix is complete.
pub(super) fn install(workspace: &Workspace) -> Result<()> {
    let prefix = env::var_os(PREFIX_VARIABLE).map_or_else(|| default_prefix(workspace), PathBuf::from);
    folder::replace(&prefix, |work| {
        fs::create_dir_all(work.join("packages")).with_context(|| format!("create {}", work.display()))?;
        let packages = packages(workspace)?;
        debian::install_missing(workspace, &packages.libraries)?;
        step("BPF compiler: download (117 MB)", || {
            let names: Vec<_> = packages.names.iter().map(String::as_str).collect();
            debian::Sources::machine().download(workspace, &names, &work.join("packages"), "bpf-fetch.log")
        })?;
        step("BPF compiler: unpack", || unpack(work))?;
        step(&format!("bpf-linker {LINKER_VERSION}: build"), || build_linker(workspace, work, &packages.llvm))
    })
}

#[derive(Debug)]
struct Packages {
    names: Vec<String>,
    /// Major version of LLVM that bpf-linker is built for.
    llvm: String,
    /// Shared libraries of LLVM; these are installed into the system.
    libraries: Vec<String>,
}

/// Two package names have versions that change with Debian's updates.
fn packages(workspace: &Workspace) -> Result<Packages> {
    let fixed = ["rustc-web", "libstd-rust-web-dev", "libstd-rust-web-dev-bpf"];
    debian::update_if_unknown(workspace, &fixed)?;
    let depends = |package: &str| -> Result<Vec<String>> {
        let text = output(workspace.command("apt-cache").env("LC_ALL", "C").args(["depends", package]))?;
        Ok(text.lines().filter_map(|line| line.trim().strip_prefix("Depends: ")).map(str::to_owned).collect())
    };
    let versioned = |package: &str, start: &str| -> Result<String> {
        let mut names = depends(package)?.into_iter();
        names
            .find(|name| {
                name.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            })
            .with_context(|| format!("{package} depends on no {start}<version>"))
    };
    let driver = versioned("libstd-rust-web-dev", "libstd-rust-web-")?;
    let llvm_library = versioned(&driver, "libllvm")?;
    let llvm = llvm_library.trim_start_matches("libllvm").to_owned();
    let libraries = depends(&llvm_library)?;
    let names = fixed.into_iter().map(str::to_owned).chain([driver, llvm_library]).collect();
    Ok(Packages { names, llvm, libraries })
}

fn unpack(work: &Path) -> Result<()> {
    let tree = work.join("tree");
    for entry in fs::read_dir(work.join("packages"))? {
        output(Command::new("dpkg-deb").arg("--extract").arg(entry?.path()).arg(&tree))?;
    }
    let library = work.join("lib");
    fs::create_dir_all(&library)?;
    fs::create_dir_all(work.join("bin"))?;
    fs::create_dir_all(work.join("libexec"))?;
    fs::rename(tree.join("usr/bin/rustc"), work.join("libexec/rustc"))?;
    fs::rename(tree.join("usr/lib/rustlib"), library.join("rustlib"))?;
    // librustc_driver and libLLVM, in Debian's folder for the architecture.
    for folder in fs::read_dir(tree.join("usr/lib"))? {
        let folder = folder?.path();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            fs::rename(entry.path(), library.join(entry.file_name()))?;
        }
    }
    link_llvm(&library)?;
    let wrapper = work.join("bin/rustc");
    fs::write(&wrapper, WRAPPER)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    folder::remove(&tree)?;
    folder::remove(&work.join("packages"))
}

const WRAPPER: &str = r#"#!/bin/sh
# Debian's rustc-web with its own libraries; installs nothing into the system.
prefix=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd)
LD_LIBRARY_PATH="$prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" exec "$prefix/libexec/rustc" --sysroot "$prefix" "$@"
"#;

/// bpf-linker searches for `libLLVM.so`, which only Debian's development package has.
fn link_llvm(library: &Path) -> Result<()> {
    let name = fs::read_dir(library)?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.starts_with("libLLVM.so."))
        .context("Debian's libllvm has no libLLVM.so.<version>")?;
    symlink(name, library.join("libLLVM.so")).context("link libLLVM.so")
}

fn build_linker(workspace: &Workspace, work: &Path, llvm: &str) -> Result<()> {
    let mut install = workspace.cargo();
    install
        .args(["install", "bpf-linker", "--locked", "--no-default-features", "--version", LINKER_VERSION])
        .args(["--features", &format!("llvm-{llvm}"), "--root"])
        .arg(work)
        // It builds faster and is fast enough.
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_TARGET_DIR", work.join("build"))
        .env("LLVM_PREFIX", work)
        .env("RUSTFLAGS", "-Clink-arg=-Wl,-rpath,$ORIGIN/../lib");
    run_logged(&mut install, &debian::log(workspace, "bpf-linker.log")?)?;
    folder::remove(&work.join("build"))?;
    let linker = work.join("bin/bpf-linker");
    output(Command::new(&linker).arg("--version")).context("run the new linker")?;
    Ok(())
}
