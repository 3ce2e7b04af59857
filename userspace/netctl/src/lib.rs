//! The command line of contiv-rs: the original's commands, flags, columns and exit codes
//! (INVENTORY 7.1) over the REST API of netmaster.
//!
//! Today: `version`, `global`, `tenant`, `network`, `group`, `endpoint`. The others come with the
//! objects that they show.

pub mod cli;
pub mod client;
pub mod endpoint;
pub mod global;
pub mod group;
pub mod listing;
pub mod network;
pub mod table;
pub mod tenant;
pub mod version;

use cli::{Cli, Command};
use client::Client;

/// Why a command failed. The exit codes are the original's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was typed does not make sense: exit 1.
    #[error("{0}")]
    Usage(String),
    /// The request did not reach netmaster: exit 2.
    #[error("{method} {url} (is netmaster running there? --netmaster or NETMASTER names another)")]
    Request {
        /// The HTTP method.
        method: &'static str,
        /// The whole URL.
        url: String,
        /// What the connection said.
        #[source]
        source: Box<ureq::Error>,
    },
    /// netmaster refused: exit 3.
    #[error("{0}")]
    Refused(String),
    /// netmaster answered with something else than JSON: exit 3.
    #[error("read the answer to {method} {url}")]
    Answer {
        /// The HTTP method.
        method: &'static str,
        /// The whole URL.
        url: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The output could not be written: exit 4.
    #[error("write to standard output")]
    Output(#[from] std::io::Error),
}

impl Error {
    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 1,
            Error::Request { .. } => 2,
            Error::Refused(_) | Error::Answer { .. } => 3,
            Error::Output(_) => 4,
        }
    }
}

/// Runs one command and writes what it shows to `out`.
pub fn run(cli: &Cli, out: &mut dyn std::io::Write) -> Result<(), Error> {
    let client = Client::new(&cli.netmaster)?;
    match &cli.command {
        Command::Version => version::show(&client, out),
        Command::Global(command) => global::run(&client, command, out),
        Command::Tenant(command) => tenant::run(&client, command, out),
        Command::Network(command) => network::run(&client, command, out),
        Command::Group(command) => group::run(&client, command, out),
        Command::Endpoint(command) => endpoint::run(&client, command, out),
    }
}
