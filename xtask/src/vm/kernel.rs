//! Debian's kernels, unpacked below `.tools/kernels` and not installed.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{
    progress::step,
    setup::debian::Sources,
    workspace::{Workspace, find_program, output},
};

/// A kernel image with its modules.
#[derive(Debug)]
pub(super) struct Kernel {
    release: String,
    root: PathBuf,
}

impl Kernel {
    /// Debian's newest kernel whose version starts with `version`, downloaded if it is missing.
    pub(super) fn fetch(workspace: &Workspace, version: &str) -> Result<Kernel> {
        ensure!(
            version.starts_with(|c: char| c.is_ascii_digit())
                && version.chars().all(|c| c.is_ascii_alphanumeric() || ".+~-".contains(c)),
            "--kernel {version}: not the start of a version such as 6.1 or 6.12"
        );
        ensure!(cfg!(target_arch = "x86_64"), "boot a kernel: only x86-64 is supported");
        let (package, sources) = package(workspace, version)?;
        let folder = workspace.tools().join("kernels");
        let root = folder.join(&package);
        if !root.is_dir() {
            step(&format!("{package}: fetch and unpack"), || {
                unpack(workspace, &sources, &package, &folder, &root)
            })?;
        }
        let mut releases = fs::read_dir(root.join("lib/modules"))?;
        let release = releases.next().with_context(|| format!("{package} has no modules"))??.file_name();
        Ok(Kernel { release: release.to_string_lossy().into_owned(), root })
    }

    /// Output of `uname -r`.
    pub(super) fn release(&self) -> &str {
        &self.release
    }

    pub(super) fn image(&self) -> PathBuf {
        let image = self.root.join(format!("boot/vmlinuz-{}", self.release));
        // Where newer kernels have it.
        if image.exists() { image } else { self.modules().join("vmlinuz") }
    }

    pub(super) fn modules(&self) -> PathBuf {
        self.root.join("lib/modules").join(&self.release)
    }

    /// Files of these modules and of their dependencies, in the order of loading.
    pub(super) fn files_of(&self, modules: &[&str]) -> Result<Vec<PathBuf>> {
        let mut files = vec![];
        for module in modules {
            let mut modprobe =
                Command::new(find_program("modprobe").context("find modprobe (Debian: kmod)")?);
            modprobe.arg("--dirname").arg(&self.root).arg("--set-version").arg(&self.release);
            let text = output(modprobe.args(["--show-depends", module]))?;
            for file in text.lines().filter_map(|line| line.strip_prefix("insmod ")) {
                let file = PathBuf::from(file.trim());
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }
}

/// Suite of kernels that no release of Debian has yet.
const NEXT: &str = "sid";

/// The package of the kernel for 64-bit PCs, and where it is: cloud kernels have no 9p.
fn package(workspace: &Workspace, version: &str) -> Result<(String, Sources)> {
    let pattern = format!("^linux-image-{}[0-9a-z.+~-]*-amd64$", version.replace('.', "[.]"));
    let is_kernel = |name: &String| {
        let rest = name.strip_prefix("linux-image-").and_then(|rest| rest.strip_prefix(version));
        // 6.1 must not match 6.12. A package without a full version is a metapackage.
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()) && rest != "-amd64")
            && !["-cloud-", "-rt-", "-dbg", "-unsigned"].iter().any(|other| name.contains(other))
    };
    let newest = |names: Vec<String>| {
        names.into_iter().filter(is_kernel).max_by_key(|name| {
            let parts = name.split(|c: char| !c.is_ascii_digit());
            parts.filter_map(|part| part.parse::<u64>().ok()).collect::<Vec<_>>()
        })
    };
    // Lists may be missing: a container image has none.
    for update in [false, true] {
        for sources in [Sources::machine(), Sources::suite(workspace, NEXT)?] {
            if update {
                sources.update(workspace)?;
            }
            if let Some(name) = newest(sources.search(workspace, &pattern)?) {
                return Ok((name, sources));
            }
        }
    }
    bail!("--kernel {version}: neither apt nor Debian {NEXT} has a package linux-image-{version}*-amd64")
}

/// The package, and those that newer kernels have for the image, the modules and their lists.
fn parts(workspace: &Workspace, sources: &Sources, package: &str) -> Result<Vec<String>> {
    let release = package.trim_start_matches("linux-image-");
    let escaped: String = release
        .chars()
        .flat_map(|c| if c.is_ascii_alphanumeric() { vec![c] } else { vec!['[', c, ']'] })
        .collect();
    let mut parts = sources.search(workspace, &format!("^linux-(base|binary|modules)-{escaped}$"))?;
    parts.push(package.to_owned());
    Ok(parts)
}

/// Unpacks into a temporary folder and renames it, so that an existing folder is complete.
fn unpack(workspace: &Workspace, sources: &Sources, package: &str, folder: &Path, root: &Path) -> Result<()> {
    let partial = folder.join(format!("{package}.partial-{}", std::process::id()));
    if partial.exists() {
        fs::remove_dir_all(&partial)?;
    }
    fs::create_dir_all(&partial).with_context(|| format!("create {}", partial.display()))?;
    let packages = parts(workspace, sources, package)?;
    let names: Vec<&str> = packages.iter().map(String::as_str).collect();
    sources.download(workspace, &names, &partial, "kernel-fetch.log")?;
    for entry in fs::read_dir(&partial)? {
        let archive = entry?.path();
        output(Command::new("dpkg-deb").arg("--extract").arg(&archive).arg(&partial))?;
        fs::remove_file(&archive)?;
    }
    // Newer kernels have their modules where /lib leads to.
    if !partial.join("lib").exists() && partial.join("usr/lib/modules").is_dir() {
        symlink("usr/lib", partial.join("lib")).with_context(|| format!("link {package}/lib"))?;
    }
    let folder_of_modules = partial.join("lib/modules");
    let modules = fs::read_dir(&folder_of_modules)
        .with_context(|| format!("read {}", folder_of_modules.display()))?
        .next();
    let release = modules.with_context(|| format!("{package} has no modules"))??.file_name();
    let mut depmod = Command::new(find_program("depmod").context("find depmod (Debian: kmod)")?);
    output(depmod.arg("--basedir").arg(&partial).arg(&release))?;
    match fs::rename(&partial, root) {
        // Another run put it there.
        Err(_) if root.is_dir() => Ok(fs::remove_dir_all(&partial)?),
        Err(error) => bail!("rename to {}: {error}", root.display()),
        Ok(()) => Ok(()),
    }
}
