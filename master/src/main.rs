use std::process::ExitCode;

use netmaster::config::{BAD_FLAGS, Flags, Stop};
use netmaster::{daemon, logging};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

fn main() -> ExitCode {
    let flags = match Flags::read(std::env::args_os()) {
        Ok(flags) => flags,
        Err(Stop::Told(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Stop::Bad(line)) => {
            eprintln!("netmaster: {line}");
            return ExitCode::from(BAD_FLAGS);
        }
    };
    match run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("netmaster: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(flags: Flags) -> anyhow::Result<()> {
    logging::start(&flags.log)?;
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        stopping.cancel();
    });
    daemon::run(flags, stop).await
}
