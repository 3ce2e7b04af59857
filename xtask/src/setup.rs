//! Installs what the demo and the tests need.

mod bpf;
mod cni;
pub(crate) mod debian;
mod folder;
mod python;

use std::{env, time::Instant};

use anyhow::{Result, bail};
use clap::Args;

use crate::workspace::{Workspace, find_program};

pub(crate) use bpf::available as bpf_compiler_available;

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Install nothing; list what is missing and fail if anything is
    #[arg(long)]
    check: bool,
}

/// A requirement, and the Debian package that has it.
#[derive(Debug)]
struct Need {
    what: What,
    package: &'static str,
}

#[derive(Debug)]
enum What {
    Program(&'static str),
    /// A file that compilers include, below `include` beside a folder of PATH.
    Include(&'static str),
}

impl What {
    fn is_present(&self) -> bool {
        match self {
            What::Program(program) => find_program(program).is_some(),
            What::Include(file) => {
                let path = env::var_os("PATH").unwrap_or_default();
                env::split_paths(&path).any(|folder| folder.join("../include").join(file).is_file())
            }
        }
    }

    fn name(&self) -> &'static str {
        match self {
            What::Program(name) | What::Include(name) => name,
        }
    }
}

const fn program(name: &'static str, package: &'static str) -> Need {
    Need { what: What::Program(name), package }
}

const NEEDS: &[Need] = &[
    program("cc", "gcc"),
    program("protoc", "protobuf-compiler"),
    Need { what: What::Include("google/protobuf/descriptor.proto"), package: "libprotobuf-dev" },
    program("etcd", "etcd-server"),
    program("etcdctl", "etcd-client"),
    program("ovs-vswitchd", "openvswitch-switch"),
    program("ovsdb-server", "openvswitch-switch"),
    program("bird", "bird2"),
    program("birdc", "bird2"),
    program("ip", "iproute2"),
    program("nft", "nftables"),
    program("ping", "iputils-ping"),
    program("ethtool", "ethtool"),
    program("sysctl", "procps"),
    program("setpriv", "util-linux"),
    program("bpftool", "bpftool"),
];

/// Only for benchmarks that compare services.
const PEER_NEEDS: &[Need] = &[program("iptables-legacy-restore", "iptables")];

/// Only for tests on other kernels.
const VM_NEEDS: &[Need] = &[
    program("qemu-system-x86_64", "qemu-system-x86"),
    program("busybox", "busybox-static"),
    program("cpio", "cpio"),
    program("modprobe", "kmod"),
    program("xz", "xz-utils"),
    program("strip", "binutils"),
];

/// Only to make a clean Debian root that packages are installed in.
const ROOT_NEEDS: &[Need] = &[program("mmdebstrap", "mmdebstrap")];

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let start = Instant::now();
    if options.check {
        let mut missing = missing_lines(workspace);
        let others = [python::missing(workspace), cni::missing(workspace)];
        missing.extend(others.into_iter().flatten().map(|line| format!("  {line}")));
        if !missing.is_empty() {
            bail!("missing:\n{}", missing.join("\n"));
        }
    } else {
        ensure_tests(workspace)?;
    }
    println!("setup: complete ({:.1} s)", start.elapsed().as_secs_f64());
    Ok(())
}

/// Installs what is missing; quick and silent if nothing is.
pub(crate) fn ensure(workspace: &Workspace) -> Result<()> {
    install(workspace, NEEDS)?;
    if bpf::available(workspace) {
        return Ok(());
    }
    if !debian::is_debian() {
        bail!("{NOT_INSTALLED}:\n{}", missing_lines(workspace).join("\n"));
    }
    bpf::install(workspace)
}

/// Like [`ensure`], with what only tests need.
pub(crate) fn ensure_tests(workspace: &Workspace) -> Result<()> {
    ensure(workspace)?;
    ensure_peers(workspace)
}

/// Programs of others that tests run.
pub(crate) fn ensure_peers(workspace: &Workspace) -> Result<()> {
    python::ensure(workspace)?;
    cni::offer(workspace);
    Ok(())
}

/// Installs what virtual machines need.
pub(crate) fn ensure_vm(workspace: &Workspace) -> Result<()> {
    install(workspace, VM_NEEDS)
}

/// Makes sure that a clean Debian root can be made.
pub(crate) fn ensure_root_builder(workspace: &Workspace) -> Result<()> {
    install(workspace, ROOT_NEEDS)
}

/// Installs what services are compared with. Benchmarks leave out what cannot be installed.
pub(crate) fn offer_peers(workspace: &Workspace) {
    if let Err(error) = install(workspace, PEER_NEEDS) {
        eprintln!("warning: install what services are compared with: {error:#}");
    }
}

const NOT_INSTALLED: &str =
    "requirements are missing, and are installed automatically only on Debian as root";

fn install(workspace: &Workspace, needs: &'static [Need]) -> Result<()> {
    let to_install = missing(needs);
    if to_install.is_empty() {
        return Ok(());
    }
    if !debian::is_debian() || !nix::unistd::geteuid().is_root() {
        bail!("{NOT_INSTALLED}:\n{}", lines(needs).join("\n"));
    }
    let mut packages: Vec<_> = to_install.iter().map(|need| need.package).collect();
    packages.dedup();
    debian::install(workspace, &packages)?;
    let still: Vec<_> = missing(needs).iter().map(|need| need.what.name()).collect();
    if !still.is_empty() {
        bail!("apt-get succeeded, but these are still missing: {}", still.join(", "));
    }
    Ok(())
}

fn missing(needs: &'static [Need]) -> Vec<&'static Need> {
    needs.iter().filter(|need| !need.what.is_present()).collect()
}

fn lines(needs: &'static [Need]) -> Vec<String> {
    let line = |need: &&Need| format!("  {:32} (Debian: apt-get install {})", need.what.name(), need.package);
    missing(needs).iter().map(line).collect()
}

fn missing_lines(workspace: &Workspace) -> Vec<String> {
    let mut lines = lines(NEEDS);
    if !bpf::available(workspace) {
        lines.push(format!("  {}", bpf::ADVICE));
    }
    lines
}
