use std::{io, path::PathBuf, time::Duration};

/// Number of port numbers, which start at 1 like those of the original Contiv.
pub(super) const PORT_COUNT: u32 = 0xfffe;
/// Time limit for the kernel to activate a pair.
pub(super) const ACTIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of attempts to list the interfaces.
pub(super) const DUMP_ATTEMPTS: u32 = 10;

/// An operation on an interface failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The network namespace cannot be opened.
    #[error("open network namespace {} (expected a path such as /run/netns/NAME or /proc/PID/ns/net)", path.display())]
    Namespace {
        /// Path of the namespace.
        path: PathBuf,
        /// Kernel's error.
        #[source]
        source: io::Error,
    },
    /// The thread that runs in the namespace failed.
    #[error("run in network namespace {}", path.display())]
    Thread {
        /// Path of the namespace.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A netlink request failed.
    #[error("{operation} {link}")]
    Netlink {
        /// Operation.
        operation: &'static str,
        /// Interface.
        link: String,
        /// Kernel's error.
        #[source]
        source: rtnetlink::Error,
    },
    /// A sysctl, an ioctl or a socket operation failed.
    #[error("{operation} {link}")]
    Setting {
        /// Operation.
        operation: &'static str,
        /// Interface.
        link: String,
        /// Kernel's error.
        #[source]
        source: io::Error,
    },
    /// The pod already has an interface with this name.
    #[error("create interface {name} in {}: the pod already has an interface with this name", path.display())]
    Taken {
        /// Interface name.
        name: String,
        /// Path of the pod's network namespace.
        path: PathBuf,
    },
    /// The complete pair does not become active.
    #[error("bring up {port}: no carrier after {ACTIVE_TIMEOUT:?}")]
    Inactive {
        /// Host end.
        port: String,
    },
    /// Interfaces were added or removed during each attempt to list them.
    #[error("list the node's interfaces: they changed during each of {} attempts", DUMP_ATTEMPTS)]
    Interrupted,
    /// All port numbers are in use.
    #[error("create a port: all {} port numbers are in use on this node", PORT_COUNT)]
    Exhausted,
}

impl Error {
    pub(super) fn netlink(operation: &'static str, link: &str) -> impl FnOnce(rtnetlink::Error) -> Error {
        move |source| Error::Netlink { operation, link: link.to_owned(), source }
    }

    pub(super) fn setting(operation: &'static str, link: &str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Setting { operation, link: link.to_owned(), source }
    }
}

/// Positive errno of a failed netlink request.
pub(super) fn errno(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => Some(-message.raw_code()),
        _ => None,
    }
}
