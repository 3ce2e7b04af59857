//! `netctl version`.

use std::io::Write;

use crate::{Error, client::Client, listing::text};

/// The versions of this program and of netmaster.
pub fn show(client: &Client, out: &mut dyn Write) -> Result<(), Error> {
    writeln!(out, "Client Version:\nVersion: {}\n", env!("CARGO_PKG_VERSION"))?;
    let server = client.get("/version")?;
    writeln!(out, "Server Version:")?;
    for field in ["Version", "GitCommit", "BuildTime"] {
        writeln!(out, "{field}: {}", text(&server, field))?;
    }
    Ok(())
}
