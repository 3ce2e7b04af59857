//! Builds the eBPF programs, which need another compiler than the one that cargo runs us with, and
//! leaves the objects where `datapath` embeds them from: the programs, those that log their stages, and the check of OVS nodes.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

const TARGET: &str = "bpfel-unknown-none";
/// A ready object, for machines that cannot build one.
const OBJECT: &str = "CONTIV_EBPF_OBJECT";
/// A ready object of the programs that log their stages; without one beside `CONTIV_EBPF_OBJECT` there are none.
const LOG_OBJECT: &str = "CONTIV_EBPF_LOG_OBJECT";
/// A ready object of the check of OVS nodes; without one beside `CONTIV_EBPF_OBJECT` there is none.
const OVS_OBJECT: &str = "CONTIV_EBPF_OVS_OBJECT";
/// Names of the objects in `OUT_DIR`. Two of them are those of binaries, too.
const PROGRAMS: &str = "contiv-ebpf";
const LOG: &str = "contiv-ebpf-log";
const OVS: &str = "contiv-ebpf-ovs";
/// A prefix that holds `bin/rustc`, `bin/bpf-linker` and `lib/rustlib/bpfel-unknown-none`.
const TOOLCHAIN: &str = "CONTIV_BPF_TOOLCHAIN";

fn main() {
    for name in [OBJECT, LOG_OBJECT, OVS_OBJECT, TOOLCHAIN] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if let Err(message) = provide_object() {
        // One directive per line; a bare newline would end it.
        for line in message.lines() {
            println!("cargo::error={line}");
        }
    }
}

fn provide_object() -> Result<(), String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let ready = |variable| {
        let path = PathBuf::from(env::var_os(variable)?);
        println!("cargo::rerun-if-changed={}", path.display());
        Some(path)
    };
    let (programs, log, ovs) = match ready(OBJECT) {
        Some(programs) => (programs, ready(LOG_OBJECT), ready(OVS_OBJECT)),
        None => {
            let log = build(&out, LOG, &["--features", "log"])?;
            let built = build(&out, PROGRAMS, &[])?;
            let or_built = |ready: Option<PathBuf>, built: PathBuf| Some(ready.unwrap_or(built));
            let log = or_built(ready(LOG_OBJECT), log.join(PROGRAMS));
            (built.join(PROGRAMS), log, or_built(ready(OVS_OBJECT), built.join(OVS)))
        }
    };
    copy(&programs, &out.join(PROGRAMS))?;
    for (object, name) in [(log, LOG), (ovs, OVS)] {
        let to = out.join(name);
        let empty = || fs::write(&to, "").map_err(|error| format!("write an empty object: {error}"));
        object.map_or_else(empty, |object| copy(&object, &to))?;
    }
    Ok(())
}

fn copy(object: &Path, to: &Path) -> Result<(), String> {
    fs::copy(object, to)
        .map(drop)
        .map_err(|error| format!("copy the eBPF object {}: {error}", object.display()))
}

/// Builds the binaries in a directory beside the profile directories, which check, clippy and build share: they want the same ones.
/// Returns the directory of the objects.
fn build(out: &Path, directory: &str, options: &[&str]) -> Result<PathBuf, String> {
    let repository = PathBuf::from(variable("CARGO_MANIFEST_DIR")?).join("../..");
    let sources = repository.join("ebpf");
    for path in ["Cargo.toml", "Cargo.lock", "src", "abi/Cargo.toml", "abi/src"] {
        println!("cargo::rerun-if-changed={}", sources.join(path).display());
    }
    let mut command = compiler(&repository)?;
    let target_dir = out.ancestors().nth(4).ok_or("OUT_DIR is not below a target directory")?.join(directory);
    command
        .args(["build", "--quiet", "--release", "--locked", "--target", TARGET, "--manifest-path"])
        .arg(sources.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_dir)
        .args(options)
        // Code that is split for incremental builds is inlined differently, and the verifier does not follow it.
        .env("CARGO_INCREMENTAL", "0");
    let output = command.output().map_err(|error| format!("run cargo for the eBPF programs: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        // What the linker says when the compiler's LLVM is newer than its own.
        let advice = if said.contains("Invalid record") || said.contains("Unknown attribute kind") {
            "\nbpf-linker is older than the compiler: install a newer one, or run `cargo xtask setup`"
        } else {
            ""
        };
        return Err(format!("building the eBPF programs failed\n{said}{advice}"));
    }
    Ok(target_dir.join(TARGET).join("release"))
}

/// Cargo with a compiler that knows the target, and with the linker.
fn compiler(repository: &Path) -> Result<Command, String> {
    let prefixes = [
        env::var_os(TOOLCHAIN).map(PathBuf::from),
        Some(repository.join(".bpf-toolchain")),
        Some("/usr".into()),
    ];
    for prefix in prefixes.into_iter().flatten() {
        if prefix.join("lib/rustlib").join(TARGET).join("lib").is_dir()
            && let Some(linker) = linker(Some(&prefix))
        {
            let mut command = clean(Command::new(variable("CARGO")?), &linker)?;
            // aya's build scripts read "1" as "build core from source".
            command.env("RUSTC", prefix.join("bin/rustc")).env("RUSTC_BOOTSTRAP", "aya_ebpf");
            return Ok(command);
        }
    }
    if nightly_with_sources()
        && let Some(linker) = linker(None)
    {
        let mut command = clean(Command::new("rustup"), &linker)?;
        command.args(["run", "nightly", "cargo", "-Zbuild-std=core"]);
        return Ok(command);
    }
    Err(format!(
        "no compiler for the eBPF programs (target {TARGET}): run `cargo xtask setup`, or install a nightly \
         toolchain (rustup toolchain install nightly --component rust-src) and bpf-linker, or name a ready \
         object in {OBJECT}"
    ))
}

/// What cargo set for this build must not reach the other one.
fn clean(mut command: Command, linker: &Path) -> Result<Command, String> {
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        let ours = ["CARGO_CFG_", "CARGO_FEATURE_", "CARGO_PROFILE_", "CARGO_BUILD_", "CARGO_TARGET_"];
        if name_text.starts_with("RUSTC") || ours.iter().any(|prefix| name_text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    // aya's context types depend on the machine that the programs will run on.
    let flags = [
        format!("--cfg=bpf_target_arch=\"{}\"", variable("CARGO_CFG_TARGET_ARCH")?),
        "-Cdebuginfo=2".into(),
        "-Clink-arg=--btf".into(),
        format!("-Clinker={}", linker.display()),
    ];
    command.env_remove("RUSTFLAGS").env_remove("RUSTUP_TOOLCHAIN").env_remove("MAKEFLAGS");
    command.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    Ok(command)
}

fn linker(prefix: Option<&Path>) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let home = env::var_os("CARGO_HOME").map(|home| PathBuf::from(home).join("bin"));
    let directories = prefix.map(|prefix| prefix.join("bin")).into_iter();
    let mut directories = directories.chain(env::split_paths(&path)).chain(home);
    directories.find_map(|directory| Some(directory.join("bpf-linker")).filter(|linker| linker.is_file()))
}

fn nightly_with_sources() -> bool {
    let output =
        Command::new("rustup").args(["component", "list", "--installed", "--toolchain", "nightly"]).output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).lines().any(|line| line == "rust-src"))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| format!("environment variable {name}: {error}"))
}
