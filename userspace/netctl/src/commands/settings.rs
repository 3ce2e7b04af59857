//! Commands for settings: kinds with one object in the cluster, which has the name of its type.

use std::io::Write;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    client::{Client, Precondition},
    commands::listing::inspect,
    error::Error,
    flags::InspectFlags,
    output::{self, printable},
    schema::Kind,
};

/// Limit of the attempts to change settings that other clients change at the same time.
const ATTEMPTS: u32 = 5;

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
            Ok(lines.try_for_each(|((title, _), cell)| writeln!(out, "{title}: {}", printable(&cell)))?)
        }
        SettingsCommand::Inspect(flags) => inspect(client, key, key, flags, out),
        SettingsCommand::Set(flags) => set(kind, client, flags),
    }
}

/// Changes the settings that flags name. What other clients change meanwhile is kept.
fn set<S: SetFlags>(kind: &Kind, client: &Client, flags: &S) -> Result<(), Error> {
    let key = kind.name();
    let mut attempt = 1;
    loop {
        let (mut settings, precondition) = match client.versioned(kind.object_type, key) {
            Err(Error::Refused(message)) if message == kind.not_found() => match S::initial() {
                Some(initial) => (initial, Precondition::Absent),
                None => return Err(Error::Refused(message)),
            },
            stored => stored?,
        };
        if !settings.is_object() {
            return Err(Error::Refused(format!("read {key}: expected a JSON object, got {settings}")));
        }
        for (field, value) in flags.changes() {
            if let Some(value) = value {
                settings[field] = json!(value);
            }
        }
        match client.put_if(kind.object_type, key, &settings, &precondition) {
            Err(Error::Conflict(_)) if attempt < ATTEMPTS => attempt += 1,
            done => return done.map(drop),
        }
    }
}
