//! `netctl endpoint`.

use std::io::Write;

use clap::Subcommand;

use crate::{Error, cli::Detailed, client::Client, listing::inspect};

/// What can be done with endpoints.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Shows an endpoint, as JSON.
    Inspect {
        /// The endpoint's or container's id.
        id: String,
        /// In which form.
        #[command(flatten)]
        form: Detailed,
    },
}

/// Runs one of the commands.
pub fn run(client: &Client, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Command::Inspect { id, form } => inspect(client, "endpoint", id, form, out),
    }
}
