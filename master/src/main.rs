//! `netmaster`: see the library.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use contiv_cli::Page;
use contiv_daemon::{flags, signals};
use contiv_store::Store;
use netmaster::config::{self, Command, Flags};
use netmaster::{api, backup, daemon, metrics};

/// Section of the manual for daemons.
const SECTION: u8 = 8;

const PAGES: [Page; 2] = [
    Page { name: "metrics", render: metrics::reference_page },
    Page { name: "rest", render: api::openapi::reference_page },
];

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let command = || {
        let backup = config::Backup::command().name("backup");
        Flags::command().subcommand(backup).subcommand(config::Restore::command().name("restore"))
    };
    if let Some(code) = contiv_cli::print(command(), SECTION, &PAGES, &arguments) {
        return code;
    }
    flags::run_main("netmaster", Command::read(arguments), run)
}

#[tokio::main]
async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(flags) => {
            flags.log.logging().start("netmaster", &[])?;
            let stop = signals::shutdown_token("stopping")?;
            daemon::run(*flags, stop).await
        }
        Command::Backup(flags) => {
            flags.log.logging().start("netmaster", &[])?;
            let store = Store::connect(&flags.store.config()?).await?;
            let taken = backup::take(&store).await.context("backup")?;
            taken.write(&flags.file)?;
            println!("{}: {} keys at revision {}", flags.file.display(), taken.items.len(), taken.revision);
            Ok(())
        }
        Command::Restore(flags) => {
            flags.log.logging().start("netmaster", &[])?;
            // Before anything is deleted.
            let taken = backup::Backup::read(&flags.file)?;
            let store = Store::connect(&flags.store.config()?).await?;
            let keys = taken.items.len();
            let identity = backup::restore(&store, taken, flags.replace).await?;
            println!("restored {keys} keys; the identity of the cluster is {}", identity.id);
            println!("start netmaster, then run `netctl node accept-store --all`");
            Ok(())
        }
    }
}
