//! Errors of kernel operations.

use std::error::Error as StdError;

pub(crate) use crate::error::errno;

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

#[cfg(test)]
mod tests {
    use std::io;

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
