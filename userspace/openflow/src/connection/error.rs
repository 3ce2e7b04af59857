//! Errors of a connection.

use std::time::Duration;

use super::target::{Target, TargetError};
use crate::error_message::ErrorMessage;
use crate::wire::{DecodeError, EncodeError};

/// Error of a connection. `target` is the address of the switch, `request` names the request for display.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address of the switch is malformed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The connection attempt, or the hello exchange, failed.
    #[error("connect to switch {target}")]
    Connect {
        /// Switch.
        target: Target,
        /// Cause.
        source: std::io::Error,
    },
    /// The switch does not support OpenFlow 1.3.
    #[error("connect to switch {target}: no OpenFlow 1.3: {why}")]
    Version {
        /// Switch.
        target: Target,
        /// Cause.
        why: String,
    },
    /// The connection is closed.
    #[error("connection to switch {target} is closed: {why}")]
    Closed {
        /// Switch.
        target: Target,
        /// Cause.
        why: String,
    },
    /// The switch did not reply in time. The connection remains open.
    #[error("{request} on switch {target}: no reply within {after:?}")]
    Timeout {
        /// Switch.
        target: Target,
        /// Request without a reply.
        request: String,
        /// Time limit.
        after: Duration,
    },
    /// The switch rejected the request with an error message.
    #[error("{request} on switch {target}: rejected")]
    Refused {
        /// Switch.
        target: Target,
        /// Rejected request.
        request: String,
        /// Error message of the switch.
        source: ErrorMessage,
    },
    /// The reply does not decode.
    #[error("{request} on switch {target}: malformed reply")]
    Undecodable {
        /// Switch.
        target: Target,
        /// Request with the malformed reply.
        request: String,
        /// Cause.
        source: DecodeError,
    },
    /// The reply is of another type than the request asks for.
    #[error("{request} on switch {target}: unexpected reply type")]
    Unexpected {
        /// Switch.
        target: Target,
        /// Request with the unexpected reply.
        request: String,
    },
    /// The request, or a change of a bundle, cannot be encoded. It is not sent, and what was sent of the bundle before is discarded.
    #[error("{request}")]
    Encode {
        /// Request or change that cannot be encoded.
        request: String,
        /// Cause.
        source: EncodeError,
    },
}
