//! Programs at the TCX hook of an interface (Linux 6.6), attached without a link: they stay without this process and without pins, and
//! ovs-vswitchd does not know of them.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
};

use aya::{
    programs::{ProgramError, ProgramInfo, SchedClassifier, TcAttachType},
    util::KernelVersion,
};

use nix::net::if_::if_nametoindex;

use crate::error::errno;

const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_DETACH: libc::c_int = 9;
const BPF_TCX_INGRESS: u32 = 46;
/// Queries of an interface whose programs change.
const MAX_ATTEMPTS: u32 = 10;

/// Whether the kernel has the hook.
pub(super) fn is_supported() -> bool {
    KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(6, 6, 0))
}

/// The programs with one of these names at the ingress of an interface; none if it does not exist.
pub(super) fn attached(interface: &str, names: &[&str]) -> Result<Vec<ProgramInfo>, ProgramError> {
    let mut attempts = 0;
    let found = loop {
        match SchedClassifier::query_tcx(interface, TcAttachType::Ingress) {
            Ok((_, found)) => break found,
            Err(_) if if_nametoindex(interface).is_err() => break vec![],
            // A program that was attached has been released meanwhile.
            Err(error) if errno(&error) == Some(libc::ENOENT) && attempts < MAX_ATTEMPTS => attempts += 1,
            Err(error) => return Err(error),
        }
    };
    let is_named = |program: &ProgramInfo| program.name_as_str().is_some_and(|name| names.contains(&name));
    Ok(found.into_iter().filter(is_named).collect())
}

/// The part of `union bpf_attr` for both commands (include/uapi/linux/bpf.h).
#[repr(C)]
struct Attributes {
    target_ifindex: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
    replace_bpf_fd: u32,
    relative_fd: u32,
    expected_revision: u64,
}

/// Attaches the program behind all others.
pub(super) fn attach(program: impl AsFd, ifindex: u32) -> io::Result<()> {
    execute(BPF_PROG_ATTACH, program, ifindex)
}

pub(super) fn detach(program: impl AsFd, ifindex: u32) -> io::Result<()> {
    execute(BPF_PROG_DETACH, program, ifindex)
}

fn execute(command: libc::c_int, program: impl AsFd, ifindex: u32) -> io::Result<()> {
    let mut attributes = Attributes {
        target_ifindex: ifindex,
        attach_bpf_fd: program.as_fd().as_raw_fd().cast_unsigned(),
        attach_type: BPF_TCX_INGRESS,
        attach_flags: 0,
        replace_bpf_fd: 0,
        relative_fd: 0,
        expected_revision: 0,
    };
    let size = size_of::<Attributes>() as libc::c_uint;
    // SAFETY: the attributes have no addresses.
    match unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attributes, size) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
