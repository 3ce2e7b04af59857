//! Commands for settings: kinds with one object in the cluster, which has the name of its type.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    client::Client, commands::listing::inspect, error::Error, flags::InspectFlags, output, schema::Kind,
};

/// Commands for settings; `S` has the flags of `set`.
#[derive(Debug, Subcommand)]
pub enum SettingsCommand<S: Args> {
    /// Show the settings.
    Info {
        /// Print a JSON array.
        #[arg(long, short)]
        json: bool,
    },
    /// Show the settings and their operational state.
    Inspect(InspectFlags),
    /// Change the settings that flags name; the others keep their values.
    Set(S),
}

/// Flags of `set`.
pub trait SetFlags {
    /// Each field with its new value, if its flag is present.
    fn changes(&self) -> Vec<(&'static str, &Option<String>)>;

    /// Object to change if none is stored; without it, `set` fails then.
    fn initial() -> Option<Value> {
        None
    }
}

/// Runs a command.
pub fn run<S: Args + SetFlags>(
    kind: &Kind,
    client: &Client,
    command: &SettingsCommand<S>,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let key = kind.name();
    match command {
        SettingsCommand::Info { json: true } => {
            output::json(out, &Value::Array(client.list(kind.object_type)?))
        }
        SettingsCommand::Info { json: false } => {
            let stored = client.list(kind.object_type)?;
            // Nothing is stored before the first `set`.
            let Some(settings) = stored.first() else { return Ok(()) };
            let cells = (kind.row)(settings);
            let mut lines = kind.columns.iter().zip(cells);
            Ok(lines.try_for_each(|((title, _), cell)| writeln!(out, "{title}: {cell}"))?)
        }
        SettingsCommand::Inspect(flags) => inspect(client, key, key, flags, out),
        SettingsCommand::Set(flags) => {
            let stored = client.list(kind.object_type)?.into_iter().next();
            let mut settings = match stored.or_else(S::initial) {
                Some(settings) => settings,
                None => return Err(Error::Refused(format!("{key} not found"))),
            };
            for (field, value) in flags.changes() {
                if let Some(value) = value {
                    settings[field] = json!(value);
                }
            }
            client.put(kind.object_type, key, &settings).map(drop)
        }
    }
}
