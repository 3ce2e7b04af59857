//! Formatting of errors, and their numbers.

use std::{error::Error, io};

/// Formats an error and its chain of sources as one line, separated by colons.
pub fn one_line(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}

/// Error number of the kernel, from the chain of sources.
pub(crate) fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
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
