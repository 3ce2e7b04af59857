//! Types of the CNI specification.

mod args;
mod chain;
mod command;
mod conf;
mod error;
mod result;
mod version;

pub use args::Args;
pub(crate) use chain::{append, default_routes, difference, listed_interface, object};
pub use command::{Command, Target};
pub use conf::Conf;
pub(crate) use conf::version_of;
pub use error::{Code, Error};
pub use result::{Attachment, Dns, Interface};
pub use version::Version;
