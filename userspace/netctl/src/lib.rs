//! The command line of contiv-rs: the original's commands, flags, columns and exit codes over the REST API of netmaster.
//!
//! Modules from low to high: `error`, `query`, `flags`, `private_file`, `token`, `context`, `connection`, `client`, `output`, `schema`,
//! `commands`, `observe`, `objects`, `manifest`, `cli`. A module imports only lower ones. `docs/src/compatibility.md` lists the differences from the original.

pub mod cli;
pub mod client;
pub mod commands;
pub mod connection;
pub mod context;
pub mod error;
pub mod flags;
pub mod manifest;
pub mod objects;
pub mod observe;
pub mod output;
pub mod private_file;
pub mod query;
pub mod schema;
pub mod token;

pub use error::{Error, Outcome};
