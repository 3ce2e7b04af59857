//! The routing tables of RFC 4271 section 3.2.

pub(crate) mod input;
pub(crate) mod output;
pub(crate) mod selection;
