//! `netctl config`.

use std::io::Write;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::{
    commands::watch,
    connection::Connection,
    context::{Context, Contexts},
    error::Error,
    flags::{ListFlags, Server},
    output::{list::List, printable, table, text},
};

/// Commands for contexts.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a context from the connection flags, or change what they name; environment variables are not stored.
    SetContext {
        /// Name of the context.
        name: String,
    },
    /// Make a context the current one.
    UseContext {
        /// Name of the context.
        name: String,
    },
    /// List the contexts.
    GetContexts(ListFlags),
    /// Print the name of the current context.
    CurrentContext,
    /// Delete a context.
    DeleteContext {
        /// Name of the context.
        name: String,
    },
}

const COLUMNS: [table::Column<'_>; 3] =
    [("Current", "-------"), ("Name", "----"), ("Netmaster", "---------")];

/// Runs a command; `server` has the flags of the command line.
pub fn run(server: &Server, command: &Command, out: &mut dyn Write) -> Result<(), Error> {
    let mut all = Contexts::read()?;
    match command {
        Command::SetContext { name } if name.is_empty() => {
            Err(Error::Usage("the name of a context is empty".into()))
        }
        Command::SetContext { name } => {
            let done = if all.contexts.contains_key(name) { "changed" } else { "created" };
            let context = all.contexts.entry(name.clone()).or_default();
            merge(context, server)?;
            all.write()?;
            Ok(writeln!(out, "context {} {done}", printable(name))?)
        }
        Command::UseContext { name } => {
            all.find(name)?;
            all.current = Some(name.clone());
            all.write()?;
            Ok(writeln!(out, "current context: {}", printable(name))?)
        }
        Command::GetContexts(flags) => {
            watch::show(flags.watch, out, &|out| list(&Contexts::read()?, flags, out))
        }
        Command::CurrentContext => match &all.current {
            Some(name) => Ok(writeln!(out, "{}", printable(name))?),
            None => {
                Err(Error::Usage("no current context; set it with netctl config use-context NAME".into()))
            }
        },
        Command::DeleteContext { name } => {
            all.find(name)?;
            all.contexts.remove(name);
            if all.current.as_ref() == Some(name) {
                all.current = None;
            }
            all.write()?;
            Ok(writeln!(out, "context {} deleted", printable(name))?)
        }
    }
}

/// Takes over the flags that are present. Files are stored with absolute paths.
fn merge(context: &mut Context, server: &Server) -> Result<(), Error> {
    let new = Context::from(server);
    if !new.netmaster.is_empty() {
        context.netmaster = new.netmaster;
    }
    for (stored, file) in [
        (&mut context.cacert, new.cacert),
        (&mut context.cert, new.cert),
        (&mut context.key, new.key),
        (&mut context.token_file, new.token_file),
    ] {
        if let Some(file) = file {
            *stored = Some(std::path::absolute(&file).map_err(Error::file("find", &file))?);
        }
    }
    context.insecure = !server.verify && (context.insecure || new.insecure);
    if context.netmaster.is_empty() {
        return Err(Error::Usage("a new context requires --netmaster URL".into()));
    }
    Connection::try_from(&*context).map(drop)
}

fn list(all: &Contexts, flags: &ListFlags, out: &mut dyn Write) -> Result<(), Error> {
    let is_current = |name: &String| all.current.as_ref() == Some(name);
    let object = |(name, context): (&String, &Context)| {
        let mut object = json!({"name": name, "current": is_current(name)});
        if let (Value::Object(object), Value::Object(fields)) = (&mut object, json!(context)) {
            object.extend(fields);
        }
        object
    };
    let objects: Vec<Value> = all.contexts.iter().map(object).collect();
    let row = |(name, context): (&String, &Context)| {
        let mark = if is_current(name) { "*" } else { "" };
        vec![mark.to_owned(), name.clone(), context.netmaster.join(",")]
    };
    let rows: Vec<_> = all.contexts.iter().map(row).collect();
    let list = List {
        objects: &objects,
        name: &|object| text(object, "name"),
        table: &|out, _| Ok(table::write(out, &COLUMNS, &rows)?),
    };
    list.write(&flags.format(), out)
}
