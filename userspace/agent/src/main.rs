//! Entry point of `netplugin`; see the library.

use std::{ffi::OsString, process::ExitCode};

use clap::CommandFactory as _;
use contiv_cli::Page;
use contiv_daemon::{flags, signals};
use netplugin::{
    api,
    config::{Cleanup, Command, Flags},
    run,
};

/// Section of the manual for daemons.
const SECTION: u8 = 8;

const PAGES: [Page; 1] = [Page { name: "metrics", render: api::metrics_reference }];

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // `Command::read` reads the flags of the first word alone.
    let command = || {
        let flags = Flags::command().subcommand_negates_reqs(true);
        flags.subcommand(Cleanup::command().name("cleanup"))
    };
    if let Some(code) = contiv_cli::print(command(), SECTION, &PAGES, &arguments) {
        return code;
    }
    flags::run_main("netplugin", Command::read(arguments), execute)
}

/// Crates that log at the configured level, besides those of every daemon.
const LOGGED_CRATES: [&str; 1] = ["openflow"];

#[tokio::main]
async fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Cleanup(flags) => {
            flags.log.logging().start("netplugin", &LOGGED_CRATES)?;
            run::cleanup(&flags).await
        }
        Command::Run(flags) => {
            flags.log.logging().start("netplugin", &LOGGED_CRATES)?;
            let stop = signals::shutdown_token("stopping; forwarding continues")?;
            run::run(*flags, stop).await
        }
    }
}
