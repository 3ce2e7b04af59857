//! Finds what the demo and the tests need, and brings what is missing where it can.

mod bpf;
mod debian;

use std::time::Instant;

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

/// A program, and the Debian package that has it.
#[derive(Debug)]
struct Need {
    program: &'static str,
    package: &'static str,
}

const NEEDS: &[Need] = &[
    Need { program: "cc", package: "gcc" },
    Need { program: "protoc", package: "protobuf-compiler" },
    Need { program: "etcd", package: "etcd-server" },
    Need { program: "etcdctl", package: "etcd-client" },
    Need { program: "ovs-vswitchd", package: "openvswitch-switch" },
    Need { program: "ovsdb-server", package: "openvswitch-switch" },
    Need { program: "ip", package: "iproute2" },
    Need { program: "ping", package: "iputils-ping" },
    Need { program: "ethtool", package: "ethtool" },
    Need { program: "bpftool", package: "bpftool" },
];

pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let start = Instant::now();
    if options.check {
        let missing = missing_lines(workspace);
        if !missing.is_empty() {
            bail!("missing:\n{}", missing.join("\n"));
        }
    } else {
        ensure(workspace)?;
    }
    println!("setup: everything is here ({:.1} s)", start.elapsed().as_secs_f64());
    Ok(())
}

/// Makes sure that everything is here; quick and silent when it is.
pub(crate) fn ensure(workspace: &Workspace) -> Result<()> {
    let programs = missing_programs();
    let compiler = bpf::available(workspace);
    if programs.is_empty() && compiler {
        return Ok(());
    }
    if !debian::is_debian() || (!programs.is_empty() && !nix::unistd::geteuid().is_root()) {
        bail!(
            "this is missing, and is brought without asking only on Debian and by root:\n{}",
            missing_lines(workspace).join("\n")
        );
    }
    if !programs.is_empty() {
        let mut packages: Vec<_> = programs.iter().map(|need| need.package).collect();
        packages.dedup();
        debian::install(workspace, &packages)?;
        let still: Vec<_> = missing_programs().iter().map(|need| need.program).collect();
        if !still.is_empty() {
            bail!("apt-get went through, but these programs are still not found: {}", still.join(", "));
        }
    }
    if !compiler {
        bpf::install(workspace)?;
    }
    Ok(())
}

fn missing_programs() -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| find_program(need.program).is_none()).collect()
}

fn missing_lines(workspace: &Workspace) -> Vec<String> {
    let mut lines: Vec<_> = missing_programs()
        .iter()
        .map(|need| format!("  {:14} (Debian: apt-get install {})", need.program, need.package))
        .collect();
    if !bpf::available(workspace) {
        lines.push(format!("  {}", bpf::ADVICE));
    }
    lines
}
