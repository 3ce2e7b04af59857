//! Finds what the demo and the tests need, and brings what is missing where it can.

mod bpf;
pub(crate) mod debian;
mod python;

use std::{env, time::Instant};

use anyhow::{Result, bail};
use clap::Args;

use crate::workspace::{Workspace, find_program};

pub(crate) use bpf::available as bpf_compiler_available;

#[derive(Debug, Default, Args)]
pub(crate) struct Options {
    /// Only tell what is missing; fails if anything is
    #[arg(long)]
    check: bool,
}

/// Something that must be here, and the Debian package that has it.
#[derive(Debug)]
struct Need {
    what: What,
    package: &'static str,
}

#[derive(Debug)]
enum What {
    Program(&'static str),
    /// A file that compilers include, below `include` beside some `bin`.
    Include(&'static str),
}

impl What {
    fn is_here(&self) -> bool {
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
    program("ip", "iproute2"),
    program("ping", "iputils-ping"),
    program("ethtool", "ethtool"),
    program("sysctl", "procps"),
    program("setpriv", "util-linux"),
    program("bpftool", "bpftool"),
];

/// Only to measure services beside them.
const PEER_NEEDS: &[Need] = &[program("nft", "nftables"), program("iptables-legacy-restore", "iptables")];

/// Only for tests on other kernels.
const VM_NEEDS: &[Need] = &[
    program("qemu-system-x86_64", "qemu-system-x86"),
    program("busybox", "busybox-static"),
    program("cpio", "cpio"),
    program("modprobe", "kmod"),
    program("xz", "xz-utils"),
    program("strip", "binutils"),
];

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let start = Instant::now();
    if options.check {
        let mut missing = missing_lines(workspace);
        missing.extend(python::missing(workspace).map(|line| format!("  {line}")));
        if !missing.is_empty() {
            bail!("missing:\n{}", missing.join("\n"));
        }
    } else {
        ensure_tests(workspace)?;
    }
    println!("setup: everything is here ({:.1} s)", start.elapsed().as_secs_f64());
    Ok(())
}

/// Makes sure that everything is here; quick and silent when it is.
pub(crate) fn ensure(workspace: &Workspace) -> Result<()> {
    bring(workspace, NEEDS)?;
    if bpf::available(workspace) {
        return Ok(());
    }
    if !debian::is_debian() {
        bail!("{BROUGHT_ON_DEBIAN}:\n{}", missing_lines(workspace).join("\n"));
    }
    bpf::install(workspace)
}

/// The same, and what only tests need.
pub(crate) fn ensure_tests(workspace: &Workspace) -> Result<()> {
    ensure(workspace)?;
    python::ensure(workspace)
}

/// Makes sure that virtual machines can be run; quick and silent when they can.
pub(crate) fn ensure_vm(workspace: &Workspace) -> Result<()> {
    bring(workspace, VM_NEEDS)
}

/// What services are measured beside. A measurement leaves out what is not to be had, and says so.
pub(crate) fn offer_peers(workspace: &Workspace) {
    if let Err(error) = bring(workspace, PEER_NEEDS) {
        eprintln!("warning: services will not be measured beside all that they replace: {error:#}");
    }
}

const BROUGHT_ON_DEBIAN: &str = "this is missing, and is brought without asking only on Debian and by root";

fn bring(workspace: &Workspace, needs: &'static [Need]) -> Result<()> {
    let absent = missing(needs);
    if absent.is_empty() {
        return Ok(());
    }
    if !debian::is_debian() || !nix::unistd::geteuid().is_root() {
        bail!("{BROUGHT_ON_DEBIAN}:\n{}", lines(needs).join("\n"));
    }
    let mut packages: Vec<_> = absent.iter().map(|need| need.package).collect();
    packages.dedup();
    debian::install(workspace, &packages)?;
    let still: Vec<_> = missing(needs).iter().map(|need| need.what.name()).collect();
    if !still.is_empty() {
        bail!("apt-get went through, but these are still not found: {}", still.join(", "));
    }
    Ok(())
}

fn missing(needs: &'static [Need]) -> Vec<&'static Need> {
    needs.iter().filter(|need| !need.what.is_here()).collect()
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
