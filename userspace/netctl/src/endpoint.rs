//! `netctl endpoint`.

use std::io::Write;

use crate::{Error, cli::Endpoint, client::Client, listing::inspect};

/// Runs one of the commands.
pub fn run(client: &Client, command: &Endpoint, out: &mut dyn Write) -> Result<(), Error> {
    match command {
        Endpoint::Inspect { id, form } => inspect(client, "endpoint", id, form, out),
    }
}
