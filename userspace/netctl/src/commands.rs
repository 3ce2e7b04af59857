//! Commands that several kinds of object share.

pub mod config;
pub mod listing;
pub mod login;
pub mod object;
pub mod settings;
pub mod watch;
