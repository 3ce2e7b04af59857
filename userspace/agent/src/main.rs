//! `netplugin`: see the library.

use std::process::ExitCode;

use contiv_daemon::{flags, signals};
use netplugin::{config::Command, run};

fn main() -> ExitCode {
    flags::run_main("netplugin", Command::read(std::env::args_os()), carry_out)
}

/// Our crates besides those that every daemon has.
const OURS: [&str; 1] = ["openflow"];

#[tokio::main]
async fn carry_out(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Cleanup(flags) => {
            flags.log.logging().start("netplugin", &OURS)?;
            run::cleanup(&flags).await
        }
        Command::Run(flags) => {
            flags.log.logging().start("netplugin", &OURS)?;
            let stop = signals::shutdown_token("stopping; forwarding goes on")?;
            run::run(*flags, stop).await
        }
    }
}
