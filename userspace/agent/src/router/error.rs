use std::io;

/// A change of the kernel that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection to the kernel.
    #[error("connect to the kernel's routing tables")]
    Connect(#[source] io::Error),
    /// Rules, routes or addresses.
    #[error("{0}")]
    Netlink(&'static str, #[source] rtnetlink::Error),
    /// Parameters of an interface.
    #[error("set parameters of interface {0}")]
    Interface(String, #[source] io::Error),
    /// The addresses of the node.
    #[error("read the addresses of this node")]
    Addresses(#[source] io::Error),
}

impl Error {
    /// Whether the connection to the kernel may be gone: the error is not an answer of the kernel.
    pub(super) fn is_of_connection(&self) -> bool {
        match self {
            Error::Connect(_) => true,
            Error::Netlink(_, error) => !matches!(error, rtnetlink::Error::NetlinkError(_)),
            Error::Interface(..) | Error::Addresses(_) => false,
        }
    }
}

pub(super) fn netlink(operation: &'static str) -> impl FnOnce(rtnetlink::Error) -> Error {
    move |error| Error::Netlink(operation, error)
}

pub(super) fn interface(name: &str) -> impl FnOnce(io::Error) -> Error {
    let name = name.to_owned();
    move |error| Error::Interface(name, error)
}
