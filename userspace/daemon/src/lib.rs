//! What both daemons are made with, and has nothing to do with what they are for.

pub mod client;
pub mod secret;
pub mod tls;
pub mod watched;
