//! The command line of contiv-rs: the original's commands, flags, columns and exit codes
//! (INVENTORY 7.1) over the REST API of netmaster.
//!
//! What differs from the original's is in `docs/src/compatibility.md`.

pub mod aci;
pub mod app_profile;
pub mod apply;
pub mod bgp;
pub mod change;
pub mod check;
pub mod cli;
pub mod client;
pub mod contracts;
pub mod endpoint;
pub mod get;
pub mod global;
pub mod group;
pub mod kind;
pub mod listing;
pub mod manifest;
pub mod monitor;
pub mod network;
pub mod node;
pub mod policy;
pub mod profile;
pub mod rule;
pub mod ruling;
pub mod service;
pub mod settings;
pub mod style;
pub mod table;
pub mod tenant;
pub mod token;
pub mod verb;
pub mod version;

use std::path::Path;

use cli::{Cli, Command};
use client::Client;

/// Why a command failed. The exit codes are the original's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was typed does not make sense: exit 1.
    #[error("{0}")]
    Usage(String),
    /// The request did not reach netmaster: exit 2.
    #[error("{method} {url} ({hint})")]
    Request {
        /// The HTTP method.
        method: &'static str,
        /// The whole URL.
        url: String,
        /// What to try.
        hint: &'static str,
        /// What the connection said.
        #[source]
        source: Box<ureq::Error>,
    },
    /// netmaster refused: exit 3.
    #[error("{0}")]
    Refused(String),
    /// Files hold mistakes, or netmaster refused several things; a line for each: exit 3.
    #[error("{}", .0.join("\n"))]
    Several(Vec<String>),
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
    /// A file could not be read or written: exit 4.
    #[error("{action} {}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With which file.
        path: std::path::PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The terminal or pipe failed: exit 4.
    #[error("read from standard input or write to standard output")]
    Output(#[from] std::io::Error),
}

impl Error {
    /// Of the system, about a file.
    pub fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { action, path, source }
    }

    /// Of netmaster, about an object of a file; `rest` more changes would have come.
    pub fn about(self, object: String, rest: usize) -> Error {
        match self {
            Error::Refused(message) if rest == 0 => Error::Refused(format!("{object}: {message}")),
            Error::Refused(message) => {
                Error::Refused(format!("{object}: {message} (what comes after it was not sent: {rest} more)"))
            }
            other => other,
        }
    }

    /// Has whoever reads the output gone away? That is no mistake to tell of.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Error::Output(source) if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Usage(_) => 1,
            Error::Request { .. } => 2,
            Error::Refused(_) | Error::Several(_) | Error::Answer { .. } => 3,
            Error::File { .. } | Error::Output(_) => 4,
        }
    }
}

/// How a command ended that did what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exit 0.
    Done,
    /// `policy check`: the connection is not let through. Exit 5, which no failure has.
    Denied,
}

impl Outcome {
    /// The process's exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Outcome::Done => 0,
            Outcome::Denied => 5,
        }
    }
}

/// Runs one command and writes what it shows to `out`.
pub fn run(cli: &Cli, out: &mut dyn std::io::Write) -> Result<Outcome, Error> {
    if let Command::Completion { shell } = &cli.command {
        // Generated first: `generate` panics when a pipe is closed.
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut <Cli as clap::CommandFactory>::command(), "netctl", &mut script);
        out.write_all(&script)?;
        return Ok(Outcome::Done);
    }
    let client = Client::new(&cli.server)?;
    let done = match &cli.command {
        Command::Policy(command) => return policy::run(&client, command, out),
        Command::Version => version::show(&client, out),
        Command::Info(form) => listing::tree(out, form.output, &client.get("/info")?),
        Command::Get(get) => get::run(&client, get, out),
        Command::Apply(files) => apply::apply(&client, files, out),
        Command::Delete(files) => apply::delete(&client, files, out),
        Command::Node(command) => node::run(&client, command, out),
        Command::Monitor(watch) => monitor::run(&client, watch, out),
        Command::Global(command) => settings::run(&global::KIND, &client, command, out),
        Command::Tenant(command) => tenant::run(&client, command, out),
        Command::Network(verb) => verb::run(&network::KIND, &client, verb, out),
        Command::Group(verb) => verb::run(&group::KIND, &client, verb, out),
        Command::Endpoint(command) => endpoint::run(&client, command, out),
        Command::Netprofile(verb) => verb::run(&profile::KIND, &client, verb, out),
        Command::ExternalContracts(verb) => verb::run(&contracts::KIND, &client, verb, out),
        Command::AppProfile(command) => app_profile::run(&client, command, out),
        Command::Service(verb) => verb::run(&service::KIND, &client, verb, out),
        Command::Bgp(command) => bgp::run(&client, command, out),
        Command::AciGw(command) => settings::run(&aci::KIND, &client, command, out),
        Command::Login => token::login(&client, out),
        Command::Completion { .. } => Ok(()),
    };
    done.map(|()| Outcome::Done)
}
