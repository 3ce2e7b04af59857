//! Failures of the kernel, said so that an operator can act.

use std::{error::Error as StdError, io};

use crate::datapath::{Error, Kind};

/// `operation` failed; if the reason is a missing privilege, says which.
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

/// The kernel's error number, however deep a library has wrapped it.
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
    fn a_missing_privilege_says_which() {
        let error = failed("load the programs", io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(
            error.to_string(),
            "ebpf datapath: load the programs (the agent needs CAP_BPF and CAP_NET_ADMIN)"
        );
        let error = failed("load the programs", io::Error::from_raw_os_error(libc::ENOMEM));
        assert_eq!(error.to_string(), "ebpf datapath: load the programs");
    }
}
