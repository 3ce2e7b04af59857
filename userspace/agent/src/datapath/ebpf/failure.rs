//! Errors of kernel operations.

use std::{error::Error as StdError, io};

use crate::datapath::{Error, Kind};

/// Error of `operation`. Names the required capabilities if the cause is a missing privilege.
pub(crate) fn failed(
    operation: impl Into<String>,
    source: impl Into<Box<dyn StdError + Send + Sync>>,
) -> Error {
    let (mut operation, source) = (operation.into(), source.into());
    if matches!(errno(&*source), Some(libc::EPERM | libc::EACCES)) {
        operation.push_str(" (the agent needs CAP_BPF and CAP_NET_ADMIN)");
    }
    Error::new(Kind::Ebpf, operation, source)
}

/// Error number of the kernel, from the chain of sources.
pub(crate) fn errno(error: &(dyn StdError + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(code);
        }
        if let Some(errno) = error.downcast_ref::<nix::Error>() {
            return Some(*errno as i32);
        }
        if let Some(rtnetlink::Error::NetlinkError(message)) = error.downcast_ref::<rtnetlink::Error>() {
            return message.code.map(|code| -code.get());
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_privilege_is_named() {
        let error = failed("load the programs", io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(
            error.to_string(),
            "ebpf datapath: load the programs (the agent needs CAP_BPF and CAP_NET_ADMIN)"
        );
        let error = failed("load the programs", io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!(error.to_string(), "ebpf datapath: load the programs");
    }
}
