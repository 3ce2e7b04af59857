//! `netplugin`: see the library.

use std::process::ExitCode;

use netplugin::{
    config::{BAD_FLAGS, Command, Stop},
    logging, run,
};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let command = match Command::read(std::env::args_os()) {
        Ok(command) => command,
        Err(Stop::Told(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Stop::Bad(line)) => {
            eprintln!("netplugin: {line}");
            return ExitCode::from(BAD_FLAGS);
        }
    };
    match carry_out(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netplugin: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn carry_out(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Cleanup(flags) => {
            logging::start(&flags.log)?;
            run::cleanup(&flags).await
        }
        Command::Run(flags) => {
            logging::start(&flags.log)?;
            let stop = CancellationToken::new();
            let (mut terminate, mut interrupt) =
                (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
            let stopping = stop.clone();
            tokio::spawn(async move {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                tracing::info!("stopping; forwarding goes on");
                stopping.cancel();
            });
            run::run(*flags, stop).await
        }
    }
}
