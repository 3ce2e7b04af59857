//! `netmaster`: see the library.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory as _;
use contiv_cli::Page;
use contiv_daemon::{flags, signals};
use netmaster::config::Flags;
use netmaster::{api, daemon, metrics};

/// Section of the manual for daemons.
const SECTION: u8 = 8;

const PAGES: [Page; 2] = [
    Page { name: "metrics", render: metrics::reference_page },
    Page { name: "rest", render: api::openapi::reference_page },
];

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = contiv_cli::print(Flags::command(), SECTION, &PAGES, &arguments) {
        return code;
    }
    flags::run_main("netmaster", Flags::read(arguments), run)
}

#[tokio::main]
async fn run(flags: Flags) -> anyhow::Result<()> {
    flags.log.logging().start("netmaster", &[])?;
    let stop = signals::shutdown_token("stopping")?;
    daemon::run(flags, stop).await
}
