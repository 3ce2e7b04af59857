//! What can be done with settings, of which there is one object in the cluster, called as its type.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    Error,
    cli::Detailed,
    client::Client,
    kind::Kind,
    listing::{inspect, pretty},
};

/// The commands of settings.
#[derive(Debug, Subcommand)]
pub enum Command<S: Args> {
    /// Shows the settings.
    Info {
        /// As a JSON array.
        #[arg(long, short)]
        json: bool,
    },
    /// Shows the settings and their use.
    Inspect(Detailed),
    /// Changes the settings that are named; the others stay.
    Set(S),
}

/// The flags of `set`.
pub trait Named {
    /// Each field, and its new value if it is named.
    fn named(&self) -> Vec<(&'static str, &Option<String>)>;

    /// What is changed where there is nothing yet.
    fn fresh() -> Option<Value> {
        None
    }
}

/// Carries out a command.
pub fn run<S: Args + Named>(
    kind: &Kind,
    client: &Client,
    command: &Command<S>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let key = kind.name();
    match command {
        Command::Info { json: true } => pretty(out, &Value::Array(client.list(kind.of)?)),
        Command::Info { json: false } => {
            let cells = (kind.row)(&client.object(kind.of, key)?);
            let mut lines = kind.columns.iter().zip(cells);
            Ok(lines.try_for_each(|((title, _), cell)| writeln!(out, "{title}: {cell}"))?)
        }
        Command::Inspect(form) => inspect(client, key, key, form, out),
        Command::Set(set) => {
            let stored = client.list(kind.of)?.into_iter().next();
            let mut settings = match stored.or_else(S::fresh) {
                Some(settings) => settings,
                None => return Err(Error::Refused(format!("{key} not found"))),
            };
            for (field, value) in set.named() {
                if let Some(value) = value {
                    settings[field] = json!(value);
                }
            }
            client.put(kind.of, key, &settings).map(drop)
        }
    }
}
