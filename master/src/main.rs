use std::process::ExitCode;

use contiv_daemon::{flags, signals};
use netmaster::config::Flags;
use netmaster::daemon;

fn main() -> ExitCode {
    flags::run_main("netmaster", Flags::read(std::env::args_os()), run)
}

#[tokio::main]
async fn run(flags: Flags) -> anyhow::Result<()> {
    flags.log.logging().start("netmaster", &[])?;
    let stop = signals::shutdown_token("stopping")?;
    daemon::run(flags, stop).await
}
