//! `netmaster`: see the library.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use contiv_cli::Page;
use contiv_daemon::{flags, signals};
use contiv_store::embedded::{Server, has_store};
use contiv_store::{Config, Store};
use netmaster::config::{self, Command, EmbeddedDir, Flags, StoreAccess};
use netmaster::{api, backup, daemon, embedded, metrics};

/// Section of the manual for daemons.
const SECTION: u8 = 8;

const PAGES: [Page; 2] = [
    Page { name: "metrics", render: metrics::reference_page },
    Page { name: "rest", render: || Ok(api::openapi::reference_page()) },
];

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let command = || {
        let backup = config::Backup::command().name("backup");
        // `Command::read` reads the flags of the first word alone.
        let flags = Flags::command().subcommand_negates_reqs(true);
        flags.subcommand(backup).subcommand(config::Restore::command().name("restore"))
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
            if let Some(EmbeddedDir(folder)) = &flags.store.store {
                let what = || format!("back up the embedded store in {}", folder.display());
                let found = has_store(folder).with_context(what)?;
                anyhow::ensure!(found, "{}: the folder has no store; check --store", what());
            }
            let (server, store) = connect(&flags.store).await?;
            let taken = backup::take(&store).await.context("backup");
            close(server).await?;
            let taken = taken?;
            taken.write(&flags.file)?;
            println!("{}: {} keys at revision {}", flags.file.display(), taken.items.len(), taken.revision);
            Ok(())
        }
        Command::Restore(flags) => {
            flags.log.logging().start("netmaster", &[])?;
            // Before anything is deleted.
            let taken = backup::Backup::read(&flags.file)?;
            let (server, store) = connect(&flags.store).await?;
            let keys = taken.items.len();
            let restored = backup::restore(&store, taken, flags.replace).await;
            close(server).await?;
            println!("restored {keys} keys; the identity of the cluster is {}", restored?.id);
            println!("start netmaster, then run `netctl node accept-store --all`");
            Ok(())
        }
    }
}

/// Connects to the store. Serves it meanwhile if it is an embedded one.
async fn connect(access: &StoreAccess) -> anyhow::Result<(Option<Server>, Store)> {
    let Some(folder) = &access.store else { return Ok((None, Store::connect(&access.config()?).await?)) };
    let server = embedded::open(&folder.0, None).await.context("stop the netmaster that serves the store")?;
    let store = Store::connect(&Config::new([server.endpoint()])).await?;
    Ok((Some(server), store))
}

/// Writes an embedded store to its disk.
async fn close(server: Option<Server>) -> anyhow::Result<()> {
    match server {
        Some(server) => server.shutdown().await.context("close the embedded store"),
        None => Ok(()),
    }
}
