//! Programs of `cargo xtask setup` in `.tools/cni`.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use e2e::binaries::Binary;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/cni").canonicalize().unwrap_or_default()
}

/// The reason to skip a test, if the programs are missing.
pub(super) fn missing() -> Option<String> {
    let complete = folder().join("recipe").is_file();
    (!complete).then(|| "needs the programs in .tools/cni: run `cargo xtask setup`".to_owned())
}

pub(super) fn program(name: &str) -> PathBuf {
    folder().join("bin").join(name)
}

/// Folder of the programs.
pub(super) fn programs() -> PathBuf {
    folder().join("bin")
}

/// Makes a folder of plugins: those of the project `containernetworking`, and ours behind a script that appends the command of
/// each call to the file `calls`.
pub(super) fn link_plugins(target: &Path, calls: &Path) {
    fs::create_dir_all(target).unwrap();
    for entry in fs::read_dir(folder().join("plugins")).unwrap() {
        let entry = entry.unwrap();
        symlink(entry.path(), target.join(entry.file_name())).unwrap();
    }
    fs::write(calls, "").unwrap();
    let ours = Binary::Contivk8s.path().unwrap();
    let text =
        format!("#!/bin/sh\necho \"$CNI_COMMAND\" >>'{}'\nexec '{}'\n", calls.display(), ours.display());
    write_executable(&target.join("contivk8s"), &text);
}

/// A program cannot be started while any process, such as a child that another test starts, has it open for writing.
fn write_executable(path: &Path, text: &str) {
    let status = std::process::Command::new("sh")
        .args(["-c", "umask 022; printf %s \"$2\" >\"$1\" && chmod +x \"$1\"", "sh"])
        .arg(path)
        .arg(text)
        .status()
        .unwrap();
    assert!(status.success());
}
