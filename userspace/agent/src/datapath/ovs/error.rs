//! Errors of the datapath.

use crate::datapath::{Error, Kind};

/// Returns an error of this datapath for `operation`.
pub(crate) fn ovs_error(
    operation: impl Into<String>,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::new(Kind::Ovs, operation, source)
}

/// `apply` was called without a successful `observe` before it.
#[derive(Debug, thiserror::Error)]
#[error("observe must precede apply")]
pub(crate) struct NotObserved;
